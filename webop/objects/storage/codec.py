"""The stored state as text: compact JSON in UTF-8, tolerant when read, smaller where it must be.

Kopf escapes what is not ASCII, which multiplies the size of such texts; each reads the other's.

Kubernetes limits the total size of the annotations of an object. If the last handled state does
not fit, for example because kubectl keeps the object in an annotation, too, it is written
compressed. If that does not fit either, a digest is written, which shows whether the object
changed, but not how.
Both are JSON mappings of one key that says what they are. Kopf takes such a mapping for a state
that differs from any other one: if it takes over such an object, it calls the handlers of updates
once, with an old state of no use.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import orjson

from webop.objects.fields import is_mapping, resolve
from webop.objects.json_text import load

if TYPE_CHECKING:
    from webop.objects.body import BodyEssence

logger = logging.getLogger(__name__)

ANNOTATIONS: Final = ("metadata", "annotations")

ANNOTATIONS_LIMIT: Final = 262_144
"""Bytes of all names and values of an object's annotations in UTF-8; as many are accepted
(k8s.io/apimachinery, ``TotalAnnotationSizeLimitB``)."""

RESERVE: Final = 16_384
"""Bytes left free for the progress of handlers in the next cycle, and for other operators."""

_COMPRESSED: Final = "essence.webop.dev/zlib"
_DIGEST: Final = "essence.webop.dev/sha256"

# Several times what an API server accepts as an object: a text made to explode is not the state.
_EXPANDED_LIMIT: Final = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class EssenceDigest:
    """The digest of a last handled state that was too large to store."""

    sha256: str  # of its sorted text, in hexadecimal digits

    @classmethod
    def of(cls, essence: Mapping[str, Any]) -> EssenceDigest:
        """Build the digest of a state."""
        return cls(hashlib.sha256(encode(essence, is_sorted=True).encode()).hexdigest())

    def matches(self, essence: Mapping[str, Any]) -> bool:
        """Return whether a state is the one that was handled."""
        return EssenceDigest.of(essence) == self

    def restore(self, essence: BodyEssence) -> BodyEssence:
        """Return the state that was handled: this one, if it is the same; else it is unknown."""
        return essence if self.matches(cast("Mapping[str, Any]", essence)) else {}


StoredEssence: TypeAlias = "BodyEssence | EssenceDigest"
"""A last handled state as storages return it."""


def encode(value: Any, *, is_sorted: bool = False) -> str:
    """Return the compact JSON text of a value; sorted, the same one for equal values."""
    try:
        option = orjson.OPT_SORT_KEYS if is_sorted else None
        return orjson.dumps(value, default=_simplify, option=option).decode("utf-8")
    except TypeError:
        # Long integers and lone surrogates, as in messages of errors about broken file names.
        return json.dumps(value, default=_simplify, sort_keys=is_sorted, separators=(",", ":"))


def log_damage(place: str, body: Mapping[str, Any], exc: Exception) -> None:
    """Log that a state is not readable: it counts as absent, and is later overwritten."""
    metadata = body.get("metadata") or {}
    namespace, name = metadata.get("namespace"), metadata.get("name")
    kind = f"{body['kind']} " if "kind" in body else ""
    owner = f"{kind}{namespace}/{name}" if namespace else f"{kind}{name}"
    logger.warning("Ignored the damaged state in %s of %s: %s", place, owner, exc)


def decode(text: str) -> dict[str, Any] | None:
    """Return the mapping of a JSON text; None for null.

    Raises:
        ValueError: it is not a mapping, as after a manual edit.
    """
    try:
        value = _load(text)
    except (ValueError, TypeError):  # in a field, there can be anything
        value = text
    if value is None or isinstance(value, dict):
        return value
    raise ValueError("not a JSON object. Perhaps somebody has edited it.")  # no word of a Secret


def measure(text: str) -> int:
    """Return the bytes that a name or a value of an annotation takes."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def merge_annotations(raw: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """Return the annotations of an object as they are after a patch."""
    merged: dict[str, Any] = {**(resolve(raw, ANNOTATIONS) or {})}
    changes = resolve(patch, ANNOTATIONS)
    for name, text in changes.items() if is_mapping(changes) else ():
        if text is None:
            merged.pop(name, None)
        else:
            merged[name] = text
    return merged


def measure_all(annotations: Mapping[str, Any]) -> int:
    """Return the bytes that annotations take, as API servers count them."""
    # Values that are no strings are mistakes, which the API server reports.
    texts = [text for item in annotations.items() for text in item if isinstance(text, str)]
    return measure("".join(texts))


def compress(essence: Mapping[str, Any], limit: int) -> str | None:
    """Return the compressed text of a state; None if it takes more bytes than the limit."""
    packed = base64.b64encode(zlib.compress(encode(essence, is_sorted=True).encode()))
    text = f'{{"{_COMPRESSED}":"{packed.decode("ascii")}"}}'
    return text if len(text) <= limit else None


def summarize(essence: Mapping[str, Any]) -> str:
    """Return the text of a state's digest."""
    return f'{{"{_DIGEST}":"{EssenceDigest.of(essence).sha256}"}}'


def decode_essence(text: str) -> StoredEssence | None:
    """Return the state that a text stands for; None for null.

    Raises:
        ValueError: it is not readable, as after a manual edit.
    """
    document: Any = decode(text)
    if document is not None and len(document) == 1:
        if (packed := document.get(_COMPRESSED)) is not None:
            return _decompress(packed)
        if (digits := document.get(_DIGEST)) is not None:
            return EssenceDigest(str(digits))
    essence: BodyEssence | None = document
    return essence


def _decompress(packed: object) -> BodyEssence:
    try:
        expanding = zlib.decompressobj()
        text = expanding.decompress(base64.b64decode(str(packed), validate=True), _EXPANDED_LIMIT)
    except zlib.error as exc:
        raise ValueError(str(exc)) from exc
    if not expanding.eof:
        raise ValueError("It is truncated, or larger than any object.")
    essence = _load(text)
    if not isinstance(essence, dict):
        raise ValueError("It is not a mapping.")  # noqa: TRY004  documented: unreadable
    return cast("BodyEssence", essence)


def _load(text: str | bytes) -> Any:
    try:
        return load(text)
    except orjson.JSONDecodeError:
        try:
            return json.loads(text)
        except RecursionError:
            raise ValueError("It is nested too deeply.") from None


def _simplify(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    raise TypeError(f"{type(value).__name__} cannot be stored as JSON.")
