"""The KafkaUser of Strimzi: its authentication is a union."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

import webop

# fmt: off
Operation = Literal[
    "Read", "Write", "Create", "Delete", "Alter", "Describe", "ClusterAction", "AlterConfigs",
    "DescribeConfigs", "IdempotentWrite", "All",
]
# fmt: on


class SecretKeyRef(webop.Struct):
    key: str | None = None
    name: str | None = None
    optional: bool | None = None


class ValueFrom(webop.Struct):
    secret_key_ref: SecretKeyRef | None = None


class Password(webop.Struct):
    value_from: ValueFrom


class Tls(webop.Struct):
    type: Literal["tls"]
    renewal_days: int | None = Field(None, ge=1)
    validity_days: int | None = Field(None, ge=1)


class TlsExternal(webop.Struct):
    type: Literal["tls-external"]


class ScramSha512(webop.Struct):
    type: Literal["scram-sha-512"]
    password: Password | None = None


Authentication = Annotated[
    Tls | TlsExternal | ScramSha512,
    Field(discriminator="type"),
    webop.CEL(
        "self.type == 'tls' || (!has(self.validityDays) && !has(self.renewalDays))",
        message="'validityDays' and 'renewalDays' can be configured only with 'type: tls'",
    ),
    webop.CEL(
        "self.type != 'tls' || (has(self.renewalDays) == has(self.validityDays))",
        message="Both 'validityDays' and 'renewalDays' must be set together, "
        "or both must be unset.",
    ),
    webop.CEL(
        "self.type != 'tls' || !has(self.renewalDays) || !has(self.validityDays) || "
        "self.renewalDays < self.validityDays",
        message="'renewalDays' must be less than 'validityDays'.",
    ),
]


class Resource(webop.Struct):
    type: Literal["topic", "group", "cluster", "transactionalId"]
    name: str | None = None
    pattern_type: Literal["literal", "prefix"] | None = None


class Acl(webop.Struct):
    resource: Resource
    operations: list[Operation]
    type: Literal["allow", "deny"] | None = None
    host: str | None = None


class Authorization(webop.Struct):
    acls: list[Acl]
    type: Literal["simple"]


class Quotas(webop.Struct):
    producer_byte_rate: int | None = Field(None, ge=0)
    consumer_byte_rate: int | None = Field(None, ge=0)
    request_percentage: int | None = Field(None, ge=0)
    controller_mutation_rate: float | None = Field(None, ge=0)


class Metadata(webop.Struct):
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class Secret(webop.Struct):
    metadata: Metadata | None = None


class Template(webop.Struct):
    secret: Secret | None = None


class KafkaUserSpec(webop.Struct):
    authentication: Authentication | None = None
    authorization: Authorization | None = None
    quotas: Quotas | None = None
    template: Template | None = None


class Condition(webop.Struct):
    type: str | None = None
    status: str | None = None
    last_transition_time: str | None = None
    reason: str | None = None
    message: str | None = None


class KafkaUserStatus(webop.Struct):
    conditions: list[Condition] | None = None
    observed_generation: int | None = None
    username: str | None = None
    secret: str | None = None


@webop.resource(
    "kafka.strimzi.io",
    "v1",
    short_names=["ku"],
    categories=["strimzi"],
    columns={
        "Cluster": ".metadata.labels.strimzi\\.io/cluster",
        "Authentication": ".spec.authentication.type",
        "Authorization": ".spec.authorization.type",
        "Ready": '.status.conditions[?(@.type=="Ready")].status',
    },
)
class KafkaUser(webop.Model):
    spec: KafkaUserSpec
    status: KafkaUserStatus | None = None
