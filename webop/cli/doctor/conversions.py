"""Check the conversion between the versions of kinds: the definition, the address, and reads."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Collection, Iterator

from webop.cli.doctor.check_context import Context, Json
from webop.cli.doctor.findings import Finding, approve, fail, note, warn
from webop.cli.doctor.reachability import check_trust, explain
from webop.errors import APIForbiddenError, APIStatusError
from webop.models.crds import get_storage_version, is_converted
from webop.models.versions import collect_versions
from webop.objects.kept_annotations import find_records
from webop.objects.names import join_names
from webop.objects.resources import CRDS, Resource

_REASON = re.compile(r"conversion webhook for .+? failed: (.*)", re.DOTALL)
_PAGE = "100"  # objects
_LONGEST = 500  # characters of a reason


async def check_conversions(context: Context) -> AsyncIterator[tuple[str, list[Finding]]]:
    """Yield findings about the kinds whose objects the operator converts."""
    for name, kind in collect_versions(context.registry.select_converters()).items():
        title = f"Conversion of {name}"
        try:
            definition = await context.read(CRDS.get_url(name=name))
        except APIForbiddenError as exc:
            yield title, [note("definition", f"unknown: {exc}")]
            continue
        if not definition:
            text = "it is not in the cluster: its objects cannot be read"
            yield title, [warn("definition", text, "Create it: webop crd apply FILES")]
            continue
        findings = [*judge_definition(definition, kind.models, kind.hub)]
        spec = definition["spec"]
        if webhook := (spec.get("conversion") or {}).get("webhook"):
            findings += await check_trust(context, [webhook])
            if context.is_probing:
                group, plural = spec["group"], spec["names"]["plural"]
                served = (each["name"] for each in spec["versions"] if each["served"])
                kinds = [Resource(group, version, plural) for version in served]
                findings += await _read_all(context, kinds)
        yield title, findings


def judge_definition(definition: Json, versions: Collection[str], hub: str) -> Iterator[Finding]:
    """Yield findings about a definition, for the versions of the models. Pure."""
    spec = definition["spec"]
    served = {each["name"] for each in spec["versions"] if each["served"]}
    storage = get_storage_version(definition)
    stored = definition.get("status", {}).get("storedVersions") or [storage]
    if not is_converted(definition):
        text = (
            "the strategy is None: API servers call no function, and fields that the other version "
            "does not have are dropped"
        )
        remedy = (
            "Start the operator with settings.admission.managed, which writes it; if it runs, read "
            "its log. To write it yourself: webop manifests --ca."
        )
        yield (fail if len({*served, *stored}) > 1 else warn)("strategy", text, remedy)
    else:
        yield approve("strategy", "the operator is called")
    if unknown := sorted({*served, *stored} - {*versions}):
        text = f"in the cluster, but not in these files: {join_names(unknown)}"
        yield fail("versions", text, "Add their models and converters, or remove them.")
    if storage != hub:
        text = f"objects are stored as {storage}, but the models say {hub}"
        yield warn("storage", text, "Apply the definition: webop crd apply FILES")
    if len(stored) > 1:
        text = f"objects may be stored as {join_names(sorted({*stored} - {storage}))}, too"
        command = f"webop crd migrate --name {definition['metadata']['name']}"
        yield note("storage", text, f"Before you remove an old version: {command}")


async def _read_all(context: Context, resources: list[Resource]) -> list[Finding]:
    """Read one object in all versions; it is converted if it is stored in another one.

    Lists are answered from the cache of the API server, also if no conversion works. But they show
    which objects were converted without their functions: one of these is read.
    """
    trouble, found = "", list[Json]()
    for resource in resources:
        try:
            listed = await context.read(resource.get_url(), limit=_PAGE)
        except APIStatusError as exc:
            trouble = str(exc)
        else:
            found += listed.get("items") or ()
    if not found:
        return [note("objects", f"not read: {trouble}" if trouble else "there are none to read")]
    chosen = next(filter(find_records, found), found[0])["metadata"]
    where = chosen.get("namespace"), chosen["name"]
    return [await _read(context, one, *where) for one in resources]


async def _read(context: Context, resource: Resource, namespace: str | None, name: str) -> Finding:
    subject = resource.version
    try:
        found = await context.read(resource.get_url(namespace=namespace, name=name))
    except APIForbiddenError as exc:
        return note(subject, f"not read: {exc}")
    except APIStatusError as exc:
        matched = _REASON.search(str(exc))
        reason = (matched[1] if matched else str(exc))[:_LONGEST]
        if reason.startswith("Cannot convert"):
            return fail(subject, reason, "Correct the function or the object.")
        what, remedy = explain(reason)
        return fail(subject, f"{what}: {reason}", remedy)
    place = f"{namespace}/{name}" if namespace else name
    if found and (records := find_records(found)):
        text = f"{place} cannot be converted: {join_names(records)} keeps what it was"
        return fail(subject, text, "Events of the object and the log say why. Correct it.")
    text = f"{place} can be read in this version" if found else f"{place} was just deleted"
    return approve(subject, text)
