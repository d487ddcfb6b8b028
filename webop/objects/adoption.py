"""Set labels, names, namespaces and owners of the objects that handlers create.

Objects are dicts, pydantic models, objects of pykube, models of the kubernetes clients, or
iterables of these. What is not given is taken from the object that is being handled.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from webop.objects.body import OwnerReference, build_owner_reference
from webop.objects.fields import FieldSpec, ensure, find_attribute, parse_field, resolve

if TYPE_CHECKING:
    from types import ModuleType

    from pydantic import BaseModel

owner_of_the_moment: Final[ContextVar[Mapping[str, Any]]] = ContextVar("owner_of_the_moment")
"""The object that is being handled; set around the call of a handler."""


def label(
    objs: Any,
    labels: Mapping[str, str | None] | None = None,
    *,
    forced: bool = False,
    nested: str | Iterable[FieldSpec] | None = None,
    force: bool | None = None,
) -> None:
    """Put labels on objects.

    ::

        webop.label(deployment, {"app": name}, nested="spec.template")

    Args:
        objs: an object or an iterable of objects, changed in place.
        labels: by default, those of the object being handled; an empty mapping changes nothing.
        forced: whether labels that are there are overwritten.
        nested: fields with objects inside of the objects, such as "spec.template", to be labelled
            too; those that are absent are left absent.
        force: the former name of `forced`.

    Raises:
        LookupError: no labels are given, and no object is being handled.
        TypeError: an object is of an unsupported class.
    """
    if force is not None:
        warnings.warn("label(force=...) is now label(forced=...).", DeprecationWarning, 2)
        forced = force
    if labels is None:
        labels = resolve(_find_owner(None), ("metadata", "labels")) or {}
    fields = [nested] if isinstance(nested, str) else nested or ()
    paths = [parse_field(field) for field in fields]
    for obj in _flatten(objs):
        for target in (obj, *_find_nested(obj, paths)):
            meta = _access_metadata(target)
            present = meta.get("labels")
            there = present or {}
            added = {key: val for key, val in labels.items() if forced or key not in there}
            if isinstance(present, MutableMapping):
                present.update(added)  # a selector may be the very same dict
            elif added:
                meta.set("labels", {**there, **added})


def append_owner_reference(
    objs: Any,
    owner: Mapping[str, Any] | BaseModel | None = None,
    *,
    controller: bool | None = True,
    block_owner_deletion: bool | None = True,
) -> None:
    """Make objects children of an owner, with which they are deleted.

    An object that has this owner already is left as it is.

    Args:
        objs: an object or an iterable of objects, changed in place.
        owner: by default, the object being handled.
        controller: whether it is the one owner that manages them.
        block_owner_deletion: whether a foreground deletion of the owner waits for them.

    Raises:
        LookupError: no owner is given, and no object is being handled; or the owner has no uid.
        TypeError: an object is of an unsupported class.
    """
    reference = build_owner_reference(
        _find_owner(owner), controller=controller, block_owner_deletion=block_owner_deletion
    )
    uid = _get_uid(reference)
    for obj in _flatten(objs):
        meta = _access_metadata(obj)
        references = meta.get("ownerReferences") or []
        if all(_read(item, "uid") != uid for item in references):
            meta.set("ownerReferences", [*references, meta.build_reference(reference)])


def remove_owner_reference(objs: Any, owner: Mapping[str, Any] | BaseModel | None = None) -> None:
    """Remove the reference to an owner: Kubernetes does not delete the objects with it.

    Args:
        objs: an object or an iterable of objects, changed in place.
        owner: by default, the object being handled.

    Raises:
        LookupError: no owner is given, and no object is being handled; or the owner has no uid.
        TypeError: an object is of an unsupported class.
    """
    uid = _get_uid(build_owner_reference(_find_owner(owner)))
    for obj in _flatten(objs):
        meta = _access_metadata(obj)
        references = meta.get("ownerReferences") or []
        others = [item for item in references if _read(item, "uid") != uid]
        if len(others) < len(references):
            meta.set("ownerReferences", others)


def harmonize_naming(
    objs: Any, name: str | None = None, *, forced: bool = False, strict: bool = False
) -> None:
    """Name objects: with a prefix for a name to be generated, or exactly.

    Args:
        objs: an object or an iterable of objects, changed in place.
        name: by default, that of the object being handled.
        forced: whether a name or a prefix that is there is overwritten.
        strict: whether it is the exact name; otherwise, Kubernetes adds a random suffix.

    Raises:
        LookupError: no name is given, and no object with a name is being handled.
        TypeError: an object is of an unsupported class.
    """
    if name is None:
        name = resolve(_find_owner(None), ("metadata", "name"))
    if name is None:
        raise LookupError("The owner has no name yet. Give a name for the objects.")
    for obj in _flatten(objs):
        meta = _access_metadata(obj)
        if forced or not (meta.get("name") or meta.get("generateName")):
            meta.set("name" if strict else "generateName", name if strict else f"{name}-")
            meta.drop("generateName" if strict else "name")


def adjust_namespace(objs: Any, namespace: str | None = None, *, forced: bool = False) -> None:
    """Put objects into a namespace.

    Nothing happens if the namespace is that of an owner which has none.

    Args:
        objs: an object or an iterable of objects, changed in place.
        namespace: by default, that of the object being handled.
        forced: whether a namespace that is there is overwritten.

    Raises:
        LookupError: no namespace is given, and no object is being handled.
        TypeError: an object is of an unsupported class.
    """
    if namespace is None:
        namespace = resolve(_find_owner(None), ("metadata", "namespace"))
    for obj in _flatten(objs):
        meta = _access_metadata(obj)
        if namespace is not None and (forced or not meta.get("namespace")):
            meta.set("namespace", namespace)


def adopt(
    objs: Any,
    owner: Mapping[str, Any] | BaseModel | None = None,
    *,
    forced: bool = False,
    strict: bool = False,
    nested: str | Iterable[FieldSpec] | None = None,
) -> None:
    """Make objects children of an owner: in its namespace, with its labels, named after it.

    Call it before you create them. Kubernetes deletes them with the owner::

        webop.adopt(claim)
        await client.create(claim)

    Args:
        objs: an object or an iterable of objects, changed in place.
        owner: by default, the object being handled.
        forced: whether names, namespaces and labels that are there are overwritten.
        strict: whether the name of the owner is taken as it is, with no suffix.
        nested: fields with objects inside of the objects, to be labelled too.

    Raises:
        LookupError: no owner is given, and no object is being handled; or the owner has no uid.
        TypeError: an object is of an unsupported class.
    """
    parent = _find_owner(owner)
    children = list(_flatten(objs))
    token = owner_of_the_moment.set(parent)
    try:
        append_owner_reference(children)
        harmonize_naming(children, forced=forced, strict=strict)
        adjust_namespace(children, forced=forced)
        label(children, forced=forced, nested=nested)
    finally:
        owner_of_the_moment.reset(token)


def _find_owner(owner: Any) -> Mapping[str, Any]:
    if owner is None:
        try:
            return owner_of_the_moment.get()
        except LookupError:
            raise LookupError(
                "Outside of handlers, there is no current object. Pass owner=, or labels=, name=, "
                "namespace=, or call this in a handler."
            ) from None
    if isinstance(owner, Mapping):
        return owner
    if isinstance(wrapped := getattr(owner, "obj", None), Mapping):
        return wrapped
    if _is_pydantic(owner):
        dumped: dict[str, Any] = owner.model_dump(mode="json", by_alias=True, exclude_none=True)
        return dumped
    raise TypeError(f"An owner must be a body or a dict, got {type(owner).__name__}.")


def _get_uid(reference: OwnerReference) -> str:
    try:
        return reference["uid"]
    except KeyError:
        raise LookupError("The owner has no metadata.uid: it does not exist yet.") from None


class _Metadata:
    """``metadata`` of a dict; fields go by their names in manifests here and in models."""

    def __init__(self, obj: Any) -> None:
        self._obj = obj

    def get(self, key: str) -> Any:
        return _read(_read(self._obj, "metadata"), key)

    def set(self, key: str, value: Any) -> None:
        ensure(self._obj, ("metadata", key), value)

    def drop(self, key: str) -> None:
        self._obj["metadata"].pop(key, None)

    def build_reference(self, reference: OwnerReference) -> Any:
        return dict(reference)


class _ModelMetadata(_Metadata):
    """``metadata`` of a model of the `kubernetes` and `kubernetes_asyncio` packages.

    Neither package is needed: the classes of new objects are imported from the package of the
    model's class.
    """

    def __init__(self, obj: Any, models: ModuleType) -> None:
        super().__init__(obj)
        self._models = models

    def set(self, key: str, value: Any) -> None:
        if self._obj.metadata is None:
            self._obj.metadata = self._models.V1ObjectMeta()
        setattr(self._obj.metadata, _find_name(self._obj.metadata, key), value)

    def drop(self, key: str) -> None:
        self.set(key, None)

    def build_reference(self, reference: OwnerReference) -> Any:
        names = self._models.V1OwnerReference.attribute_map.items()
        fields = {attribute: reference.get(name) for attribute, name in names}
        return self._models.V1OwnerReference(**fields)


class _PydanticMetadata(_Metadata):
    """``metadata`` of a pydantic model, such as a ``webop.models.Metadata``."""

    def set(self, key: str, value: Any) -> None:
        metadata = self._obj.metadata
        validator = type(metadata).__pydantic_validator__  # dicts become what it has
        validator.validate_assignment(metadata, _find_name(metadata, key), value)

    def drop(self, key: str) -> None:
        self.set(key, None)


def _access_metadata(obj: Any) -> _Metadata:
    if isinstance(obj, MutableMapping):
        return _Metadata(obj)
    models, metadata = _find_models(obj), getattr(obj, "metadata", None)
    if isinstance(metadata, MutableMapping) and (models or _is_pydantic(obj)):
        return _Metadata({"metadata": metadata})
    is_list = metadata is not None and not hasattr(metadata, "labels")
    if models is not None and hasattr(obj, "metadata") and not is_list:
        return _ModelMetadata(obj, models)
    if models is None and _is_pydantic(obj):
        if _is_pydantic(metadata):
            return _PydanticMetadata(obj)
        raise TypeError(f"The {type(obj).__name__} has no metadata. Set metadata={{}} or the like.")
    raise TypeError(
        "An object must be a dict, a pydantic model, a pykube object, or a model of the kubernetes "
        f"client, got {type(obj).__name__}."
    )


def _find_models(obj: Any) -> ModuleType | None:
    """Return the package with all models of the client that the object is a model of."""
    for cls in type(obj).__mro__:
        package, _, _ = cls.__module__.rpartition(".")
        if package.endswith(".client.models") and hasattr(cls, "attribute_map"):
            return sys.modules.get(package)
    return None


def _flatten(objs: Any) -> Iterator[Any]:
    """Iterate over objects in any nesting of iterables; those of pykube as their dicts."""
    if objs is None:
        return
    if isinstance(objs, Mapping) or _find_models(objs) is not None:
        yield objs
    elif isinstance(getattr(objs, "obj", None), MutableMapping):
        yield objs.obj
    elif (
        isinstance(objs, Iterable) and not isinstance(objs, (str, bytes)) and not _is_pydantic(objs)
    ):
        for obj in objs:
            yield from _flatten(obj)
    else:
        yield objs


def _is_pydantic(obj: Any) -> bool:
    """Return whether this is an object of a pydantic class, which iterates over its fields."""
    return hasattr(type(obj), "model_fields") and hasattr(obj, "model_dump")


def _read(obj: Any, key: str) -> Any:
    """Return a field by its name in manifests; None if there is none."""
    if isinstance(obj, Mapping):
        return obj.get(key)
    name = _find_name(obj, key)
    return None if name is None else getattr(obj, name, None)


def _find_name(obj: Any, key: str) -> Any:
    """Return the attribute of a model; of pydantic ones, it can be one that the class lacks."""
    if names := getattr(obj, "attribute_map", None):
        return next((attribute for attribute, name in names.items() if name == key), None)
    return (find_attribute(type(obj), key) or key) if _is_pydantic(obj) else None


def _find_nested(obj: Any, paths: Iterable[tuple[str, ...]]) -> Iterator[Any]:
    for path in paths:
        yield from _flatten(functools.reduce(_read, path, obj))
