"""The kinds of objects that are served, and those that CRDs define. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from .conversions import Converter, Versions
from .messages import Json

CRDS = "customresourcedefinitions.apiextensions.k8s.io"
NAMESPACES = "namespaces"
WEBHOOKS = {
    "Mutating": "mutatingwebhookconfigurations.admissionregistration.k8s.io",
    "Validating": "validatingwebhookconfigurations.admissionregistration.k8s.io",
}

ANY: Json = {"x-kubernetes-preserve-unknown-fields": True}
TEXT: Json = {"type": "string"}
TEXTS: Json = {"type": "object", "additionalProperties": TEXT}
NUMBER: Json = {"type": "integer"}
FLAG: Json = {"type": "boolean"}
_MOMENT: Json = {"type": "string", "format": "date-time"}


def build_object(**properties: Json) -> Json:
    """Return the schema of objects with these fields."""
    return {"type": "object", "properties": properties}


def _array(items: Json, kind: str, *keys: str) -> Json:
    schema: Json = {"type": "array", "items": items, "x-kubernetes-list-type": kind}
    return schema | ({"x-kubernetes-list-map-keys": list(keys)} if keys else {})


_OWNER = build_object(
    **dict.fromkeys(("apiVersion", "kind", "name", "uid"), TEXT),
    **dict.fromkeys(("controller", "blockOwnerDeletion"), FLAG),
)
METADATA: Json = build_object(
    name=TEXT,
    generateName=TEXT,
    namespace=TEXT,
    selfLink=TEXT,
    uid=TEXT,
    resourceVersion=TEXT,
    generation=NUMBER,
    creationTimestamp=_MOMENT,
    deletionTimestamp=_MOMENT,
    deletionGracePeriodSeconds=NUMBER,
    labels=TEXTS,
    annotations=TEXTS,
    ownerReferences=_array(_OWNER, "map", "uid"),
    finalizers=_array(TEXT, "set"),
    managedFields={"type": "array", "items": ANY},
)


@dataclass(frozen=True, eq=False)
class Kind:
    """A resource of one version of an API group, with the ways of the API server with it.

    Attributes:
        schema: what its objects can have beside apiVersion, kind and metadata.
        is_custom: whether a CRD defines it: built-in ones are answered differently in places.
        counted: the fields whose changes count as a generation; None if all but the metadata and
            the status subresource do; nothing if there are no generations.
        updates_without_version: whether PUT works without a resource version.
        creates_on_update: whether PUT creates what is absent.
        returns_deleted: whether the answer to DELETE is the object, not a Status.
        fill_in: completes new states of objects.
        fill_in_new: completes new objects before that.
        find_faults: tells what is invalid beyond the schema, if anything is.
        frozen: the fields that updates cannot change.
        selectable: the fields of field selectors, with their values if they are absent.
        deletes_by: what becomes of the dependents of deleted objects by default.
        versions: all versions of a custom kind.
    """

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    singular: str = ""
    list_kind: str = ""
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    subresources: tuple[str, ...] = ()
    schema: Json = field(default_factory=lambda: ANY)
    is_custom: bool = False
    is_terminating: bool = False
    counted: Sequence[str] | None = ()
    updates_without_version: bool = False
    creates_on_update: bool = False
    returns_deleted: bool = False
    fill_in: Callable[[Json], None] = lambda _: None
    fill_in_new: Callable[[Json], None] = lambda _: None
    find_faults: Callable[[Json], Iterable[str]] = lambda _: ()
    frozen: Sequence[str] = ()
    selectable: dict[str, str] = field(default_factory=dict)
    deletes_by: str = ""
    versions: Versions | None = field(default=None, repr=False)

    @cached_property
    def whole_schema(self) -> Json:
        """The schema with the metadata."""
        own = {"apiVersion": TEXT, "kind": TEXT, "metadata": METADATA}
        return {**self.schema, "properties": {**(self.schema.get("properties") or {}), **own}}

    @property
    def resource(self) -> str:
        """The plural name with the group."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def api_version(self) -> str:
        """The group with the version."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def build_path(self, metadata: Json) -> str:
        """Return the path of an object; that of its collection if it has no name."""
        path = f"/{'apis' if self.group else 'api'}/{self.api_version}"
        if self.namespaced:
            path += f"/namespaces/{metadata['namespace']}"
        name = metadata.get("name")
        return f"{path}/{self.plural}/{name}" if name else f"{path}/{self.plural}"

    @property
    def has_status(self) -> bool:
        """Whether the status has a separate endpoint."""
        return "status" in self.subresources

    @property
    def verbs(self) -> list[str]:
        """The verbs of the kind in discovery."""
        if self.is_terminating:
            return ["delete", "deletecollection", "get", "list", "watch"]
        reading = ["delete", "deletecollection", "get", "list", "patch"]
        return [*reading, "create", "update", "watch"]

    def show(self, raw: Json) -> Json:
        """Return a stored object as of this version of the API.

        Raises:
            Refusal: it cannot be converted.
        """
        if self.versions is not None and self.versions.converter is not None:
            return self.versions.read(raw, self.api_version)
        if raw["apiVersion"] == self.api_version:
            return raw
        return {**raw, "apiVersion": self.api_version}

    def find_version(self, api_version: str) -> Kind:
        """Return the kind in another version; this one if there is no such version."""
        return self if self.versions is None else self.versions.kinds.get(api_version, self)

    def convert(self, raw: Json) -> Json:
        """Return an object of any version in this one.

        Raises:
            Refusal: it cannot be converted.
        """
        return raw if self.versions is None else self.versions.convert(raw, self.api_version)

    def store(self, raw: Json) -> Json:
        """Return an object of this version as it is stored.

        Raises:
            Refusal: it cannot be converted.
        """
        if self.versions is None:
            return raw
        return self.versions.convert(raw, self.versions.storage)


def build_custom_kinds(crd: Json, converter: Converter | None = None) -> list[Kind]:
    """Return the kinds of a definition: one for each version that is served."""
    spec, names = crd["spec"], crd["spec"]["names"]
    (storage,) = (version["name"] for version in spec["versions"] if version.get("storage"))
    is_converted = (spec.get("conversion") or {}).get("strategy") == "Webhook"
    versions = Versions(f"{spec['group']}/{storage}", converter if is_converted else None)
    kinds = [
        Kind(
            spec["group"],
            version["name"],
            names["plural"],
            names["kind"],
            namespaced=spec["scope"] == "Namespaced",
            singular=names["singular"],
            list_kind=names["listKind"],
            short_names=tuple(names.get("shortNames") or ()),
            categories=tuple(names.get("categories") or ()),
            subresources=tuple(sorted(version.get("subresources") or ())),
            schema=(version.get("schema") or {}).get("openAPIV3Schema") or {},
            is_custom=True,
            is_terminating="deletionTimestamp" in crd["metadata"],
            counted=None,
            selectable={
                one["jsonPath"].removeprefix("."): ""
                for one in version.get("selectableFields") or ()
            },
            versions=versions,
        )
        for version in spec["versions"]
    ]
    versions.kinds.update({kind.api_version: kind for kind in kinds})
    return [
        kind for kind, version in zip(kinds, spec["versions"], strict=True) if version.get("served")
    ]
