"""The TLSRoute of the Gateway API: many limits, and rules."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

import webop

_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_DOMAIN = rf"{_LABEL}(\.{_LABEL})*"
Name = Annotated[str, Field(min_length=1, max_length=253)]
Domain = Annotated[str, Field(min_length=1, max_length=253, pattern=f"^{_DOMAIN}$")]
Namespace = Annotated[str, Field(min_length=1, max_length=63, pattern=f"^{_LABEL}$")]
Group = Annotated[str, Field(max_length=253, pattern=f"^$|^{_DOMAIN}$")]
Kind = Annotated[
    str, Field(min_length=1, max_length=63, pattern="^[a-zA-Z]([-a-zA-Z0-9]*[a-zA-Z0-9])?$")
]
Port = Annotated[webop.Int32, Field(ge=1, le=65535)]


@webop.CEL(
    "(size(self.group) == 0 && self.kind == 'Service') ? has(self.port) : true",
    message="Must have port for Service reference",
)
class BackendRef(webop.Struct):
    name: Name
    group: Group = ""
    kind: Kind = "Service"
    namespace: Namespace | None = None
    port: Port | None = None
    weight: webop.Int32 = Field(1, ge=0, le=1000000)


class Rule(webop.Struct):
    backend_refs: list[BackendRef] = Field(min_length=1, max_length=16)
    name: Domain | None = None


class ParentRef(webop.Struct):
    name: Name
    group: Group = "gateway.networking.k8s.io"
    kind: Kind = "Gateway"
    namespace: Namespace | None = None
    port: Port | None = None
    section_name: Domain | None = None


def _equal(name: str) -> str:
    """Return the expression that two references, a and b, agree in an optional field."""
    return f"has(a.{name}) == has(b.{name}) && (!has(a.{name}) || a.{name} == b.{name})"


_SAME = "a.group == b.group && a.kind == b.kind && a.name == b.name && " + _equal("__namespace__")


class TLSRouteSpec(webop.Struct):
    hostnames: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=253, pattern=rf"^(\*\.)?{_DOMAIN}$")]],
        Field(min_length=1, max_length=1024),
        webop.CEL("self.all(h, !isIP(h))", message="Hostnames cannot contain an IP"),
        webop.CEL(
            rf"self.all(h, h.contains('*') || h.matches(r'^{_DOMAIN}$'))",
            message="Hostnames must be valid based on RFC-1123",
        ),
        webop.CEL(
            rf"self.all(h, !h.contains('*') || h.matches(r'^\*\.{_DOMAIN}$'))",
            message="Wildcards on hostnames must be the first label, and the rest of hostname must "
            "be valid based on RFC-1123",
        ),
    ]
    rules: Annotated[list[Rule], Field(min_length=1, max_length=1)]
    parent_refs: Annotated[
        list[ParentRef] | None,
        webop.CEL(
            f"self.all(a, self.all(b, !({_SAME}) || has(a.sectionName) == has(b.sectionName)))",
            message="sectionName must be specified when parentRefs includes 2 or more references "
            "to the same parent",
        ),
        webop.CEL(
            f"self.all(a, self.exists_one(b, {_SAME} && {_equal('sectionName')}))",
            message="sectionName must be unique when parentRefs includes 2 or more references to "
            "the same parent",
        ),
    ] = Field(None, max_length=32)


class Parent(webop.Struct):
    conditions: Annotated[list[webop.Condition], webop.ListKeys("type")] = Field(
        min_length=1, max_length=8
    )
    controller_name: str = Field(
        pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*\/[A-Za-z0-9\/\-._~%!$&'()*+,;=:]+$",
        min_length=1,
        max_length=253,
    )
    parent_ref: ParentRef


class TLSRouteStatus(webop.Struct):
    parents: list[Parent] = Field(max_length=32)


@webop.resource(
    "gateway.networking.k8s.io",
    "v1",
    categories=["gateway-api"],
    columns={"Age": ".metadata.creationTimestamp"},
    annotations={"api-approved.kubernetes.io": "unapproved, a model for comparison"},
)
class TLSRoute(webop.Model):
    spec: TLSRouteSpec
    status: TLSRouteStatus | None = None
