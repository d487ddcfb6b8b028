"""The Database of CloudNativePG: many fields cannot be changed."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

import webop

Ensure = Literal["present", "absent"]


def immutable(what: str, when: str = "") -> webop.CEL:
    """Return the rule of a field that cannot be changed."""
    return webop.CEL("self == oldSelf", message=f"{what} immutable{when}")


@webop.Atomic()
class Cluster(webop.Struct):
    name: str = ""


class Extension(webop.Struct):
    name: str
    ensure: Ensure = "present"
    schema_: str | None = Field(None, alias="schema")
    version: str | None = None


class Option(webop.Struct):
    name: str
    value: str
    ensure: Ensure = "present"


class Usage(webop.Struct):
    name: Annotated[str, webop.CEL("self != ''", message="name is required")]
    type: Literal["grant", "revoke"] = "grant"


class ForeignDataWrapper(webop.Struct):
    name: str
    ensure: Ensure = "present"
    handler: str | None = None
    options: list[Option] | None = None
    owner: str | None = None
    usage: list[Usage] | None = None
    validator: str | None = None


class Schema(webop.Struct):
    name: str
    ensure: Ensure = "present"
    owner: str | None = None


class Server(webop.Struct):
    fdw: Annotated[str, webop.CEL("self != ''", message="fdw is required")]
    name: str
    ensure: Ensure = "present"
    options: list[Option] | None = None
    usage: list[Usage] | None = None


@webop.CEL(
    "!has(self.builtinLocale) || self.localeProvider == 'builtin'",
    message="builtinLocale is only available when localeProvider is set to `builtin`",
)
@webop.CEL(
    "!has(self.icuLocale) || self.localeProvider == 'icu'",
    message="icuLocale is only available when localeProvider is set to `icu`",
)
@webop.CEL(
    "!has(self.icuRules) || self.localeProvider == 'icu'",
    message="icuRules is only available when localeProvider is set to `icu`",
)
class DatabaseSpec(webop.Struct):
    cluster: Annotated[Cluster, immutable("cluster reference is", " after creation")]
    name: Annotated[
        str,
        immutable("name is"),
        webop.CEL("self != 'postgres'", message="the name postgres is reserved"),
        webop.CEL("self != 'template0'", message="the name template0 is reserved"),
        webop.CEL("self != 'template1'", message="the name template1 is reserved"),
    ]
    owner: str
    allow_connections: bool | None = None
    builtin_locale: Annotated[str | None, immutable("builtinLocale is")] = None
    collation_version: Annotated[str | None, immutable("collationVersion is")] = None
    connection_limit: int | None = None
    database_reclaim_policy: Literal["delete", "retain"] = "retain"
    encoding: Annotated[str | None, immutable("encoding is")] = None
    ensure: Ensure = "present"
    extensions: list[Extension] | None = None
    fdws: list[ForeignDataWrapper] | None = None
    icu_locale: Annotated[str | None, immutable("icuLocale is")] = None
    icu_rules: Annotated[str | None, immutable("icuRules is")] = None
    is_template: bool | None = None
    locale: Annotated[str | None, immutable("locale is")] = None
    locale_c_type: Annotated[str | None, immutable("localeCType is")] = None
    locale_collate: Annotated[str | None, immutable("localeCollate is")] = None
    locale_provider: Annotated[str | None, immutable("localeProvider is")] = None
    schemas: list[Schema] | None = None
    servers: list[Server] | None = None
    tablespace: str | None = None
    template: Annotated[str | None, immutable("template is")] = None


class Applied(webop.Struct):
    applied: bool
    name: str
    message: str | None = None


class DatabaseStatus(webop.Struct):
    applied: bool | None = None
    extensions: list[Applied] | None = None
    fdws: list[Applied] | None = None
    message: str | None = None
    observed_generation: webop.Int64 | None = None
    schemas: list[Applied] | None = None
    servers: list[Applied] | None = None


@webop.resource(
    "postgresql.cnpg.io",
    "v1",
    columns={
        "Age": ".metadata.creationTimestamp",
        "Cluster": ".spec.cluster.name",
        "PG Name": ".spec.name",
        "Applied": ".status.applied",
        "Message": ".status.message",
    },
)
class Database(webop.Model):
    spec: DatabaseSpec
    status: DatabaseStatus | None = None
