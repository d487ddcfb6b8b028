"""One peering object: what its records say, and the own record in it.

Place in the flow: :class:`webop.coordination.peering.Peering` keeps one :class:`Place` for the
cluster, or one for each served namespace, and is told of every change.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from webop.client.api import Client
from webop.client.calls import MERGE_PATCH, Call, encode_body
from webop.client.watch import ListingFinished, ListingStarted, watch
from webop.coordination.peers import (
    Peer,
    build_record,
    compute_interval,
    find_dead,
    parse_peers,
)
from webop.errors import (
    APIConflictError,
    APIConnectionError,
    APIError,
    APIForbiddenError,
    APINotFoundError,
    LoginError,
)
from webop.handling.cancellation import TaskGroup, end_if_cancelled
from webop.objects.resources import Resource
from webop.settings import OperatorSettings

logger = logging.getLogger(__name__)

_HEADROOM = (5.0, 10.0)  # seconds; records are renewed so much earlier than they expire
_PAUSES = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)  # seconds; after failures
_TIMEOUT = 5.0  # seconds, of one request


class Elector(Protocol):
    """Who chooses among several replicas; see :mod:`webop.coordination.election`."""

    @property
    def is_enabled(self) -> bool:
        """Whether there is anything to choose."""

    @property
    def is_leading(self) -> bool:
        """Whether this replica is the one."""

    @property
    def lease(self) -> tuple[str, str] | None:
        """The namespace and the name of the Lease, when they are known."""

    async def wait_for_change(self, *, was_leading: bool) -> bool:
        """Wait until another one is."""


@dataclass(frozen=True, slots=True)
class Member:
    """As whom an operator takes part: replicas that share a Lease are one.

    Attributes:
        settings: of the operator.
        identity: of the process.
        elector: who chooses among the replicas.
    """

    settings: OperatorSettings
    process: str
    elector: Elector

    @property
    def identity(self) -> str | None:
        """The name in the records; None if it is not known yet."""
        if not self.elector.is_enabled:
            return self.process
        lease = self.elector.lease
        return None if lease is None else f"lease/{lease[0]}/{lease[1]}"

    @property
    def speaker(self) -> str | None:
        """The same if it is for this process to keep the record; None if it is not."""
        return self.identity if self.elector.is_leading or not self.elector.is_enabled else None


class Place:
    """A peering object, which comes and goes.

    Args:
        resource: its kind, as discovered.
        namespace: where it is; None for the whole cluster.
        member: whose record is to be kept there.
        on_change: called whenever any of the attributes has changed.

    Attributes:
        is_settled: whether it is known if it is there, and the own record was tried to be written.
        is_there: whether it is there.
        problem: what is not permitted, in words.
    """

    def __init__(
        self,
        resource: Resource,
        namespace: str | None,
        member: Member,
        on_change: Callable[[], None],
    ) -> None:
        self.resource = resource
        self.namespace = namespace
        self.problem = ""
        self._name = member.settings.peering.name
        self._member = member
        self._on_change = on_change
        self._is_known = False
        self._has_spoken = False
        self._is_failing = False
        self._record_of: str | None = None
        self._uid: str | None = None
        self._peers: dict[str, Peer] = {}
        self._past: dict[str, Peer] = {}
        self._problems: dict[str, str] = {}
        self._moved = asyncio.Event()

    def __str__(self) -> str:
        return f"in {self.namespace!r}" if self.namespace else "cluster-wide"

    @property
    def is_there(self) -> bool:
        """Whether the object exists."""
        return self._uid is not None

    @property
    def is_settled(self) -> bool:
        """Whether others have had the chance to see this operator, before it acts."""
        is_silent = not self.is_there or self._member.speaker is None
        return self._is_known and (is_silent or self._has_spoken)

    @property
    def has_record(self) -> bool:
        """Whether there is a record to be removed; those of replicas stay for the next leader."""
        return self._record_of is not None and not self._member.elector.is_enabled

    @property
    def peers(self) -> list[Peer]:
        """All that are known to take part.

        The records of an object that was deleted count until they expire: nobody renews them, but
        those who wrote them are there, and come back if the object does.
        """
        return list({**self._past, **self._peers}.values())

    def wake(self) -> None:
        """Renew the record now, if it is for this process to do so."""
        self._moved.set()

    async def run(self, client: Client) -> None:
        """Watch it, and keep the own record in it, for ever; when cancelled, remove the record.

        Raises:
            LoginError: there are no credentials.
        """
        try:
            while True:
                try:
                    async with TaskGroup() as group:
                        group.create_task(self._watch(client), name=f"peering {self}")
                        group.create_task(self._keep_alive(client), name=f"keep-alive {self}")
                except* LoginError:
                    raise
                except* Exception:
                    logger.exception("Peering %s has failed; it is started again.", self)
                end_if_cancelled()
                await asyncio.sleep(_PAUSES[-2])
        finally:
            self.lose()
            await self._leave(client)

    def accept(self, raw: dict[str, Any]) -> None:
        """Take over a state of the object."""
        uid = raw["metadata"].get("uid") or "?"
        if uid != self._uid:
            self.lose()
            self._uid = uid
            self._moved.set()
        self._peers, problems = parse_peers(raw.get("status"))
        for identity in problems.keys() - self._problems.keys():
            logger.warning(
                "The record of %r in the peering %r %s is ignored: %s.",
                *(identity, self._name, self, problems[identity]),
            )
        self._problems = problems
        self._on_change()

    def lose(self) -> None:
        """Take note that the object is gone."""
        self._past = {**self._past, **self._peers}
        dead = find_dead(self._past.values(), time.time())
        for peer in dead:
            del self._past[peer.identity]
        self._peers, self._uid, self._has_spoken = {}, None, False
        self._moved.set()
        self._on_change()

    async def _watch(self, client: Client) -> None:
        await self._look(client)
        options = self._member.settings.watching
        items = watch(client, self.resource, self.namespace, options)
        is_seen = False
        async with contextlib.aclosing(items):
            async for item in items:
                if isinstance(item, ListingStarted):
                    is_seen = False
                elif isinstance(item, ListingFinished):
                    if not is_seen and self.is_there:
                        self.lose()
                elif item[1]["metadata"]["name"] == self._name:
                    is_seen = True
                    await self._take(client, *item)

    async def _take(self, client: Client, event_type: str | None, raw: dict[str, Any]) -> None:
        if event_type == "DELETED":
            self.lose()
        else:
            self.accept(raw)
            await self._clean(client, raw)

    async def _look(self, client: Client) -> None:
        """Find out for the first time whether it is there; unlike a watch, tell if one may not."""
        for pause in itertools.chain(_PAUSES, itertools.repeat(_PAUSES[-1])):
            try:
                objects = await _list(client, self.resource, self.namespace)
            except APIForbiddenError as exc:
                self._refuse(exc)
            except APINotFoundError:
                self._settle()  # its kind is not served any more, or not yet
            except APIError as exc:
                level = logging.DEBUG if self._is_failing else logging.WARNING
                logger.log(level, "Cannot read the peering %r %s: %s", self._name, self, exc)
                self._is_failing = True
            else:
                self.problem = ""
                for raw in objects:
                    if raw["metadata"]["name"] == self._name:
                        self.accept(raw)
                self._settle()
                return
            await asyncio.sleep(pause)

    def _settle(self) -> None:
        self._is_known = True
        self._on_change()

    def _refuse(self, exc: APIError) -> None:
        """Take note of what is not permitted; Peering tells people, or says why it pauses."""
        self.problem = str(exc)
        self._settle()

    async def _keep_alive(self, client: Client) -> None:
        pauses = iter(_PAUSES)
        while True:
            self._moved.clear()
            pause: float | None = None
            speaker = self._member.speaker
            if self.is_there and speaker is not None:
                interval = self._compute_interval()
                if await self._renew(client, speaker):
                    pauses, pause = iter(_PAUSES), interval
                else:
                    pause = min(interval, next(pauses, _PAUSES[-1]))
                self._has_spoken = True
                self._on_change()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._moved.wait()

    def _compute_interval(self) -> float:
        headroom = random.uniform(*_HEADROOM)  # noqa: S311  so that not all come at once
        return compute_interval(self._member.settings.peering.lifetime, headroom)

    async def _renew(self, client: Client, speaker: str) -> bool:
        """Write the own record; tell whether it has worked."""
        settings = self._member.settings.peering
        record = build_record(settings.priority, settings.lifetime, time.time())
        self._record_of = speaker  # also if the answer is lost
        try:
            is_written = await self._write(client, {"status": {speaker: record}})
        except APIForbiddenError as exc:
            self.problem = str(exc)
            return False
        except APIError as exc:
            level = logging.DEBUG if self._is_failing else logging.WARNING
            text = "No keep-alive in the peering %r %s, which others notice in the end: %s"
            logger.log(level, text, self._name, self, exc)
            self._is_failing = True
            return False
        self.problem, self._is_failing = "", False
        if not settings.stealth:
            logger.debug("Keep-alive sent to the peering %r %s.", self._name, self)
        return is_written

    async def _clean(self, client: Client, raw: dict[str, Any]) -> None:
        """Remove the records of the dead, unless somebody has written meanwhile (PEE-14)."""
        dead = find_dead(self._peers.values(), time.time())
        gone = {peer.identity: None for peer in dead if peer.identity != self._member.identity}
        if not gone:
            return
        version = {"resourceVersion": raw["metadata"]["resourceVersion"]}
        try:
            await self._write(client, {"metadata": version, "status": gone})
        except APIConflictError:
            return  # the next event shows what it is now
        except APIError as exc:
            logger.debug("Records of the dead stay in %r %s: %s", self._name, self, exc)

    async def _leave(self, client: Client) -> None:
        """Remove the own record (PEE-15); what cannot be removed expires."""
        identity = self._record_of
        if identity is None or not self.has_record:
            return
        self._record_of = None
        try:
            await self._write(client, {"status": {identity: None}})
        except (APIError, LoginError) as exc:
            logger.warning("The own record stays in %r %s: %s", self._name, self, exc)

    async def _write(self, client: Client, patch: dict[str, Any]) -> bool:
        """Patch the object once; tell whether it is there."""
        subresource = "status" if "status" in self.resource.subresources else None
        path = self.resource.get_url(
            namespace=self.namespace, name=self._name, subresource=subresource
        )
        content = encode_body(patch)
        call = Call("PATCH", path, None, content, MERGE_PATCH, timeout=_TIMEOUT, is_retried=False)
        try:
            async with asyncio.timeout(_TIMEOUT):  # waiting for a login included
                await client.perform(call)
        except APINotFoundError:
            return False
        except TimeoutError:
            message = f"Cannot {call.attempt}: no answer in {_TIMEOUT:g} s"
            raise APIConnectionError(message) from None
        return True


async def _list(
    client: Client, resource: Resource, namespace: str | None
) -> Iterable[dict[str, Any]]:
    """Read all objects at once; there are few."""
    found: list[dict[str, Any]] = []
    pages = client.list_pages(resource, namespace, is_retried=False)
    async with contextlib.aclosing(pages):
        async for page in pages:
            found += page.items
    return found
