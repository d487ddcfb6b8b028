"""Names of the annotations in which state is kept, and the recognition of others' ones.

A name is ``<prefix>/<key>``, where the key is a handler's id, or a fixed word. Kubernetes limits
the alphabet of what follows the prefix, and its length to 63 characters; a longer key is cut and
gets a hash. An older form limits the whole name, prefix included, to 63 characters; it is read,
and written where asked for. Both must be what Kopf 1.45 makes of the same key, to the byte.
"""

from __future__ import annotations

import base64
import hashlib
import re
import warnings
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar, cast

from webop.objects.body import get_raw
from webop.objects.fields import (
    ABSENT_FIELD,
    FieldPath,
    FieldSpec,
    clone,
    ensure,
    parse_field,
    remove,
    resolve,
)
from webop.objects.storage.codec import ANNOTATIONS, log_damage

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from webop.objects.body import Body, BodyEssence

T = TypeVar("T")

DROPPED_IF_EMPTY: Final = (
    ("metadata", "labels"),
    ("metadata", "annotations"),
    ("metadata",),
    ("status",),
)
"""Fields that are left out of an essence if they are empty."""

DEFAULT_PREFIX: Final = "kopf.zalando.org"
KEPT_PREFIX: Final = "kept.webop.dev"  # of what conversions keep (webop.models.kept_content)
MARKER: Final = "kopf-managed"

_KNOWN: Final = (DEFAULT_PREFIX, KEPT_PREFIX)
_SUBDOMAIN: Final = "." + DEFAULT_PREFIX

_NAME_LIMIT: Final = 63
_KEY_LIMIT: Final = 253
_PREFIX_LIMIT: Final = _KEY_LIMIT - _NAME_LIMIT - len("/")
_NAMES_LIMIT: Final = 8192  # that are remembered
_SAFE: Final = str.maketrans("/<>", ".__")

# The rule for names of annotations: https://kubernetes.io/docs/concepts/overview/
# working-with-objects/annotations/#syntax-and-character-set
_is_valid: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?").fullmatch
_INVALID: Final = re.compile(r"[^A-Za-z0-9._-]+")


def find_managed_prefixes(annotations: Iterable[str]) -> tuple[str, ...]:
    """Find the prefixes under which operators of this family keep their state.

    They are recognized by the default prefix or a subdomain of it, or that of conversions, and
    others by the marker beside them. If operators did not leave these out of the comparison of
    states, they would react to each other without end.
    """
    prefixes: set[str] = set()
    for annotation in annotations:
        prefix, slash, name = annotation.partition("/")
        if slash and (prefix in _KNOWN or name == MARKER or prefix.endswith(_SUBDOMAIN)):
            prefixes.add(f"{prefix}/")
    return tuple(prefixes)


def build_marker(prefix: str) -> dict[str, str]:
    """Return the annotation that marks the prefix of an operator; those of Kopf have none."""
    return {} if prefix.startswith("kopf.") else {f"{prefix}/{MARKER}": "yes"}


class EssenceCleaning:
    """The base of storages, which make essences of objects in one of their methods.

    Essences share their parts with the raw body, which must not be changed. But a class from
    elsewhere that overrides the method gets a copy from ``super()`` that is its own.
    """

    _makes_essences: ClassVar[str]  # the name of the method
    _gives_copies: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if not cls.__module__.startswith("webop.objects.storage."):
            cls._gives_copies |= cls._makes_essences in vars(cls)

    def _own(self, essence: T) -> T:
        if self._gives_copies:
            essence = clone(essence)
        return essence

    @staticmethod
    def remove_annotations(essence: BodyEssence, keys_to_remove: Collection[str]) -> None:
        """Remove annotations by their full names, in place."""
        metadata = essence.get("metadata", {})
        annotations = metadata.get("annotations", {})
        if not annotations.keys().isdisjoint(keys_to_remove):
            kept = {key: val for key, val in annotations.items() if key not in keys_to_remove}
            metadata["annotations"] = kept

    @staticmethod
    def remove_empty_stanzas(essence: BodyEssence) -> None:
        """Remove labels, annotations, metadata and status if there is nothing in them, in place."""
        document = cast("dict[str, Any]", essence)
        for path in DROPPED_IF_EMPTY:
            if not resolve(document, path, ABSENT_FIELD):
                remove(document, path)


class NamedField:
    """The field of a storage; in one that is set as a string, ``{name}`` is the storage's name."""

    if TYPE_CHECKING:  # it is an attribute of the storage, which is read for each handler

        def __get__(self, storage: object, owner: type) -> FieldPath: ...

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __set__(self, storage: Any, field: FieldSpec) -> None:
        spec = field.format(name=storage.name) if isinstance(field, str) else field
        vars(storage)[self._name] = parse_field(spec)


class AnnotationNaming:
    """The base of storages in annotations: a prefix, names, and the marker.

    Storages of one's own can override how names are made.
    """

    def __init__(self, *, prefix: str, v1: bool, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not prefix:
            raise ValueError("A storage in annotations needs a prefix, such as 'op.example.com'.")
        if len(prefix) > _PREFIX_LIMIT:
            warnings.warn(
                f"With the prefix {prefix!r}, names of annotations can exceed the limit of "
                f"{_KEY_LIMIT} characters; a prefix can have {_PREFIX_LIMIT} at most.",
                stacklevel=3,
            )
        self.prefix = prefix
        self.v1 = v1

    def make_keys(self, key: str, *, body: Mapping[str, Any] | None = None) -> list[str]:
        """Return the full names of the annotations of a key, the present form first."""
        key = key if body is None else self.mark_key(key, body=body)
        # Not in the cache of a function: storages of one's own may have no hash, as dataclasses.
        names: dict[Any, list[str]] = self.__dict__.setdefault("_names", {})
        found = names.get((key, self.prefix, self.v1))
        if found is None:
            if len(names) >= _NAMES_LIMIT:  # ids of sub-handlers can differ for each object
                names.clear()
            name = self.make_v2_key(key)
            found = list(dict.fromkeys((name, self.make_v1_key(key)) if self.v1 else (name,)))
            names[key, self.prefix, self.v1] = found
        return list(found)

    def mark_key(self, key: str, *, body: Mapping[str, Any]) -> str:
        """Make the key differ for replica sets of deployments.

        The deployment controller copies the annotations of a deployment to its replica sets, with
        the state of the deployment's handlers among them, if both kinds are handled.
        """
        raw = get_raw(body)
        if raw.get("kind") != "ReplicaSet":
            return key
        owners = resolve(raw, ("metadata", "ownerReferences")) or ()
        is_owned = any(owner.get("kind") == "Deployment" for owner in owners)
        return f"{key}-ofDRS" if is_owned else key

    def make_v2_key(self, key: str, max_length: int = _NAME_LIMIT) -> str:
        """Return the full name of a key in the present form, with the name limited in length."""
        name = self._shorten(self.make_safe_key(key), max_length, key)
        if not _is_valid(name):
            # Kubernetes would refuse it, so it is in no object by now. These are ids of lambdas, of
            # functions with a leading underscore or with letters beyond ASCII.
            suffix = self.make_suffix(key)
            words = _INVALID.sub("_", key).strip("-_.")[: max_length - len(suffix)]
            name = f"{words or 'id'}{suffix}"
        return f"{self.prefix}/{name}"

    def make_v1_key(self, key: str, max_length: int = _NAME_LIMIT) -> str:
        """Return the full name of a key in the older form, all of it limited in length.

        It is the present form if Kubernetes would refuse the older one.
        """
        safe = self.make_safe_key(key)
        name = self._shorten(safe, max_length - len(self.prefix) - 1, safe)
        return f"{self.prefix}/{name}" if _is_valid(name) else self.make_v2_key(key)

    def make_safe_key(self, key: str) -> str:
        """Replace characters of handler ids that names of annotations cannot have."""
        return key.translate(_SAFE)

    def make_suffix(self, key: str) -> str:
        """Return the hash that the name of a key ends with if the key is cut."""
        digest = hashlib.blake2b(key.encode("utf-8"), digest_size=4).digest()
        return "-" + base64.b64encode(digest, altchars=b"-.").decode("ascii").rstrip("=-.")

    def _shorten(self, name: str, room: int, hashed: str) -> str:
        if len(name) <= room:
            return name
        # With prefixes near the limit the room gets negative, and the slice counts from the end.
        suffix = self.make_suffix(hashed)
        return f"{name[: room - len(suffix)]}{suffix}"

    def _read_state(self, key: str, body: Body, decode: Callable[[str], Any]) -> Any:
        """Return the first readable annotation of a key; the present form is the first."""
        raw = get_raw(body)
        annotations = resolve(raw, ANNOTATIONS)
        for name in self.make_keys(key, body=body) if annotations else ():
            try:
                text = annotations.get(name)
                if text is not None and (state := decode(text)) is not None:
                    return state
            except ValueError as exc:
                log_damage(f"the annotation {name}", raw, exc)
        return None

    def store_marker(self, *, body: Mapping[str, Any], patch: dict[str, Any]) -> None:
        """Mark the object as managed by this operator, so that others ignore its annotations.

        The prefixes that begin with ``kopf.`` are never marked.
        """
        for name, value in build_marker(self.prefix).items():
            path = (*ANNOTATIONS, name)
            if resolve(body, path) is None and resolve(patch, path) is None:
                ensure(patch, path, value)
