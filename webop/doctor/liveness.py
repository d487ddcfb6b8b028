"""Whether somebody keeps a configuration: what the marks of the replicas tell. Pure."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence

from webop.admission.managed.marks import Mark
from webop.doctor.findings import Finding, approve, complain, note, warn
from webop.doctor.records import Configuration, has_required
from webop.doctor.report import describe_names, describe_seconds

_SUBJECT = "replicas"
_LONGEST_RENEWAL = 60.0  # seconds; marks are renewed three times in a lifetime, at least so often


def check_replicas(found: Configuration, now: dt.datetime) -> Iterator[Finding]:
    """Check that the records are kept by live replicas, all of them by all alike.

    Args:
        found: the configuration.
        now: the time by the clock of the API server.
    """
    alive = [mark for mark in found.marks if mark.is_alive(now)]
    if not alive:
        if found.records:
            yield _describe_abandoned(found, now)
        elif found.marks:
            yield note(_SUBJECT, "none, and no webhooks either", f"Remove it: {found.removal}")
        return
    yield _describe_alive(alive)
    yield from _check_silence(alive, now)
    yield from _check_orphans(found, alive)


def _describe_abandoned(found: Configuration, now: dt.datetime) -> Finding:
    if not found.marks:
        return warn(
            _SUBJECT,
            "none keeps it: it is made by hand, or was left by an operator that has ended",
            f"See below whether it is served. If it is not to be: {found.removal}",
        )
    last = max(mark.renewed for mark in found.marks).astimezone(dt.UTC)
    age = describe_seconds((now - last).total_seconds())
    is_required = has_required(found.records)
    effect = "objects are refused (Fail)" if is_required else "nothing is checked (Ignore)"
    return complain(
        _SUBJECT,
        f"it is kept by nobody since {last:%Y-%m-%d %H:%M:%S} UTC ({age} ago): {effect}",
        f"Start the operator; or, if there is to be none any more: {found.removal}",
        is_failure=is_required,
    )


def _describe_alive(alive: Sequence[Mark]) -> Finding:
    names = describe_names(sorted(mark.identity for mark in alive))
    offers = {frozenset(mark.served.items()) for mark in alive}
    if len(offers) > 1:
        return note(
            _SUBJECT,
            f"{len(alive)} alive, with different handlers: a rollout is under way ({names})",
        )
    return approve(_SUBJECT, f"{len(alive)} alive ({names})")


def _check_silence(alive: Sequence[Mark], now: dt.datetime) -> Iterator[Finding]:
    for mark in alive:
        age = (now - mark.renewed).total_seconds()
        if age > 2 * min(mark.lifetime / 3, _LONGEST_RENEWAL):
            yield warn(
                _SUBJECT,
                f"{mark.identity} was heard of {describe_seconds(age)} ago, which is too long",
                "See whether it still runs, and what its log says about the API server.",
            )


def _check_orphans(found: Configuration, alive: Sequence[Mark]) -> Iterator[Finding]:
    served = {name for mark in alive for name in mark.served}
    present = {record.name for record in found.records}
    orphans = [record for record in found.records if record.name not in served]
    if orphans:
        names = describe_names(record.name for record in orphans)
        yield complain(
            "orphans",
            f"served by no live replica: {names}",
            "Wait a minute for the replicas to put it right, else restart them.",
            is_failure=has_required(orphans),
        )
    if waiting := sorted(served - present):
        yield note(
            "waiting", f"not in force before all replicas serve it: {describe_names(waiting)}"
        )
