"""``/status.json`` of an operator at work on a real API server."""

from __future__ import annotations

import datetime as dt
import json
from functools import partial
from typing import Any

import httpx
import pytest

import webop
from tests.cluster.monitoring.shown_operator import Outage, Shown, find, operate_visibly
from tests.kit.operators import Json, Objects, RunOperator, build_settings
from tests.kit.pages import DOCS, find_blocks
from tests.kit.reviews import post_review
from tests.kit.scrapes import operate, wait_listening
from webop.controlplane.cluster_client import find_free_port
from webop.monitoring.recent_counts import Recent
from webop.monitoring.status_page import Page
from webop.monitoring.status_report import LIMIT, build_command
from webop.testing import LocalCluster

_MAPS = {"calls", "recent", "watches", "restarts", "oldest", "rejections", "recent_rejections"}


def is_shaped(report: Json) -> bool:
    """Tell whether a report has the documented shape, and nothing more."""
    blocks = find_blocks(DOCS / "help" / "status_page.md")
    (text,) = (block.code for block in blocks if block.language == "json")
    return has_shape(report, json.loads(text))


def has_shape(value: Any, model: Any, name: str = "") -> bool:
    if value is None or model is None:
        return True
    if isinstance(model, list):
        return isinstance(value, list) and all(has_shape(one, model[0]) for one in value)
    if not isinstance(model, dict):
        return isinstance(value, (int, float) if isinstance(model, float) else type(model))
    if name in _MAPS or model.keys() >= {"idle", "held"}:
        return all(isinstance(number, int | float) for number in value.values())
    return value.keys() == model.keys() and all(
        has_shape(value[key], model[key], key) for key in model
    )


async def test_a_failing_object_is_in_the_report_until_its_handlers_succeed(
    run_operator: RunOperator, objects: Objects
) -> None:
    outage = Outage()
    async with operate_visibly(run_operator, objects) as shown:
        spec = {"password": "secret-password"}
        await objects.create("orders", spec, labels={"timer": "yes", "items": "yes"})
        names = ("create_database", "parent", "probe")

        def get_failures(report: Json) -> dict[str, Json]:
            row = find(report["objects"], name="orders")
            return {each["handler"]: each for each in row.get("failures", ())}

        def has_failed_thrice(report: Json) -> bool:
            failures = get_failures(report)
            return all(failures.get(name, {}).get("attempts", 0) >= 3 for name in names)

        during = await shown.wait(has_failed_thrice)
        outage.is_over = True
        after = await shown.wait(lambda report: not report["objects"]["items"])
        text = (await shown.http.get(f"{shown.url}/status.json")).text
    assert {key: each["error"] for key, each in get_failures(during).items()} == {
        "create_database": "TemporaryError from ConnectionError",
        "parent": "ChildrenRetryError from TemporaryError",
        "probe": "TemporaryError from ConnectionError",
    }
    row = find(during["objects"], name="orders")
    assert (row["resource"], row["namespace"]) == ("widgets.tests.webop.dev", objects.namespace)
    for report in (during, after):
        assert is_shaped(report)
        handler = find(report["handlers"], id="create_database", type="change")
        assert handler["resources"] == ["widgets"]
        assert handler["calls"]["retry"] >= 3
        assert handler["last_error"]["type"] == "TemporaryError from ConnectionError"
    assert find(after["handlers"], id="create_database")["calls"]["success"] >= 1
    assert find(after["handlers"], id="parent/*")["calls"]["success"] == 1
    assert "secret" not in str(during) + str(after) + text


async def test_the_report_tells_what_else_the_operator_does(
    run_operator: RunOperator, objects: Objects
) -> None:
    outage = Outage()
    async with operate_visibly(run_operator, objects) as shown:
        await objects.create("long", {}, labels={"slow": "yes"})
        for spec in ({}, {}, {"field": 1}):
            await post_review(shown.hook, spec)
        report = await shown.wait(
            lambda report: find(report["objects"], name="long").get("running") == "slow"
        )
        outage.is_over = True
    assert is_shaped(report)
    assert (report["acting"], report["lease"]) == (True, {"name": "leader", "is_held": True})
    assert dt.datetime.fromisoformat(report["certificate_expires"]) > dt.datetime.now(dt.UTC)
    hook = find(report["webhooks"], id="check")
    assert len(hook["counts"]) == len(report["bounds"]) + 1
    assert (sum(hook["counts"]), hook["rejections"]["denied"], hook["in_flight"]) == (3, 1, 0)
    kind = find(report["kinds"], resource="widgets.tests.webop.dev")
    assert kind["watches"] == {"watching": 1}
    assert 0 < kind["age"] < 60
    assert sum(kind["objects"].values()) == 1


async def test_the_failures_of_an_object_are_those_of_handlers_that_match_and_of_webop_itself(
    run_operator: RunOperator, objects: Objects
) -> None:
    """Without the texts of errors, which can have passwords."""

    async def fail(**_: Any) -> None:
        raise webop.TemporaryError("no", delay=3600)

    def choose(spec: Any, **_: Any) -> bool:
        raise ValueError(spec.get("password"))

    webop.on.create("widgets", id="steady", labels={"steady": "yes"})(fail)
    webop.on.create("widgets", id="gone", labels={"x": "y"})(fail)
    webop.on.create("widgets", id="create", labels={"spoilt": "yes"}, when=choose)(fail)
    async with operate_visibly(run_operator, objects) as shown:

        def get_failing(name: str, report: Json) -> set[tuple[str, str]]:
            row = find(report["objects"], name=name)
            return {(each["handler"], each["error"]) for each in row.get("failures", ())}

        async def wait(name: str, **errors: str) -> Json:
            return await shown.wait(lambda report: get_failing(name, report) == {*errors.items()})

        await objects.create("orders", {}, labels={"x": "y", "steady": "yes"})
        await wait("orders", steady="TemporaryError", gone="TemporaryError")
        await objects.patch("orders", {"metadata": {"labels": {"x": None}}})
        await wait("orders", steady="TemporaryError")
        await objects.create("spoilt", {"password": "secret-password"}, labels={"spoilt": "yes"})
        report = await wait("spoilt", **{"": "ValueError"})
    assert "secret" not in str(report)


class Sized(webop.Struct):
    size: int = 1


async def test_objects_that_wait_for_a_change_are_in_the_report_until_it_comes(
    run_operator: RunOperator, objects: Objects
) -> None:
    """Those of a reconciler that has failed for good, and those that do not fit a model."""

    @webop.reconcile("widgets", id="build", labels={"built": "yes"})
    async def build(spec: Any, **_: Any) -> None:
        if not spec.get("size"):
            raise webop.PermanentError("secret-password")

    @webop.on.create("widgets", labels={"fitted": "yes"})
    async def create(spec: Sized, **_: Any) -> None: ...

    def list_failed(report: Json) -> set[tuple[str, str]]:
        return {(row["name"], row["error"]) for row in report["failed"]["items"]}

    async with operate_visibly(run_operator, objects) as shown:
        await objects.create("given-up", {}, labels={"built": "yes"})
        await objects.create("unfit", {"size": "large"}, labels={"fitted": "yes"})
        wanted = {("given-up", "PermanentError"), ("unfit", "MisfitError")}
        report = await shown.wait(lambda report: list_failed(report) == wanted)
        assert is_shaped(report)
        for name in ("given-up", "unfit"):
            await objects.patch(name, {"spec": {"size": 1}})
        await shown.wait(lambda report: not list_failed(report))


async def test_a_handler_that_failed_for_good_is_in_the_report_until_it_succeeds_or_its_object_goes(
    run_operator: RunOperator, objects: Objects
) -> None:
    @webop.on.create("widgets", id="create")
    @webop.on.update("widgets", id="create")
    async def create(spec: Any, **_: Any) -> None:
        if not spec.get("good"):
            raise webop.PermanentError("secret-password") from KeyError("secret-password")

    @webop.on.create("widgets", id="parent", labels={"items": "yes"})
    async def create_items(**_: Any) -> None:
        @webop.subhandler(id="secret-item")
        async def create_item(**_: Any) -> None:
            raise webop.PermanentError("secret-password")

    def is_failed(name: str, report: Json) -> bool:
        return bool(find(report["failed"], name=name))

    async with operate_visibly(run_operator, objects) as shown:
        for name in ("first", "second"):
            await objects.create(name, {}, labels={"items": "yes"} if name == "first" else {})
            await shown.wait(partial(is_failed, name))
        report = await shown.wait(lambda report: find(report["failed"], handler="parent/*"))
        assert is_shaped(report)
        row = find(report["failed"], name="second")
        assert row["error"] == "PermanentError from KeyError"
        assert row["kubectl"] == (
            f"kubectl describe widgets.tests.webop.dev/second --namespace={objects.namespace}"
        )
        assert {row["name"] for row in report["failed"]["items"]} == {"first", "second"}
        assert find(report["handlers"], id="create")["recent"] == {"failure": 2}
        await objects.patch("second", {"spec": {"good": True}})
        await shown.wait(lambda report: not find(report["failed"], name="second"))
        await objects.delete("first")
        last = await shown.wait(lambda report: not report["failed"]["items"])
    assert "secret" not in str(report) + str(last)


async def test_the_report_says_whose_it_is_and_how_busy_the_process_is(
    run_operator: RunOperator,
    objects: Objects,
    webop_cluster: LocalCluster,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Outage()
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("POD_ID", "databases-5d9f8b7c6d-x2x4z")
    before = dt.datetime.now(dt.UTC).replace(microsecond=0)
    async with operate_visibly(run_operator, objects) as shown:
        report = await shown.wait(lambda report: sum(report["loop_lag"]["recent_counts"]) > 1)
    since = dt.datetime.fromisoformat(report["operator"].pop("since"))
    assert before <= since <= dt.datetime.now(dt.UTC)
    assert report["operator"] == {
        "name": "leader",  # its Lease
        "pod": "databases-5d9f8b7c6d-x2x4z",
        "namespace": None,  # of the credentials
        "cluster": webop_cluster.server,
    }
    assert [row["id"] for row in report["threads"]] == ["handlers", "daemons", "admission"]
    assert all(row["busy"] == row["queued"] == 0 for row in report["threads"])


@pytest.mark.parametrize(
    ("pod", "name"),
    [
        ("databases-5d9f8b7c6d-x2x4z", "databases"),
        ("my-operator-0", "my-operator"),
        ("two-words", "two-words"),
    ],
)
async def test_without_a_lease_an_operator_has_the_name_of_its_deployment(
    pod: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("POD_ID", pod)
    url = f"http://127.0.0.1:{find_free_port()}"
    async with operate(liveness_endpoint=f"{url}/healthz") as http:
        await wait_listening(http, f"{url}/livez")
        report = (await http.get(f"{url}/status.json")).json()
    assert (report["operator"]["name"], report["operator"]["pod"]) == (name, pod)
    assert is_shaped(report)  # also without a cluster
    assert (report["lease"], report["kinds"]["items"]) == (None, [])


def test_the_figures_of_the_last_five_minutes_forget_what_is_older() -> None:
    totals = {"a": 2, "b": 1}
    recent = Recent(lambda: dict(totals))
    recent.end_period()
    assert recent.compute() == {"a": 2, "b": 1}
    totals["a"] = 5
    assert recent.compute() == {"a": 5, "b": 1}
    for _ in range(20):
        recent.end_period()
    assert recent.compute() == {"a": 3}
    recent.end_period()
    assert recent.compute() == {}


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("admin", "kubectl describe roles.rbac.authorization.k8s.io/admin --namespace=ns"),
        ("a; id", "kubectl describe 'roles.rbac.authorization.k8s.io/a; id' --namespace=ns"),
        ("$(id)", "kubectl describe 'roles.rbac.authorization.k8s.io/$(id)' --namespace=ns"),
        ("-f", "kubectl describe roles.rbac.authorization.k8s.io/-f --namespace=ns"),
    ],
)
def test_names_of_objects_cannot_become_commands_of_a_shell(name: str, line: str) -> None:
    resource = "roles.rbac.authorization.k8s.io"
    assert build_command("describe", resource, name, namespace="ns") == line


async def test_of_many_objects_those_are_listed_that_fail_most_and_the_others_are_counted(
    run_operator: RunOperator, objects: Objects
) -> None:
    @webop.on.create("widgets", id="refuse")
    async def refuse(name: str, **_: Any) -> None:
        raise webop.TemporaryError("no", delay=0.02 if name == "worst" else 3600)

    for number in range(LIMIT + 5):
        await objects.create(f"widget-{number}", {})
    await objects.create("worst", {})
    async with operate_visibly(run_operator, objects) as shown:
        report = await shown.wait(
            lambda report: (
                report["objects"]["left_out"] == 6
                and report["objects"]["items"][0]["name"] == "worst"
                and {row["state"] for row in report["objects"]["items"][1:]} == {"resting"}
            )
        )
    assert len(report["objects"]["items"]) == LIMIT


# ---- who is answered


@pytest.mark.parametrize(
    ("bound", "host", "is_refused"),
    [
        ("localhost", "localhost:8080", False),
        ("localhost", "LOCALHOST", False),
        ("127.0.0.1", "localhost:8080", False),
        ("127.0.0.1", "127.0.0.1:9", False),
        ("::1", "[::1]:8080", False),
        ("127.0.0.5", "127.0.0.5:8080", False),
        ("localhost", "evil.example:8080", True),
        ("localhost", "localhost.evil.example", True),
        ("127.0.0.1", "127.0.0.1.evil.example", True),
        ("127.0.0.1", "127.0.0.5", True),
        ("localhost", "localhost@evil.example", True),
        ("localhost", "", True),
        ("localhost", "[::1", True),
        ("0.0.0.0", "operator.example.com", False),
        ("", "operator.example.com", False),
        ("10.0.0.1", "operator.example.com", False),
    ],
)
def test_a_page_of_this_machine_answers_to_no_other_name(
    bound: str, host: str, is_refused: bool
) -> None:
    assert bool(Page("/ui", bound, pytest.fail).refuse(host)) is is_refused


async def test_the_page_is_public_only_if_it_is_asked_for() -> None:
    """Otherwise it is at the port of the probes if no other machine reaches it."""
    private, public, asked = (find_free_port() for _ in range(3))
    async with operate(
        liveness_endpoint=f"http://localhost:{private}/healthz",
        metrics_endpoint=f"http://0.0.0.0:{public}/metrics",
    ) as http:
        await wait_listening(http, f"http://127.0.0.1:{public}/livez")
        for path in ("ui", "ui.js", "ui.css", "status.json"):
            assert (await http.get(f"http://localhost:{private}/{path}")).status_code == 200
            assert (await http.get(f"http://127.0.0.1:{public}/{path}")).status_code == 404
    url = f"http://127.0.0.1:{asked}"
    async with operate(
        status_endpoint=f"http://0.0.0.0:{asked}/some/where/",
        liveness_endpoint=f"http://0.0.0.0:{asked}/healthz",
    ) as http:
        await wait_listening(http, f"{url}/livez")
        page = await http.get(f"{url}/some/where")
        for path in ("ui.js", "ui.css", "status.json"):
            assert path in page.text
            assert (await http.get(f"{url}/some/{path}")).status_code == 200
        assert (await http.get(f"{url}/healthz")).json() == {"x": "fine"}
        assert (await http.get(f"{url}/metrics")).status_code == 404


async def test_the_page_is_given_to_nobody_but_itself() -> None:
    url = f"http://127.0.0.1:{find_free_port()}"
    async with operate(liveness_endpoint=f"{url}/healthz") as http:
        await wait_listening(http, f"{url}/livez")
        for path in ("ui", "ui.js", "ui.css", "status.json"):
            asked = {"origin": "http://evil.example"}
            answer = await http.get(f"{url}/{path}", headers=asked)
            assert answer.status_code == 200
            assert answer.headers["content-security-policy"].startswith("default-src 'none'; ")
            assert answer.headers["cache-control"] == "no-store"
            assert not [name for name in answer.headers if name.startswith("access-control-")]
            for method in ("POST", "PUT", "DELETE", "OPTIONS"):
                assert (await http.request(method, f"{url}/{path}")).status_code == 405
            refused = await http.get(f"{url}/{path}", headers={"host": "evil.example"})
            assert (refused.status_code, "webop" in refused.text) == (403, False)


async def test_the_report_says_which_shards_a_replica_owns(
    run_operator: RunOperator, objects: Objects
) -> None:
    webop.on.create("widgets", id="create")(lambda **_: None)
    lease = {"lease_name": "team", "lease_namespace": objects.namespace, "sharded": True}
    url = f"http://127.0.0.1:{find_free_port()}"
    settings = build_settings(leadership=lease)
    endpoint = {"liveness_endpoint": f"{url}/healthz"}
    async with (
        run_operator(settings, identity="me", beside=True, **endpoint),
        httpx.AsyncClient(trust_env=False) as http,
    ):
        shown = Shown(http, url, 0)
        await shown.wait(lambda report: (report["shards"] or {}).get("owned"))
        report = await shown.wait(lambda report: not report["not_ready"])
    assert report["shards"] == {
        "lease": f"{objects.namespace}/team-shards",
        "owned": "0-63",
        "unowned": "",
        "owners": [{"replica": "me", "shards": "0-63"}],
        "replicas": 1,
    }
    assert report["lease"] == {"name": "team-member-00", "is_held": True}
    assert "owning 64 of 64 shards (0-63)" in report["role"]
    assert is_shaped(report)
