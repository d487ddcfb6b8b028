"""Where the webhooks of a configuration lead, who is there, and whether they trust them.

Usually, all webhooks of a configuration have one address and one ``caBundle``: what they have in
common is looked at once.

The API server connects to a Service by its cluster IP, its ready endpoints, or for the type
ExternalName by that name; and in TLS it asks for ``<service>.<namespace>.svc`` always. The
handshake here is the one of the API server: the same authorities, and no others; the same server
name, in the subjectAltName. Where nobody can be connected to, it is done in memory with what is
in the Secret of :class:`webop.WebhookServiceServer`.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import datetime as dt
import os
import socket
import ssl
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from webop.doctor.findings import (
    Finding,
    approve,
    complain,
    describe_names,
    describe_seconds,
    note,
    warn,
)
from webop.doctor.permissions import SecretState
from webop.doctor.records import Json, Record, has_required
from webop.doctor.visit import INSIDE, Visit
from webop.errors import APIForbiddenError, ConfigurationError
from webop.keymaterial import load_key_material
from webop.servers.certificates.certs import read_validity, split_certificates

_CERTIFICATE_MARK = "webop.dev/certificate"
_CONNECT_TIMEOUT = 5.0  # seconds
_DEFAULT_PORT = 443
_MAX_FLIGHTS = 10  # of messages, in a handshake

_ABSENT = (
    "Start the operator. If it runs, it may be that only API servers can reach it: see below "
    "whether they do."
)
_NO_HOST = "there is no host of that name, as seen from here"
_UNKNOWN = (
    "Nothing to do if API servers can resolve the name: see below whether they do. Otherwise, "
    "correct host= of the webhook server."
)
_RENEW = (
    "The operator puts in its own within a minute of its start: start it, or look into its log. "
    "With certificates of your own, give cafile= to the webhook server."
)


async def check_addresses(visit: Visit, records: Iterable[Record]) -> list[Finding]:
    """Check all addresses of the webhooks of a configuration."""
    findings: list[Finding] = []
    for (route, bundle), sharing in group_records(records).items():
        is_required = has_required(sharing)
        if route is None:
            why = f"it leads nowhere: {describe_names(record.name for record in sharing)}"
            remedy = "Start the operator, which puts its address there; or remove the webhooks."
            findings.append(complain("address", why, remedy, is_failure=is_required))
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


async def fetch_secret(visit: Visit, namespace: str, name: str) -> Json | None:
    """Read the Secret with the certificates of a webhook server; empty if there is none.

    None stands for one that may not be read.
    """
    path = f"/api/v1/namespaces/{namespace}/secrets/{name}"
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
    # Only a pod is sure to resolve and reach Services: elsewhere, a name of the cluster may lead
    # to whatever a provider's DNS makes up.
    if backing.external_name or "KUBERNETES_SERVICE_HOST" in os.environ:
        shown = await check_shown(route, host, bundle, visit.now, is_required=is_required)
        return [*findings, *shown]
    namespace, service = route.service
    secret = await fetch_secret(visit, namespace, get_secret_name(service))
    material = read_material(secret) if secret else None
    if material is None:
        text = f"{route} cannot be connected to from here"
        return [*findings, note("certificate", text, INSIDE)]
    stored = check_stored(material, route, bundle, visit.now, is_required=is_required)
    return [*findings, *stored]


@dataclass(frozen=True, slots=True)
class Route:
    """Where API servers are sent to: the namespace and the name of a Service, or else a URL."""

    host: str
    port: int
    service: tuple[str, str] | None = None

    def __str__(self) -> str:
        if self.service is not None:
            return f"Service {'/'.join(self.service)} port {self.port}"
        return f"https://{self.host}:{self.port}"


def parse_route(config: Mapping[str, Any]) -> Route | None:
    """Read a ``clientConfig``; None if it leads nowhere."""
    service = config.get("service")
    if service:
        namespace, name = str(service["namespace"]), str(service["name"])
        host = f"{name}.{namespace}.svc"
        return Route(host, service.get("port") or _DEFAULT_PORT, (namespace, name))
    try:
        parts = urlsplit(str(config.get("url") or ""))
        port = parts.port or _DEFAULT_PORT
    except ValueError:
        return None
    return Route(parts.hostname, port) if parts.hostname else None


@dataclass(frozen=True, slots=True)
class Backing:
    """What is behind a Service; None stands for what may not be read."""

    service: Json | None  # empty if there is none
    slices: Sequence[Json] | None = None

    @property
    def external_name(self) -> str | None:
        """The host of a Service of type ExternalName."""
        spec = (self.service or {}).get("spec") or {}
        return spec.get("externalName") if spec.get("type") == "ExternalName" else None


async def fetch_backing(visit: Visit, namespace: str, name: str) -> Backing:
    """Read a Service with its endpoints."""
    try:
        service = await visit.read(f"/api/v1/namespaces/{namespace}/services/{name}") or {}
    except APIForbiddenError:
        service = None
    path = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
    try:
        found = await visit.read(path, {"labelSelector": f"kubernetes.io/service-name={name}"})
    except APIForbiddenError:
        return Backing(service)
    return Backing(service, (found or {}).get("items") or [])


def check_backing(route: Route, backing: Backing, *, is_required: bool) -> Iterator[Finding]:
    """Check that a Service is there, has the port, and somebody is behind it. Pure."""
    if backing.service is None:
        yield note(
            "address",
            f"{route}: it may not be read by this account",
            "Grant it: {apiGroups: [''], resources: [services], verbs: [get]}.",
        )
    elif not backing.service:
        yield complain(
            "address",
            f"{route}: there is no such Service",
            "Create it, in front of the pods of the operator; or correct service= and namespace= "
            "of the webhook server.",
            is_failure=is_required,
        )
    elif backing.external_name is not None:
        yield approve("address", f"{route} leads to {backing.external_name}")
    else:
        ports = [item["port"] for item in backing.service["spec"].get("ports") or ()]
        if route.port in ports:
            yield approve("address", f"{route} exists")
        else:
            listed = ", ".join(map(str, ports)) or "none"
            yield complain(
                "address",
                f"{route}: the Service has no such port, its ports are: {listed}",
                f"Add the port to the Service: {{port: {route.port}, targetPort: ...}}; or correct "
                "service_port= of the webhook server.",
                is_failure=is_required,
            )
        yield _check_endpoints(route, backing.slices, is_required=is_required)


def _check_endpoints(route: Route, slices: Sequence[Json] | None, *, is_required: bool) -> Finding:
    if slices is None:
        return note(
            "endpoints",
            "they may not be read by this account",
            "Grant it: {apiGroups: [discovery.k8s.io], resources: [endpointslices], "
            "verbs: [list]}.",
        )
    endpoints = [endpoint for item in slices for endpoint in item.get("endpoints") or ()]
    # Not told counts as ready (Kubernetes API, discovery/v1 EndpointConditions).
    ready = [e for e in endpoints if (e.get("conditions") or {}).get("ready") is not False]
    if ready:
        return approve("endpoints", f"{len(ready)} ready")
    total = f"none of {len(endpoints)} is ready" if endpoints else "there are none"
    return complain(
        "endpoints",
        f"{route}: {total}",
        "See why the pods are not ready: kubectl get pods, kubectl logs; and whether the selector "
        "of the Service fits their labels.",
        is_failure=is_required,
    )


async def connect(host: str, port: int) -> str:
    """Try to connect; return what is wrong, or nothing."""
    try:
        async with asyncio.timeout(_CONNECT_TIMEOUT):
            _, writer = await asyncio.open_connection(host, port)
    except TimeoutError:
        return "no answer in time"
    except socket.gaierror:
        return _NO_HOST
    except (OSError, UnicodeError) as exc:
        return describe_os_error(exc)
    writer.transport.abort()
    return ""


def check_connection(route: Route, problem: str) -> Finding:
    """Judge an attempt to connect to a URL. Pure."""
    if not problem:
        return approve("address", f"{route} accepts connections")
    advice = _UNKNOWN if problem == _NO_HOST else _ABSENT
    return warn("address", f"{route}, tried from here: {problem}", advice)


def is_elsewhere(host: str) -> bool:
    """Tell whether a host is one that exists only where the API server is. Pure."""
    return host.endswith(".internal")


def describe_os_error(exc: Exception) -> str:
    """Return the reason in the words of the system, without addresses and numbers."""
    if isinstance(exc, ConnectionRefusedError):
        return "connection refused"
    return getattr(exc, "strerror", None) or str(exc) or type(exc).__name__


@dataclass(frozen=True, slots=True)
class Material:
    """A certificate with its key, in PEM."""

    cert: bytes
    key: bytes = field(repr=False)


def check_bundle(text: str | None, now: dt.datetime, *, is_required: bool) -> Iterator[Finding]:
    """Check that a ``caBundle`` can be used, now and for some time. Pure.

    What counts is the certificate in it that lives longest: during a rotation, there are old ones.
    """
    if not text:
        yield note(
            "caBundle", "there is none: only authorities that the API server knows are trusted"
        )
        return
    try:
        validities = [read_validity(pem) for pem in split_bundle(text)]
    except ValueError as exc:
        yield complain("caBundle", f"it cannot be read: {exc}", _RENEW, is_failure=is_required)
        return
    start, end = max(validities, key=lambda validity: validity[1])
    count = "" if len(validities) == 1 else f"{len(validities)} authorities, the last one "
    if end <= now:
        why = f"{count}expired {_describe(end, now)}"
        yield complain("caBundle", why, _RENEW, is_failure=is_required)
    elif is_ending(start, end, now):
        yield warn("caBundle", f"{count}expires {_describe(end, now)}", _RENEW)
    else:
        yield approve("caBundle", f"{count}valid until {end:%Y-%m-%d}")


def split_bundle(text: str) -> tuple[bytes, ...]:
    """Return the certificates of a ``caBundle``, in PEM.

    Raises:
        ValueError: it is not base64, or there are no certificates in it.
    """
    try:
        data = base64.b64decode(text, validate=True)
    except binascii.Error as exc:
        raise ValueError(f"it is not base64 ({exc})") from None
    try:
        return split_certificates(data)
    except ValueError:
        raise ValueError("there are no certificates in PEM in it") from None


def is_ending(start: dt.datetime, end: dt.datetime, now: dt.datetime) -> bool:
    """Tell whether so little of a certificate's life is left that somebody has to act. Pure."""
    return end - now < min((end - start) * 0.1, dt.timedelta(days=7))


def build_context(bundle: str | None) -> ssl.SSLContext:
    """Return what makes a handshake such as the API server's (which is written in Go)."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.hostname_checks_common_name = False
    # Whatever is in the bundle is trusted, not only what is its own authority.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if bundle:
        context.load_verify_locations(cadata=b"".join(split_bundle(bundle)).decode("ascii"))
    else:
        context.load_default_certs()
    return context


async def check_shown(
    route: Route, host: str, bundle: str | None, now: dt.datetime, *, is_required: bool
) -> list[Finding]:
    """Connect to a server, and check the certificate that it shows."""
    try:
        context = build_context(bundle)
        async with asyncio.timeout(_CONNECT_TIMEOUT):
            _, writer = await asyncio.open_connection(
                host, route.port, ssl=context, server_hostname=route.host
            )
    except ssl.SSLCertVerificationError as exc:
        why = exc.verify_message or str(exc)
        return [_refuse(route.host, why, is_required=is_required)]
    except (OSError, ValueError) as exc:
        return [_describe_no_handshake(exc)]
    session: ssl.SSLObject = writer.get_extra_info("ssl_object")
    shown = session.getpeercert(binary_form=True) or b""
    writer.transport.abort()
    return list(judge_validity(ssl.DER_cert_to_PEM_cert(shown).encode(), route.host, now))


def check_stored(
    material: Material, route: Route, bundle: str | None, now: dt.datetime, *, is_required: bool
) -> Iterator[Finding]:
    """Check the certificate in a Secret, which the replicas show, by a handshake in memory."""
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    why = ""
    try:
        context = build_context(bundle)
        load_key_material(server_context, material.cert, material.key)
        client = context.wrap_bio(to_client, to_server, server_hostname=route.host)
        server = server_context.wrap_bio(to_server, to_client, server_side=True)
        sides = [client, server]
        for _ in range(_MAX_FLIGHTS):
            for side in list(sides):
                with contextlib.suppress(ssl.SSLWantReadError):
                    side.do_handshake()
                    sides.remove(side)
    except ssl.SSLCertVerificationError as exc:
        why = exc.verify_message or str(exc)
    except (ssl.SSLError, ConfigurationError) as exc:
        why = f"it cannot be used with its key: {exc}"
    except ValueError as exc:
        yield _describe_no_handshake(exc)
        return
    if why:
        why = f"{why} (as it is in the Secret)"
        yield _refuse(route.host, why, is_required=is_required)
    else:
        yield from judge_validity(material.cert, route.host, now)


def judge_validity(pem: bytes, server_name: str, now: dt.datetime) -> Iterator[Finding]:
    """Judge a certificate that is trusted: it may not be so for long. Pure."""
    start, end = read_validity(pem)
    if is_ending(start, end, now):
        yield warn(
            "certificate",
            f"that for {server_name} expires {_describe(end, now)}",
            "Renew it. What webop makes is renewed in time, unless something prevents that: "
            "see the log of the operator.",
        )
    else:
        yield approve(
            "certificate", f"that for {server_name} is trusted, valid until {end:%Y-%m-%d}"
        )


def _refuse(server_name: str, why: str, *, is_required: bool) -> Finding:
    remedy = _RENEW
    if "ostname" in why or "IP address" in why:
        remedy = f"Make a certificate that has {server_name} in its subjectAltName."
    elif "expired" in why:
        remedy = "Renew the certificate, or restart the operator if it is of its own making."
    text = f"that for {server_name} is not trusted by the caBundle: {why}"
    return complain("certificate", text, remedy, is_failure=is_required)


def _describe_no_handshake(exc: Exception) -> Finding:
    if isinstance(exc, ssl.SSLError):
        return warn(
            "certificate",
            f"what answers does not speak TLS as expected: {exc.reason or exc}",
            "Let the Service or the URL lead to the port of the webhook server.",
        )
    if isinstance(exc, socket.gaierror | ValueError):  # the bundle itself has been judged before
        return note("certificate", f"it could not be looked at from here: {describe_os_error(exc)}")
    reason = "no answer in time" if isinstance(exc, TimeoutError) else describe_os_error(exc)
    return warn("certificate", f"it could not be looked at from here: {reason}", _ABSENT)


def _describe(end: dt.datetime, now: dt.datetime) -> str:
    span = describe_seconds(abs((end - now).total_seconds()))
    when = f"on {end:%Y-%m-%d %H:%M} UTC"
    return f"{when}, {span} ago" if end <= now else f"{when}, in {span}"
