"""One certificate for all replicas of an operator, in a Secret that any of them renews.

Flow of :meth:`SharedCertificate.follow`: read the Secret, take the steps that
:mod:`webop.servers.certificates.rotation` chooses, wait, repeat. Writes have the
``resourceVersion`` of the last read, so one of several writers wins, and the others read again.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import ssl
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from webop.aio.backoff import Once
from webop.errors import (
    APIConflictError,
    APIError,
    APINotFoundError,
    APIStatusError,
    ConfigurationError,
    WebopError,
)
from webop.servers.certificates.rotation import Rotation, Step
from webop.servers.certificates.secretdata import Shared, build_secret, parse_secret
from webop.servers.hosting import ClusterAccess

logger = logging.getLogger(__name__)

_MAX_STEPS = 10  # per read; after so many, others keep changing the Secret


@dataclass(eq=False)
class SharedCertificate:
    """One replica's share of the certificate.

    ``load`` sets the certificate for new connections; ``confirm`` waits until the webhook
    configurations have a CA bundle; ``check`` warns if the certificate expires soon.
    """

    cluster: ClusterAccess
    namespace: str
    secret: str
    rotation: Rotation
    load: Callable[[bytes, bytes], Awaitable[None]]
    confirm: Callable[[bytes], Awaitable[None]]
    check: Callable[[], None]
    _document: dict[str, Any] | None = None
    _once: Once = field(default_factory=Once)

    def __post_init__(self) -> None:
        self._path = f"/api/v1/namespaces/{self.namespace}/secrets"
        self._title = f"The Secret {self.namespace}/{self.secret}"

    async def follow(self) -> AsyncGenerator[bytes, None]:
        """Keep the certificate loaded and renewed; yield the CA bundle, and again when it changes.

        The certificate is loaded before the first bundle is yielded. After each bundle, the caller
        must send it to the API servers before it continues.

        Raises:
            ConfigurationError: (before the first bundle) the API server refuses the Secret.
        """
        rotation = self.rotation
        while True:
            try:
                await self._read()
                for _ in range(_MAX_STEPS):
                    served = rotation.leaf
                    step, content = rotation.decide()
                    if step is Step.WAIT:
                        break
                    if step is Step.ADVERTISE:
                        yield b"".join(rotation.cas)
                    elif step is Step.LOAD and rotation.leaf is not None:
                        chosen, rotation.leaf = rotation.leaf, served
                        await self.load(chosen.cert, chosen.key)
                        rotation.leaf = chosen
                        logger.info("%s: %s.", self._title, step.value)
                    else:
                        await self._write(step, content)
            except (APIError, ConfigurationError, ssl.SSLError) as exc:
                self._report(exc)
            else:
                self._once.forget("failure")
            self.check()
            await self._wait()

    async def _read(self) -> None:
        try:
            self._note(await self.cluster.request("GET", f"{self._path}/{self.secret}"))
        except APINotFoundError:
            self._note(None)
            if self.rotation.leaf is None and self._once.is_new("absence"):
                pause = self.rotation.absence
                logger.info(
                    "%s does not exist yet. Creating it in %g s, unless another replica does.",
                    self._title,
                    pause,
                )

    def _note(self, document: dict[str, Any] | None) -> None:
        """Record the current Secret; log whose it is."""
        self._document = document
        shared = Shared() if document is None else parse_secret(document)
        self.rotation.observe(shared, dt.datetime.now(dt.UTC), time.monotonic())
        if not self._once.is_new("owner", (shared.is_foreign, shared.leaf is None)):
            return
        if shared.is_foreign and shared.leaf is None:
            logger.warning(
                "%s was not made by webop, and has no certificate that can be used in tls.crt and "
                "tls.key. Waiting for its owner; delete it to let webop make one.",
                self._title,
            )
        elif shared.is_foreign:
            logger.info("%s was not made by webop: webop only reads it.", self._title)

    async def _write(self, step: Step, content: Shared) -> None:
        present, path = self._document, f"{self._path}/{self.secret}"
        absent = {"metadata": {"name": self.secret, "namespace": self.namespace}}
        body = build_secret(present or absent, content)
        where = ("PUT", path) if present else ("POST", self._path)
        try:
            written = await self.cluster.request(*where, body)
        except (APIConflictError, APINotFoundError) as exc:
            if present is None and isinstance(exc, APINotFoundError):
                raise  # the namespace does not exist
            await self._read()  # another replica was faster, or the Secret was deleted
        else:
            logger.info("%s: %s.", self._title, step.value)
            self._note(written)

    def _report(self, exc: Exception) -> None:
        """Log a failure once.

        Raises:
            Exception: there is no certificate yet, and a retry would not help.
        """
        has_leaf = self.rotation.leaf is not None
        if not has_leaf and isinstance(exc, ConfigurationError | ssl.SSLError):
            raise exc
        is_final = isinstance(exc, APIStatusError) and exc.status < 500 and exc.status != 429
        if is_final and not has_leaf:
            raise ConfigurationError(
                f"{self._title} for the certificates of the webhook server cannot be used: {exc} "
                "The service account needs the verbs get and update for it, and create for "
                "secrets in its namespace. Or use another one by secret= and namespace=, or files "
                "by certfile= and pkeyfile=."
            ) from exc
        if self._once.is_new("failure", type(exc)):
            state = "Serving the last known certificate" if has_leaf else "Serving no webhooks yet"
            logger.warning("%s cannot be used. %s; retrying: %s", self._title, state, exc)

    async def _wait(self) -> None:
        """Wait until the next read; meanwhile, wait until API servers trust the advertised CAs."""
        rotation = self.rotation
        end = time.monotonic() + (rotation.poll if rotation.leaf else rotation.poll / 2)
        if rotation.cas and rotation.trusted_since is None:
            try:
                async with asyncio.timeout(rotation.poll):
                    await self.confirm(b"".join(rotation.cas))
            except (TimeoutError, WebopError) as exc:
                logger.debug("The webhook configurations do not have the new CAs yet: %r", exc)
            else:
                rotation.trusted_since = time.monotonic()
        await asyncio.sleep(max(0.0, end - time.monotonic()))
