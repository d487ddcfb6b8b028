"""The app as it is in production, but for all that needs a cluster or a port."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from webop.app import OperatorApp
from webop.errors import ConfigurationError, WebopError
from webop.settings import AdmissionSettings, OperatorSettings

try:
    from asgi_lifespan import LifespanManager
except ModuleNotFoundError as missing:
    raise ConfigurationError(
        f"Tests of admission need {missing.name}: pip install 'webop[test]'."
    ) from missing


class Lifespan:
    """The lifespan of an app, whose time-outs say what has taken so long."""

    def __init__(self, app: OperatorApp, timeout: float | None) -> None:
        self._manager = LifespanManager(app, startup_timeout=timeout, shutdown_timeout=timeout)
        self._timeout = timeout

    async def __aenter__(self) -> None:
        try:
            await self._manager.__aenter__()
        except TimeoutError:
            raise self._explain("startup") from None

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            await self._manager.__aexit__(exc_type, exc, traceback)
        except TimeoutError:
            raise self._explain("cleanup") from None

    def _explain(self, activity: str) -> WebopError:
        return WebopError(
            f"The {activity} handlers have not finished in {self._timeout:g} s; for more time, "
            "there is timeout=."
        )


class _DetachedSettings(AdmissionSettings):
    """Settings of admission where nobody but the test sends reviews."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, _DETACHED.get(name, value))


_DETACHED: dict[str, Any] = {"server": None, "managed": None, "shutdown_delay": 0.0}


def detach(settings: OperatorSettings) -> OperatorSettings:
    """Return the settings without a server of webhooks, and without configurations of them.

    They share all sections but that one.
    """
    fields = dict(settings.admission) | _DETACHED
    admission = _DetachedSettings.model_construct(**fields)
    return settings.model_copy(update={"admission": admission})
