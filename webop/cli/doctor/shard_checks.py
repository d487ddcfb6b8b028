"""Check who owns the shards, if replicas divide the objects (page "Shards")."""

from __future__ import annotations

import contextlib
import datetime as dt
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from webop.cli.doctor.check_context import Context, Json
from webop.cli.doctor.findings import Finding, approve, fail, note, warn
from webop.client.api import Client
from webop.client.http.requests import Selection, select_name
from webop.context.child_store import build_label
from webop.coordination.lease_content import NOTHING, Record
from webop.coordination.shard_map import CANARY, LABEL, MAP_UID, ShardMap, Term
from webop.coordination.timed_requests import LEASES
from webop.objects.names import join_names
from webop.objects.shards import SHARDS, format_shards


@dataclass(frozen=True, slots=True)
class Team:
    """The replicas of an operator that run and divide the objects, as their Leases say.

    Attributes:
        map: who owns which shards, also replicas that do not run any more.
        owners: the shards of those that run, by their names.
        notes: the annotations of the Leases of those that run, by their names.
        leader: who leads, which must not be at the same time; empty if nobody does.
    """

    map: ShardMap
    owners: Mapping[str, frozenset[int]]
    notes: Mapping[str, Mapping[str, str]]
    leader: str

    @classmethod
    def build(cls, name: str, leases: Mapping[str, Json], now: dt.datetime) -> Team:
        """Return the team of an operator from the Leases by name, at a time of the API server."""
        records = {key: Record.parse(raw) for key, raw in leases.items()}
        held = {
            key: record
            for key, record in records.items()
            if record.holder and measure_age(record, now) <= (record.duration or 0)
        }
        leader = held.pop(name, NOTHING).holder
        shards = ShardMap.parse(leases.get(f"{name}-shards"))
        terms = {Term(key, one.holder, one.acquired_at) for key, one in held.items()}
        owners = dict[str, frozenset[int]]()
        for term, own in shards.owners.items():
            if term in terms:  # worker processes of a pod have one name
                owners[term.holder] = owners.get(term.holder, frozenset()) | own
        notes = {
            one.holder: leases[key]["metadata"].get("annotations") for key, one in held.items()
        }
        return cls(shards, owners, {who: found or {} for who, found in notes.items()}, leader)


def measure_age(record: Record, now: dt.datetime) -> float:
    """Return the seconds since a Lease was renewed; infinite if it never was."""
    with contextlib.suppress(ValueError, TypeError):
        return (now - dt.datetime.fromisoformat(record.renewed_at)).total_seconds()
    return math.inf


async def read_team(client: Client, namespace: str, name: str, now: dt.datetime) -> Team:
    """Return the team of an operator.

    Raises:
        APIError: the Leases cannot be read.
    """
    path, found = LEASES.get_url(namespace=namespace), dict[str, Json]()
    members = Selection({"labelSelector": f"{LABEL}={build_label(name)}"})
    for selection in (members, select_name(name)):
        items = (await client.request("GET", path, params=selection.params))["items"]
        found |= {raw["metadata"]["name"]: raw for raw in items}
    return Team.build(name, found, now)


async def check_shards(context: Context) -> list[Finding]:
    """Check that replicas that run own all shards, if the operator has shards."""
    leadership = context.settings.leadership
    if leadership.lease_name is None or not leadership.sharded:
        return []
    where, name = leadership.lease_namespace or context.namespace, leadership.lease_name
    team = await read_team(context.client, where, name, context.now)
    context.slots = max(context.slots, len(team.notes))
    return [*judge_team(f"Lease {where}/{name}-shards", team)]


async def check_sharers(context: Context, where: str, name: str) -> list[Finding]:
    """Check that no replicas own shards which keep others from leading (``--lease``)."""
    path = LEASES.get_url(namespace=where, name=f"{name}-shards")
    if not ShardMap.parse(await context.read(path) or None).owners:
        return []
    team = await read_team(context.client, where, name, context.now)
    return [*judge_sharers(f"Lease {where}/{name}-shards", team)]


def judge_sharers(subject: str, team: Team) -> Iterator[Finding]:
    """Yield findings about replicas with shards, beside those that elect a leader. Pure."""
    dead = {term.holder for term in team.map.owners} - team.owners.keys()
    if team.leader:
        return
    if team.owners:
        counts = (f"{who} ({len(own)})" for who, own in sorted(team.owners.items()))
        text = f"no replica leads, since replicas with --shards own shards: {join_names(counts)}"
        yield fail(subject, text, "Stop them, also a canary: see the page Shards.")
    elif dead:
        text = f"replicas that do not run any more own shards: {join_names(sorted(dead))}"
        remedy = "If no replica with --shards runs, delete this Lease: those with --lease wait."
        yield warn(subject, text, remedy)


def judge_team(subject: str, team: Team) -> Iterator[Finding]:
    """Yield findings about the replicas of an operator and their shards. Pure."""
    shards, owners, notes = team.map, team.owners, team.notes
    if team.leader:
        text = f"replicas take no shards, since {team.leader} leads (--lease)"
        yield fail(subject, text, "Stop the replicas with --lease, or those with --shards.")
    if shards.problem:
        remedy = "Delete this Lease: the replicas make another one, and begin again."
        yield fail(subject, shards.problem, remedy)
        return
    if not shards.uid:
        text = "it does not exist: no replica has divided the objects yet"
        yield warn(subject, text, "Start the operator, or read its log.")
        return
    if former := sorted(who for who, one in notes.items() if one.get(MAP_UID) != shards.uid):
        text = f"these replicas still use a deleted one: {join_names(former)}"
        yield warn(subject, text, "They stop by themselves within seconds. Else restart them.")
    if free := frozenset(range(SHARDS)).difference(*owners.values()):
        text = f"no replica that runs owns the shards {format_shards(free)}"
        remedy = "Start the operator. If it runs, its log says why it does not take them."
        yield fail(subject, f"{text}: their objects are not handled", remedy)
    for who, given in sorted(notes.items()):
        if given.get(CANARY) == "0":
            remedy = "Its log says why. A canary that is restarted tries again."
            yield warn("canary", f"{who} has given up its shards", remedy)
        elif given.get(CANARY):
            yield note("canary", f"{who} tries its version on {len(owners.get(who, ()))} shards")
    if not free:
        counts = (f"{who} ({len(own)})" for who, own in sorted(owners.items()))
        yield approve(subject, f"replicas own all shards: {join_names(counts)}")
