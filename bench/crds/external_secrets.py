"""The ExternalSecret of External Secrets: of some fields, exactly one is set."""

from __future__ import annotations

import datetime as dt
from typing import Annotated, Literal

from pydantic import Field

import webop

_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
Domain = Annotated[str, Field(min_length=1, max_length=253, pattern=rf"^{_LABEL}(\.{_LABEL})*$")]
Key = Annotated[str, Field(min_length=1, max_length=253, pattern="^[-._a-zA-Z0-9]+$")]
Conversion = Literal["Default", "Unicode"]
Decoding = Literal["Auto", "Base64", "Base64URL", "None"]

# fmt: off
Generator = Literal[
    "ACRAccessToken", "BeyondtrustWorkloadCredentialsDynamicSecret", "ClusterGenerator",
    "CloudsmithAccessToken", "ECRAuthorizationToken", "Fake", "GCRAccessToken",
    "GithubAccessToken", "GitlabDeployToken", "QuayAccessToken", "Password", "SSHKey",
    "STSSessionToken", "UUID", "VaultDynamicSecret", "Webhook", "Grafana", "MFA",
]
# fmt: on


class RemoteRef(webop.Struct):
    key: str
    conversion_strategy: Conversion | None = None
    decoding_strategy: Decoding | None = None
    metadata_policy: Literal["None", "Fetch"] | None = None
    null_byte_policy: Literal["Ignore", "Fail"] | None = None
    property: str | None = None
    version: str | None = None


class GeneratorRef(webop.Struct):
    kind: Generator
    name: Domain
    api_version: str = "generators.external-secrets.io/v1alpha1"


class StoreRef(webop.Struct):
    kind: Literal["SecretStore", "ClusterSecretStore"] | None = None
    name: Domain | None = None


class SourceRef(webop.OneOf):
    generator_ref: GeneratorRef | None = None
    store_ref: StoreRef | None = None


class Data(webop.Struct):
    remote_ref: RemoteRef
    secret_key: Key
    source_ref: SourceRef | None = None


class Name(webop.Struct):
    regexp: str | None = None


class Find(webop.Struct):
    conversion_strategy: Conversion | None = None
    decoding_strategy: Decoding | None = None
    name: Name | None = None
    null_byte_policy: Literal["Ignore", "Fail"] | None = None
    path: str | None = None
    tags: dict[str, str] | None = None


class Merge(webop.Struct):
    conflict_policy: Literal["Ignore", "Error"] = "Error"
    into: str = ""
    priority: list[str] | None = None
    priority_policy: Literal["IgnoreNotFound", "Strict"] = "Strict"
    strategy: Literal["Extract", "JSON"] = "Extract"


class Regexp(webop.Struct):
    source: str
    target: str


class Transform(webop.Struct):
    template: str


class Rewrite(webop.OneOf):
    merge: Merge | None = None
    regexp: Regexp | None = None
    transform: Transform | None = None


class DataFrom(webop.Struct):
    extract: RemoteRef | None = None
    find: Find | None = None
    rewrite: list[Rewrite] | None = None
    source_ref: SourceRef | None = None


class Window(webop.Struct):
    duration: str
    schedule: str = Field(
        pattern=r"^(@(annually|yearly|monthly|weekly|daily|midnight|hourly)|"
        r"@every [^\s]+.*|[^\s]+( [^\s]+){4})$",
        min_length=1,
    )


class SyncWindows(webop.Struct):
    kind: Literal["allow", "deny"]
    windows: list[Window] = Field(min_length=1)


class Manifest(webop.Struct):
    api_version: str = Field(min_length=1)
    kind: str = Field(min_length=1)


class Metadata(webop.Struct):
    annotations: dict[str, str] | None = None
    finalizers: list[str] | None = None
    labels: dict[str, str] | None = None


class Item(webop.Struct):
    key: Key
    template_as: Literal["Values", "KeysAndValues"] = "Values"


class TemplateSource(webop.Struct):
    items: list[Item]
    name: Domain


class TemplateFrom(webop.Struct):
    config_map: TemplateSource | None = None
    literal: str | None = None
    secret: TemplateSource | None = None
    target: str = "Data"
    values_decoding_strategy: Decoding | None = None


class Template(webop.Struct):
    data: dict[str, str] | None = None
    engine_version: Literal["v2"] = "v2"
    merge_policy: Literal["Replace", "Merge"] = "Replace"
    metadata: Metadata | None = None
    template_from: list[TemplateFrom] | None = None
    type: str | None = None


class Target(webop.Struct):
    creation_policy: Literal["Owner", "Orphan", "Merge", "None", "CreateOrMerge"] = "Owner"
    deletion_policy: Literal["Delete", "Merge", "Retain"] = "Retain"
    immutable: bool | None = None
    manifest: Manifest | None = None
    name: Domain | None = None
    template: Template | None = None


class ExternalSecretSpec(webop.Struct):
    data: list[Data] | None = None
    data_from: list[DataFrom] | None = None
    refresh_interval: str = "1h0m0s"
    refresh_policy: Literal["CreatedOnce", "Periodic", "OnChange"] | None = None
    secret_store_ref: StoreRef | None = None
    sync_windows: SyncWindows | None = None
    target: Target = Field(default_factory=Target)


@webop.Atomic()
class Binding(webop.Struct):
    name: str = ""


class Condition(webop.Struct):
    status: str
    type: Literal["Ready", "Deleted"]
    last_transition_time: dt.datetime | None = None
    message: str | None = None
    reason: str | None = None


class ExternalSecretStatus(webop.Struct):
    binding: Binding | None = None
    conditions: list[Condition] | None = None
    refresh_time: Annotated[dt.datetime | None, webop.Nullable()] = None
    synced_resource_version: str | None = None


@webop.resource(
    "external-secrets.io",
    "v1",
    short_names=["es"],
    categories=["external-secrets"],
    columns={
        "StoreType": ".spec.secretStoreRef.kind",
        "Store": ".spec.secretStoreRef.name",
        "Refresh Interval": ".spec.refreshInterval",
        "Status": '.status.conditions[?(@.type=="Ready")].reason',
        "Ready": '.status.conditions[?(@.type=="Ready")].status',
        "Last Sync": ".status.refreshTime",
    },
    selectable=[
        ".spec.secretStoreRef.name",
        ".spec.secretStoreRef.kind",
        ".spec.target.name",
        ".spec.refreshInterval",
    ],
)
class ExternalSecret(webop.Model):
    spec: ExternalSecretSpec | None = None
    status: ExternalSecretStatus | None = None
