"""The Lease as it is written and read, and what follows from it. Pure: no I/O, no clock.

The record is that of client-go (Kubernetes API, coordination.k8s.io/v1, Lease), so that candidates
written in Go and in Python can share a Lease. The times in it are for people: clocks of nodes
differ, and nobody decides anything by them. What counts is how long a process itself has not seen
the record change, by its own clock.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from webop.errors import ConfigurationError

_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_MAX_NAME = 253  # RFC 1123

_MARGIN_SHARE = 0.05  # of the lease: for clocks that run at different speeds
_MIN_MARGIN = 0.25  # seconds; for ending the process if it must be
_LAST_MOMENTS = 1.0  # seconds; for what is cancelled to clean up


class LeadershipOptions(Protocol):
    """What is set by the user; ``settings.leadership`` satisfies it. Times are in seconds."""

    lease_name: str | None  # the name of the Lease
    lease_duration: float  # how long the others wait after the last renewal that they have seen
    renew_deadline: float  # how long the holder goes on after the last renewal
    retry_period: float  # the pause between attempts


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """The times of a lease, in seconds; all are counted from when a renewal was sent.

    Attributes:
        duration: as it is written into the Lease, which has room for whole seconds only.
        deadline: nothing new is begun.
        cancellation: what is still being done is cancelled.
        end: no step is taken any more; a bit before the others may take over.
        period: between attempts.
        request_timeout: for one attempt.
    """

    duration: int
    deadline: float
    cancellation: float
    end: float
    period: float
    request_timeout: float


def build_times(options: LeadershipOptions) -> LeaseTimes:
    """Return the times that follow from the settings.

    Raises:
        ConfigurationError: they contradict each other, or the name is not one for a Lease.
    """
    _check_name(options.lease_name or "")
    duration = math.ceil(options.lease_duration)
    end = duration - max(_MARGIN_SHARE * duration, _MIN_MARGIN)
    deadline, period = options.renew_deadline, options.retry_period
    if deadline >= end:
        raise ConfigurationError(
            f"settings.leadership.renew_deadline is {deadline:g} s and must be less than "
            f"{end:g} s: lease_duration is {duration} s, less a margin for clocks that differ. "
            "Lower it, or raise lease_duration."
        )
    if period >= deadline:
        raise ConfigurationError(
            f"settings.leadership.retry_period is {period:g} s and must be less than "
            f"renew_deadline, {deadline:g} s: no renewal would be in time."
        )
    return LeaseTimes(
        duration=duration,
        deadline=deadline,
        cancellation=end - min(_LAST_MOMENTS, (end - deadline) / 2),
        end=end,
        period=period,
        request_timeout=deadline / 2,
    )


@dataclass(frozen=True, slots=True)
class Record:
    """What a Lease says.

    Attributes:
        holder: who has it; empty if nobody has.
        duration: in seconds; None if it is not said.
        acquired_at: when the holder has got it, as it is written.
        renewed_at: when it was renewed, as it is written.
    """

    holder: str
    duration: float | None
    acquired_at: str
    renewed_at: str

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> Record:
        """Read a Lease, whoever has written it; what is missing or odd is as good as absent."""
        spec = raw.get("spec") or {}
        duration = spec.get("leaseDurationSeconds")
        return cls(
            holder=str(spec.get("holderIdentity") or ""),
            duration=float(duration) if isinstance(duration, int | float) else None,
            acquired_at=str(spec.get("acquireTime") or ""),
            renewed_at=str(spec.get("renewTime") or ""),
        )

    def is_of_term(self, other: Record | None) -> bool:
        """Tell whether both are of the same holder, without a break in between.

        The same identity alone does not do: a restarted process can have it, too.
        """
        return other is not None and (self.holder, self.acquired_at) == (
            other.holder,
            other.acquired_at,
        )

    def __str__(self) -> str:
        since = f" since {self.acquired_at}" if self.acquired_at else ""
        return f"held by {self.holder!r}{since}" if self.holder else "not held"


NOTHING = Record(holder="", duration=None, acquired_at="", renewed_at="")


@dataclass(frozen=True, slots=True)
class Observation:
    """The newest known state of a Lease.

    Attributes:
        raw: the object; None if there is none.
        record: what it says.
        free_at: from when on it can be taken, by the clock of this process.
    """

    raw: dict[str, Any] | None = None
    record: Record = NOTHING
    free_at: float = -math.inf


def observe(
    before: Observation, raw: dict[str, Any] | None, now: float, duration: float
) -> Observation:
    """Return what is known when an object is seen, or its absence.

    One that vanishes can have been deleted while its holder is at work: it counts for as long as
    if it was still there.

    The duration is assumed if the object does not say.
    """
    if raw is None:
        return Observation(None, before.record, before.free_at)
    record = Record.parse(raw)
    if not record.holder:
        return Observation(raw, record)
    if record == before.record:
        return Observation(raw, record, before.free_at)
    return Observation(raw, record, now + (record.duration or duration))


def claim(
    name: str, raw: Mapping[str, Any] | None, holder: str, duration: int, now: dt.datetime
) -> dict[str, Any]:
    """Return a Lease for a new holder; if there is one already, only if it has not changed."""
    moment = format_time(now)
    count = -1 if raw is None else (raw.get("spec") or {}).get("leaseTransitions") or 0
    return _write(
        raw or {"metadata": {"name": name}},
        holderIdentity=holder,
        leaseDurationSeconds=duration,
        acquireTime=moment,
        renewTime=moment,
        leaseTransitions=count + 1,
    )


def renew(raw: Mapping[str, Any], duration: int, now: dt.datetime) -> dict[str, Any]:
    """Return a Lease that is renewed by its holder."""
    return _write(raw, leaseDurationSeconds=duration, renewTime=format_time(now))


def release(raw: Mapping[str, Any], now: dt.datetime) -> dict[str, Any]:
    """Return a Lease that is given up by its holder: others can take it at once."""
    moment = format_time(now)
    return _write(
        raw, holderIdentity="", leaseDurationSeconds=1, acquireTime=moment, renewTime=moment
    )


def detach(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return a Lease to be created anew, after somebody has deleted it."""
    return {**raw, "metadata": {"name": raw["metadata"]["name"]}}


def format_time(moment: dt.datetime) -> str:
    """Return a time as Kubernetes writes it in Leases (meta/v1, MicroTime)."""
    return moment.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _write(raw: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
    """Return the object with fields changed; what others keep in it is not touched."""
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        **raw,
        "spec": {**(raw.get("spec") or {}), **fields},
    }


def _check_name(name: str) -> None:
    if len(name) > _MAX_NAME or not _SUBDOMAIN.fullmatch(name):
        raise ConfigurationError(
            "settings.leadership.lease_name (or --lease) must have 1 to 253 characters: lower-case "
            f"letters, digits, dashes and dots, got {name!r}."
        )


def is_newer(version: object, raw: Mapping[str, Any] | None) -> bool:
    """Tell whether a version is later than that of an object; what is no number is believed."""
    known = None if raw is None else raw["metadata"].get("resourceVersion")
    return _parse_version(version) > _parse_version(known, -1)


def _parse_version(version: object, default: float = math.inf) -> float:
    text = str(version or "")
    return int(text) if text.isdecimal() and len(text) < 100 else default
