"""The ServiceMonitor of the Prometheus operator."""

from __future__ import annotations

import datetime as dt
from typing import Annotated, Literal

from pydantic import Field

import webop
from bench.crds.kubernetes import LabelSelector, SecretKeySelector

Count = Annotated[webop.Int64, Field(ge=0)]
Duration = Annotated[
    str,
    Field(
        pattern="^(0|(([0-9]+)y)?(([0-9]+)w)?(([0-9]+)d)?(([0-9]+)h)?"
        "(([0-9]+)m)?(([0-9]+)s)?(([0-9]+)ms)?)$"
    ),
]
ProxyUrl = Annotated[str, Field(pattern="^(http|https|socks5)://.+$")]
TlsVersion = Literal["TLS10", "TLS11", "TLS12", "TLS13"]
Protocol = Literal[
    "PrometheusProto",
    "OpenMetricsText0.0.1",
    "OpenMetricsText1.0.0",
    "PrometheusText0.0.4",
    "PrometheusText1.0.0",
]
# fmt: off
Action = Literal[
    "replace", "Replace", "keep", "Keep", "drop", "Drop", "hashmod", "HashMod", "labelmap",
    "LabelMap", "labeldrop", "LabelDrop", "labelkeep", "LabelKeep", "lowercase", "Lowercase",
    "uppercase", "Uppercase", "keepequal", "KeepEqual", "dropequal", "DropEqual",
]
# fmt: on


class Authorization(webop.Struct):
    credentials: SecretKeySelector | None = None
    type: str | None = None


class BasicAuth(webop.Struct):
    password: SecretKeySelector | None = None
    username: SecretKeySelector | None = None


class Relabeling(webop.Struct):
    action: Action = "replace"
    modulus: Count | None = None
    regex: str | None = None
    replacement: str | None = None
    separator: str | None = None
    source_labels: list[str] | None = None
    target_label: str | None = None


class SecretOrConfigMap(webop.Struct):
    config_map: SecretKeySelector | None = None
    secret: SecretKeySelector | None = None


class TlsConfig(webop.Struct):
    ca: SecretOrConfigMap | None = None
    cert: SecretOrConfigMap | None = None
    insecure_skip_verify: bool | None = None
    key_secret: SecretKeySelector | None = None
    max_version: TlsVersion | None = None
    min_version: TlsVersion | None = None
    server_name: str | None = None


class OAuth2(webop.Struct):
    client_id: SecretOrConfigMap
    client_secret: SecretKeySelector
    token_url: str = Field(pattern="^(http|https)://.+$")
    endpoint_params: dict[str, str] | None = None
    no_proxy: str | None = None
    proxy_connect_header: Annotated[dict[str, list[SecretKeySelector]] | None, webop.Atomic()] = (
        None
    )
    proxy_from_environment: bool | None = None
    proxy_url: ProxyUrl | None = None
    scopes: list[str] | None = None
    tls_config: TlsConfig | None = None


class FileTlsConfig(webop.Struct):
    ca: SecretOrConfigMap | None = None
    ca_file: str | None = None
    cert: SecretOrConfigMap | None = None
    cert_file: str | None = None
    insecure_skip_verify: bool | None = None
    key_file: str | None = None
    key_secret: SecretKeySelector | None = None
    max_version: TlsVersion | None = None
    min_version: TlsVersion | None = None
    server_name: str | None = None


class Endpoint(webop.Struct):
    authorization: Authorization | None = None
    basic_auth: BasicAuth | None = None
    bearer_token_file: str | None = None
    bearer_token_secret: SecretKeySelector | None = None
    enable_http2: bool | None = None
    filter_running: bool | None = None
    follow_redirects: bool | None = None
    honor_labels: bool | None = None
    honor_timestamps: bool | None = None
    interval: Duration | None = None
    metric_relabelings: list[Relabeling] | None = None
    no_proxy: str | None = None
    oauth2: OAuth2 | None = None
    params: dict[str, list[str]] | None = None
    path: str | None = None
    port: str | None = None
    proxy_connect_header: Annotated[dict[str, list[SecretKeySelector]] | None, webop.Atomic()] = (
        None
    )
    proxy_from_environment: bool | None = None
    proxy_url: ProxyUrl | None = None
    relabelings: list[Relabeling] | None = None
    scheme: Literal["http", "https", "HTTP", "HTTPS"] | None = None
    scrape_timeout: Duration | None = None
    target_port: int | str | None = None
    tls_config: FileTlsConfig | None = None
    track_timestamps_staleness: bool | None = None


class AttachMetadata(webop.Struct):
    node: bool | None = None


class NamespaceSelector(webop.Struct):
    any: bool | None = None
    match_names: list[str] | None = None


class ServiceMonitorSpec(webop.Struct):
    endpoints: list[Endpoint]
    selector: LabelSelector
    attach_metadata: AttachMetadata | None = None
    body_size_limit: str | None = Field(None, pattern="(^0|([0-9]*[.])?[0-9]+((K|M|G|T|E|P)i?)?B)$")
    convert_classic_histograms_to_nhcb: bool | None = Field(
        None, alias="convertClassicHistogramsToNHCB"
    )
    fallback_scrape_protocol: Protocol | None = None
    job_label: str | None = None
    keep_dropped_targets: Count | None = None
    label_limit: Count | None = None
    label_name_length_limit: Count | None = None
    label_value_length_limit: Count | None = None
    namespace_selector: NamespaceSelector | None = None
    native_histogram_bucket_limit: Count | None = None
    native_histogram_min_bucket_factor: webop.Quantity | None = None
    pod_target_labels: list[str] | None = None
    sample_limit: Count | None = None
    scrape_class: str | None = Field(None, min_length=1)
    scrape_classic_histograms: bool | None = None
    scrape_native_histograms: bool | None = None
    scrape_protocols: Annotated[
        list[Protocol] | None,
        webop.Unique(),
    ] = None
    selector_mechanism: Literal["RelabelConfig", "RoleSelector"] | None = None
    service_discovery_role: Literal["Endpoints", "EndpointSlice"] | None = None
    target_labels: list[str] | None = None
    target_limit: Count | None = None


class Condition(webop.Struct):
    last_transition_time: dt.datetime
    status: str = Field(min_length=1)
    type: Literal["Accepted"] = Field(min_length=1)
    message: str | None = None
    observed_generation: webop.Int64 | None = None
    reason: str | None = None


class Binding(webop.Struct):
    group: Literal["monitoring.coreos.com"]
    name: str = Field(min_length=1)
    namespace: str = Field(min_length=1)
    resource: Literal["prometheuses", "prometheusagents", "thanosrulers", "alertmanagers"]
    conditions: Annotated[list[Condition] | None, webop.ListKeys("type")] = None


class ServiceMonitorStatus(webop.Struct):
    bindings: Annotated[
        list[Binding] | None, webop.ListKeys("group", "resource", "name", "namespace")
    ] = None


@webop.resource(
    "monitoring.coreos.com",
    "v1",
    short_names=["smon"],
    categories=["prometheus-operator"],
)
class ServiceMonitor(webop.Model):
    spec: ServiceMonitorSpec
    status: ServiceMonitorStatus | None = None
