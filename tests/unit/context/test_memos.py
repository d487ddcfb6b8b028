"""Memos: what users keep in memory for each object (chapter "In-memory containers")."""

from __future__ import annotations

from typing import Any

import pytest

import webop
from webop.context.memos import Memos


@pytest.mark.feature("MEM-01", "MEM-02", "REF-61")
def test_items_of_a_memo_are_attributes_and_the_other_way_round() -> None:
    memo = webop.Memo()
    memo.attribute = 1
    memo["item"] = 2
    assert (memo["attribute"], memo.item) == (1, 2)
    assert memo == {"attribute": 1, "item": 2}
    del memo.attribute
    del memo["item"]
    assert not memo
    assert isinstance(memo, dict)


@pytest.mark.feature("MEM-02")
def test_what_a_memo_does_not_have_is_an_error_of_the_right_kind() -> None:
    memo = webop.Memo()
    with pytest.raises(AttributeError, match="absent"):
        memo.absent  # noqa: B018
    with pytest.raises(AttributeError, match="absent"):
        del memo.absent
    with pytest.raises(KeyError):
        memo["absent"]
    assert not hasattr(memo, "absent")


@pytest.mark.feature("MEM-03", "MEM-04", "MEM-07", "MEM-08")
def test_each_object_has_a_shallow_copy_of_the_operators_memo() -> None:
    shared: list[int] = []
    operator_memo = webop.Memo(shared=shared, value=1)
    memos = Memos(operator_memo)
    one, two = memos.recall("u1"), memos.recall("u2")
    assert memos.recall("u1") is one
    assert one == two == operator_memo
    assert one is not two
    one.value = 2
    operator_memo.later = 3
    assert two.value == operator_memo.value == 1
    assert "later" not in one
    one.shared.append(1)
    assert two.shared == [1]
    assert memos.recall("u3").later == 3


@pytest.mark.feature("MEM-13")
def test_admission_gets_the_real_memo_or_one_to_throw_away() -> None:
    memos = Memos(webop.Memo(value=1))
    real = memos.recall("u1")
    assert memos.get_for_review("u1", limit=0) is real
    for uid in ("unknown", None):
        thrown = memos.get_for_review(uid, limit=0)
        assert thrown == {"value": 1}
        assert thrown is not memos.operator_memo
        assert thrown is not memos.get_for_review(uid, limit=0)


def test_the_memo_of_an_object_seen_in_reviews_first_becomes_its_real_one() -> None:
    memos = Memos(webop.Memo())
    lent = memos.get_for_review("u1", limit=1)
    assert memos.recall("u1") is lent
    memos.forget("u1")
    assert memos.recall("u1") is not lent


class Shared:
    def __copy__(self) -> Shared:
        return self


class Plain:
    def __init__(self) -> None:
        self.items: list[int] = []


@pytest.mark.feature("MEM-09")
def test_any_class_can_be_a_memo() -> None:
    shared = Shared()
    assert Memos(shared).recall("u1") is shared
    plain = Plain()
    recalled: Any = Memos(plain).recall("u1")
    assert isinstance(recalled, Plain)
    assert recalled is not plain
    assert recalled.items is plain.items
