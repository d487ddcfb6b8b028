"""Peering: operators notice each other, and the one with the highest priority acts.

Flow of :meth:`Peering.run`: kinds and namespaces of the cluster → a :class:`PeeringObject` for the
cluster, or for each served namespace → :func:`~webop.coordination.peers.select_rivals` → pause or
resume (chapter "Peering").
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import random
import time
from collections.abc import Awaitable, Iterable
from typing import Any

from webop.aio.backoff import Backoff, Once
from webop.client.api import Client
from webop.client.discovery import discover
from webop.client.http.failed_requests import choose_pause
from webop.client.http.requests import MERGE_PATCH, build_selection, encode_body
from webop.client.watch import ListingFinished, ListingStarted, watch
from webop.client.watch_events import WatchEvent, parse_number, parse_version
from webop.context.operator_context import OperatorContext
from webop.coordination.election import Elector
from webop.coordination.peers import (
    GROUPS,
    Peer,
    build_creation_command,
    build_kinds,
    build_record,
    parse_peers,
    select_rivals,
)
from webop.coordination.requests import perform_once
from webop.errors import APIConflictError, APIError, APIForbiddenError, APINotFoundError
from webop.handlers.stopping import DaemonStoppingReason
from webop.objects.resources import Resource

logger = logging.getLogger(__name__)

_HEADROOM = (5.0, 10.0)  # seconds; so long before it expires, a record is renewed
_LOSS_PAUSE = 5.0  # seconds; between a renewal and the next one if the record is lost
_LOSS_HEADROOM = 2.0  # seconds; so long before it expires, a record that was set back is renewed
_PAUSES = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)  # seconds; after failures
_TIMEOUT = 5.0  # seconds; of a request
_DAEMONS_TIMEOUT = 5.0  # seconds; for daemons at the shutdown
_UNWINDING = 1.0  # seconds; for cancelled handlers to end
_POLLING = 10.0  # seconds; for a kind that must exist
_MAX_WAIT = 30.0  # seconds; the clock can be set while this waits until a record expires
_SHOWN = 5  # names in one line of the log


class PeeringObject:
    """A peering object, which can be created and deleted at any time: all records, and our own.

    Attributes:
        peers: the peers by their identities. If the object is deleted, they count until their
            records expire, because these operators still run.
        is_settled: whether peers could see this operator; it acts only after that.
        has_record: whether there is a record to remove at the end.
        problem: a text: which permission is missing.
        moved: set to renew our record now.
    """

    def __init__(self, kind: Resource, namespace: str | None, peering: Peering) -> None:
        self.kind = kind
        self.namespace = namespace
        self.peers: dict[str, Peer] = {}
        self.is_settled = False
        self.has_record = False
        self.problem = ""
        self.moved = asyncio.Event()
        self._peering = peering
        self._name = peering.settings.name
        self._is_known = False
        self._uid = ""
        self._version = 0
        self._deleted: dict[str, Peer] = {}
        self._renewed = 0.0
        self._written = 0  # the version with our record; 0 while a renewal runs, or has failed
        self._end = 0.0  # of our record in the newest state: a Unix timestamp; 0 for no record
        self._timer: asyncio.TimerHandle | None = None
        self._invalid: dict[str, str] = {}
        self._once = Once()

    def __str__(self) -> str:
        return f"in {self.namespace!r}" if self.namespace else "cluster-wide"

    @property
    def is_there(self) -> bool:
        """Whether the object exists."""
        return self._uid != ""

    async def watch(self, client: Client) -> None:
        """Read the records of peers, forever; remove expired records."""
        await self._look(client)
        is_listed, known = False, 0
        options = self._peering.operator.settings.watching
        items = watch(client, self.kind, self.namespace, options, name=self._name)
        async with contextlib.aclosing(items):
            async for item in items:
                if isinstance(item, ListingStarted):
                    is_listed, known = False, self._version
                elif isinstance(item, ListingFinished):
                    version = parse_number(item.resource_version)
                    if not is_listed and not self._is_older(version, known):
                        self._version = version
                        self._lose()
                    known = 0
                else:
                    is_listed = True
                    await self._accept(client, item, known)

    async def keep_alive(self, client: Client) -> None:
        """Renew our record, forever; when cancelled, remove it."""
        backoff = Backoff(_PAUSES)
        try:
            while True:
                self.moved.clear()
                pause: float | None = None
                if self.is_there and self._peering.is_speaker:
                    lifetime = self._peering.settings.lifetime
                    headroom = random.uniform(*_HEADROOM)  # noqa: S311  not all operators at once
                    pause = max(0.5, lifetime / 2, lifetime - headroom)
                    try:
                        if await self._renew(client):
                            backoff.reset()
                        else:
                            pause = min(pause, backoff.next() or 0)
                    except APIError as exc:
                        self._note_failure("Cannot renew the record in the peering", exc)
                        chosen = choose_pause(backoff, exc, limit=_HEADROOM[0]) or 0
                        pause = min(pause, chosen, _HEADROOM[0])
                self.is_settled = self._is_known
                self._peering.changed.set()
                await _within(pause, self.moved.wait())
        finally:
            self._lose()
            self._stop_timer()
            if self.has_record:
                try:
                    await self._patch(client, {"status": {self._peering.identity: None}})
                except APIError as exc:
                    logger.warning("Cannot remove the record of this operator %s: %s", self, exc)

    def _lose(self) -> None:
        """Note that the object does not exist; records without an end vanish with it."""
        self.peers = {key: peer for key, peer in self.peers.items() if peer.deadline < math.inf}
        self._uid = ""
        self._peering.changed.set()

    async def _look(self, client: Client) -> None:
        """Read the object for the first time; a watch does not report a 403."""
        backoff = Backoff(_PAUSES)
        while True:
            try:
                await self._read(client)
            except APINotFoundError:
                break  # the kind does not exist (yet): the watch waits for it
            except APIError as exc:
                self._note_failure("Cannot read the peering", exc)
                self.moved.set()
                await asyncio.sleep(choose_pause(backoff, exc) or 0)
            else:
                break
        self.problem, self._is_known = "", True
        if not self.is_there:
            self.moved.set()

    async def look_again(self, client: Client) -> None:
        """Read it again before peers count as expired: maybe the watch is stuck."""
        try:
            async with asyncio.timeout(_TIMEOUT):
                await self._read(client)
        except (APIError, TimeoutError) as exc:
            logger.debug("Cannot read the peering %r %s again: %s", self._name, self, exc)

    async def _read(self, client: Client) -> None:
        selection, known = build_selection(self._name), self._version
        pages = client.list_pages(self.kind, self.namespace, is_retried=False, selection=selection)
        async for page in pages:
            for raw in page.items:
                await self._accept(client, (None, raw), known)

    async def _accept(self, client: Client, event: WatchEvent, known: int) -> None:
        """Accept a state of the object; remove expired records from it.

        Args:
            client: for the removal.
            event: what a watch or a list shows.
            known: the version that was known when the list was requested; 0 for no list.
        """
        event_type, raw = event
        metadata, version = raw["metadata"], parse_version(raw)
        if self._is_older(version, known):
            return
        is_restored, self._version = 0 < version < self._version, version
        if event_type == "DELETED":
            self._lose()
            return
        if metadata["uid"] != self._uid or is_restored:
            self._lose()
            self._deleted, self._uid, self._is_known = self.peers, metadata["uid"], True
            self._written = 0
            self.moved.set()
        peers, problems = parse_peers(raw.get("status"))
        for identity, problem in problems.items():
            if self._invalid.get(identity) != problem:
                text = "Ignoring the record of %r in the peering %r %s: %s."
                logger.warning(text, identity, self._name, self, problem)
        self._invalid = problems
        now, own = time.time(), self._peering.identity
        self._end = peers[own].deadline if own in peers else 0.0
        self._check_loss()
        dead = {
            identity for identity, peer in peers.items() if identity != own and peer.deadline <= now
        }
        self._deleted = {key: peer for key, peer in self._deleted.items() if key not in peers}
        found = {**self._deleted, **peers}
        self.peers = {identity: found[identity] for identity in found.keys() - dead}
        self._peering.changed.set()
        if not dead:
            return
        known_version = {"resourceVersion": metadata["resourceVersion"]}
        try:
            await self._patch(client, {"metadata": known_version, "status": dict.fromkeys(dead)})
        except APIConflictError:
            return  # the next event shows what it is now
        except APIError as exc:
            logger.debug("Cannot remove expired records %s: %s", self, exc)

    def _check_loss(self) -> None:
        """Renew our record in time if it is lost, or ends too early, as after a restored backup.

        States that are older than its last write say nothing about it.
        """
        self._stop_timer()
        if 0 < self._written <= self._version and self.is_there and self._peering.is_speaker:
            loop = asyncio.get_running_loop()
            rest = self._end - _LOSS_HEADROOM - time.time()
            at = max(self._renewed + _LOSS_PAUSE, loop.time() + rest)
            self._timer = loop.call_at(at, self.moved.set)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _is_older(self, version: int, known: int) -> bool:
        """Return whether a state is older than the present one; for ``known``, see :meth:`_accept`.

        A watch that continues can show what is older than what was read since; in that, records of
        running peers look expired, and the object deleted. A list can be older after a restored
        backup: it counts if no other state has arrived since it was requested.
        """
        return 0 < version < self._version != known

    async def _renew(self, client: Client) -> bool:
        """Write our record; return whether the object exists."""
        settings = self._peering.settings
        record = build_record(settings.priority, settings.lifetime, time.time())
        self._written = 0
        self._stop_timer()
        self.has_record = not self._peering.is_replicated  # also if the response is lost
        version = await self._patch(client, {"status": {self._peering.identity: record}})
        if version is not None:
            self._written, self._renewed = version, asyncio.get_running_loop().time()
            self._check_loss()
        self.problem = ""
        self._once.forget("failure")
        if not settings.stealth:
            logger.debug("Keep-alive sent to the peering %r %s.", self._name, self)
        return version is not None

    def _note_failure(self, what: str, exc: APIError) -> None:
        if isinstance(exc, APIForbiddenError):  # which Peering reports, and may pause for
            self.problem, self._is_known = str(exc), True
            return
        level = logging.WARNING if self._once.is_new("failure") else logging.DEBUG
        logger.log(level, "%s %r %s: %s", what, self._name, self, exc)

    async def _patch(self, client: Client, patch: dict[str, Any]) -> int | None:
        """Patch the object, in one attempt.

        Returns:
            The new version of the object, 0 if it is not a number; None if there is no object.
        """
        subresource = "status" if "status" in self.kind.subresources else None
        path = self.kind.get_url(namespace=self.namespace, name=self._name, subresource=subresource)
        content = encode_body(patch)
        try:
            raw = await perform_once(client, "PATCH", path, content, MERGE_PATCH, timeout=_TIMEOUT)
        except APINotFoundError:
            return None
        try:
            return parse_version(raw)
        except (AttributeError, KeyError, TypeError):  # what comes from a proxy can be anything
            return 0


class Peering:
    """Pauses the operator as long as peers have a higher or the same priority.

    Guarantees:
        Invalid records and errors of the API server do not end the operator. Peers count as long as
        their records are valid, even if the API server does not respond.

    Caveats:
        It is not a lock. Until a record arrives, two operators can act. An operator without
        connection to the API server continues. Leadership with a Lease has neither problem.

    The replicas of the operator are one peer; the elector chooses among them.

    Attributes:
        changed: set when the decision must be made again.
        obstacle: a text: what is missing for a mandatory peering; empty if nothing is.
    """

    def __init__(self, operator: OperatorContext, elector: Elector) -> None:
        self.operator = operator
        self.settings = operator.settings.peering
        self.changed = asyncio.Event()
        self.obstacle = ""
        self._elector = elector
        self._polled: frozenset[Resource] = frozenset()
        self._objects: dict[tuple[Resource, str | None], PeeringObject] = {}
        self._tasks: dict[tuple[Resource, str | None], list[asyncio.Task[None]]] = {}
        self._has_decided = False
        self._rivals: tuple[Peer, ...] = ()
        self._once = Once()

    @property
    def identity(self) -> str:
        """The name of our record: replicas that share a Lease are one peer."""
        return f"lease/{self._elector.lease}" if self.is_replicated else self.operator.identity

    @property
    def is_replicated(self) -> bool:
        """Whether replicas share a Lease: the record stays for the next leader, or expires."""
        return self._elector.is_enabled

    @property
    def is_speaker(self) -> bool:
        """Whether this process renews the record, not another replica."""
        return self._elector.is_leading or not self.is_replicated

    def begin(self) -> None:
        """Pause until the peers are known."""
        if not self.settings.standalone:
            self.operator.cluster_view.demand(GROUPS)
            self.operator.cluster_view.subscribe(self.changed.set)
            self._pause("the other operators are not known yet")

    async def run(self, client: Client) -> None:
        """Pause and resume forever; when cancelled, wait for handlers, remove our records."""
        if self.settings.standalone:
            return
        self._pause("the other operators are not known yet")
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow_namespaces(), name="namespaces for peering")
            group.create_task(self._follow_leadership(), name="leadership for peering")
            group.create_task(self._look_for_kinds(client), name="kinds for peering")
            try:
                while True:
                    self.changed.clear()
                    self._adjust(group, client)
                    now = time.time()  # one moment for both: nobody expires in between, unread
                    if any(rival.deadline <= now for rival in self._rivals):
                        for found in list(self._objects.values()):
                            await found.look_again(client)
                    await _within(self._decide(now), self.changed.wait())
            finally:
                await self._finish_work()

    def _adjust(self, group: asyncio.TaskGroup, client: Client) -> None:
        """Watch the peering objects of the existing kinds and namespaces."""
        served = self._list_namespaces()
        wanted = {(kind, namespace): kind for kind in self._list_kinds() for namespace in served}
        for key in self._tasks.keys() - wanted:
            for task in self._tasks.pop(key):
                task.cancel()
        for key in [key for key in self._objects if key[1] not in served]:
            del self._objects[key]  # the records of others count as long as it is served
        for key, kind in wanted.items():
            found = self._objects.setdefault(key, PeeringObject(*key, self))
            found.kind = kind  # it can have a status subresource now
            if key not in self._tasks:
                self._tasks[key] = [
                    group.create_task(found.watch(client), name=f"peering {found}"),
                    group.create_task(found.keep_alive(client), name=f"keep-alive {found}"),
                ]

    def _list_kinds(self) -> list[Resource]:
        """Return the peering kinds of the cluster: one, or none; two in a migration."""
        kinds = build_kinds(clusterwide=self.settings.clusterwide)
        known = self.operator.cluster_view.resources | self._polled
        return [found for kind in kinds for found in known if found == kind]

    def _list_namespaces(self) -> list[str | None]:
        if self.settings.clusterwide:
            return [None]
        return [*sorted(self.operator.cluster_view.namespaces or ())]

    def _decide(self, now: float) -> float | None:
        """Pause or resume; return the seconds until a record expires."""
        view, priority = self.operator.cluster_view, self.settings.priority
        watched = [self._objects[key] for key in self._tasks]
        is_scope_known = self.settings.clusterwide or view.namespaces is not None
        is_known = view.is_known and is_scope_known and all(o.is_settled for o in watched)
        # Wait only before the first decision, and for a mandatory object.
        if not is_known and (not self._has_decided or self.obstacle):
            return None
        self._has_decided = True
        peers = [peer for found in self._objects.values() for peer in found.peers.values()]
        rivals = self._rivals = select_rivals(peers, self.identity, priority, now)
        self.obstacle = self._find_obstacle(watched) if self.settings.mandatory else ""
        self._report_objects(watched, self.obstacle)
        self._report_rivals(rivals)
        if reasons := [*filter(None, [self.obstacle]), *map(str, rivals)]:
            self._pause("; ".join(reasons))
        else:
            self.operator.pausing.resume("peering")
        return min([_MAX_WAIT, *(peer.deadline - now for peer in rivals)]) if rivals else None

    def _find_obstacle(self, watched: list[PeeringObject]) -> str:
        """Return a text: which peering objects are missing or not accessible; empty if none."""
        name = self.settings.name
        if problem := next((found.problem for found in watched if found.problem), ""):
            return f"the peering {name!r} is not accessible: {problem}"
        met = {found.namespace for found in watched if found.is_there or not found.is_settled}
        lacking = [namespace for namespace in self._list_namespaces() if namespace not in met]
        if not lacking:
            return ""
        if kinds := self._list_kinds():
            where = f" in {_enumerate(map(str, lacking))}" if lacking[0] else ""
            command = build_creation_command(kinds[0], lacking[0], name)
            return f"there is no peering object {name!r}{where}: {command}"
        kind = build_kinds(clusterwide=self.settings.clusterwide)[0].kind
        return (
            f"there is no kind {kind} in the cluster for the peering {name!r}: kubectl apply -f "
            "manifests/peering.yaml (from webop's repository), then create the object"
        )

    def _report_objects(self, watched: list[PeeringObject], obstacle: str) -> None:
        """Log once per change which peering objects the operator uses, or why it uses none."""
        name = self.settings.name
        there = sorted(str(found) for found in watched if found.is_there)
        problems = " ".join(sorted({found.problem for found in watched if found.problem}))
        if obstacle:
            text = f"The operator is paused: {obstacle}"
        elif there:
            text = f"The operator belongs to the peering {name!r} {_enumerate(there)}. {problems}"
        elif self._list_namespaces():
            what = "Default peering object" if name == "default" else f"Peering object {name!r}"
            why = "cannot be read" if problems else "is not found"
            text = (
                f"{what} {why}, falling back to the standalone mode: a second copy of this "
                "operator would handle the same objects. One copy? Add --standalone. Several? Add "
                f"--lease NAME. {problems}"
            )
        else:
            return
        if self._once.is_new("objects", text):
            is_fine = (there or name == "default") and not obstacle and not problems
            logger.log(logging.INFO if is_fine else logging.WARNING, "%s", text.rstrip())

    def _report_rivals(self, rivals: tuple[Peer, ...]) -> None:
        """Log once per change which peers this operator pauses for; renewals are no change."""
        news = [(peer.identity, peer.priority, peer.message) for peer in rivals]
        priority, names = self.settings.priority, _enumerate(map(str, rivals))
        if not rivals:
            if self._once.forget("rivals"):
                logger.info("Resuming: no other operator has a higher or the same priority.")
        elif not self._once.is_new("rivals", (news, priority)):
            return
        elif rivals[0].priority > priority:
            logger.info("Pausing in favour of %s.", names)
        else:
            logger.warning(
                "Pausing: the priority %d is also that of %s, so all of them pause. Give operators "
                "different priorities (--priority), or replicas of one operator a Lease (--lease).",
                *(priority, names),
            )

    async def _follow_namespaces(self) -> None:
        known: frozenset[str] | None = None
        while not self.settings.clusterwide:
            known = await self.operator.cluster_view.wait_for_namespaces(known)
            self.changed.set()

    async def _follow_leadership(self) -> None:
        """Make a new leader renew the record at once."""
        is_leading = self._elector.is_leading
        while self.is_replicated:
            is_leading = await self._elector.wait_for_change(was_leading=is_leading)
            for found in self._objects.values():
                found.moved.set()
            self.changed.set()

    async def _look_for_kinds(self, client: Client) -> None:
        """Find a mandatory kind, also without the permission to watch CRDs."""
        while self.settings.mandatory:
            await asyncio.sleep(_POLLING)
            if self.operator.cluster_view.is_known and not self._list_kinds():
                with contextlib.suppress(APIError):
                    self._polled = (await discover(client, GROUPS)).resources
                    self.changed.set()

    async def _finish_work(self) -> None:
        """Wait until no handlers run, before peers start; but not forever."""
        pausing = self.operator.pausing
        self._pause("the operator is stopping", DaemonStoppingReason.OPERATOR_EXITING)
        if not any(found.has_record for found in self._objects.values()):
            return
        limit = self.operator.settings.batching.exit_timeout + _DAEMONS_TIMEOUT
        await _within(limit, pausing.wait_until_idle())
        if not pausing.is_idle:
            logger.warning("The handlers have not ended in %g s. Cancelling them.", limit)
            pausing.cancel()
            await _within(_UNWINDING, pausing.wait_until_idle())

    def _pause(
        self, why: str, reason: DaemonStoppingReason = DaemonStoppingReason.OPERATOR_PAUSING
    ) -> None:
        self.operator.pausing.pause("peering", why, reason)


async def _within(limit: float | None, awaitable: Awaitable[Any]) -> None:
    """Wait for an awaitable, for at most so many seconds."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limit):
            await awaitable


def _enumerate(names: Iterable[str]) -> str:
    """Return names for a log line; if there are many, only some of them."""
    known = list(names)
    more = [f"{len(known) - _SHOWN} more"] if len(known) > _SHOWN else []
    return ", ".join([*known[:_SHOWN], *more])
