"""What replicas decide about the webhooks of their operator, by their records."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from tests.kit.rows import rows
from webop.admission.configurations.replica_agreement import (
    Attendance,
    Decision,
    Notes,
    Offer,
    ReplicaRecord,
    build_bundle,
    build_offer,
    decide,
    decode_record,
    is_same,
    parse_bundle,
)
from webop.handlers.model import WebhookType

Json = dict[str, Any]
V, M = WebhookType.VALIDATING, WebhookType.MUTATING
HERE, THERE = "https://here", "https://there"


def build_webhook(name: str, url: str = HERE, ca: str = "", **fields: Any) -> Json:
    config = {"url": f"{url}/{name}", **build_bundle([pem for pem in [build_pem(ca)] if ca])}
    return {"name": f"{name}.x", "rules": [], "clientConfig": config, **fields}


def build_pem(name: str) -> str:
    return f"-----BEGIN CERTIFICATE-----\n{name}\n-----END CERTIFICATE-----"


def offer(names: str, url: str = HERE, ca: str = "", persistent: str = "", **more: Any) -> Offer:
    """Return the offer of a replica: ``x`` validates, ``~x`` mutates."""
    is_in_pod = more.pop("is_in_pod", False)
    webhooks = {
        V: [build_webhook(n, url, ca, **more) for n in names.split() if n[0] != "~"],
        M: [build_webhook(n[1:], url, ca, **more) for n in names.split() if n[0] == "~"],
    }
    kept = {
        (kind, w["name"]): w["name"][:-2] in persistent for kind in webhooks for w in webhooks[kind]
    }
    config = {"url": url, **build_bundle([build_pem(ca)])} if ca else {"url": url}
    return build_offer(webhooks, kept, config, is_in_pod=is_in_pod)


def record(one: Offer, since: int = 1, **fields: Any) -> ReplicaRecord:
    values: Json = {"identity": f"{since}", "since": f"2026-11-26T14:{since:02}", **fields}
    return dataclasses.replace(one.record, **values)


def describe(decision: Decision) -> tuple[str, set[str], set[str]]:
    """Return the names, the addresses and the CAs that were decided."""
    found = [(kind, webhook) for kind in WebhookType for webhook in decision.webhooks[kind]]
    names = [f"{'~' * (kind is M)}{w['name'].removesuffix('.x')}" for kind, w in found]
    configs = [webhook["clientConfig"] for _, webhook in found]
    places = {config["url"].rpartition("/")[0] for config in configs}
    cas = {pem.split()[2] for config in configs for pem in parse_bundle(config.get("caBundle"))}
    return " ".join(sorted(names)), places, cas


OLD, NEW = offer("same old ~m", ca="a"), offer("same new ~m", ca="b")
NONE = offer("").webhooks


@rows(
    ("found", "others", "own", "since", "expected"),
    [
        (NONE, [], OLD, 1, ("old same ~m", {HERE}, {"a"})),  # the first replica
        (OLD.webhooks, [record(OLD)], NEW, 2, ("old same ~m", {HERE}, {"a", "b"})),  # in a rollout
        (OLD.webhooks, [record(NEW, 2)], OLD, 1, ("old same ~m", {HERE}, {"a", "b"})),  # both
        (OLD.webhooks, [record(OLD).retire()], NEW, 2, ("new same ~m", {HERE}, {"a", "b"})),
        (NONE, [record(OLD)], NEW, 2, ("", set(), set())),  # nobody has agreed to anything yet
        (OLD.webhooks, [record(NEW, 2)], NEW, 3, ("new same ~m", {HERE}, {"b"})),
        (OLD.webhooks, [record(OLD, digest="")], OLD, 2, ("old same ~m", {HERE}, {"a"})),
        (OLD.webhooks, [record(NEW, 2, digest="")], NEW, 3, ("old same ~m", {HERE}, {"b"})),
    ],
)
def test_webhooks_change_when_all_replicas_that_do_not_retire_agree(
    found: Any, others: list[ReplicaRecord], own: Offer, since: int, expected: Any
) -> None:
    assert describe(decide(found, others, own, record(own, since))) == expected


UNREADY, STAYED = {"is_ready": False}, offer("same").webhooks


@rows(
    ("found", "others", "own", "mine", "names"),
    [
        (NONE, [], NEW, UNREADY, "new same ~m"),  # the very first start
        (OLD.webhooks, [record(OLD)], NEW, UNREADY, "old same ~m"),
        (OLD.webhooks, [record(OLD).retire()], NEW, UNREADY, "old same ~m"),
        (OLD.webhooks, [], NEW, UNREADY, "old same ~m"),
        (OLD.webhooks, [], NEW, {}, "new same ~m"),
        (STAYED, [], NEW, UNREADY, "new same ~m"),  # the persistent ones have stayed
        (NEW.webhooks, [record(NEW, 2, is_ready=False)], OLD, {}, "old same ~m"),  # goes back
    ],
)
def test_a_version_that_is_not_ready_changes_nothing(
    found: Any, others: list[ReplicaRecord], own: Offer, mine: Json, names: str
) -> None:
    assert describe(decide(found, others, own, record(own, 3, **mine)))[0] == names


DAMAGED: Any = ([[{"name": "x"}], []], [[{"clientConfig": {}}], []], [["x"], []], [[], {}], 5, [])


@rows("which", [V, M])
def test_what_somebody_deletes_or_edits_in_a_rollout_is_repaired(which: WebhookType) -> None:
    one, two = offer("same old ~m"), offer("same new ~m")
    joined = decide(
        one.webhooks, [record(one)], two, record(two, 2), notes=Notes(one.record.digest)
    )
    edited = [{**webhook, "failurePolicy": "Ignore"} for webhook in one.webhooks[which]]
    for changed in ([], edited):
        found = {**one.webhooks, which: changed}
        waiting = decide(found, [record(one)], two, record(two, 2), notes=joined.notes)
        assert waiting.webhooks[which] == changed
        repaired = decide(found, [record(two, 2)], one, record(one), notes=waiting.notes)
        assert repaired.webhooks == one.webhooks
        assert repaired.notes == joined.notes


def test_one_that_retires_puts_the_webhooks_that_wait_into_force() -> None:
    joined = decide(OLD.webhooks, [record(OLD)], NEW, record(NEW, 2))
    assert describe(joined)[0] == "old same ~m"
    checked = decide(joined.webhooks, [record(NEW, 2)], OLD, record(OLD), notes=joined.notes)
    assert checked.notes.pending == joined.notes.pending != ""
    retiring = record(OLD).retire()
    retired = decide(joined.webhooks, [record(NEW, 2)], OLD, retiring, notes=joined.notes)
    assert describe(retired) == ("new same ~m", {HERE}, {"a", "b"})
    assert retired.notes == Notes(NEW.record.digest)
    # The new ones do it at their next check.
    for broken in ("x", joined.notes.pending[:-9], "", *map(json.dumps, DAMAGED)):
        notes = Notes(OLD.record.digest, broken)
        kept = decide(joined.webhooks, [record(NEW, 2)], OLD, retiring, notes=notes)
        assert describe(kept)[0] == "old same ~m"


def test_a_replica_that_has_taken_over_decides_alone_until_it_leaves() -> None:
    boss = offer("same", THERE, ca="c")
    taken = decide(OLD.webhooks, [record(OLD)], boss, record(boss, 2))
    assert describe(taken) == ("same", {THERE}, {"a", "c"})
    kept = decide(taken.webhooks, [record(boss, 2)], OLD, record(OLD))
    assert describe(kept) == describe(taken)
    assert not kept.is_own
    assert kept.newest == record(boss, 2)
    left = decide(taken.webhooks, [record(OLD)], boss, None)
    assert describe(left) == ("same", {HERE}, {"a"})
    assert describe(decide(left.webhooks, [], OLD, record(OLD))) == ("old same ~m", {HERE}, {"a"})


@rows(
    ("others", "is_final", "names"),
    [
        ([], True, "stays"),
        ([], False, "goes stays"),  # nobody has asked for the stop
        ([record(OLD).retire()], True, "goes stays"),  # it withdraws later, and then decides
        ([ReplicaRecord(identity="unreadable")], True, "goes stays"),
        ([record(NEW)], True, "goes stays"),
    ],
)
def test_the_last_one_takes_all_but_the_persistent_webhooks_along_if_it_was_asked_to_stop(
    others: list[ReplicaRecord], is_final: bool, names: str
) -> None:
    own = offer("stays goes", persistent="stays")
    notes = decide(NONE, others, own, record(own)).notes
    decision = decide(own.webhooks, others, own, None, notes=notes, is_final=is_final)
    assert describe(decision)[0] == names


def test_the_webhooks_of_pods_are_removed_by_pods_only() -> None:
    pod, copy = offer("a b", persistent="a", is_in_pod=True), offer("a b")
    served = decide(NONE, [], pod, record(pod))
    assert served.notes.has_pods
    taken = decide(served.webhooks, [], copy, record(copy), notes=served.notes)
    assert taken.notes.has_pods
    left = decide(taken.webhooks, [], copy, None, notes=taken.notes, is_final=True)
    assert (describe(left)[0], left.notes) == ("a b", Notes(has_pods=True))
    # Another version of the operator knows nothing of webhooks that it does not have.
    other, none = offer("b", is_in_pod=True), offer("", is_in_pod=True)
    for one, names in ((pod, "a"), (other, "a"), (none, "a b")):
        left = decide(served.webhooks, [], one, None, notes=Notes(), is_final=True)
        assert (describe(left)[0], left.notes.has_pods) == (names, True)
    goes = offer("a b", persistent="", is_in_pod=True)
    left = decide(served.webhooks, [], goes, None, notes=served.notes, is_final=True)
    assert (describe(left)[0], left.notes) == ("", Notes())


def test_a_digest_is_of_the_webhooks_and_their_order_not_of_addresses_and_authorities() -> None:
    filled: Json = {"failurePolicy": "Fail", "timeoutSeconds": 10, "objectSelector": {}}
    assert offer("x y").record.digest == offer("x y", THERE, ca="a", **filled).record.digest
    others = ("y x", "x", "x ~y", "x z")
    assert len({offer(names).record.digest for names in others} | {offer("x y").record.digest}) == 5
    assert offer("x", timeoutSeconds=5).record.digest != offer("x").record.digest


@rows(
    ("filled", "is_equal"),
    [
        ({"failurePolicy": "Fail", "namespaceSelector": {}, "timeoutSeconds": 10}, True),
        ({"failurePolicy": "Ignore"}, False),
        ({"clientConfig": {"url": f"{THERE}/x"}}, False),
        ({"clientConfig": {"url": f"{HERE}/x", "caBundle": "YQ=="}}, False),
    ],
)
def test_what_the_api_server_fills_in_is_no_change(filled: Json, is_equal: bool) -> None:
    webhook = build_webhook("x")
    assert is_same([webhook], [{**webhook, **filled}]) is is_equal


def test_replicas_are_alive_until_their_records_have_not_changed_in_three_renewals() -> None:
    one, two = Attendance(), record(OLD, lifetime=180.0)

    def is_alive(renewed: str) -> bool:
        text = ReplicaRecord(identity="2", lifetime=two.lifetime, renewed=renewed).encode()
        return bool(one.select({"k": text}, renewal=60.0))

    assert is_alive("1")
    for number in range(100):  # the API server is away: nobody can renew, and this one cannot
        assert is_alive("1"), number
    for _ in range(3):
        one.renewals += 1
        assert is_alive("1")
    one.renewals += 1
    assert not is_alive("1")
    assert is_alive("2")


# ---- records


NOW, NAMED = "2026-11-21T12:30:15.250+00:00", {"name": "n", "namespace": "ns"}


def build_record(**fields: Any) -> ReplicaRecord:
    times = {"since": NOW, "renewed": NOW, "lifetime": 180.0}
    return dataclasses.replace(record(OLD), **{**times, "address": {"url": HERE}, **fields})


def test_a_record_is_read_as_it_was_written() -> None:
    assert decode_record(build_record().encode()) == build_record()


def damage(old: str, new: str) -> str:
    return build_record().encode().replace(old, new)


@rows(
    "text",
    [
        *("", "{", "[]", "{}"),
        *(damage("180.0", number) for number in ('"long"', '"nan"', '"-inf"', "1e999")),
        damage('"address"', '"others"'),
        build_record(address={"service": "x"}).encode(),
        *(build_record(since=time).encode() for time in ("x", "9999-12-31T23:59:59.999+00:00")),
    ],
)
def test_what_is_not_a_record_counts_as_a_replica_that_has_retired(text: str) -> None:
    assert decode_record(text).is_retired
