"""What is in a configuration that replicas share: planned by table, without a cluster."""

from __future__ import annotations

import dataclasses
import datetime as dt
import itertools

import pytest

from tests.admission.planning import NOW, SERVICE, Actor, Cluster, Json, build_webhook
from webop.admission.managed.replica_records import Served
from webop.admission.managed.replicas import build_patch, build_record, is_same, plan_presence


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def test_equal_replicas_come_and_go_and_only_the_last_one_takes_the_webhooks_along(
    cluster: Cluster,
) -> None:
    x, y = build_webhook("x"), build_webhook("y")
    actors = [Actor(cluster, f"r{number}", x, y) for number in range(3)]
    for actor in actors:
        actor.look()
        assert cluster.names == "x y"
    before = cluster.webhooks
    actors[0].leave()
    actors[2].leave()
    assert cluster.webhooks == before
    actors[1].leave()
    assert cluster.names == ""
    assert cluster.body
    assert cluster.body["metadata"]["annotations"] == {}


def test_a_look_at_what_is_as_it_should_be_writes_nothing_until_the_mark_is_to_be_renewed(
    cluster: Cluster,
) -> None:
    actors = [Actor(cluster, f"r{number}", build_webhook("x")) for number in range(3)]
    for actor in actors:
        actor.look()
    cluster.writes = 0
    for actor in actors:
        actor.look()
    assert cluster.writes == 0
    cluster.now += dt.timedelta(seconds=40)
    webhooks = cluster.webhooks
    actors[0].look()
    assert cluster.writes == 1
    assert cluster.webhooks == webhooks


def test_a_renewal_leaves_the_webhooks_out_of_the_patch(cluster: Cluster) -> None:
    actor = Actor(cluster, "r", build_webhook("x"))
    actor.look()
    cluster.now += dt.timedelta(seconds=60)
    found = cluster.find()
    patch = build_patch(found, plan_presence(found, {}, actor.key, actor.record, cluster.now))
    assert patch
    assert patch.keys() == {"metadata"}


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_rollout_that_renames_a_handler_never_leaves_objects_unchecked(
    cluster: Cluster, is_killed: bool
) -> None:
    olds = [Actor(cluster, f"old{n}", build_webhook("same"), build_webhook("old")) for n in (1, 2)]
    for old in olds:
        old.look()
    news = [Actor(cluster, f"new{n}", build_webhook("same"), build_webhook("new")) for n in (1, 2)]
    for new in news:
        assert new.look().deferred == {"new.x"}
        assert cluster.names == "same old"
    olds[0].leave()
    assert cluster.names == "same old"
    if is_killed:  # and everybody else is alive
        cluster.now += dt.timedelta(seconds=120)
        assert news[1].look().deferred == {"new.x"}
        cluster.now += dt.timedelta(seconds=60)
        news[0].look()
    else:
        olds[1].leave()
    assert cluster.names == "same new"
    for new in news:
        assert not new.look().deferred
    assert not [record for record in cluster.find().records.values() if record.definitions]


def test_one_that_retires_hands_its_webhooks_over_and_is_trusted_until_it_leaves(
    cluster: Cluster,
) -> None:
    old = Actor(cluster, "old", build_webhook("same"), build_webhook("old"), ca="A")
    old.look()
    new = Actor(cluster, "new", build_webhook("same"), build_webhook("new"), ca="B")
    assert new.look().deferred == {"new.x"}
    assert cluster.names == "same old"
    old.retire()
    assert cluster.names == "same new"
    assert cluster.trusted == {("B", "A")}
    assert not new.look().deferred
    assert not old.retire().deferred
    assert cluster.trusted == {("B", "A")}
    old.leave()
    assert cluster.names == "same new"
    assert cluster.trusted == {("B",)}


def test_an_older_replica_that_is_started_again_is_met_by_what_is_in_force(
    cluster: Cluster,
) -> None:
    new = Actor(cluster, "new", build_webhook("new"))
    new.look()
    again = Actor(cluster, "old", build_webhook("old"))
    assert again.look().deferred == {"old.x"}
    assert cluster.names == "new"


def test_a_new_resource_of_a_webhook_waits_for_those_that_would_not_know_it(
    cluster: Cluster,
) -> None:
    old, new = Actor(cluster, "old", build_webhook("x", "a")), None
    old.look()
    new = Actor(cluster, "new", build_webhook("x", "ab", timeoutSeconds=5))
    assert new.look().deferred == {"x.x"}
    assert cluster.get_targets("x") == "a"
    assert cluster.webhooks["x"]["timeoutSeconds"] == 5
    old.look()
    assert cluster.webhooks["x"]["timeoutSeconds"] == 5
    old.leave()
    assert cluster.get_targets("x") == "ab"
    assert not new.look().deferred


def test_a_resource_stays_as_long_as_any_replica_at_the_address_judges_it(
    cluster: Cluster,
) -> None:
    olds = [Actor(cluster, f"old{n}", build_webhook("x", "ab")) for n in (1, 2)]
    for old in olds:
        old.look()
    new = Actor(cluster, "new", build_webhook("x", "a", timeoutSeconds=5))
    assert not new.look().deferred
    assert cluster.get_targets("x") == "ab"
    assert cluster.webhooks["x"]["timeoutSeconds"] == 5
    olds[0].look()
    olds[0].leave()
    assert cluster.get_targets("x") == "ab"
    olds[1].leave()
    assert cluster.get_targets("x") == "a"


def test_replicas_with_other_addresses_need_not_be_waited_for(cluster: Cluster) -> None:
    old = Actor(cluster, "old", build_webhook("x", "a"), build_webhook("old"), url="https://1")
    old.look()
    new = Actor(cluster, "new", build_webhook("x", "ab"), build_webhook("new"), url="https://2")
    assert not new.look().deferred
    assert cluster.urls == {"x": "https://2/x", "new": "https://2/new", "old": "https://1/old"}
    assert cluster.get_targets("x") == "ab"
    old.look()
    new.leave()
    assert cluster.urls == {"x": "https://1/x", "old": "https://1/old"}
    assert cluster.get_targets("x") == "a"


def test_all_authorities_of_live_replicas_are_trusted_without_repetitions(
    cluster: Cluster,
) -> None:
    first = Actor(cluster, "1", build_webhook("x"), build_webhook("y"), ca="one")
    second = Actor(cluster, "2", build_webhook("x"), ca="two")
    second.since = NOW + dt.timedelta(seconds=1)
    public = Actor(cluster, "3", build_webhook("x"))
    first.look()
    assert cluster.trusted == {("one",)}
    second.look()
    public.look()
    assert cluster.trusted == {("two", "one")}
    first.look()
    assert cluster.trusted == {("two", "one")}
    second.leave()
    assert cluster.trusted == {("one",)}
    first.leave()
    assert cluster.trusted == {()}
    assert "caBundle" not in cluster.webhooks["x"]["clientConfig"]


def test_an_authority_that_changes_is_changed_for_all(cluster: Cluster) -> None:
    first = Actor(cluster, "1", build_webhook("x"), ca="one")
    second = Actor(cluster, "2", build_webhook("x"), ca="one")
    first.look()
    second.look()
    first.ca = "new"
    first.look()
    assert {frozenset(names) for names in cluster.trusted} == {frozenset({"one", "new"})}
    second.ca = "new"
    second.look()
    assert cluster.trusted == {("new",)}


def test_a_replica_that_is_not_heard_of_is_gone_and_comes_back(cluster: Cluster) -> None:
    one = Actor(cluster, "1", build_webhook("x"), build_webhook("one"), ca="one")
    two = Actor(cluster, "2", build_webhook("x"), ca="two")
    one.look()
    two.look()
    assert cluster.names == "x one"
    cluster.now += dt.timedelta(seconds=100)
    two.look()
    assert cluster.names == "x one"
    cluster.now += dt.timedelta(seconds=100)
    two.look()
    assert cluster.names == "x"
    assert cluster.trusted == {("two",)}
    assert list(cluster.find().records) == [two.key]
    one.look()
    assert {frozenset(names) for names in cluster.trusted} == {frozenset({"one", "two"})}
    two.leave()
    assert cluster.names == "x one"


def test_the_last_live_one_takes_the_webhooks_of_dead_ones_along(cluster: Cluster) -> None:
    one, two = (Actor(cluster, name, build_webhook("x")) for name in "12")
    one.look()
    two.look()
    cluster.now += dt.timedelta(seconds=170)
    two.look()
    cluster.now += dt.timedelta(seconds=20)
    two.leave()
    assert cluster.names == ""
    assert not cluster.find().records
    assert not cluster.find().stale


def test_what_is_not_of_a_live_replica_is_overwritten(cluster: Cluster) -> None:
    foreign = {**build_webhook("x", "z"), "clientConfig": {"url": "https://elsewhere/y"}}
    other = {**build_webhook("other"), "clientConfig": {"service": {"name": "n", "path": "/"}}}
    cluster.body = {"metadata": {"resourceVersion": "0"}, "webhooks": [other, foreign]}
    Actor(cluster, "r", build_webhook("x"), build_webhook("y")).look()
    assert cluster.names == "x y"
    assert cluster.urls["x"] == f"{SERVICE}/x"
    assert cluster.get_targets("x") == "a"


def test_broken_marks_are_removed_and_other_annotations_are_not(cluster: Cluster) -> None:
    annotations = {"replica.webop.dev/x": "{}", "replica": "kept"}
    cluster.body = {"metadata": {"resourceVersion": "0", "annotations": annotations}}
    cluster.body["webhooks"] = []
    actor = Actor(cluster, "r", build_webhook("x"))
    actor.look()
    assert cluster.body["metadata"]["annotations"].keys() == {"replica", actor.key}
    actor.leave()
    assert cluster.body["metadata"]["annotations"] == {"replica": "kept"}


def test_persistent_webhooks_stay_behind_the_last_one_and_go_with_their_handlers(
    cluster: Cluster,
) -> None:
    webhooks = build_webhook("stays"), build_webhook("goes"), build_webhook("late")
    one = Actor(cluster, "1", *webhooks, persistent=("stays", "late"))
    two = Actor(cluster, "2", *webhooks, persistent=("stays", "late"))
    one.look()
    two.look()
    one.leave()
    assert cluster.names == "stays goes late"
    two.leave()
    assert cluster.names == "stays late"
    Actor(cluster, "3", build_webhook("late")).look()
    assert cluster.names == "late"


def test_webhooks_edited_by_hand_are_put_right_by_the_next_who_looks(cluster: Cluster) -> None:
    x, y = build_webhook("x"), build_webhook("y", failurePolicy="Fail")
    one, two = Actor(cluster, "1", x, y), Actor(cluster, "2", x, y)
    one.look()
    two.look()
    body = cluster.body
    assert body
    (edited,) = (w for w in body["webhooks"] if w["name"] == "y.x")
    body["webhooks"] = [{**edited, "failurePolicy": "Ignore"}]
    one.look()
    assert cluster.names == "x y"  # what is gone is put back by anybody
    two.look()
    assert cluster.webhooks["y"]["failurePolicy"] == "Fail"  # by the newest one
    body["metadata"].pop("annotations")
    body["webhooks"] = []
    two.look()
    one.look()
    assert cluster.names == "x y"
    assert len(cluster.find().records) == 2


def test_a_replica_that_is_only_in_the_other_configuration_serves_nothing_here(
    cluster: Cluster,
) -> None:
    old = Actor(Cluster(), "old", build_webhook("x"))
    records = old.look().records
    new = Actor(cluster, "new", build_webhook("x"))
    new.elsewhere = records
    assert new.look().deferred == {"x.x"}
    assert cluster.names == ""
    new.elsewhere = {
        key: dataclasses.replace(m, address={"url": "o"}) for key, m in records.items()
    }
    assert not new.look().deferred
    assert cluster.names == "x"
    new.elsewhere = {}
    assert not new.look().deferred


def test_webhooks_stay_for_one_that_has_retired_until_it_leaves(cluster: Cluster) -> None:
    actors = [Actor(cluster, n, build_webhook("x"), persistent=("x",)) for n in ("one", "two")]
    for actor in actors:
        actor.look()
    actors[0].retire()
    actors[1].leave()
    assert cluster.names == "x"
    actors[0].leave()
    assert cluster.names == "x"


def test_one_that_was_cut_off_in_its_withdrawal_holds_nothing_up(cluster: Cluster) -> None:
    old = Actor(Cluster(), "old", build_webhook("x"))
    records = old.look().records
    new = Actor(cluster, "new", build_webhook("x"))
    new.elsewhere = {
        key: dataclasses.replace(record, is_in_both=True) for key, record in records.items()
    }
    assert not new.look().deferred
    assert cluster.names == "x"


def test_the_webhooks_of_the_last_one_stay_for_one_that_is_about_to_come(
    cluster: Cluster,
) -> None:
    old = Actor(cluster, "old", build_webhook("x"))
    old.look()
    old.elsewhere = {
        **old.look().records,
        **Actor(Cluster(), "new", build_webhook("y")).look().records,
    }
    old.leave()
    assert cluster.names == "x"
    assert not cluster.find().records
    new = Actor(cluster, "new", build_webhook("x"))
    new.look()
    new.leave()
    assert cluster.names == ""


def test_one_whose_path_has_changed_waits_as_a_new_one_does(cluster: Cluster) -> None:
    old = Actor(cluster, "old", build_webhook("x"))
    old.look()
    new = Actor(cluster, "new")
    webhook = {**build_webhook("x"), "clientConfig": {"url": f"{SERVICE}/typed/x"}}
    record = build_record(
        [webhook], {"url": SERVICE}, identity="new", since=NOW, renewed=NOW, lifetime=180
    )
    found = cluster.find()
    cluster.apply(found, plan_presence(found, {}, new.key, record, cluster.now))
    assert cluster.urls == {"x": f"{SERVICE}/x"}
    old.leave()
    assert cluster.urls == {"x": f"{SERVICE}/typed/x"}


def test_all_replicas_come_to_the_same_in_whatever_order_they_look() -> None:
    contents = [
        (build_webhook("a"), build_webhook("b", "ab")),
        (build_webhook("b", "bc"), build_webhook("a"), build_webhook("c")),
        (build_webhook("c"), build_webhook("a", "ab")),
    ]
    results = []
    for order in itertools.permutations(range(3)):
        cluster = Cluster()
        actors = [
            Actor(cluster, f"r{n}", *contents[n], url=f"https://{n % 2}", ca=f"ca{n}")
            for n in range(3)
        ]
        for _ in range(3):
            for number in order:
                actors[number].look()
        cluster.writes = 0
        for actor in actors:
            actor.look()
        assert cluster.writes == 0
        results.append((cluster.urls, cluster.trusted))
    assert all(trusted == results[0][1] for _, trusted in results)
    assert all(urls == results[0][0] for urls, _ in results)


@pytest.mark.parametrize(
    ("filled", "is_equal"),
    [
        ({}, True),
        ({"failurePolicy": "Fail", "matchPolicy": "Equivalent", "timeoutSeconds": 10}, True),
        ({"namespaceSelector": {}, "objectSelector": {}, "matchConditions": []}, True),
        ({"reinvocationPolicy": "Never"}, True),
        ({"reinvocationPolicy": "IfNeeded"}, False),
        ({"failurePolicy": "Ignore"}, False),
        ({"timeoutSeconds": 11}, False),
        ({"namespaceSelector": {"matchLabels": {"a": "b"}}}, False),
        ({"matchConditions": [{"name": "n", "expression": "false"}]}, False),
        ({"rules": []}, False),
        ({"rules": [{**build_webhook("x")["rules"][0], "scope": "*"}]}, True),
        ({"rules": [{**build_webhook("x")["rules"][0], "scope": "Cluster"}]}, False),
        ({"clientConfig": {"service": {"name": "n", "path": "/x", "port": 443}}}, True),
        ({"clientConfig": {"service": {"name": "n", "path": "/x", "port": 444}}}, False),
        ({"clientConfig": {"service": {"name": "n", "path": "/x"}, "caBundle": "x"}}, False),
    ],
)
def test_what_the_api_server_fills_in_is_no_change(filled: Json, is_equal: bool) -> None:
    config = {"service": {"name": "n", "path": "/x"}}
    webhook = {**build_webhook("x"), "clientConfig": config, "objectSelector": None}
    assert is_same([webhook], [{**webhook, **filled}]) is is_equal
    assert is_same([webhook, webhook], [webhook]) is False


def test_marks_of_served_webhooks_carry_paths_and_resources() -> None:
    offer = Actor(Cluster(), "r", build_webhook("x", "ab")).record
    assert offer.served == {"x.x": Served("/x", frozenset({"g/v1/a", "g/v1/b"}))}
    assert "clientConfig" not in offer.definitions["x.x"]
