"""The agent of ngrok: its process and its tunnel, by way of pyngrok, off the event loop.

pyngrok blocks, so its calls are made in threads. It keeps one process per executable for the
whole Python process; others than webop may use it, too: such a process is left as it is.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import shutil
import threading
import time
import uuid
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

from pyngrok import ngrok, process
from pyngrok.conf import PyngrokConfig
from pyngrok.exception import PyngrokError, PyngrokNgrokError, PyngrokNgrokHTTPError
from pyngrok.log import NgrokLog
from pyngrok.process import NgrokProcess

from webop.errors import ConfigurationError
from webop.own_threads import call_in_own_thread

if TYPE_CHECKING:
    import os

logger = logging.getLogger(__name__)

# All in seconds. pyngrok gives up by itself in 15, but only if the agent says something at all.
_START_LIMIT = 25.0
_ABORT_PERIOD = 0.5  # the process may be there a moment later only
_LISTING_PERIOD = 5.0

_TOKEN_PAGE = "https://dashboard.ngrok.com/get-started/your-authtoken"  # noqa: S105 - an address
_TOKEN_ADVICE = f"Give your authtoken by token= or NGROK_AUTHTOKEN; it is at {_TOKEN_PAGE}."
_BUSY_ADVICE = "Stop the other agents of this account (they are listed in ngrok's dashboard)."
# Codes of the agent: https://ngrok.com/docs/errors/
_ADVICES = {
    "ERR_NGROK_105": _TOKEN_ADVICE,
    "ERR_NGROK_106": _TOKEN_ADVICE,
    "ERR_NGROK_107": _TOKEN_ADVICE,
    "ERR_NGROK_4018": _TOKEN_ADVICE,
    "ERR_NGROK_108": _BUSY_ADVICE,
    "ERR_NGROK_334": _BUSY_ADVICE,
}
_CODE = re.compile(r"ERR_NGROK_\d+")

# What pyngrok has started for webop, and may be ended when it has no tunnels left.
_ours: weakref.WeakSet[NgrokProcess] = weakref.WeakSet()
# The registries of pyngrok are global, and not made for several threads.
_registries = threading.Lock()
# The last error that an agent has told of, by its process.
_complaints: weakref.WeakKeyDictionary[NgrokProcess, str] = weakref.WeakKeyDictionary()


class NgrokAgent:
    """One tunnel with the agent that holds it.

    Args:
        binary: the executable; None for that of pyngrok, which downloads it if need be.
        token: the authtoken; None for that of the environment or of ``ngrok.yml``.
        region: where the tunnel begins; None for the nearest one.

    Raises:
        ConfigurationError: there is no such executable.
    """

    def __init__(
        self, *, binary: str | os.PathLike[str] | None, token: str | None, region: str | None
    ) -> None:
        self._config = PyngrokConfig(
            ngrok_path=None if binary is None else _find_binary(binary),
            auth_token=token,
            region=region,
            # The output is read here: it tells of the end, and is no news for the users' logs.
            monitor_thread=False,
            # A Ctrl+C is for the operator: it ends the agent when the reviews are answered.
            start_new_session=True,
        )
        self._process: NgrokProcess | None = None
        self._url: str | None = None
        self._listed_at = 0.0

    async def open(self, upstream: str) -> str:
        """Open a tunnel to a local URL; return the public one.

        Raises:
            ConfigurationError: there is no executable, or the agent refuses.
        """
        path = self._config.ngrok_path
        try:
            await call_in_own_thread(_install, self._config)
            return await self._call_open(upstream)
        except TimeoutError:
            raise ConfigurationError(
                f"The ngrok agent is not ready after {_START_LIMIT:g} s and tells no reason. "
                f"Try it by hand: {path} http {upstream}"
            ) from None
        except (PyngrokError, OSError) as error:
            raise ConfigurationError(_explain(error, path)) from error

    async def find_loss(self) -> str | None:
        """Return why there is no tunnel any more, in a sentence; None if there is one."""
        if self._process is None:
            return "It was not opened."
        code = self._process.proc.poll()
        if code is not None:
            complaint = _complaints.get(self._process, "")
            return f"The ngrok agent has ended (exit code {code}). {complaint}".rstrip()
        if time.monotonic() - self._listed_at > _LISTING_PERIOD:
            if not await call_in_own_thread(self._is_listed):
                return f"The ngrok agent has no tunnel of {self._url} any more."
            self._listed_at = time.monotonic()
        return None

    async def close(self) -> None:
        """Close the tunnel, and end the agent if it has no others; nothing happens otherwise."""
        if self._process is not None:
            await call_in_own_thread(self._close)

    async def _call_open(self, upstream: str) -> str:
        """Open the tunnel in a thread; when cancelled, wait for it: what it opens is closed."""
        call = asyncio.create_task(call_in_own_thread(self._open, upstream))
        try:
            async with asyncio.timeout(_START_LIMIT):
                return await asyncio.shield(call)
        except (TimeoutError, asyncio.CancelledError):
            while not call.done():
                # Killing a starting agent makes pyngrok give up; pyngrok's own function would wait.
                found = process._current_processes.get(self._config.ngrok_path)  # noqa: SLF001
                if self._process is None and found is not None:
                    found.proc.kill()
                await asyncio.wait([call], timeout=_ABORT_PERIOD)
            call.exception()  # nobody else asks for it
            raise

    def _open(self, upstream: str) -> str:
        self._process = _start(self._config)
        # A name of its own: otherwise, pyngrok would look into ngrok.yml for a default one.
        name = f"webop-{uuid.uuid4()}"
        tunnel = ngrok.connect(upstream, name=name, pyngrok_config=self._config)
        self._url = tunnel.public_url or ""
        self._listed_at = time.monotonic()
        if not self._url.startswith("https://"):
            raise PyngrokNgrokError(f"It has opened {self._url}, but Kubernetes needs https.")
        return self._url

    def _is_listed(self) -> bool:
        try:
            with _registries:
                tunnels = ngrok.get_tunnels(self._config)
        except (PyngrokError, OSError) as error:
            logger.debug("The ngrok agent does not list its tunnels: %s", error)
            return True  # busy maybe; its end is noticed anyway
        return any(tunnel.public_url == self._url for tunnel in tunnels)

    def _close(self) -> None:
        ours, url = self._process, self._url
        self._process = self._url = None
        path = self._config.ngrok_path
        with _registries:
            if ours is None or not process.is_process_running(path):
                return
            try:
                if url:
                    ngrok.disconnect(url, self._config)
                is_needed = bool(ngrok.get_tunnels(self._config))
            except (PyngrokError, OSError) as error:
                logger.debug("The tunnel cannot be closed: %s", error)
                is_needed = False
            if ours in _ours and not is_needed:
                process.kill_process(path)


def _find_binary(binary: str | os.PathLike[str]) -> str:
    found = shutil.which(Path(binary).expanduser())
    if found is None:
        raise ConfigurationError(
            f"There is no executable binary={str(binary)!r}. Install ngrok "
            "(https://ngrok.com/download), or leave binary= out: then pyngrok downloads it."
        )
    return found


def _install(config: PyngrokConfig) -> None:
    """Download the executable if there is none; make a configuration if there is none."""
    path = Path(config.ngrok_path)
    if not path.exists():
        logger.info("Downloading ngrok to %s; set binary= to use one of your own.", path)
    ngrok.install_ngrok(config)


def _start(config: PyngrokConfig) -> NgrokProcess:
    """Start the agent, if it is not running."""
    with _registries:
        was_running = process.is_process_running(config.ngrok_path)
        agent = ngrok.get_ngrok_process(config)
        if not was_running:
            _ours.add(agent)
            threading.Thread(target=_drain, args=(agent,), name="ngrok log", daemon=True).start()
    return agent


def _drain(agent: NgrokProcess) -> None:
    """Read the output of an agent to its end: if nobody did, the agent would stop one day."""
    assert agent.proc.stdout is not None  # noqa: S101 - for the type checker
    with agent.proc.stdout as stream:
        for text in stream:
            line = NgrokLog(text)
            logger.debug("ngrok: %s", line.line)
            if line.lvl in ("ERROR", "CRITICAL") and line.err:
                _complaints[agent] = _clean(line.err)
    agent.proc.wait()


def _explain(error: Exception, path: str) -> str:
    """Tell in the words of the agent what has happened, and what to do."""
    words = _get_words(error)
    code = _CODE.search(words)
    advice = _ADVICES.get(code.group()) if code else None
    if advice is None:
        advice = f"Check what {path} does when it is run by hand, or set another binary=."
    return f"The ngrok tunnel cannot be opened: {words} {advice}"


def _get_words(error: Exception) -> str:
    text = str(error)
    if isinstance(error, PyngrokNgrokHTTPError):
        text = _read_refusal(error.body) or text
    elif isinstance(error, PyngrokNgrokError):
        text = error.ngrok_error or text
    text = _clean(text)
    return text if text.endswith(".") else f"{text}."


def _read_refusal(body: str) -> str | None:
    """Read the reason from an answer of the agent's API: ``{"msg": ..., "details": {"err"}}``."""
    try:
        answer = json.loads(body)
        return str(answer.get("details", {}).get("err") or answer["msg"])
    except (ValueError, KeyError, AttributeError):
        return None


def _clean(text: str) -> str:
    r"""Put a text of the agent into one line; in its log, ends of lines are written as ``\n``."""
    return " ".join(text.replace("\\r", " ").replace("\\n", " ").split())
