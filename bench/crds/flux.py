"""The GitRepository of Flux."""

from __future__ import annotations

import datetime as dt
from typing import Literal

from pydantic import Field

import webop


class LocalReference(webop.Struct):
    name: str


class Include(webop.Struct):
    repository: LocalReference
    from_path: str | None = None
    to_path: str | None = None


class Ref(webop.Struct):
    branch: str | None = None
    commit: str | None = None
    name: str | None = None
    semver: str | None = None
    tag: str | None = None


class Verify(webop.Struct):
    secret_ref: LocalReference
    mode: Literal["head", "HEAD", "Tag", "TagAndHEAD"] = "HEAD"


@webop.CEL(
    "!has(self.serviceAccountName) || "
    "(has(self.provider) && (self.provider == 'azure' || self.provider == 'aws'))",
    message="serviceAccountName can only be set when provider is 'azure' or 'aws'",
)
class GitRepositorySpec(webop.Struct):
    interval: str = Field(pattern=r"^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$")
    url: str = Field(pattern="^(http|https|ssh)://.*$")
    ignore: str | None = None
    include: list[Include] | None = None
    provider: Literal["generic", "aws", "azure", "github"] | None = None
    proxy_secret_ref: LocalReference | None = None
    recurse_submodules: bool | None = None
    ref: Ref | None = None
    secret_ref: LocalReference | None = None
    service_account_name: str | None = None
    sparse_checkout: list[str] | None = None
    suspend: bool | None = None
    timeout: str = Field("60s", pattern=r"^([0-9]+(\.[0-9]+)?(ms|s|m))+$")
    verify: Verify | None = None


class Artifact(webop.Struct):
    digest: str = Field(pattern="^[a-z0-9]+(?:[.+_-][a-z0-9]+)*:[a-zA-Z0-9=_-]+$")
    last_update_time: dt.datetime
    path: str
    revision: str
    url: str
    metadata: dict[str, str] | None = None
    size: webop.Int64 | None = None


class GitRepositoryStatus(webop.Struct):
    artifact: Artifact | None = None
    conditions: webop.Conditions | None = None
    included_artifacts: list[Artifact] | None = None
    last_handled_reconcile_at: str | None = None
    observed_generation: webop.Int64 | None = None
    observed_ignore: str | None = None
    observed_include: list[Include] | None = None
    observed_recurse_submodules: bool | None = None
    observed_sparse_checkout: list[str] | None = None
    source_verification_mode: str | None = None


@webop.resource(
    "source.toolkit.fluxcd.io",
    "v1",
    short_names=["gitrepo"],
    categories=["all", "fluxcd", "fluxcd-sources"],
    columns={
        "URL": ".spec.url",
        "Age": ".metadata.creationTimestamp",
        "Ready": '.status.conditions[?(@.type=="Ready")].status',
        "Status": '.status.conditions[?(@.type=="Ready")].message',
    },
)
class GitRepository(webop.Model):
    spec: GitRepositorySpec | None = None
    status: GitRepositoryStatus = GitRepositoryStatus(observed_generation=-1)
