"""The annotations that keep what conversions cannot express (:mod:`webop.models.kept_content`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from webop.objects.fields import Json
from webop.objects.storage.keys import KEPT_PREFIX

TOO_LARGE: Final = "too large: a write in this version loses what it does not show"


def find_records(body: Mapping[str, Any]) -> Json:
    """Return the annotations with what an object was in versions that it was converted from."""
    annotations = (body.get("metadata") or {}).get("annotations") or {}
    return {name: annotations[name] for name in annotations if name.startswith(f"{KEPT_PREFIX}/")}


def name_removal(kind: str, namespace: str | None, name: str, records: Iterable[str]) -> str:
    """Return the command that removes what an object keeps."""
    where = f" --namespace {namespace}" if namespace else ""
    return f"kubectl annotate {kind} {name}{where} {' '.join(f'{one}-' for one in records)}"


def has_lost(body: Mapping[str, Any]) -> bool:
    """Return whether an object does not show all of its content, nor keeps it."""
    return TOO_LARGE in find_records(body).values()
