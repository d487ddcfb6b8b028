"""``webop explain``: why nothing happens to an object, by the object itself and by a replica."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, cast
from urllib.parse import urlsplit

import click

from webop.calls.progress import HandlerState
from webop.cli.commands.doctor import paint
from webop.cli.commands.uninstall import find_kinds
from webop.cli.doctor.check_context import Json
from webop.cli.doctor.findings import (
    Finding,
    Report,
    approve,
    build_text,
    describe_seconds,
    fail,
    note,
    warn,
)
from webop.cli.manifests.objects import STATUS_PORT
from webop.client.api import Client
from webop.client.auth.vault import ConnectionInfo
from webop.client.discovery import discover
from webop.client.standalone import connect_command
from webop.errors import APIError, APINotFoundError
from webop.objects.body import Body
from webop.objects.diffs import diff
from webop.objects.names import join_names
from webop.objects.resources import Resource
from webop.objects.shards import find_shard, parse_shards
from webop.objects.storage.codec import decode
from webop.objects.storage.diffbase import AnnotationsDiffBaseStorage, EssenceDigest
from webop.objects.storage.keys import find_managed_prefixes
from webop.objects.storage.progress import ProgressRecord

_ASK = "kubectl port-forward deployment/NAME 8081, then run this command again; or use --status."
_FINALIZERS = "The operator removes its own after its handlers. Find the controllers of others."
_LOG = "The log of the replica has the text of the error."
_RETRY = "Correct the cause: the next attempt comes by itself."
_STUCK = "It waits for the next change of the object. For the cause: kubectl describe, or the log."


@click.command()
@click.argument("what", metavar="KIND/NAME")
@click.option("-n", "--namespace", metavar="NAMESPACE", help="The namespace of the object.")
@click.option(
    "--status", metavar="URL", default=f"http://localhost:{STATUS_PORT}/ui", show_default=True,
    help="The status page of a replica, as for 'webop run'.",
)  # fmt: skip
def explain(what: str, namespace: str | None, status: str) -> None:
    """Explain why nothing happens to an object, or what does; change nothing.

    The object itself has the records of its handlers and its last handled state. A replica says
    what it does with the object now, and what it waits for: the command asks the status page that
    'kubectl port-forward' opens, or --status. KIND is as for kubectl, such as databases,
    databases.example.com.

    \b
        kubectl port-forward deployment/my-operator 8081 &
        webop explain databases/orders -n prod
        kubectl exec deploy/my-operator -- webop explain databases/orders -n prod

    The exit code is 1 if there is no such object.
    """  # noqa: D301  \b keeps click from wrapping the lines
    kind, _, name = what.rpartition("/")
    if not kind or not name:
        raise click.UsageError("Name an object: webop explain databases/orders")
    click.echo(build_text(asyncio.run(_explain(kind, namespace, name, status)), paint))


async def _explain(kind: str, namespace: str | None, name: str, status: str) -> Report:
    async with connect_command() as client:
        resource, *others = find_kinds(kind, (await discover(client)).resources)
        if others:
            names = join_names(sorted(map(str, (resource, *others))))
            raise click.UsageError(f"Name one of the kinds {names}.")
        place = namespace or client.vault.default_namespace or "default"
        title = f"{resource} {f'{place}/{name}' if resource.namespaced else name}"
        try:
            raw = await client.get(resource, place if resource.namespaced else None, name)
        except APINotFoundError:
            hint = await _suggest_namespace(client, resource, name)
            raise click.ClickException(f"There is no {title}.{hint}") from None
        answer: Json = {}
        shard = None
        try:
            answer = await _ask(status, f"{resource.plural_name}/{raw['metadata']['uid']}")
            shard = _find_shard(answer, raw["metadata"])
            replica = [*_judge_answer(answer, shard)]
        except APIError as exc:
            replica = [warn("replica", f"none was asked: {status}: {exc}", _ASK)]
        found = [*_judge_object(raw, (answer.get("kind") or {}).get("fields"))]
        if shard is not None:
            found.append(judge_shard(answer["shards"], shard))
    return {title: found, "Replica": replica}


def _find_shard(answer: Json, meta: Json) -> int | None:
    """Return the shard of an object; None if the replicas do not divide the objects of its kind."""
    if not (answer.get("shards") and answer["kind"]):
        return None
    divisor = answer["kind"]["divided_by"]
    return find_shard(meta[divisor]) if divisor else 0


def _find_owner(shards: Json, shard: int) -> str:
    """Return the replica that owns a shard, as a replica knows it; empty if none does."""
    owners = (one["replica"] for one in shards["owners"] if shard in parse_shards(one["shards"]))
    return next(owners, "")


def judge_shard(shards: Json, shard: int) -> Finding:
    """Return who owns a shard, as a replica knows it."""
    if owner := _find_owner(shards, shard):
        return approve("shard", f"{shard}, owned by {owner}")
    namespace, _, name = shards["lease"].removesuffix("-shards").partition("/")
    remedy = f"See: WEBOP_LEADERSHIP__LEASE_NAMESPACE={namespace} webop doctor --shards {name}"
    return fail("shard", f"{shard}, free: no replica that runs owns it", remedy)


async def _suggest_namespace(client: Client, resource: Resource, name: str) -> str:
    same = {"fieldSelector": f"metadata.name={name}"}
    with suppress(APIError):
        items = (await client.request("GET", resource.get_url(), params=same))["items"]
        if found := sorted(item["metadata"]["namespace"] for item in items):
            return f" There is one in {join_names(found)}: add -n {found[0]}."
    return ""


async def _ask(status: str, wanted: str) -> Json:
    """Return what the status page of a replica says about an object."""
    parts = urlsplit(status)
    path = f"{parts.path.rpartition('/')[0]}/status.json"
    server = ConnectionInfo(server=f"{parts.scheme}://{parts.netloc}")
    async with connect_command(info=server) as client:
        answer = await client.request("GET", path, params={"object": wanted})
    if not isinstance(answer, dict) or "object" not in answer:
        raise APIError("this is not the status page of this version of webop")
    return answer


def _judge_object(raw: Json, fields: list[Any] | None) -> Iterator[Finding]:
    """Yield findings about an object; the fields are those with handlers, None if unknown."""
    meta, now = raw["metadata"], dt.datetime.now(dt.UTC)
    if since := meta.get("deletionTimestamp"):
        age = describe_seconds((now - dt.datetime.fromisoformat(since)).total_seconds())
        finalizers = join_names(meta.get("finalizers") or ())
        yield warn("deletion", f"requested {age} ago, waits for {finalizers}", _FINALIZERS)
    annotations: Json = meta.get("annotations") or {}
    prefixes = find_managed_prefixes(annotations)
    states = [one for prefix in prefixes for one in _judge_last_state(prefix[:-1], raw, fields)]
    text = "none is stored: no handlers of changes have finished with the object yet"
    yield from states or [note("last state", text)]
    for name, text in annotations.items():
        if name.startswith(prefixes):
            with suppress(TypeError, ValueError):  # it is no record, or somebody has edited it
                yield from _judge_record(name.partition("/")[2], decode(text), now)


def _judge_last_state(prefix: str, raw: Json, fields: list[Any] | None) -> Iterator[Finding]:
    """Compare the object with its last handled state; settings of the operator are not known."""
    storage, body = AnnotationsDiffBaseStorage(prefix=prefix), Body(raw)
    stored: Any = storage.fetch(body=body)
    new = storage.build(body=body, extra_fields=fields)
    is_digest = isinstance(stored, EssenceDigest)
    items = diff(stored.restore(new) if is_digest else stored, new)
    changed = [".".join(one.field) for one in items if fields or one.field[:1] != ("status",)]
    if stored is not None and changed:
        what = "some field" if is_digest else join_names(changed)
        remedy = (
            "If the operator does not ignore it, handlers follow when a replica acts: see below."
        )
        yield warn("last state", f"a change of {what} is not handled yet ({prefix})", remedy)
    elif stored is not None:
        yield approve("last state", f"it is handled: nothing has changed since ({prefix})")


def _judge_record(key: str, record: Json | None, now: dt.datetime) -> Iterator[Finding]:
    if not record or not record.keys() <= ProgressRecord.__annotations__.keys():
        return
    state = HandlerState.from_record(cast("ProgressRecord", record))
    age = describe_seconds((now - state.started).total_seconds())
    text = f"{state.purpose} began {age} ago, attempts: {state.retries}"
    said = f": {state.message}" if state.message else ""
    if state.success:
        yield approve(key, f"{text}, succeeded")
    elif state.failure:
        yield fail(key, f"{text}, failed for good{said}", _STUCK)
    elif state.delayed is None:
        yield note(key, f"{text}, not finished{said}")
    else:
        rest = (state.delayed - now).total_seconds()
        due = describe_seconds(abs(rest))
        due = f"in {due}" if rest > 0 else f"{due} overdue"
        yield warn(key, f"{text}, the next one {due}{said}", _RETRY)


def _judge_answer(answer: Json, shard: int | None) -> Iterator[Finding]:
    """Yield findings about the report of a replica about one object of a shard."""
    operator, scope, row = answer["operator"], answer["kind"], answer["object"]
    role = answer["role"] or "no handlers of objects"
    who = f"{operator['pod'] or operator['name']} in the cluster {operator['cluster']}"
    yield note("replica", f"{who}: {role}")
    for why in answer["not_ready"]:
        yield warn("not ready", why, "See the log of the replica.")
    if not answer["acting"]:
        remedy = "Ask the replica that acts: kubectl port-forward pod/NAME 8081"
        yield warn("now", "it does not act: it calls no handlers for objects", remedy)
        return
    if scope is None:
        remedy = "Ask a replica of the operator that does: --status."
        yield fail("kind", "it does not serve this kind", remedy)
        return
    yield note("handlers", join_names(scope["handlers"], 20))
    if shard is not None and shard not in parse_shards(answer["shards"]["owned"]):
        owner = _find_owner(answer["shards"], shard)
        pod = owner if operator["pod"] and owner and "/" not in owner else "NAME"
        remedy = f"Ask the owner of the shard: kubectl port-forward pod/{pod} 8081"
        yield warn("now", "another replica handles the objects of its shard", remedy)
        return
    if row is None:
        selectors = (f"{key}={text}" for key, text in scope["selectors"].items())
        limits = join_names([*scope["namespaces"], *selectors])
        text = f"it does not see the object{limits and f': it serves only {limits}'}"
        remedy = "Change the object or the options of the operator. If it is new, ask again."
        yield fail("now", text, remedy)
    else:
        yield from _judge_row(row)
    for one in answer["failed"]["items"]:
        text = f"failed for good {describe_seconds(one['age'])} ago with {one['error']}"
        yield fail(one["handler"], text, _STUCK)


def _judge_row(row: Json) -> Iterator[Finding]:
    """Yield findings about what happens to an object in a replica that acts."""
    since = describe_seconds(row["since"] or 0)
    words = {
        "idle": "idle: nothing is left to do until something changes",
        "waiting": f"has waited for its turn for {since}, behind other objects",
        "resting": f"its next turn is in {describe_seconds(row['retry_in'] or 0)}",
        "held": f"has been held for {since}",
        "working": f"{row['running'] or 'webop'} has run for {since}",
    }
    if row["waits_for"]:
        remedy = "If that does not end, read the log of the replica."
        yield warn("now", f"no handler is called: it waits for {row['waits_for']}", remedy)
    else:
        yield (approve if row["state"] == "idle" else note)("now", words[row["state"]])
    for one in row["failures"]:
        text = f"failed attempts in a row: {one['attempts']}, the last one with {one['error']}"
        yield warn(one["handler"] or "webop itself", text, _LOG)
    for one in row["reconcilers"]:
        reason = f": {one['reason']}" if one["reason"] else ""
        yield note(one["id"], f"is called again in {describe_seconds(one['due_in'])}{reason}")
    if row["daemons"]:
        yield note("daemons", f"running: {join_names(row['daemons'])}")
