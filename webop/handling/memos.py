"""What the operator remembers of its objects in memory: the users' memos.

Everything here is lost at a restart (chapter "In-memory containers").
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from typing import Any


class Memo(dict[Any, Any]):
    """A dict whose items are also attributes; the default memo of objects and operators.

    The methods of dicts are not shadowed by items of the same names (MEM-02).
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
    """The memos of all objects, by their uids.

    Args:
        operator_memo: the operator's own memo; each object's memo is a shallow copy of it, made
            at the first appearance of the object (MEM-07).
    """

    def __init__(self, operator_memo: Any) -> None:
        self.operator_memo = operator_memo
        self._memos: dict[str, Any] = {}
        self._lent: OrderedDict[str, Any] = OrderedDict()  # known from reviews only, newest last

    def __len__(self) -> int:
        return len(self._memos)

    def recall(self, uid: str) -> Any:
        """Return the memo of an object; make it if the object is new."""
        if uid not in self._memos:
            found = self._lent.pop(uid, None)
            self._memos[uid] = copy.copy(self.operator_memo) if found is None else found
        return self._memos[uid]

    def lend(self, uid: str | None, *, limit: int) -> Any:
        """Return the memo of an object for a review (MEM-13).

        The deletion of an object that is not watched is not noticed. So the number of memos that
        are known from reviews only is limited; those not used for the longest time are dropped.

        Args:
            uid: of the object; None while it is being created: the memo is temporary then.
            limit: the number of memos to keep of objects that are not watched.
        """
        if not uid:
            return copy.copy(self.operator_memo)
        if uid in self._memos:
            return self._memos[uid]
        found = self._lent.pop(uid, None)
        if found is None:
            found = copy.copy(self.operator_memo)
        self._lent[uid] = found
        while len(self._lent) > limit:
            self._lent.popitem(last=False)
        return found

    def forget(self, uid: str) -> None:
        """Drop the memo of an object that is gone."""
        self._memos.pop(uid, None)
        self._lent.pop(uid, None)
