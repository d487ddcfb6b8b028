"""Where the webhooks of a configuration lead, and whether the API server trusts who answers there.

Usually, all webhooks of a configuration have one address and one ``caBundle``: what they have in
common is checked once. The handshake is the one of the API server: the same CAs, and no others;
the same server name, in the subjectAltName (of a Service, ``<service>.<namespace>.svc``).
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime as dt
import os
import socket
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from webop.doctor.findings import (
    Finding,
    approve,
    describe_names,
    describe_seconds,
    fail,
    note,
    soften,
    warn,
)
from webop.doctor.records import Record, has_required
from webop.doctor.visit import Visit
from webop.errors import APIForbiddenError
from webop.servers.certificates.certs import read_serial, read_validity, split_certificates
from webop.servers.local import WebhookServer
from webop.servers.service import WebhookServiceServer

_TIMEOUT = 5.0  # seconds
_INSIDE = "Run it inside: kubectl exec deploy/NAME -- webop doctor"
_RENEW = (
    "The operator writes its own within a minute of its start: start it, or look into its log. "
    "With certificates of your own, give cafile= to the webhook server."
)
# A server can have a certificate for each type of keys, and shows the one that a client prefers.
_KEY_TYPES = {"RSA": "aRSA", "ECDSA": "aECDSA"}  # the ciphers, in OpenSSL's words


@dataclass(frozen=True, slots=True)
class Route:
    """Where the API server connects to: a Service by its namespace and name, or else a URL."""

    host: str
    port: int
    service: tuple[str, str] | None = None

    def __str__(self) -> str:
        if self.service is not None:
            return f"Service {'/'.join(self.service)} port {self.port}"
        return f"https://{self.host}:{self.port}"


def parse_route(config: Mapping[str, Any]) -> Route | None:
    """Read a ``clientConfig``; None if it leads nowhere."""
    if service := config.get("service"):
        namespace, name = str(service["namespace"]), str(service["name"])
        return Route(f"{name}.{namespace}.svc", service.get("port") or 443, (namespace, name))
    try:
        parts = urlsplit(str(config.get("url") or ""))
        return Route(parts.hostname, parts.port or 443) if parts.hostname else None
    except ValueError:
        return None


async def check_trust(visit: Visit, records: Iterable[Record]) -> list[Finding]:
    """Check all addresses of the webhooks of a configuration."""
    grouped: dict[tuple[Route | None, str], list[Record]] = {}
    for record in records:
        config = record.webhook.get("clientConfig") or {}
        key = parse_route(config), config.get("caBundle") or ""
        grouped.setdefault(key, []).append(record)
    findings: list[Finding] = []
    for (route, bundle), sharing in grouped.items():
        if route is None:
            why = f"it leads nowhere: {describe_names(record.name for record in sharing)}"
            remedy = "Start the operator, which writes its address there; or remove the webhooks."
            found = [fail("address", why, remedy)]
        else:
            host = await _find_host(visit, route)
            found = [check_bundle(bundle, visit.now)]
            if isinstance(host, Finding):
                found.append(host)
            else:
                found += await _check_shown(visit, route, host, bundle)
        findings += [soften(one, is_required=has_required(sharing)) for one in found]
    return findings


async def _find_host(visit: Visit, route: Route) -> str | Finding:
    """Return the host to connect to; or why nobody can, or not from here."""
    if route.service is None:
        return route.host
    namespace, name = route.service
    try:
        service = await visit.read(f"/api/v1/namespaces/{namespace}/services/{name}")
    except APIForbiddenError as exc:
        return note("address", f"{route} is unknown: {exc}", _INSIDE)
    if service is None:
        remedy = "Create it; or correct service= and namespace= of the webhook server."
        return fail("address", f"{route}: there is no such Service", remedy)
    if service["spec"].get("type") == "ExternalName":
        return str(service["spec"]["externalName"])
    # Only a pod is sure to resolve the names of Services: elsewhere, they can lead anywhere.
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        return route.host
    return note("address", f"{route} exists, but cannot be connected to from here", _INSIDE)


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
        return fail("caBundle", f"it cannot be read: {exc}", _RENEW)
    what = "its CA" if len(pems) == 1 else f"the last of its {len(pems)} CAs"
    return judge_life("caBundle", what, last, now)


def judge_life(subject: str, what: str, pem: bytes, now: dt.datetime) -> Finding:
    """Judge what is left of the life of a certificate: its last tenth or week is little. Pure."""
    start, end = read_validity(pem)
    if end - now > min((end - start) * 0.1, dt.timedelta(days=7)):
        return approve(subject, f"{what} is trusted, valid until {end:%Y-%m-%d}")
    span, when = describe_seconds(abs((end - now).total_seconds())), f"{end:%Y-%m-%d %H:%M} UTC"
    if end > now:
        return warn(subject, f"{what} expires on {when}, in {span}", _RENEW)
    return fail(subject, f"{what} expired on {when}, {span} ago", _RENEW)


async def _check_shown(visit: Visit, route: Route, host: str, bundle: str) -> list[Finding]:
    """Connect to a server, and check the certificates that it shows."""
    try:
        shown = {await _shake_hands(route, host, bundle): ""}
        for key_type, ciphers in _KEY_TYPES.items():
            with contextlib.suppress(ssl.SSLError, ConnectionError):  # it has no such certificate
                pem = await _shake_hands(route, host, bundle, ciphers)
                shown[pem] = f" for clients that want {key_type}"
    except (OSError, ValueError) as exc:
        return [_explain(route, exc)]
    findings = []
    if len(shown) > 1:
        listed = "; ".join(f"{read_serial(pem)}{who}" for pem, who in shown.items())
        text = f"{route.host} shows several, by the type of the key: {listed}"
        remedy = "If one of them was replaced by the other, restart the operator."
        findings.append(warn("certificate", text, remedy))
    for pem in shown:
        what = f"that for {route.host}, serial number {read_serial(pem)},"
        findings.append(judge_life("certificate", what, pem, visit.now))
    wanted = await _fetch_wanted(visit, route)
    if wanted is not None and set(shown) != {wanted[1]}:
        others = describe_names(map(read_serial, shown))
        text = f"shown is {others}, but in {wanted[0]} is {read_serial(wanted[1])}"
        remedy = "Wait a minute for the replicas to follow; else restart them, and see their log."
        findings.append(warn("certificate", text, remedy))
    return findings


async def _shake_hands(route: Route, host: str, bundle: str, ciphers: str = "") -> bytes:
    """Return the certificate that a server shows, if it is trusted.

    Raises:
        OSError: nobody answers; no TLS, or none with these ciphers; the certificate is refused.
        ValueError: the bundle cannot be read.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.hostname_checks_common_name = False
    # As for Go, whatever is in the bundle is trusted, not only what is its own CA.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if bundle:
        context.load_verify_locations(cadata=base64.b64decode(bundle, validate=True).decode())
    else:
        context.load_default_certs()
    if ciphers:
        context.maximum_version = ssl.TLSVersion.TLSv1_2  # its ciphers tell the type of the key
        context.set_ciphers(ciphers)
    async with asyncio.timeout(_TIMEOUT):
        _, writer = await asyncio.open_connection(
            host, route.port, ssl=context, server_hostname=route.host
        )
    shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.transport.abort()
    return ssl.DER_cert_to_PEM_cert(shown).encode()


async def _fetch_wanted(visit: Visit, route: Route) -> tuple[str, bytes] | None:
    """Return where the operator has its certificate from, and that; None if it is unknown."""
    server = visit.settings.admission.server
    try:
        if isinstance(server, WebhookServer) and server.certfile:
            data = await asyncio.to_thread(Path(server.certfile).read_bytes)
            return str(server.certfile), split_certificates(data)[0]
        if route.service is None:
            return None
        name = find_secret(server, route.service[1])
        secret = await visit.read(f"/api/v1/namespaces/{route.service[0]}/secrets/{name}") or {}
        data = base64.b64decode((secret.get("data") or {}).get("tls.crt") or "")
        return f"the Secret {name}", split_certificates(data)[0]
    except (OSError, ValueError, APIForbiddenError):
        return None


def find_secret(server: object, service: str) -> str:
    """Return the name of the Secret in which :class:`webop.WebhookServiceServer` keeps it."""
    named = server.secret if isinstance(server, WebhookServiceServer) else None
    return named or f"{service}-webhook-certs"


def _explain(route: Route, exc: Exception) -> Finding:
    """Say why there was no handshake."""
    if isinstance(exc, ssl.SSLCertVerificationError):
        why = exc.verify_message or str(exc)
        is_other = "ostname" in why or "IP address" in why
        remedy = f"Make a certificate that has {route.host} in its subjectAltName."
        text = f"the caBundle does not trust that for {route.host}: {why}"
        return fail("certificate", text, remedy if is_other else _RENEW)
    if isinstance(exc, ssl.SSLError):
        text = f"what answers does not speak TLS as expected: {exc.reason or exc}"
        remedy = "Let the Service or the URL lead to the port of the webhook server."
        return warn("certificate", text, remedy)
    is_refused = isinstance(exc, ConnectionRefusedError)
    reason = "connection refused" if is_refused else str(exc) or "no answer in time"
    text = f"{route} cannot be reached from here: {reason}"
    if isinstance(exc, socket.gaierror | ValueError):  # a bad bundle has its own finding
        return note("address", text, "See below whether API servers can reach it; else see host=.")
    remedy = "Start the operator. If it runs, check whether only API servers can reach it."
    return warn("address", text, remedy)
