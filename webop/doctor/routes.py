"""Where the ``clientConfig`` of a webhook leads to, and whether anybody is there.

The API server connects to a Service by its cluster IP, its ready endpoints, or for the type
ExternalName by that name; and in TLS it asks for ``<service>.<namespace>.svc`` always.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from webop.doctor.findings import Finding, approve, complain, note, warn
from webop.doctor.visit import Visit
from webop.errors import APIForbiddenError

Json = dict[str, Any]

CONNECT_TIMEOUT = 5.0  # seconds
ABSENT = (
    "Start the operator. If it runs, it may be that only API servers can reach it: see below "
    "whether they do."
)

_SUBJECT = "address"
_DEFAULT_PORT = 443


@dataclass(frozen=True, slots=True)
class Route:
    """Where API servers are sent to.

    Attributes:
        host: what to connect to.
        port: its port.
        server_name: whose certificate it must be.
        service: the namespace and the name of the Service; None for a URL.
    """

    host: str
    port: int
    server_name: str
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
        return Route(host, service.get("port") or _DEFAULT_PORT, host, (namespace, name))
    try:
        parts = urlsplit(str(config.get("url") or ""))
        port = parts.port or _DEFAULT_PORT
    except ValueError:
        return None
    return Route(parts.hostname, port, parts.hostname) if parts.hostname else None


@dataclass(frozen=True, slots=True)
class Backing:
    """What is behind a Service; None stands for what may not be read.

    Attributes:
        service: the object; empty if there is none.
        slices: its EndpointSlices.
    """

    service: Json | None
    slices: Sequence[Json] | None = None

    @property
    def external_name(self) -> str | None:
        """The host of a Service of type ExternalName."""
        spec = (self.service or {}).get("spec") or {}
        return spec.get("externalName") if spec.get("type") == "ExternalName" else None


async def fetch_backing(visit: Visit, namespace: str, name: str) -> Backing:
    """Read a Service with its endpoints.

    Raises:
        APIError: the API server is not available.
    """
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
    """Check that a Service is there, has the port, and somebody is behind it. Pure.

    Args:
        route: to the Service.
        backing: what is there.
        is_required: whether objects are refused otherwise.
    """
    if backing.service is None:
        yield note(
            _SUBJECT,
            f"{route}: it may not be read by this account",
            "Grant it: {apiGroups: [''], resources: [services], verbs: [get]}.",
        )
    elif not backing.service:
        yield complain(
            _SUBJECT,
            f"{route}: there is no such Service",
            "Create it, in front of the pods of the operator; or correct service= and namespace= "
            "of the webhook server.",
            is_failure=is_required,
        )
    elif backing.external_name is not None:
        yield approve(_SUBJECT, f"{route} leads to {backing.external_name}")
    else:
        yield _check_ports(route, backing.service, is_required=is_required)
        yield _check_endpoints(route, backing.slices, is_required=is_required)


def _check_ports(route: Route, service: Json, *, is_required: bool) -> Finding:
    ports = [item["port"] for item in service["spec"].get("ports") or ()]
    if route.port in ports:
        return approve(_SUBJECT, f"{route} exists")
    listed = ", ".join(map(str, ports)) or "none"
    return complain(
        _SUBJECT,
        f"{route}: the Service has no such port, its ports are: {listed}",
        f"Add the port to the Service: {{port: {route.port}, targetPort: ...}}; or correct "
        "service_port= of the webhook server.",
        is_failure=is_required,
    )


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
        async with asyncio.timeout(CONNECT_TIMEOUT):
            _, writer = await asyncio.open_connection(host, port)
    except TimeoutError:
        return "no answer in time"
    except socket.gaierror:
        return "there is no host of that name, as seen from here"
    except (OSError, UnicodeError) as exc:
        return describe_os_error(exc)
    writer.transport.abort()
    return ""


def check_connection(route: Route, problem: str) -> Finding:
    """Judge an attempt to connect to a URL. Pure."""
    if not problem:
        return approve(_SUBJECT, f"{route} accepts connections")
    return warn(
        _SUBJECT,
        f"{route}, tried from here: {problem}",
        ABSENT,
    )


def is_inside() -> bool:
    """Tell whether this is a pod, which can resolve and reach Services."""
    return "KUBERNETES_SERVICE_HOST" in os.environ


def is_elsewhere(host: str) -> bool:
    """Tell whether a host is one that exists only where the API server is. Pure."""
    return host.endswith(".internal")


def describe_os_error(exc: Exception) -> str:
    """Return the reason in the words of the system, without addresses and numbers."""
    if isinstance(exc, ConnectionRefusedError):
        return "connection refused"
    return getattr(exc, "strerror", None) or str(exc) or type(exc).__name__
