"""How the last handled state is written where its plain text does not fit.

Kubernetes limits what all annotations of an object have together. The state of a large object, or
of one whose text kubectl keeps in an annotation of its own, is written compressed then, and if
even that does not fit, as a digest, which tells whether the object has changed, but not how.

Both are JSON mappings of one key that says what they are. Kopf takes such a mapping for a state
that differs from any other one: if it takes over such an object, it calls the handlers of updates
once, with an old state of no use.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import orjson

from webop.objects.fields import clone, is_mapping, resolve

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from webop.objects.body import BodyEssence

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
    """What is known of a last handled state that was too large to be stored.

    Attributes:
        sha256: of its canonical text, in hexadecimal digits.
    """

    sha256: str

    @classmethod
    def of(cls, essence: Mapping[str, Any]) -> EssenceDigest:
        """Build the digest of a state."""
        return cls(hashlib.sha256(_encode_canonically(essence)).hexdigest())

    def matches(self, essence: Mapping[str, Any]) -> bool:
        """Tell whether a state is the one that was handled."""
        return EssenceDigest.of(essence) == self

    def restore(self, essence: BodyEssence) -> BodyEssence:
        """Return the state that was handled as far as it is known.

        It is the given one, if it is the same; otherwise it is empty.
        """
        return essence if self.matches(cast("Mapping[str, Any]", essence)) else {}


StoredEssence: TypeAlias = "BodyEssence | EssenceDigest"
"""A last handled state as storages return it."""


def measure(text: object) -> int:
    """Return the bytes that a name or a value of an annotation takes."""
    if not isinstance(text, str):
        return 0  # to be deleted, or a mistake that the API server tells of
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def measure_others(raw: Mapping[str, Any], patch: Mapping[str, Any], names: Collection[str]) -> int:
    """Return the bytes of the annotations as they are after the patch, without some of them."""
    path = ("metadata", "annotations")
    present, changes = resolve(raw, path), resolve(patch, path)
    merged = present if is_mapping(present) else {}
    if is_mapping(changes):
        merged = {**merged, **changes}
    return sum(
        measure(name) + measure(value)
        for name, value in merged.items()
        if value is not None and name not in names
    )


def compress(essence: Mapping[str, Any]) -> str:
    """Return the compressed text of a state, to be read by :func:`expand`."""
    packed = base64.b64encode(zlib.compress(_encode_canonically(essence)))
    return f'{{"{_COMPRESSED}":"{packed.decode("ascii")}"}}'


def summarize(essence: Mapping[str, Any]) -> str:
    """Return the text of a state's digest, to be read by :func:`expand`."""
    return f'{{"{_DIGEST}":"{EssenceDigest.of(essence).sha256}"}}'


def expand(document: dict[str, Any]) -> StoredEssence:
    """Return the state that a stored document stands for, which mostly is the state itself.

    Raises:
        ValueError: it is not readable, as after a manual edit.
    """
    if len(document) == 1:
        if (packed := document.get(_COMPRESSED)) is not None:
            return _decompress(packed)
        if (digits := document.get(_DIGEST)) is not None:
            return EssenceDigest(str(digits))
    return cast("BodyEssence", document)


def _decompress(packed: object) -> BodyEssence:
    try:
        expanding = zlib.decompressobj()
        text = expanding.decompress(base64.b64decode(str(packed), validate=True), _EXPANDED_LIMIT)
    except zlib.error as exc:
        raise ValueError(str(exc)) from exc
    if not expanding.eof:
        raise ValueError("It is cut, or larger than any object.")
    essence = _decode(text)
    if not isinstance(essence, dict):
        raise ValueError("It is not a mapping.")  # noqa: TRY004  documented: unreadable
    return cast("BodyEssence", essence)


def _encode_canonically(essence: Mapping[str, Any]) -> bytes:
    """Return the same text for equal states, however their keys are ordered."""
    try:
        return orjson.dumps(essence, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # mappings that are not dicts, long integers, lone surrogates
        return json.dumps(clone(essence), sort_keys=True, separators=(",", ":")).encode("ascii")


def _decode(text: bytes) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return json.loads(text)
