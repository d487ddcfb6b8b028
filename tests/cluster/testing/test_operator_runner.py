"""An operator in a thread of the test: what it does there, and what is known of it afterwards."""

from __future__ import annotations

import dataclasses
import gc
import logging
import sys
import threading
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import Result

import webop
from tests.kit.operators import Calls, Objects, build_settings
from tests.kit.processes import HANDLERS, Workshop
from webop.cli import CLIControls
from webop.cli.commands.run import run
from webop.testing import KopfRunner, LocalCluster, OperatorRunner, eventually

PRINTING = """
import webop

@webop.on.startup()
def start(settings, **_):
    settings.posting.enabled = False
    print('And here we are!')

@webop.on.cleanup()
def clean(logger, **_):
    logger.info('And there we were.')
"""
FAILING = """
import webop

@webop.on.startup()
def start(**_):
    raise webop.PermanentError('It cannot be started.')
"""


@pytest.fixture(autouse=True)
def login(webop_cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(webop_cluster.kubeconfig))


@pytest.mark.feature("TST-01", "TST-04", "TST-08", "D-50", "REF-79")
async def test_an_operator_serves_the_current_cluster_until_the_block_ends(
    workshop: Workshop, objects: Objects
) -> None:
    path = workshop.write(HANDLERS)
    assert KopfRunner is OperatorRunner
    with OperatorRunner(["run", "-n", objects.namespace, str(path)]) as runner:
        assert not runner.future.done()
        await objects.make("one")
    assert runner.exit_code == 0
    assert runner.exception is None
    assert f"[Widget {objects.namespace}/one] created one" in runner.output
    assert "cleaned up" in runner.output
    # It has stopped: the next object is nobody's.
    with OperatorRunner(["run", "-n", objects.namespace], registry=webop.OperatorRegistry()):
        created = await objects.create("two")
    assert (await objects.get("two"))["metadata"] == created["metadata"]


@pytest.mark.feature("TST-01", "TST-07", "TST-02", "CLI-19", "D-55")
async def test_handlers_and_settings_of_the_test_are_used_as_they_are(
    objects: Objects, registry: webop.OperatorRegistry, calls: Calls
) -> None:
    threads: list[str] = []

    @webop.on.create("widgets", registry=registry)
    async def fn(**kwargs: Any) -> None:
        threads.append(threading.current_thread().name)
        calls.note("fn", kwargs)

    settings = build_settings()
    arguments = ["run", "--standalone", "-n", objects.namespace]
    with OperatorRunner(args=arguments, registry=registry, settings=settings) as runner:
        await objects.make("one")
    assert runner.exit_code == 0
    assert calls.handlers("one") == ["fn"]
    assert threads == ["webop operator"]


@pytest.mark.feature("MEM-10", "MEM-09", "MEM-06")
def test_the_operators_memo_can_be_of_any_class_but_not_on_the_command_line() -> None:
    seen: list[Any] = []

    @webop.on.startup()
    def look(memo: Any, **_: Any) -> None:
        seen.append(memo)

    with OperatorRunner(["run", "-A"]):
        pass
    own, ready = object(), threading.Event()
    webop.run(clusterwide=True, memo=own, stop_flag=ready, ready_flag=ready)
    assert isinstance(seen[0], webop.Memo)
    assert seen[1] is own
    assert "memo" not in {field.name for field in dataclasses.fields(CLIControls)}
    assert not [option for option in run.params if "memo" in str(option.name)]


def test_an_operator_leaves_the_process_of_the_test_as_it_was(
    registry: webop.OperatorRegistry,
) -> None:
    webop.on.validate("pods", registry=registry)(lambda **_: None)
    settings = build_settings()
    settings.admission.server = webop.WebhookServer(port=0)

    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    arguments = ["run", "-A", "--standalone"]
    with OperatorRunner(arguments, registry=registry, settings=settings) as runner:
        eventually(lambda: "API servers do not call them yet" in runner.output)
        assert gc.get_threshold() == before
        assert gc.get_freeze_count() <= frozen


@pytest.mark.feature("TST-03", "D-50", "TST-02")
def test_the_output_is_there_within_the_block_and_all_about_the_end_afterwards(
    workshop: Workshop,
) -> None:
    path = workshop.write(PRINTING)
    with OperatorRunner(["run", "-A", str(path)], env={"WEBOP_RUN_LOG_FORMAT": "plain"}) as runner:
        assert not runner.future.done()
        assert "And here we are!\n" in runner.stdout
        assert "And here we are!" in runner.output
        assert eventually(lambda: "'start' succeeded" in runner.stderr)
        assert eventually(lambda: "'start' succeeded" in runner.output)
        assert "And there we were." not in runner.output
        for name in ("exit_code", "exception", "exc_info", "stdout_bytes", "stderr_bytes"):
            with pytest.raises(webop.WebopError, match=r"yet: .* after the `with` block"):
                getattr(runner, name)
    result = runner.future.result()
    assert isinstance(result, Result)
    assert "And here we are!" in runner.stdout
    assert "And there we were." in runner.stderr.splitlines()  # the format of the environment
    assert "And there we were." not in runner.stdout
    assert "And here we are!" in runner.output
    assert "And there we were." in runner.output
    assert runner.stdout_bytes.decode() == runner.stdout
    assert runner.stderr_bytes.decode() == runner.stderr
    assert (runner.exit_code, runner.exception) == (0, None)
    assert runner.exc_info == result.exc_info


@pytest.mark.feature("TST-05", "TST-03")
def test_what_the_operator_fails_with_is_raised_with_the_error_of_the_test_as_its_cause(
    workshop: Workshop,
) -> None:
    path = workshop.write(FAILING)
    runner = OperatorRunner(["run", "-A", str(path)])
    with pytest.raises(webop.ActivityError, match=r"It cannot be started\.") as caught, runner:
        raise AssertionError("the test has failed")
    assert str(caught.value.__cause__) == "the test has failed"
    assert runner.exit_code == 1
    assert isinstance(runner.exception, webop.ActivityError)
    assert runner.exc_info is not None
    assert runner.exc_info[:2] == (webop.ActivityError, runner.exception)
    assert "Error: " in runner.stderr
    assert "It cannot be started." in runner.stderr


@pytest.mark.feature("TST-02")
def test_a_runner_that_has_run_is_refused_and_changes_nothing(
    registry: webop.OperatorRegistry,
) -> None:
    before = webop.get_default_registry()
    runner = OperatorRunner(["run", "--help"], registry=registry)
    with runner:
        pass
    with pytest.raises(webop.WebopError, match="Create a new one"), runner:
        pass
    assert webop.get_default_registry() is before


@pytest.mark.feature("TST-02", "TST-03", "TST-05")
def test_a_wrong_command_line_is_told_as_such() -> None:
    with pytest.raises(click.UsageError, match="--nonsense"), OperatorRunner(["run", "--nonsense"]):
        pass
    runner = OperatorRunner(["run"], reraise=False, catch_exceptions=False, nonsense=1)
    with pytest.raises(TypeError, match="nonsense"), runner:
        pass
    with pytest.raises(TypeError, match="nonsense"):
        _ = runner.exit_code


@pytest.mark.feature("TST-04")
def test_an_operator_that_does_not_stop_in_time_is_told_of() -> None:
    released = threading.Event()

    @webop.on.cleanup()
    def hang(**_: Any) -> None:
        released.wait()

    runner = OperatorRunner(["run", "-A"], timeout=0.2)
    with pytest.raises(webop.WebopError, match="didn't stop"), runner:
        pass
    released.set()
    assert runner.future.result(timeout=20).exit_code == 0


@pytest.mark.feature("TST-04")
def test_an_operator_whose_startup_never_ends_is_waited_for_no_longer_than_the_limit() -> None:
    @webop.on.startup()
    def retry(**_: Any) -> None:
        raise webop.TemporaryError("The database is not there.", delay=0.1)

    runner = OperatorRunner(["run", "-A"])
    runner.start_timeout = 1
    message = r"didn't start in 1 s\. Its output:\n(.|\n)*The database is not there\."
    with pytest.raises(webop.WebopError, match=message), runner:
        pass
    assert runner.exit_code == 0


@pytest.mark.feature("TST-01")
def test_a_run_leaves_nothing_behind_for_the_next_one(workshop: Workshop) -> None:
    root = logging.getLogger()
    before = (list(root.handlers), root.level, sys.stdout, sys.stderr)

    @webop.on.startup()
    def of_the_test(**_: Any) -> None:
        sys.stdout.write("handler of the test\n")

    for _ in range(2):
        path = workshop.write(PRINTING)
        with OperatorRunner(["run", "-A", "-v", str(path)]) as runner:
            pass
        assert sorted(runner.stdout.splitlines()) == ["And here we are!", "handler of the test"]
    assert (list(root.handlers), root.level, sys.stdout, sys.stderr) == before
    assert len(webop.get_default_registry()) == 1


@pytest.mark.feature("TST-01", "CLI-04")
def test_modules_of_an_operator_are_imported_anew_by_the_next_one_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "parcels"
    (package / "parts").mkdir(parents=True)
    start = "import webop\n@webop.on.startup()\ndef start(**_): print('started')\n"
    files = {
        "parcels/__init__.py": "",
        "parcels/main.py": "import parcels.parts.starting, bystander_of_parcels",
        "parcels/parts/__init__.py": "",
        "parcels/parts/starting.py": start,
        "bystander_of_parcels.py": "",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    before = list(sys.path)
    for _ in range(2):
        with OperatorRunner(["run", "-A", "-m", "parcels.main"]) as runner:
            assert "parcels.main" in sys.modules
        assert runner.stdout == "started\n"
        assert not [name for name in sys.modules if name.startswith("parcels")]
    del sys.modules["bystander_of_parcels"]  # it is of somebody else
    assert sys.path == before
