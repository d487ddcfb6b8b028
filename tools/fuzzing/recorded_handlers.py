"""Handlers for fuzz runs: they look at all that handlers are given, and never fail."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import webop


@dataclass
class RecordedHandlers:
    """Handlers that never fail, and what they have been asked in the request of the moment."""

    registry: webop.OperatorRegistry = field(default_factory=webop.OperatorRegistry)
    called: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    declined: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        names = ("kopfexamples",)
        options: dict[str, Any] = {"registry": self.registry, "subresource": "*"}
        validate, mutate = webop.on.validate, webop.on.mutate
        validate(*names, id="validate", **options)(self._validate)
        mutate(*names, id="fill", **options)(self._fill)
        mutate(*names, id="fill", operation="DELETE", **options)(self._note)
        labels = {"tests.webop.dev/picky": self._is_picky}
        validate(*names, id="picky", labels=labels, **options)(self._note)
        filters: dict[str, Any] = {"field": "spec.nested.a", "value": self._is_there}
        filters["annotations"] = {"tests.webop.dev/any": lambda *_, **__: True}
        validate(*names, id="field", **filters, **options)(self._note_field)
        validate(*names, id="both", **options)(self._refuse)
        mutate(*names, id="both", operations=["CREATE", "DELETE", "UPDATE", "CONNECT"], **options)(
            self._note_async
        )
        mutate(*names, id="both", operation="DELETE", **options)(self._note)

    def clear(self) -> None:
        """Begin with the next request."""
        for notes in (self.called, self.refused, self.declined):
            notes.clear()

    def _note(self, **_: Any) -> None:
        self.called.append("note")

    async def _note_async(self, **_: Any) -> None:
        self.called.append("note")

    def _note_field(self, old: Any, new: Any, diff: webop.Diff, **_: Any) -> None:
        self.called.append(f"note {len(str(old))} {len(str(new))} {len(diff)}")

    async def _validate(self, warnings: list[str], logger: webop.Logger, **kwargs: Any) -> None:
        """Look at everything, as the manual does."""
        self.called.append("validate")
        meta, old, new = kwargs["meta"], kwargs["old"], kwargs["new"]
        for name in ("labels", "annotations"):
            warnings += [
                f"{name} {key.lower()}: {value.lower()}" for key, value in kwargs[name].items()
            ]
        for text in ("name", "namespace", "uid", "subresource", "operation"):
            warnings.append(f"{text}: {(kwargs[text] or '').upper()}")
        warnings += [f"{key}" for stanza in ("spec", "status") for key in kwargs[stanza]]
        warnings += [f"{op} {len(path)}" for op, path, _before, _after in kwargs["diff"]]
        warnings += [str(len(dict(body))) for body in (old, new) if body is not None]
        user = kwargs["userinfo"]
        warnings.append(f"{user.get('username')} {user.get('groups')}")
        warnings += [f"{key.lower()}: {value.lower()}" for key, value in kwargs["headers"].items()]
        warnings.append(f"{meta.labels} {meta.annotations} {meta.creation_timestamp}")
        kwargs["memo"].seen = True
        logger.info("Looked at %s, which is %s.", kwargs["name"], kwargs["body"].get("kind"))

    def _fill(self, patch: webop.Patch, spec: webop.Spec, **_: Any) -> None:
        """Change things in all of the ways that there are."""
        self.called.append("fill")
        patch.spec["filled"] = [True]
        patch.meta.labels["tests.webop.dev/filled"] = "yes"
        patch.meta.annotations["tests.webop.dev/filled"] = None
        patch.status["filled"] = {"number": len(spec)}
        patch.fns.append(_raise_generation)

    def _refuse(self, dryrun: bool, **_: Any) -> None:
        self.called.append("refuse")
        if dryrun:
            self.refused.append("refuse")
            raise webop.AdmissionError("Not on dry runs \ud800.", code=422)

    def _is_picky(self, value: str | None, **_: Any) -> bool:
        if value == "yes":
            return True
        self.declined.append("picky")
        return False

    def _is_there(self, value: Any, **kwargs: Any) -> bool:
        if value is not None and kwargs["spec"].get("size") != "refused":
            return True
        self.declined.append("field")
        return False


def _raise_generation(raw: webop.RawBody) -> None:
    meta = raw.get("metadata")
    if isinstance(meta, dict):
        meta["generation"] = 8
