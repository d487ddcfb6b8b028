"""Where the webhooks of a configuration lead, and whether the API server trusts who answers there.

Usually, all webhooks of a configuration have one address and one ``caBundle``: what they have in
common is checked once. The handshake is the one of the API server: the same CAs, and no others;
the same server name, in the subjectAltName (of a Service, ``<service>.<namespace>.svc``).
"""

from __future__ import annotations

import asyncio
import base64
import datetime as dt
import os
import re
import socket
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from webop.doctor.findings import Finding, approve, describe_seconds, fail, note, warn
from webop.doctor.probing import RENEW
from webop.doctor.records import has_required
from webop.doctor.visit import Json, Visit
from webop.errors import APIForbiddenError
from webop.servers.certificates.certs import read_serial, read_validity, split_certificates
from webop.servers.local import WebhookServer

_TIMEOUT = 5.0  # seconds


class Route(NamedTuple):
    """Where the API server connects to: a Service by its namespace and name, or else a URL."""

    host: str
    port: int
    service: tuple[str, str] | None = None

    def __str__(self) -> str:
        if self.service is not None:
            return f"Service {'/'.join(self.service)} port {self.port}"
        return f"https://{self.host}:{self.port}"


def parse_route(config: Json) -> Route:
    """Read a ``clientConfig``; API servers take none that is wrong, but for ports out of range."""
    if service := config.get("service"):
        namespace, name = str(service["namespace"]), str(service["name"])
        return Route(f"{name}.{namespace}.svc", service.get("port") or 443, (namespace, name))
    parts = urlsplit(config["url"])
    port = re.search(r":(\d+)$", parts.netloc)
    return Route(parts.hostname or "", int(port[1]) if port else 443)


async def check_trust(visit: Visit, webhooks: Sequence[Json]) -> list[Finding]:
    """Check all addresses of the webhooks of a configuration."""
    configs = [webhook["clientConfig"] for webhook in webhooks]
    findings: list[Finding] = []
    for route, bundle in {(parse_route(one), one.get("caBundle") or ""): 0 for one in configs}:
        findings += [check_bundle(bundle, visit.now), *await _check_route(visit, route, bundle)]
    return [one.soften(is_required=has_required(webhooks)) for one in findings]


def check_bundle(text: str, now: dt.datetime) -> Finding:
    """Check that a ``caBundle`` can be used, now and for some time. Pure.

    What counts is the certificate in it that lives longest: during a rotation, there are old ones.
    """
    if not text:
        return note("caBundle", "there is none: only CAs that the API server knows are trusted")
    try:
        pems = split_certificates(base64.b64decode(text, validate=True))
        last = max(pems, key=lambda pem: read_validity(pem)[1])
    except ValueError as exc:
        return fail("caBundle", f"it cannot be read: {exc}", RENEW)
    what = "its CA" if len(pems) == 1 else f"the last of its {len(pems)} CAs"
    return judge_life("caBundle", what, last, now)


def judge_life(subject: str, what: str, pem: bytes, now: dt.datetime) -> Finding:
    """Judge what is left of the life of a certificate: its last tenth or week is little. Pure."""
    start, end = read_validity(pem)
    if end - now > min((end - start) * 0.1, dt.timedelta(days=7)):
        return approve(subject, f"{what} is trusted, valid until {end:%Y-%m-%d}")
    span, when = describe_seconds(abs((end - now).total_seconds())), f"{end:%Y-%m-%d %H:%M} UTC"
    if end > now:
        return warn(subject, f"{what} expires on {when}, in {span}", RENEW)
    return fail(subject, f"{what} expired on {when}, {span} ago", RENEW)


async def _check_route(visit: Visit, route: Route, bundle: str) -> list[Finding]:
    """Connect to a server if that is possible from here, and check the certificate it shows."""
    host = route.host
    try:
        if route.service is not None:
            namespace, name = route.service
            service = await visit.read(f"/api/v1/namespaces/{namespace}/services/{name}")
            if not service:
                remedy = "Create it; or correct service= and namespace= of the webhook server."
                return [fail("address", f"{route}: there is no such Service", remedy)]
            host = service["spec"].get("externalName") or host
            # Only a pod is sure to resolve the names of Services: elsewhere, they lead anywhere.
            if host == route.host and "KUBERNETES_SERVICE_HOST" not in os.environ:
                text = f"{route} exists, but cannot be connected to from here"
                remedy = "Run it inside: kubectl exec deploy/NAME -- webop doctor"
                return [note("address", text, remedy)]
        shown = await _shake_hands(route, host, bundle)
    except APIForbiddenError as exc:
        return [note("address", f"unknown: {exc}")]
    except (OSError, ValueError, OverflowError) as exc:
        return [_explain(route, exc)]
    serial = read_serial(shown)
    what = f"that for {route.host}, serial number {serial},"
    findings = [judge_life("certificate", what, shown, visit.now)]
    source, wanted = await _fetch_wanted(visit, route)
    if wanted not in (None, shown):
        text = f"shown is {serial}, but in {source} is {read_serial(wanted)}"
        remedy = "Wait a minute for the replicas to follow; else restart them, and see their log."
        findings.append(warn("certificate", text, remedy))
    return findings


async def _shake_hands(route: Route, host: str, bundle: str) -> bytes:
    """Return the certificate that a server shows, if it is trusted."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.hostname_checks_common_name = False
    # As for Go, whatever is in the bundle is trusted, not only what is its own CA.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if bundle:
        context.load_verify_locations(cadata=base64.b64decode(bundle, validate=True).decode())
    else:
        context.load_default_certs()
    async with asyncio.timeout(_TIMEOUT):
        _, writer = await asyncio.open_connection(
            host, route.port, ssl=context, server_hostname=route.host
        )
    shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.transport.abort()
    return ssl.DER_cert_to_PEM_cert(shown).encode()


async def _fetch_wanted(visit: Visit, route: Route) -> tuple[str, bytes | None]:
    """Return where the operator has its certificate from, and that; None if it is unknown."""
    server = visit.settings.admission.server
    try:
        if isinstance(server, WebhookServer) and server.certfile:
            source = str(server.certfile)
            data = await asyncio.to_thread(Path(source).read_bytes)
        elif route.service:
            name, secret = await visit.read_secret(*route.service)
            source, data = f"the Secret {name}", base64.b64decode(secret["data"]["tls.crt"])
        else:
            return "", None
        return source, split_certificates(data)[0]
    except (OSError, ValueError, LookupError, TypeError):
        return "", None


def _explain(route: Route, exc: Exception) -> Finding:
    """Say why there was no handshake."""
    if isinstance(exc, ssl.SSLCertVerificationError):
        why = f"the caBundle does not trust that for {route.host}: {exc.verify_message or exc}"
        return fail("certificate", why, f"{RENEW} It must have {route.host} as subjectAltName.")
    is_refused = isinstance(exc, ConnectionRefusedError)
    reason = "connection refused" if is_refused else str(exc) or "no answer in time"
    text = f"{route} cannot be reached from here: {reason}"
    if isinstance(exc, socket.gaierror | ValueError):  # a bad bundle has its own finding
        return note("address", text, "See below whether API servers can reach it; else see host=.")
    remedy = "Start the operator. If it runs, check the port, and who can reach it."
    return warn("address", text, remedy)
