"""Conversion: custom objects in another version of their kind.

Kubernetes: "Versions in CustomResourceDefinitions". Flow: what a request reads is shown in its
version (:meth:`.Kind.show`); what it writes is stored in the storage version (:meth:`.Kind.store`).

Guarantees: the converter of the caller sees only objects of kinds with ``strategy: Webhook``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from webop.models import structural

from .messages import Json, Refusal

if TYPE_CHECKING:
    from .kinds import Kind

Converter = Callable[[Json, str], Json]
"""Returns an object in an apiVersion; raises a Refusal (:func:`refuse_conversion`).

The object is shared with the store: it must not be modified.
"""

_HEAD = ("apiVersion", "kind", "metadata")
_TEXTS = ("labels", "annotations")  # of the metadata, all that a conversion can change


@dataclass(frozen=True, eq=False)
class Versions:
    """The versions of a custom kind.

    Attributes:
        storage: the apiVersion that objects are stored in; older ones keep theirs until a write.
        converter: None if only the apiVersion changes.
        kinds: by apiVersion, also those that are not served.
    """

    storage: str
    converter: Converter | None
    kinds: dict[str, Kind] = field(default_factory=dict)

    def read(self, stored: Json, api_version: str) -> Json:
        """Return a stored object, with the defaults of its version, in another version.

        Raises:
            Refusal: it cannot be converted.
        """
        return self.convert(self._fit(stored, stored, fills=True), api_version)

    def convert(self, raw: Json, api_version: str) -> Json:
        """Return an object in another version, which does not give it defaults.

        Raises:
            Refusal: it cannot be converted.
        """
        if raw["apiVersion"] == api_version:
            return raw
        if self.converter is None:
            return {**raw, "apiVersion": api_version}
        found = self.converter(raw, api_version)
        metadata = {key: raw["metadata"][key] for key in raw["metadata"] if key not in _TEXTS}
        metadata |= {key: texts for key in _TEXTS if (texts := found["metadata"].get(key))}
        head = {"apiVersion": api_version, "kind": raw["kind"], "metadata": metadata}
        return self._fit(head, found)

    def _fit(self, head: Json, raw: Json, *, fills: bool = False) -> Json:
        """Return the content of an object as its schema has it, with the head of another one."""
        content = {key: value for key, value in raw.items() if key not in _HEAD}
        schema = self.kinds[head["apiVersion"]].schema
        return {
            **{key: head[key] for key in _HEAD},
            **structural.fit(content, schema, fills=fills),
        }


def refuse_conversion(raw: Json, problem: str) -> Refusal:
    """Return the refusal of a request about an object that cannot be converted.

    Args:
        raw: the object.
        problem: such as "failed: the webhook does not listen".
    """
    about = f"{raw['apiVersion']}, Kind={raw['kind']}"
    return Refusal(500, "", f"conversion webhook for {about} {problem}")
