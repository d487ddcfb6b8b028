"""The memos of users in memory.

They are lost at a restart (chapter "In-memory containers").
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from typing import Any

from webop.errors import ConfigurationError


class Memo(dict[Any, Any]):
    """The argument ``memo``: a dict in memory whose items are also attributes.

    All handlers of an object share one memo::

        memo.attempts = memo.get("attempts", 0) + 1

    Items do not hide methods of dicts with the same names: use ``memo["items"]``. Memos are lost at
    a restart. See docs/howto/indexes.md#memos.
    """

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __delattr__(self, name: str) -> None:
        try:
            del self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __copy__(self) -> Memo:
        return type(self)(self)


class Memos:
    """The memos of all objects, by uid: each starts as a shallow copy of the operator's memo."""

    def __init__(self, operator_memo: Any) -> None:
        try:
            copy.copy(operator_memo)
        except Exception as exc:
            raise ConfigurationError(
                f"memo= must be an object that can be copied, since each object gets a copy: {exc}."
                " Put it into another one: memo=webop.Memo(mine=...)"
            ) from exc
        self.operator_memo = operator_memo
        self._memos: dict[str, Any] = {}
        # Of objects known from reviews only, newest last.
        self._review_memos: OrderedDict[str, Any] = OrderedDict()

    def recall(self, uid: str) -> Any:
        """Return the memo of an object; create it if the object is new."""
        if uid not in self._memos:
            found = self._review_memos.pop(uid, None)
            self._memos[uid] = copy.copy(self.operator_memo) if found is None else found
        return self._memos[uid]

    def get_for_review(self, uid: str | None, *, limit: int) -> Any:
        """Return the memo of an object for a review.

        webop does not notice the deletion of objects that it does not watch. So it limits the
        number of memos that it knows from reviews only, and drops the least recently used.

        The memo is temporary for objects that are being created, and have no uid yet.
        """
        if not uid:
            return copy.copy(self.operator_memo)
        if uid in self._memos:
            return self._memos[uid]
        found = self._review_memos.pop(uid, None)
        if found is None:
            found = copy.copy(self.operator_memo)
        self._review_memos[uid] = found
        while len(self._review_memos) > limit:
            self._review_memos.popitem(last=False)
        return found

    def forget(self, uid: str) -> None:
        """Drop the memo of a deleted object."""
        self._memos.pop(uid, None)
        self._review_memos.pop(uid, None)
