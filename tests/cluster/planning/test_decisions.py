"""``webop plan`` without ``--call``: it says what ``webop run`` then does, and calls no handler."""

from __future__ import annotations

import asyncio
import textwrap

from tests.kit.operators import FINALIZER, Kind, define_kinds, has_finalizer
from tests.kit.plans import UNKNOWN, Desk

HANDLERS = """
@webop.on.create('kiosks', when=lambda spec, **_: not spec.get('skipped'))
def made(name, **_):
    note('made', name)

@webop.on.update('kiosks')
def changed(name, **_):
    note('changed', name)

@webop.on.field('kiosks', field='spec.size')
def resized(name, **_):
    note('resized', name)

@webop.on.resume('kiosks')
def resumed(name, **_):
    note('resumed', name)

@webop.on.delete('kiosks')
def gone(name, **_):
    note('gone', name)

@webop.daemon('kiosks', labels={'watched': 'yes'})
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
    assert ["startup", False] in desk.take_calls()  # a real start gets no plan
    planned = await desk.plan(WEBOP_LEADERSHIP__LEASE_NAME="kiosks")  # nobody asks for it
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
    section = planned.section("kiosks")
    assert (section["count"], section["changed"]) == (5, 4)
    assert section["at_each_start"] == {
        "start Daemon 'watch'": 1,
        "call resume handler 'resumed'": 1,
    }
    async with desk.run() as command:
        for name in ("old", "new", "skipped"):
            await desk.objects.wait_handled(name)
        await desk.objects.wait_gone("leaving")
        await command.wait_for(f"Kiosk {desk.namespace}/same] All handlers")
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
    again = await desk.plan("--no-startup")
    assert again.code == 0, again.output
    assert (again.document["changes"], again.document["startup"]) == (False, [])
    assert again.section("kiosks")["objects"] == {}
    assert desk.take_calls() == []


async def test_a_filter_by_an_index_is_doubtful(desk: Desk) -> None:
    desk.write("""
        @webop.index('kiosks')
        def sizes(name, **_):
            note('indexed', name)
            return {name: 1}

        @webop.on.create('kiosks', when=lambda name, sizes, **_: name in sizes)
        def made(**_): ...

        @webop.reconcile('kiosks')
        def build(name, sizes, **_): ...
    """)
    await desk.objects.create("one")
    planned = await desk.plan()
    uncalled, note = planned.section("kiosks")["notes"]
    assert uncalled["reason"] == "it was not called: add --call"
    assert note["certainty"] == "may"
    assert "'sizes'" in note["reason"]
    assert ["indexed", "one"] not in desk.take_calls()
    planned = await desk.plan("--call")
    assert planned.section("kiosks")["notes"] == []
    assert planned.find("one", "call", "create")
    assert ["indexed", "one"] in desk.take_calls()


async def test_reconcilers_of_an_object_that_does_not_fit_its_model_are_not_called(
    desk: Desk,
) -> None:
    desk.write("""
        class ShopSpec(webop.Struct):
            size: int

        @webop.reconcile('kiosks')
        def build(name, spec: ShopSpec, **_):
            note('build', name)

        @webop.reconcile('kiosks')
        def other(name, **_):
            note('other', name)
    """)
    await desk.objects.create("bad", {"size": "many"})
    await desk.objects.create("good", {"size": 1})
    planned = await desk.plan("--call")
    calls = [call for call in desk.take_calls() if call[0] != "startup"]
    assert sorted(calls) == [["build", "good"], ["other", "good"]], planned.output
    assert planned.section("kiosks")["at_each_start"] == {
        "wait until the object fits its model": 1,
        "call Reconciler 'build'": 1,
        "call Reconciler 'other'": 1,
    }


async def test_a_limit_says_what_it_leaves_out_in_each_form(desk: Desk) -> None:
    desk.write(HANDLERS)
    for number in range(5):
        await desk.objects.create(f"shop-{number}")
    section = (await desk.plan("--limit", "2")).section("kiosks")
    assert [*section["objects"]] == [f"{desk.namespace}/shop-{number}" for number in (0, 1)]
    assert (section["count"], section["changed"], section["left_out"]) == (5, 5, 3)
    text = (await desk.plan("--limit", "0", form="text")).output
    assert "left out by --limit: 5 more objects" in text
    assert "shop-0" not in text
    planned = await desk.plan("--limit", "1", form="markdown")  # for a pull request
    assert planned.code == 2
    assert planned.output.startswith("### Objects that would change: 5.\n")
    assert "<details><summary>kiosks.v1.plan.webop.dev: objects: 5" in planned.output
    assert "will: call create handler 'made': created: it was never handled" in planned.output


async def test_kinds_that_are_absent_or_ambiguous_are_unknown_and_so_is_a_filter_that_fails(
    desk: Desk,
) -> None:
    kinds = [Kind(f"{group}.webop.dev", "tills", "Till") for group in ("left", "right")]
    await asyncio.to_thread(define_kinds, desk.cluster, kinds)
    desk.write("""
        @webop.on.create('absent.plan.webop.dev')
        @webop.on.create('tills')
        def made(**_): ...
    """)
    planned = await desk.plan()
    assert planned.code == 0
    notes = planned.section("Absent kinds")["notes"]
    absent, ambiguous = sorted(notes, key=lambda note: str(note["target"]))
    assert (absent["target"], absent["certainty"]) == ("absent.plan.webop.dev", UNKNOWN)
    assert "is not in the cluster yet" in absent["reason"]
    names = "tills.v1.left.webop.dev, tills.v1.right.webop.dev"
    assert f"ambiguous: {names}" in ambiguous["reason"]
    desk.write("""
        @webop.on.create('kiosks', when=lambda spec, **_: spec['missing'] > 1)
        def made(**_): ...
    """)
    await desk.objects.create("one")
    planned = await desk.plan()
    assert planned.code == 2
    certainty, reason = planned.certainty("decide")
    assert (certainty, "KeyError('missing')" in reason) == (UNKNOWN, True)


async def test_errors_and_wrong_command_lines_are_no_results(desk: Desk) -> None:
    desk.write("""
        @webop.on.startup()
        def refuse(**_):
            raise webop.PermanentError("no licence")

        @webop.on.create('kiosks')
        def made(**_): ...
    """)
    for args, variables, text in (
        (["--no-such-option"], {}, "No such option"),
        (["-A"], {}, "no licence"),
        (["-A"], {"KUBECONFIG": str(desk.workshop.folder / "none")}, "Cannot log in"),
    ):
        failed = await desk.plan_with(*args, **variables)
        assert (failed.code, text in failed.errors) == (1, True), failed.errors


async def test_namespaces_are_chosen_as_for_run(desk: Desk) -> None:
    desk.write(HANDLERS)
    await desk.objects.create("one")
    everywhere = await desk.plan_with("-A", "-o", "json", form="json")
    assert everywhere.items("one")
    pattern = ("-n", f"{desk.namespace[:-1]}?", "-n", "no-such-*", "-o", "json")
    assert (await desk.plan_with(*pattern, form="json")).items("one")
    other = await desk.plan_with("-n", "nothing", "-n", "no-such-*", "-o", "json", form="json")
    (note,) = other.section("Namespaces")["notes"]
    assert note["reason"] == "no namespace matches nothing, no-such-*"
    assert (other.code, other.section("kiosks")["count"]) == (2, 0)
    # Without scanning, only exact names are served.
    desk.write(f"""
        @webop.on.startup()
        def stop_scanning(settings, **_):
            settings.scanning.disabled = True
        {textwrap.indent(HANDLERS, " " * 8)}
    """)
    assert (await desk.plan_with(*pattern, form="json")).section("kiosks")["count"] == 0
    assert (await desk.plan()).section("kiosks")["count"] == 1


async def test_nothing_is_not_said_about_reconcilers_that_were_not_called(desk: Desk) -> None:
    desk.write("""
        @webop.reconcile('kiosks', labels={'built': 'yes'})
        def build(**_): ...
    """)
    await desk.objects.create("other")
    nothing = await desk.plan()
    assert (nothing.code, nothing.document["changes"]) == (0, False)
    await desk.objects.create("one", labels={"built": "yes"})
    text = await desk.plan(form="text")
    assert text.code == 2
    assert text.output.rstrip().endswith(
        "Unknown: 1.\n\nStartup handlers that were called: configure."
    )
    assert (await desk.plan("--call")).code == 0
    assert (await desk.plan("--call", "--limit", "0", form="text")).code == 2
