"""The ScaledObject of KEDA."""

from __future__ import annotations

import datetime as dt
from typing import Annotated, Literal

from pydantic import Field

import webop

Count = Annotated[webop.Int32, Field(ge=0)]


class ScaleTargetRef(webop.Struct):
    name: str = Field(min_length=1)
    api_version: str | None = None
    env_source_container_name: str | None = None
    kind: str | None = None


class AuthenticationRef(webop.Struct):
    name: str
    kind: Literal["TriggerAuthentication", "ClusterTriggerAuthentication"] | None = None


class Trigger(webop.Struct):
    metadata: dict[str, str]
    type: str = Field(min_length=1)
    authentication_ref: AuthenticationRef | None = None
    metric_type: str | None = None
    name: str | None = None
    use_cached_metrics: bool | None = None


class Policy(webop.Struct):
    period_seconds: webop.Int32
    type: str
    value: webop.Int32


class ScalingRules(webop.Struct):
    policies: list[Policy] | None = None
    select_policy: str | None = None
    stabilization_window_seconds: webop.Int32 | None = None
    tolerance: webop.Quantity | None = None


class Behavior(webop.Struct):
    scale_down: ScalingRules | None = None
    scale_up: ScalingRules | None = None


class HorizontalPodAutoscalerConfig(webop.Struct):
    behavior: Behavior | None = None
    name: str | None = None


class ScalingModifiers(webop.Struct):
    activation_target: str | None = None
    formula: str | None = None
    metric_type: Literal["AverageValue", "Value"] | None = None
    target: str | None = None


class Advanced(webop.Struct):
    horizontal_pod_autoscaler_config: HorizontalPodAutoscalerConfig | None = None
    restore_to_original_replica_count: bool | None = None
    scaling_modifiers: ScalingModifiers | None = None


class Fallback(webop.Struct):
    failure_threshold: Count
    replicas: Count
    behavior: Literal[
        "static",
        "currentReplicas",
        "currentReplicasIfHigher",
        "currentReplicasIfLower",
        "scalingModifiers",
    ] = "static"


@webop.CEL(
    "!has(self.minReplicaCount) || "
    "self.minReplicaCount <= (has(self.maxReplicaCount) ? self.maxReplicaCount : 100)",
    message="minReplicaCount must be less than or equal to maxReplicaCount",
)
class ScaledObjectSpec(webop.Struct):
    scale_target_ref: ScaleTargetRef
    triggers: list[Trigger] = Field(min_length=1)
    advanced: Advanced | None = None
    cooldown_period: Count | None = None
    fallback: Fallback | None = None
    idle_replica_count: Count | None = None
    initial_cooldown_period: Count | None = None
    max_replica_count: webop.Int32 | None = Field(None, ge=1)
    min_replica_count: Count | None = None
    polling_interval: webop.Int32 | None = Field(None, ge=1)


class Condition(webop.Struct):
    status: str
    type: str
    message: str | None = None
    reason: str | None = None


class Health(webop.Struct):
    number_of_failures: webop.Int32 | None = None
    status: str | None = None


class ScaleTargetGVKR(webop.Struct):
    group: str
    kind: str
    resource: str
    version: str


class TriggerActivity(webop.Struct):
    is_active: bool | None = None


class ScaledObjectStatus(webop.Struct):
    authentications_types: str | None = None
    composite_scaler_name: str | None = None
    conditions: list[Condition] | None = None
    external_metric_names: list[str] | None = None
    health: dict[str, Health] | None = None
    hpa_name: str | None = None
    last_active_time: dt.datetime | None = None
    original_replica_count: webop.Int32 | None = None
    paused_replica_count: webop.Int32 | None = None
    resource_metric_names: list[str] | None = None
    scale_target_gvkr: ScaleTargetGVKR | None = Field(None, alias="scaleTargetGVKR")
    scale_target_kind: str | None = None
    triggers_activity: dict[str, TriggerActivity] | None = None
    triggers_types: str | None = None


@webop.resource(
    "keda.sh",
    "v1alpha1",
    short_names=["so"],
    columns={
        "ScaleTargetKind": ".status.scaleTargetKind",
        "ScaleTargetName": ".spec.scaleTargetRef.name",
        "Min": ".spec.minReplicaCount",
        "Max": ".spec.maxReplicaCount",
        "Ready": '.status.conditions[?(@.type=="Ready")].status',
        "Active": '.status.conditions[?(@.type=="Active")].status',
        "Fallback": '.status.conditions[?(@.type=="Fallback")].status',
        "Paused": '.status.conditions[?(@.type=="Paused")].status',
        "Triggers": ".status.triggersTypes",
        "Authentications": ".status.authenticationsTypes",
        "Age": ".metadata.creationTimestamp",
    },
)
class ScaledObject(webop.Model):
    spec: ScaledObjectSpec
    status: ScaledObjectStatus | None = None
