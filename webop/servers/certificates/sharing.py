"""One certificate for all replicas of an operator, in a Secret that any of them renews.

Flow of :meth:`SharedCertificate.follow`: look at the Secret, take the steps that
:mod:`webop.servers.certificates.rotation` chooses, wait for the next look; for ever. A write goes
by the ``resourceVersion`` of what was read, so of several writers one wins, and the others look
again.
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

from webop.backoff import Once
from webop.errors import (
    APIConflictError,
    APIError,
    APINotFoundError,
    APIStatusError,
    ConfigurationError,
    LoginError,
    WebopError,
)
from webop.servers.certificates.rotation import Rotation, Step
from webop.servers.certificates.secretdata import Shared, build_secret, parse_secret
from webop.servers.hosting import ClusterAccess

logger = logging.getLogger(__name__)

_MAX_STEPS = 10  # per look; what then is not in order yet, others change all the time


@dataclass(eq=False)
class SharedCertificate:
    """The part of one replica in the sharing of a certificate.

    New connections show what ``load`` gets; ``confirm`` waits until the API servers are told to
    trust a bundle; ``check`` looks now and then whether what is loaded is about to expire.
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
        """Keep the certificate loaded and renewed; yield what clients must trust, when it changes.

        The certificate is loaded before the first bundle is yielded. When it goes on after a
        bundle, that one must be on its way to the API servers.

        Raises:
            ConfigurationError: (before the first bundle) the API server refuses the Secret.
        """
        rotation = self.rotation
        while True:
            try:
                await self._look()
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
            except (APIError, LoginError, ConfigurationError, ssl.SSLError) as exc:
                self._report(exc)
            else:
                self._once.forget("failure")
            self.check()
            await self._wait()

    async def _look(self) -> None:
        try:
            self._note(await self.cluster.request("GET", f"{self._path}/{self.secret}"))
        except APINotFoundError:
            self._note(None)
            if self.rotation.leaf is None and self._once.is_new("absence"):
                pause = self.rotation.absence
                logger.info("%s is not there; creating it in %g seconds.", self._title, pause)

    def _note(self, document: dict[str, Any] | None) -> None:
        """Take over the Secret as it is in the cluster now."""
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
            logger.info("%s was not made by webop: it is read, never written.", self._title)

    async def _write(self, step: Step, content: Shared) -> None:
        present, path = self._document, f"{self._path}/{self.secret}"
        absent = {"metadata": {"name": self.secret, "namespace": self.namespace}}
        body = build_secret(present or absent, content)
        where = ("PUT", path) if present else ("POST", self._path)
        try:
            written = await self.cluster.request(*where, body)
        except (APIConflictError, APINotFoundError) as exc:
            if present is None and isinstance(exc, APINotFoundError):
                raise  # it is the namespace that is not there
            await self._look()  # another replica was faster, or the Secret is gone
        else:
            logger.info("%s: %s.", self._title, step.value)
            self._note(written)

    def _report(self, exc: Exception) -> None:
        """Log a failure once.

        Raises:
            Exception: nothing can be served, and waiting does not help.
        """
        has_leaf = self.rotation.leaf is not None
        if not has_leaf and isinstance(exc, ConfigurationError | ssl.SSLError):
            raise exc
        is_final = isinstance(exc, APIStatusError) and exc.status < 500 and exc.status != 429
        if is_final and not has_leaf:
            raise ConfigurationError(
                f"{self._title} for the certificates of the webhook server cannot be used: "
                f"{exc} The service account needs the verbs get and update for it, and create "
                "for secrets in the namespace; or give another one by secret= and namespace=, "
                "or certificates by certfile= and pkeyfile=."
            ) from exc
        if self._once.is_new("failure", type(exc)):
            kept = "Serving the last known certificate" if has_leaf else "Nothing is served"
            text = "%s cannot be used. %s, and trying again: %s"
            logger.warning(text, self._title, kept, exc)

    async def _wait(self) -> None:
        """Wait for the next look; meanwhile, for the API servers' trust in what is advertised."""
        rotation = self.rotation
        end = time.monotonic() + (rotation.poll if rotation.leaf else rotation.poll / 2)
        if rotation.cas and rotation.trusted_since is None:
            try:
                async with asyncio.timeout(rotation.poll):
                    await self.confirm(b"".join(rotation.cas))
            except (TimeoutError, WebopError) as exc:
                logger.debug("The new CAs are not trusted yet: %r", exc)
            else:
                rotation.trusted_since = time.monotonic()
        await asyncio.sleep(max(0.0, end - time.monotonic()))
