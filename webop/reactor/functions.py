"""Functions in patches (``patch.fns``): which operations they make, and what is left of them.

Place in the flow: :mod:`webop.reactor.writing` sends the operations. For kinds with a status
endpoint, there are two requests, so functions run twice.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from webop.client.requests import encode_body
from webop.handling.cancellation import convert_exception
from webop.objects.body import RawBody
from webop.objects.fields import clone
from webop.objects.patch import (
    JSONPatchOp,
    Patch,
    PatchFn,
    apply_merge_patch,
    build_merge_patch,
)

logger = logging.getLogger(__name__)


class FunctionRun:
    """Functions that are applied to a part of an object.

    Args:
        fns: the functions.
        part: "status" for the status only, "" for all but it, None for everything.
    """

    def __init__(self, fns: Iterable[PatchFn], part: str | None) -> None:
        self._fns = list(fns)
        self._part = part
        self._watched: list[_Watched] = []
        self._has_changes = False

    def build_operations(
        self, raw: dict[str, Any], name: str, extra: dict[str, Any]
    ) -> list[JSONPatchOp]:
        """Return the operations on a body, with a test of its version; empty without changes.

        Functions that fail are skipped, and logged with the name of the object and the extra.
        """
        if self._part == "":
            self._watched = [_Watched(fn) for fn in (*self._fns, _do_nothing)]
        fns: list[PatchFn] = [*(self._watched or self._fns)]
        operations, working = list[JSONPatchOp](), list[PatchFn]()
        try:
            operations = _try_functions(fns, raw)
        except Exception:  # noqa: BLE001 - logged below, for one of what several handlers want
            for fn in fns:
                try:
                    operations = _try_functions([*working, fn], raw)
                except Exception:
                    text = "A function in the patch of %s failed and is skipped."
                    logger.exception(text, name, extra=extra)
                else:
                    working.append(fn)
        chosen = [op for op in operations if self._part is None or self._concerns(op)]
        self._has_changes = bool(chosen)
        version = raw["metadata"].get("resourceVersion")
        test = {"op": "test", "path": "/metadata/resourceVersion", "value": version}
        return [test, *chosen] if chosen else []

    def _concerns(self, operation: JSONPatchOp) -> bool:
        is_status = f"{operation['path']}/".startswith("/status/")
        return is_status == (self._part == "status")

    def list_left(self) -> list[PatchFn]:
        """Return the functions for the second request, after the first one was written."""
        if not self._watched or not self._has_changes:
            return self._fns
        *each, end = self._watched
        return [
            one.fn
            if isinstance(one.fn, _StatusFn)
            else _StatusFn(one.fn, build_merge_patch(end.rest, one.rest))
            for one in each
        ]


class _Watched:
    """A function that notes the body as it gets it, except the status."""

    def __init__(self, fn: PatchFn) -> None:
        self.fn = fn
        self.rest: dict[str, Any] = {}

    def __call__(self, body: RawBody) -> None:
        self.rest = clone({key: value for key, value in body.items() if key != "status"})
        self.fn(body)


class _StatusFn:
    """A function whose changes of all but the status are written: it changes only the status.

    It does not see the former again: they may be for it the sign that nothing is left to do.

    Args:
        fn: the function.
        undo: the merge patch that undoes what is written.
    """

    def __init__(self, fn: PatchFn, undo: Mapping[str, Any]) -> None:
        self._fn = fn
        self._undo = undo

    def __call__(self, body: RawBody) -> None:
        shown = clone(apply_merge_patch(body, self._undo))
        self._fn(shown)
        if "status" in shown:
            body["status"] = shown["status"]
        else:
            body.pop("status", None)


def _do_nothing(_: RawBody) -> None:
    """Change nothing."""


def _try_functions(fns: Iterable[PatchFn], raw: dict[str, Any]) -> list[JSONPatchOp]:
    try:
        operations = Patch(fns=fns).as_json_patch(raw)
    except BaseException as exc:  # noqa: BLE001  the functions are the user's
        raise convert_exception(exc)  # noqa: B904  it has the cause
    encode_body(operations)
    return operations
