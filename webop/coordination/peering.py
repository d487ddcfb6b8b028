"""Peering: operators notice each other, and the one with the highest priority acts.

Flow of :meth:`Peering.run`: kinds and namespaces of the cluster → a :class:`PeeringObject` for the
cluster, or for each served namespace → :func:`~webop.coordination.peer_records.select_rivals` →
pause or resume (chapter "Peering").
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import random
import time
from typing import Any

from webop.aio.backoff import Backoff, Once
from webop.aio.concurrency import wait_and_clear
from webop.client.api import Client
from webop.client.changes import follow
from webop.client.discovery import discover
from webop.client.http.failed_requests import choose_pause
from webop.client.http.requests import MERGE_PATCH, encode_body, select_name
from webop.client.watch import watch
from webop.client.watch_events import parse_number, parse_version
from webop.context.operator_context import OperatorContext
from webop.coordination.election import Elector
from webop.coordination.peer_records import (
    GROUPS,
    Peer,
    build_creation_command,
    build_kinds,
    build_record,
    parse_peers,
    select_rivals,
)
from webop.coordination.timed_requests import perform_once
from webop.errors import APIError, APIForbiddenError, APINotFoundError
from webop.objects.names import join_names
from webop.objects.resources import Resource

logger = logging.getLogger(__name__)

_HEADROOM = (5.0, 10.0)  # seconds; so long before it expires, a record is renewed
_LOSS_PAUSE = 5.0  # seconds; between a renewal and the next one if the record is lost
_ROUNDING = 1.0  # seconds; more than the difference between a moment and its text
_PAUSES = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)  # seconds; after failures
_TIMEOUT = 5.0  # seconds; of a request
_POLLING = 10.0  # seconds; for a kind that must exist
_MAX_WAIT = 30.0  # seconds; the clock can be set while this waits until a record expires


class PeeringObject:
    """A peering object, which can be created and deleted at any time: all records, and our own.

    A list shows the present. An event, and the response to a request of ours, can be older than
    what is known: then it is ignored, because the records of running peers look expired in it.

    Attributes:
        peers: the peers by their identities. After the object was deleted, or restored from a
            backup, those that it does not show count until their records expire: they still run.
        is_settled: whether peers could see this operator; it acts only after that.
        has_record: whether there is a record to remove at the end.
        problem: a text: which permission is missing.
    """

    def __init__(self, kind: Resource, namespace: str | None, peering: Peering) -> None:
        self.kind = kind
        self.namespace = namespace
        self.peers: dict[str, Peer] = {}
        self.is_settled = False
        self.has_record = False
        self.problem = ""
        self._peering = peering
        self._name = peering.settings.name
        self._uid = ""
        self._version = 0
        self._former: dict[str, Peer] = {}
        self._renewed = -math.inf  # when the last renewal was sent, by the loop's clock
        self._pause = 0.0  # seconds between that one and the next
        self._written_end = 0.0  # when the record expires that was written last, Unix timestamp
        self._shown_end = 0.0  # the same, of the record in the newest state; 0 for no record
        self._changed = asyncio.Event()
        self._invalid: dict[str, str] = {}
        self._once = Once()

    def __str__(self) -> str:
        return f"in {self.namespace!r}" if self.namespace else "cluster-wide"

    @property
    def is_there(self) -> bool:
        """Whether the object exists."""
        return self._uid != ""

    async def run(self, client: Client) -> None:
        """Read the records of peers and renew ours, forever; when cancelled, remove ours."""
        try:
            await self._look(client)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._watch(client), name=f"watch of the peering {self}")
                await self._keep_alive(client)
        finally:
            self._lose()
            if self.has_record:
                try:
                    await self._patch(client, {"status": {self._peering.identity: None}})
                except APINotFoundError:
                    pass  # the record is gone with the object
                except APIError as exc:
                    logger.warning("Cannot remove the record of this operator %s: %s", self, exc)

    def renew_now(self) -> None:
        """Renew our record at once."""
        self._renewed = -math.inf
        self._note_change()

    async def look_again(self, client: Client) -> None:
        """Read it again before peers count as expired: maybe the watch is stuck."""
        try:
            async with asyncio.timeout(_TIMEOUT):
                await self._read(client)
        except (APIError, TimeoutError) as exc:
            logger.debug("Cannot read the peering %r %s again: %s", self._name, self, exc)

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
                self.is_settled = self.problem != ""
                self._note_change()
                await asyncio.sleep(choose_pause(backoff, exc) or 0)
            else:
                break
        self.problem = ""

    async def _watch(self, client: Client) -> None:
        options = self._peering.operator.settings.watching
        selection = select_name(self._name)
        items = watch(client, self.kind, self.namespace, options, selection=selection)
        async with contextlib.aclosing(items):
            async for raw, version, is_listed in follow(items):
                await self._accept(client, raw, parse_number(version), is_listed=is_listed)

    async def _read(self, client: Client) -> None:
        selection = select_name(self._name)
        pages = client.list_pages(self.kind, self.namespace, selection, is_retried=False)
        async for page in pages:
            for raw in page.items:  # the watch can know more by now
                await self._accept(client, raw, parse_version(raw))

    async def _keep_alive(self, client: Client) -> None:
        backoff = Backoff(_PAUSES)
        while True:
            while (pause := self._compute_pause()) is not None and pause <= 0:
                await self._renew(client, backoff)
            self.is_settled = True
            self._peering.changed.set()
            await wait_and_clear(self._changed, pause)

    def _compute_pause(self) -> float | None:
        """Return the seconds until our record must be written; None if it must not.

        It must be written before it expires, and if it is lost, as after a restored backup.
        """
        if not (self.is_there and self._peering.is_speaker):
            return None
        is_lost = self._shown_end < self._written_end - _ROUNDING
        pause = min(self._pause, _LOSS_PAUSE) if is_lost else self._pause
        return self._renewed + pause - asyncio.get_running_loop().time()

    async def _renew(self, client: Client, backoff: Backoff) -> None:
        """Write our record, and decide when to do so again."""
        settings, now = self._peering.settings, time.time()
        record = build_record(settings.priority, settings.lifetime, now)
        self._renewed = asyncio.get_running_loop().time()
        self._written_end = now + settings.lifetime
        self.has_record = not self._peering.is_replicated  # also if the response is lost
        headroom = random.uniform(*_HEADROOM)  # noqa: S311  not all operators at once
        self._pause = max(0.5, settings.lifetime / 2, settings.lifetime - headroom)
        try:
            state = await self._patch(client, {"status": {self._peering.identity: record}})
        except APINotFoundError:
            self._pause = min(self._pause, backoff.next() or 0)
            return
        except APIError as exc:
            self._note_failure("Cannot renew the record in the peering", exc)
            chosen = choose_pause(backoff, exc, limit=_HEADROOM[0]) or 0
            self._pause = min(self._pause, chosen, _HEADROOM[0])
            return
        self.problem = ""
        backoff.reset()
        self._once.forget("failure")
        if not settings.stealth:
            logger.debug("Keep-alive sent to the peering %r %s.", self._name, self)
        with contextlib.suppress(AttributeError, KeyError, TypeError):  # a proxy can send anything
            await self._accept(client, state, parse_version(state))

    async def _accept(
        self, client: Client, raw: dict[str, Any] | None, version: int, *, is_listed: bool = False
    ) -> None:
        """Accept a state of the object, None for its absence; remove expired records from it."""
        is_older = 0 < version < self._version
        if is_older and not is_listed:
            return
        self._version = version
        if raw is None:
            self._lose()
            return
        metadata = raw["metadata"]
        if metadata["uid"] != self._uid:
            self._lose()
            self._former, self._uid, self._renewed = self.peers, metadata["uid"], -math.inf
        elif is_older:  # a restored backup
            self._former = self.peers
        peers, problems = parse_peers(raw.get("status"))
        for identity, problem in problems.items():
            if self._invalid.get(identity) != problem:
                text = "Ignoring the record of %r in the peering %r %s: %s."
                logger.warning(text, identity, self._name, self, problem)
        self._invalid = problems
        now, own = time.time(), self._peering.identity
        self._shown_end = peers[own].deadline if own in peers else 0.0
        dead = {
            identity for identity, peer in peers.items() if identity != own and peer.deadline <= now
        }
        self._former = {key: peer for key, peer in self._former.items() if key not in peers}
        found = {**self._former, **peers}
        self.peers = {identity: found[identity] for identity in found.keys() - dead}
        self._note_change()
        if dead:
            known = {"resourceVersion": metadata["resourceVersion"]}
            try:
                await self._patch(client, {"metadata": known, "status": dict.fromkeys(dead)})
            except APIError as exc:  # after a conflict, the next event shows what it is now
                logger.debug("Cannot remove expired records %s: %s", self, exc)

    def _lose(self) -> None:
        """Note that the object does not exist; records without an end vanish with it."""
        self.peers = {key: peer for key, peer in self.peers.items() if peer.deadline < math.inf}
        self._uid = ""
        self._note_change()

    def _note_change(self) -> None:
        self._changed.set()
        self._peering.changed.set()

    def _note_failure(self, what: str, exc: APIError) -> None:
        if isinstance(exc, APIForbiddenError):  # which Peering reports, and may pause for
            self.problem = str(exc)
            return
        level = logging.WARNING if self._once.is_new("failure") else logging.DEBUG
        logger.log(level, "%s %r %s: %s", what, self._name, self, exc)

    async def _patch(self, client: Client, patch: dict[str, Any]) -> Any:
        """Patch the object, in one attempt; return its new state."""
        subresource = "status" if "status" in self.kind.subresources else None
        path = self.kind.get_url(namespace=self.namespace, name=self._name, subresource=subresource)
        content = encode_body(patch)
        return await perform_once(client, "PATCH", path, content, MERGE_PATCH, timeout=_TIMEOUT)


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
        self._tasks: dict[tuple[Resource, str | None], asyncio.Task[None]] = {}
        self._has_decided = False
        self._rivals: tuple[Peer, ...] = ()
        self._once = Once()

    @property
    def has_records(self) -> bool:
        """Whether there are records to remove at the end."""
        return any(found.has_record for found in self._objects.values())

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
        return self._elector.is_first or not self.is_replicated

    def begin(self) -> None:
        """Pause until the peers are known."""
        if not self.settings.standalone:
            self.operator.cluster_view.demand(GROUPS)
            self.operator.cluster_view.subscribe(self.changed.set)
            self._elector.on_change = self._note_leadership
            self.operator.pausing.pause("peering", "the other operators are not known yet")

    async def run(self, client: Client) -> None:
        """Pause and resume forever; when cancelled, remove our records."""
        if self.settings.standalone:
            return
        async with asyncio.TaskGroup() as group:
            group.create_task(self._look_for_kinds(client), name="kinds for peering")
            while True:
                self._adjust(group, client)
                now = time.time()  # one moment for both: nobody expires in between, unread
                if any(rival.deadline <= now for rival in self._rivals):
                    for found in list(self._objects.values()):
                        await found.look_again(client)
                await wait_and_clear(self.changed, self._decide(now))

    def _adjust(self, group: asyncio.TaskGroup, client: Client) -> None:
        """Watch the peering objects of the existing kinds and namespaces."""
        served = self._list_namespaces()
        wanted = {(kind, namespace): kind for kind in self._list_kinds() for namespace in served}
        for key in self._tasks.keys() - wanted:
            self._tasks.pop(key).cancel()
        for key in [key for key in self._objects if key[1] not in served]:
            del self._objects[key]  # the records of others count as long as it is served
        for key, kind in wanted.items():
            found = self._objects.setdefault(key, PeeringObject(*key, self))
            found.kind = kind  # it can have a status subresource now
            if key not in self._tasks:
                self._tasks[key] = group.create_task(found.run(client), name=f"peering {found}")

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
        rivals = select_rivals(peers, self.identity, priority, now)
        if self.operator.settings.watching.shard_selectors:  # equal peers have other shards
            rivals = tuple(peer for peer in rivals if peer.priority > priority)
        self._rivals = rivals
        self.obstacle = self._find_obstacle(watched) if self.settings.mandatory else ""
        self._report_objects(watched)
        self._report_rivals(rivals)
        if reasons := [*filter(None, [self.obstacle]), *map(str, rivals)]:
            self.operator.pausing.pause("peering", "; ".join(reasons))
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
            where = f" in {join_names(map(str, lacking))}" if lacking[0] else ""
            command = build_creation_command(kinds[0], lacking[0], name)
            return f"there is no peering object {name!r}{where}: {command}"
        kind = build_kinds(clusterwide=self.settings.clusterwide)[0].kind
        return (
            f"there is no kind {kind} in the cluster for the peering {name!r}: kubectl apply -f "
            "manifests/peering.yaml (from webop's repository), then create the object"
        )

    def _report_objects(self, watched: list[PeeringObject]) -> None:
        """Log once per change which peering objects the operator uses, or why it uses none."""
        name = self.settings.name
        there = sorted(str(found) for found in watched if found.is_there)
        problems = " ".join(sorted({found.problem for found in watched if found.problem}))
        if self.obstacle:
            text = f"The operator is paused: {self.obstacle}"
        elif there:
            text = f"The operator belongs to the peering {name!r} {join_names(there)}. {problems}"
        elif self._list_namespaces():
            what = "Default peering object" if name == "default" else f"Peering object {name!r}"
            why = "cannot be read" if problems else "is not found"
            risk = (
                ""  # only one replica with this Lease handles an object
                if self.is_replicated
                else ": a second copy of this operator would handle the same objects. One copy? "
                "Add --standalone. Several? Add --lease NAME"
            )
            text = f"{what} {why}, falling back to the standalone mode{risk}. {problems}"
        else:
            return
        if self._once.is_new("objects", text):
            is_fine = (there or name == "default") and not self.obstacle and not problems
            logger.log(logging.INFO if is_fine else logging.WARNING, "%s", text.rstrip())

    def _report_rivals(self, rivals: tuple[Peer, ...]) -> None:
        """Log once per change which peers this operator pauses for; renewals are no change."""
        news = [(peer.identity, peer.priority, peer.message) for peer in rivals]
        priority, names = self.settings.priority, join_names(map(str, rivals))
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

    def _note_leadership(self) -> None:
        """Make a new leader renew the record at once."""
        for found in self._objects.values():
            found.renew_now()
        self.changed.set()

    async def _look_for_kinds(self, client: Client) -> None:
        """Find a mandatory kind, also without the permission to watch CRDs."""
        while self.settings.mandatory:
            await asyncio.sleep(_POLLING)
            if self.operator.cluster_view.is_known and not self._list_kinds():
                with contextlib.suppress(APIError):
                    self._polled = (await discover(client, GROUPS)).resources
                    self.changed.set()
