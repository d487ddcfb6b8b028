"""An operator in the background of a test: ``webop run`` in a thread (chapter "Operator testing").

click's own runner for tests invokes the command, so the operator is the one that users start,
with its options, files and log. It stops when the block of the test ends, and then tells how it
has ended.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import threading
import warnings
from types import TracebackType
from typing import Any, Self

import click
from click.testing import CliRunner, Result

from webop.cli import CLIControls, main
from webop.errors import WebopError
from webop.handling.registry import OperatorRegistry
from webop.logs import preserve
from webop.settings import OperatorSettings
from webop.testing.registries import replace_default_registry
from webop.testing.waiting import watched

ExcInfo = tuple[type[BaseException], BaseException, TracebackType]


class OperatorRunner:
    """Runs a command of webop in a thread, as long as the block of the context manager lasts.

    ::

        with OperatorRunner(["run", "-A", "handlers.py"]) as runner:
            ...  # change objects, wait for what the operator makes of them
        assert runner.exit_code == 0
        assert "as expected" in runner.output

    The block begins when the startup handlers are done, or the command has ended without. It is
    left when the operator has stopped.

    It serves the cluster that one is logged in to at the moment, as the command line does
    (``KUBECONFIG``). The operator is in the same process: what a test has mocked is mocked for
    it, and its handlers can be inspected. While it runs, ``sys.stdout`` and ``sys.stderr`` of
    the process belong to it, so there can be only one at a time.

    Handlers of files that are loaded are those of this run only: they go to the given registry,
    or else to a copy of the default one.

    Args:
        args: for :meth:`click.testing.CliRunner.invoke`: the arguments of the command line.
        reraise: whether leaving the block raises what the command has failed with.
        timeout: the seconds in which the operator has to stop at the end; None for no limit.
        registry: the handlers; by default, those of the default registry.
        settings: the settings; by default, those of the environment.
        kwargs: for :meth:`click.testing.CliRunner.invoke`, such as ``env``.
    """

    def __init__(
        self,
        *args: Any,
        reraise: bool = True,
        timeout: float | None = None,
        registry: OperatorRegistry | None = None,
        settings: OperatorSettings | None = None,
        **kwargs: Any,
    ) -> None:
        self.args = args
        self.kwargs = kwargs
        self.reraise = reraise
        self.timeout = timeout
        self.registry = registry
        self.settings = settings
        self._stop = threading.Event()
        self._ready = threading.Event()
        self._future: concurrent.futures.Future[Result] = concurrent.futures.Future()
        # A daemon, for an operator that hangs must not hang the process after the tests.
        self._thread = threading.Thread(target=self._invoke, name="webop operator", daemon=True)
        self._replacement = contextlib.ExitStack()

    def __enter__(self) -> Self:
        """Run the command, and wait until the operator is ready, or the command has ended."""
        if self._thread.ident is not None:
            raise WebopError("This OperatorRunner has run already: make a new one for each run.")
        if watched:
            warnings.warn(
                "An OperatorRunner runs within another one. There should be one at a time: the "
                "inner operator has the handlers and the output of the outer one, too.",
                RuntimeWarning,
                stacklevel=2,
            )
        self._replacement.enter_context(replace_default_registry(self.registry))
        watched.add(self._get_failure)
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop the operator, and wait for its end.

        Raises:
            WebopError: it has not stopped in time.
            BaseException: what it has failed with, if that is to be re-raised.
        """
        watched.discard(self._get_failure)
        with self._replacement:
            self._stop.set()
            self._thread.join(self.timeout)
        if self._thread.is_alive():
            raise WebopError(f"The operator didn't stop in {self.timeout} s: it is still running.")
        failure = self._get_failure() if self.reraise else self.future.exception()
        if failure is not None:
            raise failure from exc

    @property
    def future(self) -> concurrent.futures.Future[Result]:
        """Click's result once the command has ended, or what has kept click from running it."""
        return self._future

    @property
    def exit_code(self) -> int:
        """The exit code of the command."""
        return self.future.result().exit_code

    @property
    def exception(self) -> BaseException | None:
        """What the command has failed with, if it has."""
        return self.future.result().exception

    @property
    def exc_info(self) -> ExcInfo | None:
        """The same as :func:`sys.exc_info` gives it; after an exit by code 0, that of the exit."""
        info: Any = self.future.result().exc_info
        return info  # type: ignore[no-any-return]

    @property
    def output(self) -> str:
        """All that was written, as a terminal would have shown it."""
        return self.future.result().output

    @property
    def stdout(self) -> str:
        """What was printed."""
        return self.future.result().stdout

    @property
    def stderr(self) -> str:
        """What was logged, and the messages of the command line."""
        return self.future.result().stderr

    @property
    def stdout_bytes(self) -> bytes:
        """What was printed, as it was written."""
        return self.future.result().stdout_bytes

    @property
    def stderr_bytes(self) -> bytes:
        """What was logged, as it was written."""
        return self.future.result().stderr_bytes

    def _get_failure(self) -> BaseException | None:
        """Return what it has failed with by now, if it has."""
        if not self.future.done():
            return None
        return self.future.exception() or self.exception

    def _invoke(self) -> None:
        """Run the command; the body of the thread."""
        controls = CLIControls(
            ready_flag=self._ready,
            stop_flag=self._stop,
            registry=self.registry,
            settings=self.settings,
        )
        try:
            with preserve():
                result = CliRunner().invoke(
                    _Command(main.name), *self.args, obj=controls, **self.kwargs
                )
        except BaseException as exc:  # noqa: BLE001  it is raised where it can be seen
            self._future.set_exception(exc)
        else:
            if isinstance(result.exception, SystemExit) and result.exception.__cause__ is not None:
                # The operator's error is told, not the exit that the command line makes of it.
                cause = result.exception.__cause__
                result.exception = cause
                result.exc_info = (type(cause), cause, cause.__traceback__)  # type: ignore[assignment]
            self._future.set_result(result)
        finally:
            self._ready.set()  # nobody needs to wait for it any more


class _Command(click.Group):
    """The command line, whose exits tell why: for users, a message and a code are enough."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run a command, and exit."""
        try:
            raise SystemExit(main.main(*args, **{**kwargs, "standalone_mode": False}))
        except click.ClickException as exc:
            exc.show()
            raise SystemExit(exc.exit_code) from exc.__cause__ or exc
