"""Peering: operators notice each other, and the one with the highest priority acts.

Flow of :meth:`Peering.run`: kinds and namespaces come and go → one :class:`Place` for each
peering object → :func:`~webop.coordination.peers.judge` → the objection or the consent (chapter
"Peering").
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Iterable

from webop.client.api import Client
from webop.client.discovery import discover
from webop.coordination.peers import GROUPS, Peer, Verdict, build_kinds, judge
from webop.coordination.places import Elector, Member, Place
from webop.errors import APIError
from webop.handling.context import OperatorContext
from webop.handling.stopping import DaemonStoppingReason
from webop.objects.resources import Resource

logger = logging.getLogger(__name__)

PlaceKey = tuple[Resource, str | None]

_WHO = "peering"
_DAEMONS_TIMEOUT = 5.0  # seconds; for daemons on the way out
_UNWINDING = 1.0  # seconds; for what was cancelled
_POLLING = 10.0  # seconds; for a kind that must be there
_PATIENCE = 30.0  # seconds; clocks can be set while somebody waits for the end of a record
_MOMENT = 0.1  # seconds
_SHOWN = 5  # names in one line of the log


class Peering:
    """Objects to acting as long as peers have a higher or the same priority.

    Guarantees:
        What other operators write, and what the API server refuses, ends nothing here. Peers count
        as long as their records are valid, whether the API server answers or not.

    Caveats:
        It is no lock. While a record travels, two operators can act; one that is cut off from the
        API server goes on with what it is doing. Leadership by a Lease has neither.

    Args:
        operator: the context of the operator.
        elector: who chooses among the replicas of the operator, which are one peer together.
    """

    def __init__(self, operator: OperatorContext, elector: Elector) -> None:
        self._operator = operator
        self._settings = operator.settings.peering
        self._elector = elector
        self._member = Member(operator.settings, operator.identity, elector)
        self._changed = asyncio.Event()
        self._polled: frozenset[Resource] = frozenset()
        self._places: dict[PlaceKey, Place] = {}
        self._tasks: dict[PlaceKey, asyncio.Task[None]] = {}
        self._has_decided = False
        self._said: dict[str, object] = {}

    def begin(self) -> None:
        """Object until it is known whether there are others."""
        if self._settings.standalone:
            return
        self._operator.insights.demand(GROUPS)
        self._operator.insights.subscribe(self._changed.set)
        self._start_anew()

    async def run(self, client: Client) -> None:
        """Decide for ever; when cancelled, wait for the end of the work, remove the records.

        Raises:
            LoginError: there are no credentials.
        """
        if self._settings.standalone:
            return
        self._start_anew()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow_namespaces(), name="namespaces for peering")
            group.create_task(self._follow_leadership(), name="leadership for peering")
            group.create_task(self._look_for_kinds(client), name="kinds for peering")
            try:
                while True:
                    self._changed.clear()
                    self._adjust(group, client)
                    pause = self._decide()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(pause):
                            await self._changed.wait()
            finally:
                await self._finish_work()

    def _start_anew(self) -> None:
        """Know nothing: it may be another cluster, with other credentials."""
        self._has_decided = False
        self._places.clear()
        self._tasks.clear()
        self._object("it is not known yet which other operators there are")

    def _adjust(self, group: asyncio.TaskGroup, client: Client) -> None:
        """Watch the peering objects of the kinds and the namespaces that there are."""
        served = self._list_namespaces()
        wanted = {(kind, namespace) for kind in self._list_kinds() for namespace in served}
        for key in self._tasks.keys() - wanted:
            self._tasks.pop(key).cancel()
        for key in [key for key in self._places if key[1] not in served]:
            del self._places[key]  # what it knows counts as long as the namespace is served
        for key in wanted - self._tasks.keys():
            place = self._places.get(key) or Place(*key, self._member, self._changed.set)
            self._places[key] = place
            self._tasks[key] = group.create_task(place.run(client), name=f"peering {place}")

    def _list_kinds(self) -> list[Resource]:
        """Return the peering kinds that the cluster has: one, or none; two in a migration."""
        insights = self._operator.insights
        kinds = build_kinds(clusterwide=self._settings.clusterwide)
        polled = {kind: kind for kind in self._polled}
        return [
            insights.find(kind) if insights.has(kind) else polled[kind]
            for kind in kinds
            if insights.has(kind) or kind in polled
        ]

    def _list_namespaces(self) -> Iterable[str | None]:
        if self._settings.clusterwide:
            return (None,)
        return sorted(self._operator.insights.namespaces or ())

    def _decide(self) -> float | None:
        """Object or consent; return the seconds until that may change by itself."""
        places = [self._places[key] for key in self._tasks]
        identity = self._member.identity
        if identity is None:
            return _MOMENT
        if not self._has_decided and not self._is_ready(places):
            return None
        self._has_decided = True
        now = time.time()
        peers = [peer for place in self._places.values() for peer in place.peers]
        verdict = judge(peers, identity, self._settings.priority, now)
        obstacle = self._find_obstacle(places)
        self._tell_of_places(places, obstacle)
        self._tell_of_peers(verdict)
        reasons = [*([obstacle] if obstacle else []), *map(str, verdict.higher or verdict.equal)]
        if reasons:
            self._object("; ".join(reasons))
        else:
            self._operator.duty.consent(_WHO)
        return None if math.isinf(verdict.ends_at) else min(_PATIENCE, verdict.ends_at - now)

    def _is_ready(self, places: list[Place]) -> bool:
        """Tell whether all is known that has to be known before anything is done."""
        insights = self._operator.insights
        is_scope_known = self._settings.clusterwide or insights.namespaces is not None
        is_known = insights.is_known and is_scope_known
        return is_known and all(place.is_settled for place in places)

    def _find_obstacle(self, places: list[Place]) -> str:
        """Return what is missing, in words, if there must be a peering object; or nothing."""
        if not self._settings.mandatory:
            return ""
        there = {place.namespace for place in places if place.is_there}
        pending = {place.namespace for place in places if not place.is_settled}
        lacking = [ns for ns in self._list_namespaces() if ns not in there | pending]
        problems = [place.problem for place in places if place.problem]
        if problems:
            return f"the peering {self._settings.name!r} is not accessible: {problems[0]}"
        if lacking and not self._list_kinds():
            kind = build_kinds(clusterwide=self._settings.clusterwide)[0]
            return (
                f"there is no kind {kind.kind} in the cluster for the peering "
                f"{self._settings.name!r}: kubectl apply -f manifests/peering.yaml, from "
                "webop's repository, then create the object"
            )
        return self._describe_lacking(lacking) if lacking else ""

    def _describe_lacking(self, lacking: list[str | None]) -> str:
        kind = self._list_kinds()[0]
        namespace = f"namespace: {lacking[0]}, " if lacking[0] else ""
        command = (
            f"kubectl create -f - <<< '{{apiVersion: {kind.api_version}, kind: {kind.kind}, "
            f"metadata: {{{namespace}name: {self._settings.name}}}}}'"
        )
        where = f" in {_enumerate(map(str, lacking))}" if lacking[0] else ""
        return f"there is no peering object {self._settings.name!r}{where}: {command}"

    def _tell_of_places(self, places: list[Place], obstacle: str) -> None:
        """Say once per change with whom it talks, and why with nobody."""
        name = self._settings.name
        there = sorted(str(place) for place in places if place.is_there)
        problems = " ".join(sorted({place.problem for place in places if place.problem}))
        if obstacle:
            text, level = f"The operator is paused: {obstacle}", logging.WARNING
        elif there:
            text = f"The operator belongs to the peering {name!r} {_enumerate(there)}. {problems}"
            level = logging.WARNING if problems else logging.INFO
        elif not self._settings.clusterwide and not self._operator.insights.namespaces:
            return
        else:
            what = "Default peering object" if name == "default" else f"Peering object {name!r}"
            why = "cannot be looked for" if problems else "is not found"
            text = f"{what} {why}, falling back to the standalone mode. {problems}"
            level = logging.WARNING
        self._say("places", level, text.rstrip())

    def _tell_of_peers(self, verdict: Verdict) -> None:
        """Say once per change who acts."""
        key = verdict.key
        if self._said.get("peers", Verdict().key) == key:
            return
        self._said["peers"] = key
        if verdict.higher:
            logger.info("Pausing in favour of %s.", _enumerate_peers(verdict.higher))
        elif verdict.equal:
            logger.warning(
                "Pausing, as all of them do: the priority %d is also that of %s. Give operators "
                "different priorities (--priority), or replicas of one a Lease (--lease).",
                self._settings.priority,
                _enumerate_peers(verdict.equal),
            )
        else:
            logger.info("Resuming: no other operator has a higher or the same priority any more.")

    def _say(self, topic: str, level: int, text: str) -> None:
        if self._said.get(topic) != text:
            self._said[topic] = text
            logger.log(level, "%s", text)

    async def _follow_namespaces(self) -> None:
        known: frozenset[str] | None = None
        while not self._settings.clusterwide:
            known = await self._operator.insights.wait_for_namespaces(known)
            self._changed.set()

    async def _follow_leadership(self) -> None:
        """Have a new leader speak at once."""
        is_leading = self._elector.is_leading
        while self._elector.is_enabled:
            is_leading = await self._elector.wait_for_change(was_leading=is_leading)
            for place in self._places.values():
                place.wake()
            self._changed.set()

    async def _look_for_kinds(self, client: Client) -> None:
        """Find a kind that must be there even if changes of kinds go unnoticed otherwise."""
        while self._settings.mandatory:
            await asyncio.sleep(_POLLING)
            if self._operator.insights.is_known and not self._list_kinds():
                with contextlib.suppress(APIError):
                    self._polled = (await discover(client, GROUPS)).resources
                    self._changed.set()

    async def _finish_work(self) -> None:
        """Let what is being done end before others begin, but not for ever."""
        self._object("the operator is leaving", DaemonStoppingReason.OPERATOR_EXITING)
        if not any(place.has_record for place in self._places.values()):
            return
        limit = self._operator.settings.batching.exit_timeout + _DAEMONS_TIMEOUT
        if not await self._is_idle_within(limit):
            logger.warning("The work has not ended in %g s; what is left is cancelled.", limit)
            self._operator.duty.cancel()
            await self._is_idle_within(_UNWINDING)

    async def _is_idle_within(self, limit: float) -> bool:
        """Wait for the end of the work; tell whether it has come."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit):
                await self._operator.duty.wait_until_idle()
        return self._operator.duty.is_idle

    def _object(
        self, why: str, reason: DaemonStoppingReason = DaemonStoppingReason.OPERATOR_PAUSING
    ) -> None:
        self._operator.duty.object(_WHO, why, reason)


def _enumerate(names: Iterable[str]) -> str:
    """Return names for a line of the log; not all of them if there are many."""
    known = list(names)
    more = [f"{len(known) - _SHOWN} more"] if len(known) > _SHOWN else []
    return ", ".join([*known[:_SHOWN], *more])


def _enumerate_peers(peers: Iterable[Peer]) -> str:
    return _enumerate(map(str, peers))
