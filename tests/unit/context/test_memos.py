"""Memos: what users keep in memory for each object (chapter "In-memory containers")."""

from __future__ import annotations

import pytest

import webop


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
