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
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from webop.errors import (
    APIConflictError,
    APIConnectionError,
    APIError,
    APIForbiddenError,
    APINotFoundError,
    APIServerError,
    APIStatusError,
    APITooManyRequestsError,
    ConfigurationError,
    LoginError,
    WebopError,
)
from webop.own_threads import call_in_own_thread
from webop.servers.certificates.certs import build_certificate_of_own_ca
from webop.servers.certificates.rotation import (
    MAKING,
    Leaf,
    Memory,
    Moment,
    Pace,
    Shared,
    Step,
    build_next,
    choose_step,
    get_renewal,
    list_advertised,
    list_names,
)
from webop.servers.certificates.secretdata import build_secret, parse_secret, read_leaf
from webop.servers.hosting import ClusterAccess

logger = logging.getLogger(__name__)

_TRANSIENT = (APIConnectionError, APIServerError, APITooManyRequestsError, LoginError)
_MAX_STEPS = 10  # per look; what then is not in order yet, others change all the time
_DEEDS = {
    Step.LOAD: "its certificate is in use",
    Step.FOUND: "created a certificate",
    Step.RESTORE: "was lost, is there again; a rotation begins",
    Step.JOIN: "added the authority that is in use here",
    Step.PREPARE: "a new certificate is due and was prepared; a rotation begins",
    Step.PROMOTE: "the new certificate is trusted, and is the one to be used",
    Step.RETIRE: "the authorities of before were removed; the rotation is over",
}


@dataclass(frozen=True, kw_only=True)
class Sharing:
    """What certificate is shared, where, and how.

    Attributes:
        namespace: of the Secret.
        secret: its name.
        names: the hostnames that the certificate must be for; the first is the common name.
        lifetime: how long it is valid.
        pace: how fast to go.
    """

    namespace: str
    secret: str
    names: tuple[str, ...]
    lifetime: dt.timedelta
    pace: Pace


class SharedCertificate:
    """The part of one replica in the sharing of a certificate.

    Args:
        cluster: the API server.
        sharing: what is shared.
        load: puts a certificate into the live TLS context.
        confirm: waits until the API servers are told to trust a bundle.
        check: looks now and then whether what is loaded is about to expire.
    """

    def __init__(
        self,
        cluster: ClusterAccess,
        sharing: Sharing,
        *,
        load: Callable[[bytes, bytes], Awaitable[None]],
        confirm: Callable[[bytes], Awaitable[None]],
        check: Callable[[], None],
    ) -> None:
        self._cluster = cluster
        self._sharing = sharing
        self._load = load
        self._confirm = confirm
        self._check = check
        self._memory = Memory()
        self._document: Mapping[str, Any] | None = None
        self._shared: Shared | None = None
        self._path = f"/api/v1/namespaces/{sharing.namespace}/secrets"
        self._title = f"The Secret {sharing.namespace}/{sharing.secret}"
        self._complaints: dict[str, str] = {}
        self._is_absence_told = False

    async def follow(self) -> AsyncGenerator[bytes, None]:
        """Keep the certificate loaded and renewed; yield what clients must trust, when it changes.

        The certificate is loaded before the first bundle is yielded. When it goes on after a
        bundle, that one must be on its way to the API servers.

        Raises:
            ConfigurationError: (before the first bundle) the API server refuses the Secret.
        """
        while True:
            is_known = await self._attempt(self._look(), "read")
            for _ in range(_MAX_STEPS if is_known else 0):
                step = self._choose()
                if step is Step.ADVERTISE:
                    yield self._advertise()
                elif step is Step.WAIT or not await self._take(step):
                    break
            self._check()
            await self._wait()

    async def _look(self) -> None:
        try:
            found = await self._cluster.request("GET", f"{self._path}/{self._sharing.secret}")
        except APINotFoundError:
            found = None
        self._note(found)

    def _note(self, document: Mapping[str, Any] | None) -> None:
        """Take over the Secret as it is in the cluster now."""
        if document is None:
            self._shared = None
            self._describe_absence()
        elif self._document is None or _get_version(self._document) != _get_version(document):
            self._shared = parse_secret(document)
            self._describe_foreign(self._shared)
        self._document = document
        self._memory.observe(self._shared, _get_moment(), self._sharing.pace)

    def _describe_absence(self) -> None:
        if self._memory.leaf is None and not self._is_absence_told:
            self._is_absence_told = True
            pause = self._sharing.pace.absence
            logger.info("%s is not there; it is created in %g seconds.", self._title, pause)

    def _describe_foreign(self, shared: Shared) -> None:
        if not shared.is_foreign:
            return
        if shared.leaf is None:
            logger.warning(
                "%s was not made by webop, and has no certificate that can be used in tls.crt and "
                "tls.key. Its maker is waited for; delete it to let webop make one.",
                self._title,
            )
        elif not self._memory.was_foreign:
            logger.info("%s was not made by webop: it is read, never written.", self._title)

    def _choose(self) -> Step:
        names = frozenset(self._sharing.names)
        return choose_step(self._shared, self._memory, _get_moment(), self._sharing.pace, names)

    def _advertise(self) -> bytes:
        assert self._shared is not None  # noqa: S101  there is nothing to advertise otherwise
        pace = self._sharing.pace
        authorities = list_advertised(self._shared, self._memory, _get_moment(), pace)
        self._memory.note_advertised(authorities)
        return b"".join(authorities)

    async def _take(self, step: Step) -> bool:
        """Take a step; return whether it makes sense to go on at once."""
        if step is not Step.LOAD:
            return await self._attempt(self._write(step), "written")
        shared = self._shared
        assert shared is not None  # noqa: S101  there is nothing to load otherwise
        assert shared.leaf is not None  # noqa: S101
        await self._load(shared.leaf.cert, shared.leaf.key)
        self._memory.note_loaded(shared.leaf, shared.uid)
        logger.info("%s: %s.", self._title, _DEEDS[step])
        return True

    async def _write(self, step: Step) -> None:
        made = await call_in_own_thread(self._make) if step in MAKING else None
        renew_at = get_renewal(_get_moment().now + self._sharing.lifetime, self._sharing.lifetime)
        shared = build_next(step, self._shared, self._memory, made, renew_at)
        sharing, present = self._sharing, self._document
        body = build_secret(present, sharing.namespace, sharing.secret, shared)
        try:
            if present is None:
                written = await self._cluster.request("POST", self._path, body)
            else:
                written = await self._cluster.request("PUT", f"{self._path}/{sharing.secret}", body)
        except (APIConflictError, APINotFoundError) as exc:
            if present is None and isinstance(exc, APINotFoundError):
                raise  # it is the namespace that is not there
            await self._look()  # another replica was faster, or the Secret is gone
        else:
            logger.info("%s: %s.", self._title, _DEEDS[step])
            self._note(written)

    def _make(self) -> Leaf:
        names = list_names(self._shared, frozenset(self._sharing.names))
        ordered = [*self._sharing.names, *sorted(names.difference(self._sharing.names))]
        pair, authority = build_certificate_of_own_ca(ordered, self._sharing.lifetime)
        return read_leaf(pair.cert, pair.key, (authority,))

    async def _attempt(self, request: Awaitable[None], deed: str) -> bool:
        """Do what needs the API server; tell whether it was possible.

        Raises:
            ConfigurationError: nothing can be served, and waiting does not help.
        """
        try:
            await request
        except (APIError, LoginError) as exc:
            if self._memory.leaf is None and not isinstance(exc, _TRANSIENT):
                raise ConfigurationError(self._build_refusal(exc)) from exc
            self._complain(exc, deed)
            return False
        self._complaints.pop(deed, None)
        return True

    def _complain(self, exc: WebopError, deed: str) -> None:
        """Warn of a failure, but not again while it goes on."""
        complaint = type(exc).__name__
        if complaint != self._complaints.get(deed):
            self._complaints[deed] = complaint
            kept = "What is known is served" if self._memory.leaf else "Nothing is served"
            text = "%s cannot be %s. %s, and it is tried again: %s"
            logger.warning(text, self._title, deed, kept, exc)

    def _build_refusal(self, exc: APIError | LoginError) -> str:
        text = f"{self._title} for the certificates of the webhook server cannot be used: {exc}"
        if isinstance(exc, APIForbiddenError):
            text += (
                " The service account needs the verbs get and update for it, and create for "
                "secrets in the namespace; or give certificates by certfile= and pkeyfile=."
            )
        elif isinstance(exc, APIStatusError):
            text += " Give another one by secret= and namespace=, or files by certfile=."
        return text

    async def _wait(self) -> None:
        """Wait for the next look; meanwhile, for the API servers' trust in what is advertised."""
        memory, poll = self._memory, self._sharing.pace.poll
        end = time.monotonic() + (poll if memory.leaf else poll / 2)
        if memory.is_waiting_for_trust():
            try:
                async with asyncio.timeout(poll):
                    await self._confirm(b"".join(memory.authorities))
            except (TimeoutError, WebopError) as exc:
                logger.debug("The new authorities are not trusted yet: %r", exc)
            else:
                memory.note_trusted(memory.authorities, _get_moment())
        await asyncio.sleep(max(0.0, end - time.monotonic()))


def _get_version(document: Mapping[str, Any]) -> tuple[str, str]:
    metadata = document["metadata"]
    return metadata.get("uid", ""), metadata.get("resourceVersion", "")


def _get_moment() -> Moment:
    return Moment(dt.datetime.now(dt.UTC), time.monotonic())
