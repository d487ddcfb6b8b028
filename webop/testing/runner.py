"""An operator in the background of a test: ``webop run`` in a thread (chapter "Operator testing").

click's runner for tests invokes the command, so the operator is the one that users start,
with its options, files and log. It stops when the block of the test ends; then the runner has its
outcome.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import sys
import threading
import warnings
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

import click
from click.testing import CliRunner, Result

from webop.cli import CLIControls, main
from webop.errors import WebopError
from webop.handlers.registry import OperatorRegistry
from webop.logs import preserve
from webop.settings.groups import OperatorSettings
from webop.testing.registries import replace_default_registry
from webop.testing.waiting import watched

_TIMEOUT = 60.0  # seconds
_OUTPUT_LIMIT = 3000  # characters, in the error about an operator that does not start

ExcInfo = tuple[type[BaseException], BaseException, TracebackType]


class OperatorRunner:
    """Runs a command of webop in a thread, as long as the block of the context manager lasts.

    ::

        with OperatorRunner(["run", "-A", "handlers.py"]) as runner:
            ...  # change objects, wait for what the operator makes of them
        assert runner.exit_code == 0
        assert "as expected" in runner.output

    The block begins when the startup handlers have succeeded, or when the command has ended. At
    its end, the operator is stopped. Within the block, ``output`` is the output so far.

    Like the command line, the operator uses the cluster of ``KUBECONFIG``. It runs in the same
    process: mocks of the test apply to it, and the test can inspect its handlers. While it runs,
    ``sys.stdout`` and ``sys.stderr`` of the process belong to it, so run one at a time.

    Handlers from files belong to this run only: they go to the given registry, or to a copy of
    the default one.

    Args:
        args: for :meth:`click.testing.CliRunner.invoke`: the arguments of the command line.
        reraise: whether the end of the block raises the error of the command.
        timeout: the seconds that the operator has to stop; by default 60. To start, it has
            ``start_timeout`` seconds, an attribute: the same, but at least 60.
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
        self.timeout = _TIMEOUT if timeout is None else timeout
        self.start_timeout = max(self.timeout, _TIMEOUT)
        self.registry = registry
        self.settings = settings
        self._stop = threading.Event()
        self._ready = threading.Event()
        self._future: concurrent.futures.Future[Result] = concurrent.futures.Future()
        # A daemon thread, so that an operator that hangs does not block the end of the process.
        self._thread = threading.Thread(target=self._invoke, name="webop operator", daemon=True)
        self._replacement = contextlib.ExitStack()
        self._recorder = _Recorder()

    def __enter__(self) -> Self:
        """Run the command, and wait until the operator is ready, or the command has ended.

        Raises:
            WebopError: the operator is not ready in time, or this runner was used before.
        """
        if self._thread.ident is not None:
            raise WebopError("This OperatorRunner was used before. Create a new one for each run.")
        if watched:
            warnings.warn(
                "An OperatorRunner runs inside another one. Use one at a time: the inner operator "
                "also gets the handlers and the output of the outer one.",
                RuntimeWarning,
                stacklevel=2,
            )
        self._replacement.enter_context(replace_default_registry(self.registry))
        watched.add(self._get_failure)
        self._thread.start()
        if not self._ready.wait(self.start_timeout):
            output = self.output[-_OUTPUT_LIMIT:]
            self._finish()
            raise WebopError(
                f"The operator didn't start in {self.start_timeout:g} s. Its output:\n{output}"
            )
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop the operator, and wait for its end.

        Raises:
            WebopError: the operator did not stop in time.
            BaseException: the operator's error, with ``reraise``.
        """
        self._finish()
        if self._thread.is_alive():
            raise WebopError(
                f"The operator didn't stop in {self.timeout:g} s; it is still running."
            )
        failure = self._get_failure() if self.reraise else self.future.exception()
        if failure is not None:
            raise failure from exc

    @property
    def future(self) -> concurrent.futures.Future[Result]:
        """The result from click after the command has ended, or the error that prevented it."""
        return self._future

    @property
    def exit_code(self) -> int:
        """The exit code of the command."""
        return self._get_result("exit code").exit_code

    @property
    def exception(self) -> BaseException | None:
        """The error of the command; None if it succeeded."""
        return self._get_result("exception").exception

    @property
    def exc_info(self) -> ExcInfo | None:
        """The same as :func:`sys.exc_info` returns it; after an exit with code 0, the exit."""
        info: Any = self._get_result("exception").exc_info
        return info  # type: ignore[no-any-return]

    @property
    def output(self) -> str:
        """All output so far, as on a terminal."""
        return self._recorder.read(2) if self._is_running else self.future.result().output

    @property
    def stdout(self) -> str:
        """The standard output so far."""
        return self._recorder.read(0) if self._is_running else self.future.result().stdout

    @property
    def stderr(self) -> str:
        """The standard error so far: log lines and messages of the command line."""
        return self._recorder.read(1) if self._is_running else self.future.result().stderr

    @property
    def stdout_bytes(self) -> bytes:
        """The standard output as bytes."""
        return self._get_result("whole output").stdout_bytes

    @property
    def stderr_bytes(self) -> bytes:
        """The standard error as bytes."""
        return self._get_result("whole output").stderr_bytes

    @property
    def _is_running(self) -> bool:
        return not self.future.done()

    def _get_result(self, what: str) -> Result:
        if self._is_running:
            raise WebopError(
                f"There is no {what} yet: the operator still runs. Read it after the `with` block, "
                "or wait for the end with runner.future.result(timeout=10)."
            )
        return self.future.result()

    def _finish(self) -> None:
        watched.discard(self._get_failure)
        with self._replacement:
            self._stop.set()
            self._thread.join(self.timeout)

    def _get_failure(self) -> BaseException | None:
        """Return the operator's error; None if it runs or has succeeded."""
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
                result = self._recorder.invoke(
                    _Command(main.name), *self.args, obj=controls, **self.kwargs
                )
        except BaseException as exc:  # noqa: BLE001  it is raised in the thread of the test
            self._future.set_exception(exc)
        else:
            if isinstance(result.exception, SystemExit) and result.exception.__cause__ is not None:
                # The operator's error, not the exit that the command line makes of it.
                cause = result.exception.__cause__
                result.exception = cause
                result.exc_info = (type(cause), cause, cause.__traceback__)  # type: ignore[assignment]
            self._future.set_result(result)
        finally:
            self._ready.set()  # end the wait for the start


KopfRunner = OperatorRunner
"""The name of :class:`OperatorRunner` in Kopf."""


class _Recorder(CliRunner):
    """Invokes a command whose output can be read while it runs."""

    _streams: tuple[Any, ...] = ()

    @contextlib.contextmanager
    def isolation(self, *args: Any, **kwargs: Any) -> Iterator[Any]:
        """Keep the streams: the standard output, the standard error, both."""
        with super().isolation(*args, **kwargs) as self._streams:
            yield self._streams

    def read(self, number: int) -> str:
        """Return the content of one of the streams so far."""
        if not self._streams:
            return ""
        sys.stdout.flush()  # the command's, at the moment
        content: bytes = self._streams[number].getvalue()
        return content.decode(self.charset, "replace").replace("\r\n", "\n")


class _Command(click.Group):
    """The command line, with the operator's error as the cause of each exit."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run a command, and exit."""
        try:
            raise SystemExit(main.main(*args, **{**kwargs, "standalone_mode": False}))
        except click.ClickException as exc:
            exc.show()
            raise SystemExit(exc.exit_code) from exc.__cause__ or exc
