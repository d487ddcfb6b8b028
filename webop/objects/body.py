"""Bodies of Kubernetes objects: the raw documents, and the read-only views that handlers get.

The client delivers raw dicts, which are never changed. The views are live: :meth:`Body.replace`
shows a newer state through all of them at once, as daemons and timers need it (chapter "Daemons" of
the manual, "Resource fields access").
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, KeysView, Mapping, Sequence, ValuesView
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, TypeAlias, TypedDict, cast

RawEventType: TypeAlias = Literal["ADDED", "MODIFIED", "DELETED"] | None
"""The type of an event of a watch; None for an object of the first list."""

Labels: TypeAlias = Mapping[str, str]
"""The argument ``labels`` of handlers: the labels of the object, read-only."""

Annotations: TypeAlias = Mapping[str, str]
"""The argument ``annotations`` of handlers: the annotations of the object, read-only."""


class RawMeta(TypedDict, total=False):
    """``metadata`` of an object (Kubernetes API, meta/v1 ObjectMeta), the parts used here."""

    name: str
    generateName: str
    namespace: str
    uid: str
    resourceVersion: str
    generation: int
    labels: dict[str, str]
    annotations: dict[str, str]
    finalizers: list[str]
    ownerReferences: list[OwnerReference]
    creationTimestamp: str
    deletionTimestamp: str


class RawBody(TypedDict, total=False):
    """An object as the API server sends it; custom kinds can have more stanzas."""

    apiVersion: str
    kind: str
    metadata: RawMeta
    spec: dict[str, Any]
    status: dict[str, Any]


class RawEvent(TypedDict, total=False):
    """The argument ``event`` of ``@webop.on.event`` (Kubernetes API, meta/v1 WatchEvent)."""

    type: RawEventType
    object: RawBody


class MetaEssence(TypedDict, total=False):
    """The part of ``metadata`` whose changes matter to handlers."""

    labels: dict[str, str]
    annotations: dict[str, str]


class BodyEssence(TypedDict, total=False):
    """The arguments ``old`` and ``new``: the part of an object whose changes matter to handlers.

    It has the spec and other stanzas, labels and annotations; not the status, unless a handler has
    a field in it. It has no ``kind``.
    """

    metadata: MetaEssence
    spec: dict[str, Any]
    status: dict[str, Any]


class ObjectReference(TypedDict, total=False):
    """A reference to an object, as in Events (Kubernetes API, core/v1 ObjectReference)."""

    apiVersion: str
    kind: str
    name: str
    uid: str
    namespace: str


class OwnerReference(TypedDict, total=False):
    """An item of ``metadata.ownerReferences`` (Kubernetes API, meta/v1 OwnerReference)."""

    controller: bool
    blockOwnerDeletion: bool
    apiVersion: str
    kind: str
    name: str
    uid: str


_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


def _get_stanza(mapping: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    stanza = mapping.get(key)
    return stanza if type(stanza) is dict or isinstance(stanza, Mapping) else _NOTHING


class View(Mapping[str, Any]):
    """A read-only look at a mapping inside of a document that can be replaced as a whole.

    All views of one document share a cell, a list of one item, that holds the raw document.
    They do not hold each other, so they go as soon as they are not used, with no garbage
    collection.
    """

    __slots__ = ("_cell",)

    _path: ClassVar[tuple[str, ...]] = ()  # from the root of the document

    def __init__(self, body: Mapping[str, Any]) -> None:
        self._cell: list[Mapping[str, Any]] = getattr(body, "_cell", None) or [body]

    @property
    def raw(self) -> Mapping[str, Any]:
        """The mapping behind the view at this moment; not to be changed."""
        found = self._cell[0]
        for key in self._path:
            found = _get_stanza(found, key)
        return found

    @property
    def _patch(self) -> str:
        """What handlers write to instead."""
        return ".".join(("patch", *self._path))

    def __getitem__(self, key: str) -> Any:
        return self.raw[key]

    if not TYPE_CHECKING:  # type checkers refuse an assignment to a Mapping

        def __setitem__(self, key: str, value: object) -> None:
            raise TypeError(
                f"{type(self).__name__!r} object does not support item assignment. "
                f"Write {self._patch}[{key!r}] = … instead."
            )

        def __delitem__(self, key: str) -> None:
            raise TypeError(
                f"{type(self).__name__!r} object does not support item deletion. "
                f"Write {self._patch}[{key!r}] = None instead."
            )

    def __iter__(self) -> Iterator[str]:
        return iter(self.raw)

    def __len__(self) -> int:
        return len(self.raw)

    def __contains__(self, key: object) -> bool:
        return key in self.raw

    def __eq__(self, other: object) -> bool:
        if isinstance(other, View):
            return self.raw == other.raw
        if isinstance(other, (dict, Mapping)):
            return self.raw == other
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]  # what is seen through a view changes

    def __repr__(self) -> str:
        return repr(dict(self.raw))

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of the key, or the default if it is absent."""
        return self.raw.get(key, default)

    def keys(self) -> KeysView[str]:
        """Return the keys as they are now."""
        return self.raw.keys()

    def values(self) -> ValuesView[Any]:
        """Return the values as they are now."""
        return self.raw.values()

    def items(self) -> ItemsView[str, Any]:
        """Return the items as they are now."""
        return self.raw.items()


class Spec(View):
    """The argument ``spec`` of handlers: a live, read-only mapping; without fields if absent."""

    __slots__ = ()

    _path = ("spec",)


class Status(View):
    """The argument ``status`` of handlers: a live, read-only mapping; without fields if absent."""

    __slots__ = ()

    _path = ("status",)


class _LabelsView(View):
    __slots__ = ()

    _path = ("metadata", "labels")


class _AnnotationsView(View):
    __slots__ = ()

    _path = ("metadata", "annotations")


class Meta(View):
    """The argument ``meta`` of handlers: the metadata, read-only, with fields as attributes."""

    __slots__ = ()

    _path = ("metadata",)

    @property
    def name(self) -> str | None:
        """The name; None before one is generated, as in admission."""
        return self.raw.get("name")

    @property
    def namespace(self) -> str | None:
        """The namespace; None for objects of the cluster."""
        return self.raw.get("namespace")

    @property
    def uid(self) -> str | None:
        """The unique identifier; None before the object exists, as in admission."""
        return self.raw.get("uid")

    @property
    def labels(self) -> Labels:
        """A live view of the labels."""
        return _LabelsView(self)

    @property
    def annotations(self) -> Annotations:
        """A live view of the annotations."""
        return _AnnotationsView(self)

    @property
    def resource_version(self) -> str | None:
        """The version of this state of the object, opaque."""
        return self.raw.get("resourceVersion")

    @property
    def creation_timestamp(self) -> str | None:
        """When the object was created, as RFC 3339 text."""
        return self.raw.get("creationTimestamp")

    @property
    def deletion_timestamp(self) -> str | None:
        """When the deletion was requested, as RFC 3339 text; None if it was not."""
        return self.raw.get("deletionTimestamp")

    @property
    def finalizers(self) -> Sequence[str]:
        """The entries that block the deletion."""
        return self.raw.get("finalizers") or ()


class Body(View):
    """The argument ``body`` of handlers: the object as a read-only mapping, with its parts.

    ::

        body["spec"]["size"] == body.spec["size"]
        body.metadata.name

    In daemons and timers, it always shows the newest state.

    Args:
        raw: the document, which is shared, not copied. Of another body, its present state.
    """

    __slots__ = ()

    def __init__(self, raw: Mapping[str, Any]) -> None:
        self._cell = [raw if isinstance(raw, dict) else get_raw(raw)]

    def __copy__(self) -> Body:
        """Copy the present state: the copy does not show newer ones."""
        return type(self)(self)

    def replace(self, raw: Mapping[str, Any]) -> None:
        """Show a newer state through this body and all views that were taken from it."""
        self._cell[0] = get_raw(raw)

    @property
    def spec(self) -> Spec:
        """A live view of ``spec``."""
        return Spec(self)

    @property
    def status(self) -> Status:
        """A live view of ``status``."""
        return Status(self)

    @property
    def metadata(self) -> Meta:
        """A live view of ``metadata``."""
        return Meta(self)

    meta = metadata


def get_raw(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what is behind a body or a view, or the mapping itself if it is raw already."""
    if type(body) is Body:
        return body._cell[0]  # noqa: SLF001  a view of this module
    return body.raw if isinstance(body, View) else body


def build_object_reference(body: Mapping[str, Any]) -> ObjectReference:
    """Return the reference to an object, as in Events: its apiVersion, kind, name, uid, namespace.

    Fields that the object does not have are left out.
    """
    meta = _get_stanza(body, "metadata")
    reference = {
        "apiVersion": body.get("apiVersion"),
        "kind": body.get("kind"),
        "name": meta.get("name"),
        "uid": meta.get("uid"),
        "namespace": meta.get("namespace"),
    }
    return cast("ObjectReference", {key: value for key, value in reference.items() if value})


def build_owner_reference(
    body: Mapping[str, Any],
    *,
    controller: bool | None = True,
    block_owner_deletion: bool | None = True,
) -> OwnerReference:
    """Return the owner reference to an object, for ``metadata.ownerReferences`` of its children.

    Args:
        body: the owner.
        controller: whether it is the one owner that manages the child; None leaves it out.
        block_owner_deletion: whether a foreground deletion of the owner waits for the child;
            None leaves it out.

    See https://kubernetes.io/docs/concepts/architecture/garbage-collection/.
    """
    options = {"controller": controller, "blockOwnerDeletion": block_owner_deletion}
    reference = {**options, **build_object_reference(body), "namespace": None}
    present = {key: value for key, value in reference.items() if value is not None}
    return cast("OwnerReference", present)
