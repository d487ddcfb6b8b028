"""``webop plan`` without ``--call``: it says what ``webop run`` then does, and calls no handler."""

from __future__ import annotations

from tests.kit.operators import FINALIZER, has_finalizer
from tests.kit.plans import Desk
from tests.kit.waiting import eventually

HANDLERS = """
@webop.on.create('shops', when=lambda spec, **_: not spec.get('skipped'))
def made(name, **_):
    note('made', name)

@webop.on.update('shops')
def changed(name, **_):
    note('changed', name)

@webop.on.field('shops', field='spec.size')
def resized(name, **_):
    note('resized', name)

@webop.on.resume('shops')
def resumed(name, **_):
    note('resumed', name)

@webop.on.delete('shops')
def gone(name, **_):
    note('gone', name)

@webop.daemon('shops', labels={'watched': 'yes'})
async def watch(name, stopped, **_):
    note('watch', name)
    await stopped.wait()
"""


async def test_the_plan_is_what_the_operator_then_does(desk: Desk) -> None:
    desk.write(HANDLERS)
    await desk.objects.create("old", {"size": 1})
    await desk.objects.create("same", {"size": 1}, labels={"watched": "yes"})
    await desk.objects.create("leaving", {"size": 1})
    async with desk.run() as command:
        for name in ("old", "same", "leaving"):
            await desk.objects.wait_handled(name)
        await command.wait_for("All handlers succeeded")
    await desk.objects.delete("leaving")
    await desk.objects.patch("old", {"spec": {"size": 2, "note": "x"}})
    await desk.objects.create("new", {"size": 1})
    await desk.objects.create("skipped", {"skipped": True})
    before = await desk.list(desk.objects.resource)
    desk.take_calls()
    planned = await desk.plan(WEBOP_LEADERSHIP__LEASE_NAME="shops")  # nobody asks for it
    assert planned.code == 2
    assert planned.document["changes"] is True
    assert planned.document["startup"] == ["configure"]
    assert desk.take_calls() == [["startup", True]]
    assert await desk.list(desk.objects.resource) == before
    finalizer = f"the finalizer {FINALIZER}"
    assert planned.words("new") == [
        f"add {finalizer}",
        "call create handler 'made'",
        "call field handler 'resized/spec.size'",
        "call resume handler 'resumed'",
    ]
    reasons = {item["reason"] for item in planned.items("new")[1:]}
    assert reasons == {"created: it was never handled"}
    assert planned.find("old", "call", "update")["reason"] == "updated: spec.note, spec.size"
    assert planned.find("old", "call", "field")["certainty"] == "will"
    assert planned.find("leaving", "call", "delete")["reason"] == "deleted"
    assert planned.find("leaving", "remove")["certainty"] == "may"
    assert planned.words("skipped")[0] == f"add {finalizer}"
    assert planned.items("same") == []
    section = planned.section("shops")
    assert (section["count"], section["changed"]) == (5, 4)
    assert section["at_each_start"] == {
        "start Daemon 'watch'": 1,
        "call resume handler 'resumed'": 1,
    }
    async with desk.run() as command:
        for name in ("old", "new", "skipped"):
            await desk.objects.wait_handled(name)
        await desk.objects.wait_gone("leaving")
        await command.wait_for(f"Shop {desk.namespace}/same] All handlers")
        assert has_finalizer(await desk.objects.get("new"))
    calls = sorted(call for call in desk.take_calls() if call[0] != "startup")
    assert calls == [
        ["changed", "old"],
        ["gone", "leaving"],
        ["made", "new"],
        ["resized", "new"],
        ["resized", "old"],
        *([("resumed"), name] for name in ("new", "old", "same", "skipped")),
        ["watch", "same"],
    ]
    again = await desk.plan()
    assert again.code == 0, again.output
    assert again.document["changes"] is False
    assert again.section("shops")["objects"] == {}


async def test_a_startup_handler_of_a_real_start_gets_no_plan(desk: Desk) -> None:
    desk.write(HANDLERS)
    async with desk.run() as command:
        await command.wait_for("The operator is running")
    assert desk.take_calls() == [["startup", False]]
    planned = await desk.plan("--no-startup")
    assert desk.take_calls() == []
    assert planned.document["startup"] == []


async def test_what_a_startup_handler_writes_is_planned_too(desk: Desk) -> None:
    desk.write("""
        @webop.on.startup()
        async def prepare(client, **_):
            page = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "start"}}
            await client.create(page, namespace=os.environ["HOME_NAMESPACE"])
            read = await client.get("configmaps", "start", namespace=os.environ["HOME_NAMESPACE"])
            note("created", read["metadata"]["name"])

        @webop.on.create('shops')
        def made(**_): ...
    """)
    planned = await desk.plan(HOME_NAMESPACE=desk.namespace)
    assert planned.code == 2, planned.errors
    (note,) = planned.section("Startup handlers")["notes"]
    assert (note["action"], note["certainty"]) == ("create", "will")
    assert "'start' of configmaps" in note["target"]
    assert ["created", "start"] in desk.take_calls()


async def test_a_limit_says_what_it_leaves_out(desk: Desk) -> None:
    desk.write(HANDLERS)
    for number in range(5):
        await desk.objects.create(f"shop-{number}")
    planned = await desk.plan("--limit", "2")
    section = planned.section("shops")
    assert [*section["objects"]] == [f"{desk.namespace}/shop-{number}" for number in (0, 1)]
    assert (section["count"], section["changed"], section["left_out"]) == (5, 5, 3)
    text = (await desk.plan("--limit", "0", form="text")).output
    assert "left out by --limit: 5 more objects" in text
    assert "shop-0" not in text


async def test_a_filter_that_fails_leaves_an_object_unknown(desk: Desk) -> None:
    desk.write("""
        @webop.on.create('shops', when=lambda spec, **_: spec['missing'] > 1)
        def made(**_): ...
    """)
    await desk.objects.create("one")
    planned = await desk.plan()
    assert planned.code == 2
    item = planned.find("one", "decide")
    assert item["certainty"] == "unknown after this step"
    assert "KeyError('missing')" in item["reason"]


async def test_a_kind_that_does_not_exist_yet_is_unknown(desk: Desk) -> None:
    desk.write("""
        @webop.on.create('absent.plan.webop.dev')
        def made(**_): ...
    """)
    planned = await desk.plan()
    assert planned.code == 0
    (note,) = planned.section("Absent kinds")["notes"]
    assert note["target"] == "absent.plan.webop.dev"
    assert note["certainty"] == "unknown after this step"
    assert "is not in the cluster yet" in note["reason"]
    assert (await desk.plan_with("-A")).code == 0


async def test_a_filter_by_an_index_is_doubtful(desk: Desk) -> None:
    desk.write("""
        @webop.index('shops')
        def sizes(name, **_):
            note('indexed', name)
            return {name: 1}

        @webop.on.create('shops', when=lambda name, sizes, **_: name in sizes)
        def made(**_): ...

        @webop.reconcile('shops')
        def build(name, sizes, **_): ...
    """)
    await desk.objects.create("one")
    planned = await desk.plan()
    uncalled, note = planned.section("shops")["notes"]
    assert uncalled["reason"] == "it was not called: add --call"
    assert note["certainty"] == "may"
    assert "'sizes'" in note["reason"]
    assert ["indexed", "one"] not in desk.take_calls()
    planned = await desk.plan("--call")
    assert planned.section("shops")["notes"] == []
    assert planned.find("one", "call", "create")
    assert ["indexed", "one"] in desk.take_calls()


async def test_errors_and_wrong_command_lines_are_no_results(desk: Desk) -> None:
    desk.write(HANDLERS)
    wrong = await desk.plan_with("--no-such-option")
    assert wrong.code == 1
    assert "No such option" in wrong.errors
    desk.write("""
        @webop.on.startup()
        def refuse(**_):
            raise webop.PermanentError("no licence")

        @webop.on.create('shops')
        def made(**_): ...
    """)
    failed = await desk.plan()
    assert failed.code == 1
    assert "no licence" in failed.errors
    desk.write(HANDLERS)
    away = await desk.plan(KUBECONFIG=str(desk.workshop.folder / "none"))
    assert away.code == 1
    assert "Cannot log in" in away.errors
    await eventually(desk.plan, "a plan that works", check=lambda one: one.code == 0)


async def test_namespaces_are_chosen_as_for_run(desk: Desk) -> None:
    desk.write(HANDLERS)
    await desk.objects.create("one")
    everywhere = await desk.plan_with("-A", "-o", "json", form="json")
    assert everywhere.items("one")
    other = await desk.plan_with("-n", "no-such-*", "-o", "json", form="json")
    assert other.section("shops")["count"] == 0
    pattern = await desk.plan_with("-n", f"{desk.namespace[:-1]}?", "-o", "json", form="json")
    assert pattern.items("one")


async def test_markdown_is_for_a_pull_request(desk: Desk) -> None:
    desk.write(HANDLERS)
    await desk.objects.create("one")
    planned = await desk.plan(form="markdown")
    assert planned.code == 2
    assert planned.output.startswith("### Objects that would change: 1.\n")
    assert "<details><summary>shops.v1.plan.webop.dev: objects: 1" in planned.output
    assert "will: call create handler 'made': created: it was never handled" in planned.output


async def test_nothing_is_not_said_about_reconcilers_that_were_not_called(desk: Desk) -> None:
    desk.write("""
        @webop.reconcile('shops', labels={'built': 'yes'})
        def build(**_): ...
    """)
    await desk.objects.create("other")
    nothing = await desk.plan()
    assert (nothing.code, nothing.document["changes"]) == (0, False)
    await desk.objects.create("one", labels={"built": "yes"})
    planned = await desk.plan()
    assert (planned.code, planned.document["changes"]) == (2, True)
    (note,) = planned.section("shops")["notes"]
    assert note["target"] == "Reconciler 'build'"
    assert note["certainty"] == "unknown after this step"
    assert note["reason"] == "it was not called: add --call"
    text = await desk.plan(form="text")
    assert text.code == 2
    assert text.output.rstrip().endswith(
        "Unknown: 1.\n\nStartup handlers that were called: configure."
    )
    assert (await desk.plan("--call")).code == 0
    assert (await desk.plan("--call", "--limit", "0", form="text")).code == 2


async def test_reconcilers_of_an_object_that_does_not_fit_its_model_are_not_called(
    desk: Desk,
) -> None:
    desk.write("""
        class ShopSpec(webop.Struct):
            size: int

        @webop.reconcile('shops')
        def build(name, spec: ShopSpec, **_):
            note('build', name)

        @webop.reconcile('shops')
        def other(name, **_):
            note('other', name)
    """)
    await desk.objects.create("bad", {"size": "many"})
    await desk.objects.create("good", {"size": 1})
    planned = await desk.plan("--call")
    calls = [call for call in desk.take_calls() if call[0] != "startup"]
    assert sorted(calls) == [["build", "good"], ["other", "good"]], planned.output
    assert planned.section("shops")["at_each_start"] == {
        "wait until the object fits its model": 1,
        "call Reconciler 'build'": 1,
        "call Reconciler 'other'": 1,
    }


async def test_a_namespace_that_does_not_exist_is_named(desk: Desk) -> None:
    desk.write(HANDLERS)
    planned = await desk.plan_with("-n", "nothing", "-n", "no-such-*", "-o", "json", form="json")
    (note,) = planned.section("Namespaces")["notes"]
    assert note["reason"] == "no namespace matches nothing, no-such-*"
    assert planned.code == 2


async def test_without_scanning_only_exact_names_are_planned(desk: Desk) -> None:
    """As 'webop run' serves them then."""
    desk.write("""
        @webop.on.startup()
        def stop_scanning(settings, **_):
            settings.scanning.disabled = True

        @webop.on.create('shops')
        def made(**_): ...
    """)
    await desk.objects.create("one")
    pattern = await desk.plan_with("-n", f"{desk.namespace[:-1]}?", "-o", "json", form="json")
    assert pattern.section("shops")["count"] == 0
    assert pattern.section("Namespaces")["notes"]
    exact = await desk.plan()
    assert exact.section("shops")["count"] == 1
