"""Symptoms that simulated operators once had: green tests of nothing, lost patches, early ends."""

from __future__ import annotations

import asyncio
import functools
import gc
import textwrap
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from time import sleep as sleep_by_its_name
from typing import Any
from unittest import mock

import pytest

import webop
from tests.unit.testing.simulated.operators import (
    HERE,
    Thing,
    build_config,
    build_thing,
    create_and_settle,
    get_status,
    run,
)
from webop.testing import SimulatedCluster, SimulationError
from webop.testing.simulation.world import World

REAL_TIME = time.perf_counter

HANDLERS = """
import webop

@webop.on.create("things", id="create")
async def create(patch, **_):
    patch.status["done"] = True
"""


Packages = Callable[..., None]  # writes a package that can be imported


def declare_async(function: Callable[..., Any]) -> Callable[[], None]:
    def declare() -> None:
        @webop.on.create(Thing, id="create")
        async def create(patch: webop.Patch, **kwargs: Any) -> None:
            patch.status["result"] = await function(**kwargs)

    return declare


def declare_sync(function: Callable[..., Any]) -> Callable[[], None]:
    def declare() -> None:
        @webop.on.create(Thing, id="create")
        def create(patch: webop.Patch, **kwargs: Any) -> None:
            patch.status["result"] = function(**kwargs)

    return declare


def write_config() -> None:
    @webop.on.create(Thing, id="create")
    async def create(client: webop.AsyncClient, name: str, patch: webop.Patch, **_: Any) -> None:
        await client.apply(build_config(name))
        patch.status["done"] = True


def write_config_with_webhook() -> None:
    write_config()
    webop.on.validate(Thing)(lambda **_: None)


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Packages:
    monkeypatch.syspath_prepend(str(tmp_path))
    return functools.partial(write_package, tmp_path)


def write_package(folder: Path, name: str, **modules: str) -> None:
    (folder / name).mkdir(parents=True)
    (folder / name / "__init__.py").touch()
    for module, text in modules.items():
        (folder / name / f"{module}.py").write_text(textwrap.dedent(text))


# 1. Green although nothing was tested.


def test_handlers_of_a_project_that_is_installed_behind_a_link_are_gone_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "site-packages"  # as with tox or nox, which install the project
    write_package(folder, "sceptic_installed", handlers=HANDLERS)
    (tmp_path / "link").symlink_to(folder)
    monkeypatch.syspath_prepend(str(tmp_path / "link"))

    def test(cluster: SimulatedCluster) -> list[dict[str, Any]]:
        first = create_and_settle(cluster)
        cluster.restart()
        return [first, create_and_settle(cluster, "two")]

    assert run("sceptic_installed.handlers", test=test) == [{"done": True}] * 2


# 2. What the test replaces is not replaced.


@pytest.fixture
def uploading(tmp_path: Path, packages: Packages) -> str:
    name = f"sceptic_{tmp_path.name}".replace("-", "_")[:60]
    handlers = HANDLERS.replace("True", "storage.upload()") + f"from {name} import storage\n"
    packages(name, handlers=handlers, storage="def upload(): return 'for real'")
    return name


def test_a_patch_made_before_the_run_has_no_effect_and_the_real_function_is_called(
    uploading: str,
) -> None:
    name = f"{uploading}.storage.upload"
    with (
        mock.patch(name, return_value="faked"),
        pytest.raises(webop.ConfigurationError, match="upload is patched, but its module"),
    ):
        run(f"{uploading}.handlers")
    replaced = {name: lambda: "faked"}
    assert run(f"{uploading}.handlers", replace=replaced) == {"done": "faked"}
    with pytest.raises(webop.ConfigurationError, match="replace= names"):
        run(f"{uploading}.handlers", replace={"absent.upload": None})


# 3. settle() ends too early.


def fail_once() -> None:
    @webop.on.create(Thing, id="create")
    async def create(retry: int, patch: webop.Patch, **_: Any) -> None:
        if not retry:
            raise webop.TemporaryError("not yet", delay=120)
        patch.status["done"] = True


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_settle_does_not_wait_for_an_attempt_that_was_due_before_a_restart(end: str) -> None:
    def test(cluster: SimulatedCluster) -> dict[str, Any]:
        cluster.create(build_thing())
        cluster.advance(seconds=10)
        getattr(cluster, end)()
        cluster.restart()
        cluster.settle()
        return get_status(cluster)

    assert run(fail_once, test=test) == {"done": True}


@pytest.mark.parametrize("is_started_again", [True, False])
def test_settle_does_not_wait_for_a_leader(*, is_started_again: bool) -> None:
    def test(cluster: SimulatedCluster) -> dict[str, Any]:
        cluster.advance(minutes=1)
        lease = cluster.list("leases.coordination.k8s.io", **HERE)[0]
        cluster.kill(int(lease["spec"]["holderIdentity"].split("-")[1]))
        if is_started_again:
            cluster.start()
        return create_and_settle(cluster)

    assert run(write_config, test=test, replicas=2) == {"done": True}


# 4. Red although the operator is right.


def test_requests_of_the_test_fail_when_a_seed_kills_the_webhooks() -> None:
    def test(cluster: SimulatedCluster) -> None:
        for number in range(10):
            cluster.create(build_thing(f"t{number}"))

    run(write_config_with_webhook, test=test, seeds=8)


def test_a_process_cannot_be_started_in_an_async_handler() -> None:
    async def work(**_: Any) -> str:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec("echo", "made", stdout=pipe)
        return (await process.communicate())[0].decode()

    with pytest.raises(SimulationError, match=r"work\(\) uses loop\.subprocess_exec\(\)"):
        run(declare_async(work))


def test_real_work_in_a_thread_is_warned_of_with_its_line_even_if_warnings_are_errors() -> None:
    def work(**_: Any) -> bool:
        end = REAL_TIME() + 1.2  # a slow machine is enough
        while REAL_TIME() < end:
            pass
        return True

    with pytest.warns(UserWarning, match="more than 1 s of real") as warned:
        assert run(declare_sync(work)) == {"result": True}
    assert Path(warned[0].filename) == Path(__file__)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # as filterwarnings = error
        with pytest.raises(UserWarning, match="more than 1 s of real time"):
            run(declare_sync(work))


def test_metrics_of_a_module_cannot_be_declared_at_a_restart(packages: Packages) -> None:
    metrics = 'import prometheus_client\nMADE = prometheus_client.Counter("sceptic_made", "x")\n'
    packages("sceptic_metrics", handlers=metrics + HANDLERS)
    assert run("sceptic_metrics.handlers", seeds=2) == {"done": True}


# 5. Clocks and chance that are not those of the simulation.


def test_monotonic_times_of_an_import_are_of_the_machine(packages: Packages) -> None:
    handlers = """
    import time
    from dataclasses import dataclass, field

    import webop

    STARTED = time.monotonic()

    @dataclass
    class Cache:
        filled_at: float = field(default_factory=time.monotonic)

    @webop.on.create("things", id="create")
    async def create(patch, **_):
        from . import imported_late

        now = time.monotonic()
        ages = [now - STARTED, now - Cache().filled_at, now - imported_late.get_time()]
        patch.status["sane"] = [0 <= age < 60 for age in ages]
    """
    late = "import time\ndef get_time(): return time.monotonic()"
    packages("sceptic_clocks", handlers=handlers, imported_late=late)
    assert run("sceptic_clocks.handlers") == {"sane": [True, True, True]}


def test_a_sleep_that_the_test_module_imported_by_its_name_is_real() -> None:
    def work(**_: Any) -> bool:
        began = REAL_TIME()
        sleep_by_its_name(2)
        return REAL_TIME() - began < 1

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert run(declare_sync(work)) == {"result": True}


# 6. Messages that do not help.


@pytest.mark.parametrize("how", ["fail", "raises"])
def test_a_failure_by_pytest_itself_has_no_seed(how: str) -> None:
    def test(cluster: SimulatedCluster) -> None:
        if how == "fail":
            pytest.fail("too many jobs")
        with pytest.raises(webop.APIError):
            cluster.list("configmaps")

    with pytest.raises(BaseException, match=r"too many jobs|DID NOT RAISE") as found:
        run(write_config, test=test)
    assert "WEBOP_SEED=0" in "".join(getattr(found.value, "__notes__", []))


def test_the_last_steps_do_not_show_what_has_failed() -> None:
    def test(cluster: SimulatedCluster) -> None:
        cluster.fail("PATCH", "configmaps", lost=True)
        cluster.fail("PATCH", "things", status=503)
        create_and_settle(cluster)
        raise AssertionError("the end")

    with pytest.raises(AssertionError, match="the end") as found:
        run(write_config, test=test)
    (note,) = found.value.__notes__
    assert "503" in note
    assert "lost" in note


# 7. The ends of a run.


def test_an_operator_that_cannot_start_in_the_last_line_is_green(
    tmp_path: Path, packages: Packages
) -> None:
    packages("sceptic_broken", handlers=HANDLERS)

    def test(cluster: SimulatedCluster) -> None:
        cluster.kill()
        (tmp_path / "sceptic_broken" / "handlers.py").write_text("1 / 0")
        cluster.start()

    with pytest.raises(webop.ConfigurationError, match="division by zero"):
        run("sceptic_broken.handlers", test=test)


def test_a_watch_whose_answer_is_lost_hangs() -> None:
    def test(cluster: SimulatedCluster) -> dict[str, Any]:
        cluster.kill()
        cluster.fail("GET", Thing, lost=True, times=3)
        cluster.start()
        return create_and_settle(cluster)

    assert run(write_config, test=test) == {"done": True}


# 8. Memory.


def test_each_run_with_a_sync_daemon_stays_in_memory() -> None:
    def follow() -> None:
        @webop.daemon(Thing)
        def follow(stopped: Any, **_: Any) -> None:
            stopped.wait()

    def count() -> int:
        gc.collect()
        return sum(isinstance(each, World) for each in gc.get_objects())

    before = count()
    run(follow, seeds=5)
    assert count() <= before + 1
