"""Where the webhooks of a configuration lead, and whether they trust what is there.

Usually, all webhooks of a configuration have one address and one ``caBundle``: what they have in
common is looked at once.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
from collections.abc import Iterable, Mapping, Sequence

from webop.doctor.findings import Finding, complain, note
from webop.doctor.permissions import SecretState
from webop.doctor.records import Json, Record, has_required
from webop.doctor.report import describe_names
from webop.doctor.routes import (
    Route,
    check_backing,
    check_connection,
    connect,
    fetch_backing,
    is_elsewhere,
    is_inside,
    parse_route,
)
from webop.doctor.trust import Material, check_bundle, check_shown, check_stored
from webop.doctor.visit import INSIDE, Visit
from webop.errors import APIForbiddenError

_CERTIFICATE_MARK = "webop.dev/certificate"


async def check_addresses(visit: Visit, records: Iterable[Record]) -> list[Finding]:
    """Check all addresses of the webhooks of a configuration.

    Raises:
        APIError: the API server is not available.
    """
    findings: list[Finding] = []
    for (route, bundle), sharing in group_records(records).items():
        is_required = has_required(sharing)
        if route is None:
            findings.append(_describe_nowhere(sharing))
            continue
        findings += check_bundle(bundle, visit.now, is_required=is_required)
        check = _check_url if route.service is None else _check_service
        findings += await check(visit, route, bundle, is_required=is_required)
    return findings


def group_records(records: Iterable[Record]) -> dict[tuple[Route | None, str], list[Record]]:
    """Return the records by where they lead, and what they trust. Pure."""
    grouped: dict[tuple[Route | None, str], list[Record]] = {}
    for record in records:
        key = parse_route(record.config), record.config.get("caBundle") or ""
        grouped.setdefault(key, []).append(record)
    return grouped


def list_services(records: Iterable[Record]) -> list[tuple[str, str]]:
    """Return the namespaces and names of the Services that records lead to. Pure."""
    routes = (route for route, _ in group_records(records))
    found = (route.service for route in routes if route is not None and route.service is not None)
    return list(dict.fromkeys(found))


def get_secret_name(service: str) -> str:
    """Return where :class:`webop.WebhookServiceServer` keeps its certificates by default."""
    return f"{service}-webhook-certs"


async def fetch_secret(visit: Visit, namespace: str, service: str) -> Json | None:
    """Read the Secret with the certificates for a Service; empty if there is none.

    None stands for one that may not be read.

    Raises:
        APIError: the API server is not available.
    """
    path = f"/api/v1/namespaces/{namespace}/secrets/{get_secret_name(service)}"
    try:
        return await visit.read(path) or {}
    except APIForbiddenError:
        return None


def describe_state(secret: Json | None) -> SecretState:
    """Tell whether there is a Secret, and who has made it. Pure."""
    if not secret:
        return SecretState(is_absent=secret is not None)
    annotations = secret["metadata"].get("annotations") or {}
    return SecretState(is_foreign=_CERTIFICATE_MARK not in annotations)


def read_material(secret: Mapping[str, Json]) -> Material | None:
    """Return the certificate and the key that are in a Secret; None if they are not. Pure."""
    data = secret.get("data") or {}
    try:
        parts = [base64.b64decode(str(data[key])) for key in ("tls.crt", "tls.key")]
    except (KeyError, binascii.Error):
        return None
    return Material(*parts)


async def _check_url(
    visit: Visit, route: Route, bundle: str, *, is_required: bool
) -> Sequence[Finding]:
    if is_elsewhere(route.host):
        return [note("address", f"{route} is known only where the API server is: not tried")]
    problem = await connect(route.host, route.port)
    findings = [check_connection(route, problem)]
    if not problem:
        findings += await check_shown(route, route.host, bundle, visit.now, is_required=is_required)
    return findings


async def _check_service(
    visit: Visit, route: Route, bundle: str, *, is_required: bool
) -> Sequence[Finding]:
    assert route.service is not None  # noqa: S101 - for the type checker
    backing = await fetch_backing(visit, *route.service)
    findings = [*check_backing(route, backing, is_required=is_required)]
    if backing.service is not None and not backing.service:
        return findings
    host = backing.external_name or route.host
    # Elsewhere, a name of the cluster may lead to whatever a provider's DNS makes up.
    if backing.external_name or is_inside():
        shown = await check_shown(route, host, bundle, visit.now, is_required=is_required)
        return [*findings, *shown]
    secret = await fetch_secret(visit, *route.service)
    return [*findings, *_check_secret(secret, route, bundle, visit.now, is_required=is_required)]


def _check_secret(
    secret: Json | None, route: Route, bundle: str, now: dt.datetime, *, is_required: bool
) -> Iterable[Finding]:
    """Check the certificate in the Secret, in place of the one that nobody can see from here."""
    material = read_material(secret) if secret else None
    if material is None:
        return [note("certificate", f"{route} cannot be connected to from here", INSIDE)]
    return check_stored(material, route, bundle, now, is_required=is_required)


def _describe_nowhere(records: Sequence[Record]) -> Finding:
    names = describe_names(record.name for record in records)
    return complain(
        "address",
        f"it leads nowhere: {names}",
        "Start the operator, which puts its address there; or remove the webhooks.",
        is_failure=has_required(records),
    )
