"""The IPAddressPool of MetalLB."""

from __future__ import annotations

from pydantic import Field

import webop
from bench.crds.kubernetes import LabelSelector


class ServiceAllocation(webop.Struct):
    namespace_selectors: list[LabelSelector] | None = None
    namespaces: list[str] | None = None
    priority: int | None = None
    service_selectors: list[LabelSelector] | None = None


class IPAddressPoolSpec(webop.Struct):
    addresses: list[str]
    auto_assign: bool = True
    avoid_buggy_ips: bool = Field(default=False, alias="avoidBuggyIPs")
    service_allocation: ServiceAllocation | None = None


class IPAddressPoolStatus(webop.Struct):
    assigned_ipv4: webop.Int64 = Field(alias="assignedIPv4")
    assigned_ipv6: webop.Int64 = Field(alias="assignedIPv6")
    available_ipv4: webop.Int64 = Field(alias="availableIPv4")
    available_ipv6: webop.Int64 = Field(alias="availableIPv6")


@webop.resource(
    "metallb.io",
    "v1beta1",
    columns={
        "Auto Assign": ".spec.autoAssign",
        "Avoid Buggy IPs": ".spec.avoidBuggyIPs",
        "Addresses": ".spec.addresses",
    },
)
class IPAddressPool(webop.Model):
    spec: IPAddressPoolSpec
    status: IPAddressPoolStatus | None = None
