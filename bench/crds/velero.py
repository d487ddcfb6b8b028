"""The BackupStorageLocation of Velero: it stores null."""

from __future__ import annotations

import datetime as dt
from typing import Annotated, Literal

from pydantic import Field

import webop
from bench.crds.kubernetes import SecretKeySelector


class ObjectStorage(webop.Struct):
    bucket: str
    ca_cert: str | None = Field(None, json_schema_extra={"format": "byte"})
    ca_cert_ref: SecretKeySelector | None = None
    prefix: str | None = None


class BackupStorageLocationSpec(webop.Struct):
    object_storage: ObjectStorage
    provider: str
    access_mode: Literal["ReadOnly", "ReadWrite"] | None = None
    backup_sync_period: Annotated[str | None, webop.Nullable()] = None
    config: dict[str, str] | None = None
    credential: SecretKeySelector | None = None
    default: bool | None = None
    validation_frequency: Annotated[str | None, webop.Nullable()] = None


class BackupStorageLocationStatus(webop.Struct):
    access_mode: Literal["ReadOnly", "ReadWrite"] | None = None
    last_synced_revision: str | None = None
    last_synced_time: Annotated[dt.datetime | None, webop.Nullable()] = None
    last_validation_time: Annotated[dt.datetime | None, webop.Nullable()] = None
    message: str | None = None
    phase: Literal["Available", "Unavailable"] | None = None


@webop.resource(
    "velero.io",
    "v1",
    status_subresource=False,
    short_names=["bsl"],
    columns={
        "Phase": ".status.phase",
        "Last Validated": ".status.lastValidationTime",
        "Age": ".metadata.creationTimestamp",
        "Default": ".spec.default",
    },
)
class BackupStorageLocation(webop.Model):
    spec: BackupStorageLocationSpec | None = None
    status: BackupStorageLocationStatus | None = None
