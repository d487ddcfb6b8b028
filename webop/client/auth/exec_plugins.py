"""Exec plugins: commands in a kubeconfig that print credentials (client.authentication.k8s.io).

A user of a kubeconfig can have one: it is run at each login, in a thread. Kubernetes describes the
protocol in "Authenticating", "client-go credential plugins".
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import IO, Any, cast

from webop.client.auth.expiration import detect_expiration, parse_moment
from webop.errors import LoginError
from webop.logs.sanitizing import escape, hide_secrets

_GROUP = "client.authentication.k8s.io"
_VERSIONS = (f"{_GROUP}/v1", f"{_GROUP}/v1beta1")
_MODES = ("Never", "IfAvailable", "Always")
_CLUSTER_KEYS = (
    "server",
    "tls-server-name",
    "insecure-skip-tls-verify",
    "certificate-authority-data",
    "proxy-url",
    "disable-compression",
)

# Seconds. At a terminal, people need time to type.
_TIME_LIMIT = 60.0
_TYPING_LIMIT = 300.0
_OUTPUT_LIMIT = 4 << 20  # bytes; credentials have some thousands
_CHUNK = 1 << 16  # bytes
_POLLING = 0.2  # how often to check whether the operator still waits for the plugin

current_login: ContextVar[threading.Event | None] = ContextVar("current_login", default=None)
"""Inside a login: the event that is set when it is cancelled; its plugins are stopped then."""

_KIND = "The exec plugin failed."
_TEXT_LIMIT = 500  # characters of a plugin's error output in error messages


@dataclass(frozen=True)
class Plugin:
    """One plugin as a kubeconfig describes it.

    ``owner`` is the user and the file, for messages; ``hint`` says how to install the plugin;
    ``cluster`` is the description of the cluster for it, None if it does not request one.
    """

    owner: str
    command: str
    args: tuple[str, ...] = field(default=(), repr=False)  # may have secrets, as what follows
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)
    version: str = _VERSIONS[0]
    mode: str = "IfAvailable"
    hint: str = ""
    cluster: Mapping[str, Any] | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return f"The exec plugin {self.command!r} of {self.owner}"

    def fetch(self, *, time_limit: float | None = None) -> dict[str, Any]:
        """Run the plugin and return its credentials as arguments of ConnectionInfo; this blocks.

        Args:
            time_limit: in seconds; by default one minute, or five minutes at a terminal.

        Raises:
            LoginError: it is not installed, failed, timed out, or its output is not usable.
        """
        has_terminal = sys.stdin is not None and not sys.stdin.closed and sys.stdin.isatty()
        if self.mode == "Always" and not has_terminal:
            raise self._fail(
                "asks for input (interactiveMode: Always), but there is no terminal. Use other "
                "credentials, such as a service account or a @webop.on.login() handler."
            )
        is_interactive = has_terminal and self.mode != "Never"
        limit = time_limit or (_TYPING_LIMIT if is_interactive else _TIME_LIMIT)
        return self._parse(self._run(limit, is_interactive=is_interactive))

    def _run(self, limit: float, *, is_interactive: bool) -> str:
        spec: dict[str, Any] = {"interactive": is_interactive}
        if self.cluster is not None:
            spec["cluster"] = self.cluster
        request = {"apiVersion": self.version, "kind": "ExecCredential", "spec": spec}
        info = json.dumps(request, default=str)  # YAML has dates
        try:
            process = subprocess.Popen(  # noqa: S603 - it is what the user wants to be run
                [self.command, *self.args],
                env={**os.environ, **self.environ, "KUBERNETES_EXEC_INFO": info},
                stdin=None if is_interactive else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=None if is_interactive else subprocess.PIPE,
                # A separate process group can be killed with all its children. At a terminal, the
                # plugin must stay in the group that can read from it.
                process_group=None if is_interactive else 0,
            )
        except (OSError, ValueError) as exc:  # ValueError: invalid characters
            hint = self.hint.strip() or "Install it, or correct the command in the kubeconfig."
            reason = f"cannot be started: {getattr(exc, 'strerror', exc) or exc}. {hint}"
            raise self._fail(reason) from exc
        try:
            output, errors = _communicate(process, limit)
        except (subprocess.TimeoutExpired, OverflowError) as exc:
            _kill(process, is_alone=not is_interactive)
            what = f"did not finish in {limit:g} s"
            if isinstance(exc, OverflowError):
                what = f"printed more than {_OUTPUT_LIMIT >> 20} MiB"
            reason = f"{what} and was stopped. Run it by hand to see why."
            raise self._fail(reason) from None  # the cause would show the arguments
        if process.returncode:
            silence = "see its output above" if is_interactive else "it printed no reason"
            reason = _shorten(errors) or silence
            raise self._fail(f"failed with exit code {process.returncode}: {reason}")
        return output.decode("utf-8", "replace")

    def _parse(self, output: str) -> dict[str, Any]:
        try:
            credential = json.loads(output)
        except (ValueError, RecursionError):
            what = (
                f"printed {len(output)} characters that are not JSON. Run it by hand to see them."
            )
            raise self._fail(what) from None
        if not isinstance(credential, dict) or credential.get("kind") != "ExecCredential":
            raise self._fail("printed JSON that is not an ExecCredential.")
        if credential.get("apiVersion") != self.version:
            known = [version for version in _VERSIONS if version == credential.get("apiVersion")]
            raise self._fail(
                f"responded in {f'the version {known[0]!r}' if known else 'another version'}, but "
                f"the kubeconfig says {self.version!r}. Update the plugin, or the apiVersion in "
                f"the kubeconfig."
            )
        status = credential.get("status")
        if not isinstance(status, dict):
            raise self._fail("printed an ExecCredential without a status.")
        return self._parse_status(status)

    def _parse_status(self, status: Mapping[str, Any]) -> dict[str, Any]:
        names = ("token", "clientCertificateData", "clientKeyData")
        wrong = [name for name in names if not isinstance(status.get(name) or "", str)]
        token, certificate, key = (status.get(name) or None for name in names)
        if wrong or bool(certificate) != bool(key) or not (token or certificate):
            raise self._fail(
                "returned neither a token nor a certificate with its key: the status has "
                f"the fields {', '.join(name for name in names if status.get(name)) or '(none)'}."
            )
        now = dt.datetime.now(dt.UTC)
        try:
            text = status.get("expirationTimestamp")
            expiration = parse_moment(text) if text else None
        except ValueError:
            text = "It must be a time such as 2030-12-31T23:59:59Z."
            raise self._fail(f"returned an invalid expirationTimestamp. {text}") from None
        if expiration is not None and expiration <= now:
            raise self._fail(
                f"returned credentials that expired at "
                f"{expiration.astimezone(dt.UTC):%Y-%m-%dT%H:%M:%SZ}; now it is "
                f"{now:%Y-%m-%dT%H:%M:%SZ}. Check the cache of the plugin, and the clock."
            )
        if expiration is None:
            expiration = detect_expiration(token, (certificate or "").encode(), str(self))
        return {
            "token": token,
            "certificate_data": certificate,
            "private_key_data": key,
            "expiration": expiration,
        }

    def _fail(self, reason: str) -> LoginError:
        return LoginError(f"{self} {reason}", kind=_KIND)


def parse_plugin(config: Any, *, owner: str, cluster: Mapping[str, Any]) -> Plugin:
    """Parse the field ``exec`` of a user, and the cluster with its CA as data, of a kubeconfig."""
    problem = _find_problem(config)
    if problem:
        raise LoginError(f"The exec plugin of {owner} cannot be used: {problem}.", kind=_KIND)
    described: dict[str, Any] | None = None
    if config.get("provideClusterInfo"):
        described = {key: cluster[key] for key in _CLUSTER_KEYS if cluster.get(key)}
        for extension in cluster.get("extensions") or ():
            if isinstance(extension, dict) and extension.get("name") == f"{_GROUP}/exec":
                described["config"] = extension.get("extension")  # settings for the plugin
    return Plugin(
        owner=owner,
        command=config["command"],
        args=tuple(config.get("args") or ()),
        environ={item["name"]: item.get("value", "") for item in config.get("env") or ()},
        version=config["apiVersion"],
        mode=config.get("interactiveMode") or "IfAvailable",
        hint=config.get("installHint") or "",
        cluster=described,
    )


def _find_problem(config: Any) -> str:
    if not isinstance(config, dict):
        return "it is not a mapping"
    args, env = config.get("args") or [], config.get("env") or []
    version, mode = config.get("apiVersion"), config.get("interactiveMode") or "IfAvailable"
    checks = {
        "it has no command": isinstance(config.get("command"), str) and config["command"],
        f"its apiVersion is {version!r}, not {' or '.join(_VERSIONS)}": version in _VERSIONS,
        f"its interactiveMode is {mode!r}, not {', '.join(_MODES)}": mode in _MODES,
        "its args are not a list of strings": (
            isinstance(args, list) and all(isinstance(arg, str) for arg in args)
        ),
        "its env is not a list of names and values, all of them strings": (
            isinstance(env, list) and all(map(_is_variable, env))
        ),
        "its installHint is not a string": isinstance(config.get("installHint") or "", str),
        "its provideClusterInfo is not true or false": (
            isinstance(config.get("provideClusterInfo") or False, bool)
        ),
    }
    return next((problem for problem, is_fine in checks.items() if not is_fine), "")


def _is_variable(item: object) -> bool:
    texts = (item.get("name"), item.get("value", "")) if isinstance(item, dict) else ("",)
    return bool(texts[0]) and all(isinstance(text, str) for text in texts)


def _communicate(process: subprocess.Popen[bytes], limit: float) -> tuple[bytes, bytes]:
    """Read the output and the errors of a process until it closes both; wait for its end.

    Raises:
        TimeoutExpired: the time is over, or the login is cancelled: otherwise, this thread would
            prevent the process of the operator from ending.
        OverflowError: it prints too much.
    """
    deadline, is_over = time.monotonic() + limit, current_login.get() or threading.Event()
    texts = {stream: bytearray() for stream in (process.stdout, process.stderr) if stream}
    with selectors.DefaultSelector() as selector:
        for stream in texts:
            selector.register(stream, selectors.EVENT_READ)
        while selector.get_map():
            if time.monotonic() >= deadline or is_over.is_set():
                raise subprocess.TimeoutExpired(process.args, limit)
            for key, _ in selector.select(_POLLING):
                stream = cast("IO[bytes]", key.fileobj)
                chunk = os.read(key.fd, _CHUNK)
                texts[stream] += chunk
                if len(texts[stream]) > _OUTPUT_LIMIT:
                    raise OverflowError
                if not chunk:
                    selector.unregister(stream)
                    stream.close()
    process.wait(max(0.0, deadline - time.monotonic()))
    output, errors = [*map(bytes, texts.values()), b""][:2]
    return output, errors


def _kill(process: subprocess.Popen[bytes], *, is_alone: bool) -> None:
    with contextlib.suppress(ProcessLookupError):
        if is_alone:
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()
    process.wait()
    # Its children can keep the pipes open: close them instead of reading on.
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()


def _shorten(text: bytes) -> str:
    """Return the error output of a plugin as one line of limited length, without secrets."""
    words = escape(hide_secrets(" ".join(text.decode("utf-8", "replace").split())))
    return words if len(words) <= _TEXT_LIMIT else words[:_TEXT_LIMIT] + "..."
