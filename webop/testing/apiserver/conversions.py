"""Conversion: custom objects in another version of their kind.

Kubernetes: "Versions in CustomResourceDefinitions". Flow: what a request reads is shown in its
version (:meth:`.Kind.show`); what it writes is stored in the storage version (:meth:`.Kind.store`).

Guarantees: the converter of the caller sees one object at a time, as webhooks of kube-apiserver do,
and no others than those of kinds with ``strategy: Webhook``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from webop.models import structural
from webop.objects.names import is_label_key, is_label_value

from .messages import Json, Refusal

if TYPE_CHECKING:
    from .kinds import Kind

Converter = Callable[[list[Json], str], list[Json]]
"""Returns objects in an apiVersion; raises a Refusal (:func:`refuse_conversion`).

The objects are shared with the store: it must not modify them.
"""

_HEAD = ("apiVersion", "kind", "metadata")
_IDENTITY = {"name": "name", "namespace": "namespace", "uid": "UID"}


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
        found = self.converter([raw], api_version)
        if len(found) != 1:
            raise refuse_conversion(raw, f"returned {len(found)} objects, expected 1")
        if fault := _find_fault(raw, found[0], api_version):
            raise refuse_conversion(raw, f"returned invalid object{fault}")
        head = {"apiVersion": api_version, "kind": raw["kind"]}
        return self._fit({**head, "metadata": _merge_metadata(raw, found[0])}, found[0])

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


def _find_fault(raw: Json, found: Json, api_version: str) -> str:
    """Return what a converter must not do; nothing if it has not."""
    for key, name, wanted in (
        ("apiVersion", "groupVersion", api_version),
        ("kind", "kind", raw["kind"]),
    ):
        if found.get(key) != wanted:
            problem = f"(expected {wanted}, received {found.get(key)})"
            return f" at index 0: invalid {name} {problem}"
    before, after = raw["metadata"], found.get("metadata") or {}
    for key, name in _IDENTITY.items():
        if before.get(key) != after.get(key):
            problem = f"{before.get(key, '')} != {after.get(key, '')}"
            return f": must have the same {name}: {problem}"
    return ""


def _merge_metadata(raw: Json, found: Json) -> Json:
    """Return the metadata of an object with the labels and annotations of the converted one."""
    metadata = dict(raw["metadata"])
    for name in ("labels", "annotations"):
        texts: dict[str, Any] = found["metadata"].get(name) or {}
        for key, text in texts.items():
            are_labels = name == "labels"
            is_right = isinstance(text, str) and is_label_key(key if are_labels else key.lower())
            if not is_right or (are_labels and not is_label_value(text)):
                fault = f"metadata.{name}: Invalid value: {key!r}: {text!r}"
                raise refuse_conversion(raw, f"returned invalid metadata: {fault}")
        metadata.pop(name, None)
        metadata |= {name: texts} if texts else {}
    return metadata
