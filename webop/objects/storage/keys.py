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
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from webop.objects.fields import ensure, resolve
from webop.objects.storage.codec import build_place, decode

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

DEFAULT_PREFIX: Final = "kopf.zalando.org"
MARKER: Final = "kopf-managed"

_SUBDOMAIN: Final = "." + DEFAULT_PREFIX

_NAME_LIMIT: Final = 63
_KEY_LIMIT: Final = 253
_PREFIX_LIMIT: Final = _KEY_LIMIT - _NAME_LIMIT - len("/")
_SAFE: Final = str.maketrans("/<>", ".__")

# The rule for names of annotations: https://kubernetes.io/docs/concepts/overview/
# working-with-objects/annotations/#syntax-and-character-set
_is_valid: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?").fullmatch
_INVALID: Final = re.compile(r"[^A-Za-z0-9._-]+")


@lru_cache(maxsize=8192)
def build_keys(prefix: str, key: str, *, v1: bool) -> tuple[str, ...]:
    """Build the annotations' names for a key: the present form, and the older if it differs."""
    safe = key.translate(_SAFE)
    name = _shorten(safe, _NAME_LIMIT, key)
    if not _is_valid(name):
        # Kubernetes would refuse it, so it is in no object by now. These are ids of lambdas, of
        # functions with a leading underscore or with letters beyond ASCII.
        suffix = _build_suffix(key)
        words = _INVALID.sub("_", key).strip("-_.")[: _NAME_LIMIT - len(suffix)]
        return (f"{prefix}/{words or 'id'}{suffix}",)
    legacy = _shorten(safe, _NAME_LIMIT - len(prefix) - 1, safe) if v1 else name
    if legacy == name or not _is_valid(legacy):
        return (f"{prefix}/{name}",)
    return (f"{prefix}/{name}", f"{prefix}/{legacy}")


def _shorten(name: str, room: int, hashed: str) -> str:
    if len(name) <= room:
        return name
    # With prefixes near the limit the room gets negative, and the slice counts from the end.
    suffix = _build_suffix(hashed)
    return f"{name[: room - len(suffix)]}{suffix}"


def _build_suffix(key: str) -> str:
    digest = hashlib.blake2b(key.encode("utf-8"), digest_size=4).digest()
    return "-" + base64.b64encode(digest, altchars=b"-.").decode("ascii").rstrip("=-.")


def mark_key(key: str, body: Mapping[str, Any]) -> str:
    """Make the key differ for replica sets of deployments.

    The deployment controller copies the annotations of a deployment to its replica sets, with
    the state of the deployment's handlers among them, if both kinds are handled.
    """
    if body.get("kind") != "ReplicaSet":
        return key
    owners = resolve(body, ("metadata", "ownerReferences")) or ()
    is_owned = any(owner.get("kind") == "Deployment" for owner in owners)
    return f"{key}-ofDRS" if is_owned else key


def find_managed_prefixes(annotations: Iterable[str]) -> tuple[str, ...]:
    """Find the prefixes under which operators of this family keep their state.

    They are recognized by the default prefix or a subdomain of it, and others by the marker
    beside them. Operators leave each other's annotations out of the comparison of states;
    otherwise, two operators of one object would react to each other without end. The prefixes
    have their slashes, as ``str.startswith`` takes them.
    """
    prefixes: set[str] = set()
    for annotation in annotations:
        prefix, slash, name = annotation.partition("/")
        if not slash or prefix in prefixes:
            continue
        if name == MARKER or prefix == DEFAULT_PREFIX or prefix.endswith(_SUBDOMAIN):
            prefixes.add(prefix)
    return tuple(f"{prefix}/" for prefix in prefixes)


class AnnotationNaming:
    """What storages in annotations have in common: a prefix, names, and the marker."""

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

    def make_keys(self, key: str, *, body: Mapping[str, Any] | None = None) -> tuple[str, ...]:
        """Return the full names of the annotations of a key, the present form first."""
        key = key if body is None else mark_key(key, body)
        return build_keys(self.prefix, key, v1=self.v1)

    def _read_states(
        self, key: str, raw: Mapping[str, Any]
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the readable annotations of a key, the present form first, with their places."""
        annotations = resolve(raw, ("metadata", "annotations")) or {}
        for name in self.make_keys(key, body=raw):
            text = annotations.get(name)
            if text is not None:
                place = build_place(f"the annotation {name}", raw)
                if (state := decode(text, place=place)) is not None:
                    yield place, state

    def store_marker(self, *, body: Mapping[str, Any], patch: dict[str, Any]) -> None:
        """Mark the object as managed by this operator, so that others ignore its annotations.

        The prefixes that begin with ``kopf.`` are never marked.
        """
        if self.prefix.startswith("kopf."):
            return
        path = ("metadata", "annotations", f"{self.prefix}/{MARKER}")
        if resolve(body, path) is None and resolve(patch, path) is None:
            ensure(patch, path, "yes")
