"""The structure of indexes: what is where, whose it is, and what readers see meanwhile."""

from __future__ import annotations

import random
import threading
from collections.abc import Collection, Hashable, Mapping
from typing import Any

import pytest

from tests.kit.rows import rows
from webop.context.indexes import Indexes, ObjectIndex
from webop.handlers.model import IndexHandler

Model = dict[str, dict[Hashable, Any]]


def build_index(**objects: dict[Any, Any]) -> ObjectIndex[Any, Any]:
    """Return an index with these values of objects by their keys."""
    index: ObjectIndex[Any, Any] = ObjectIndex()
    for owner, values in objects.items():
        index.replace(owner, values)
    return index


def show(index: Mapping[Any, Collection[Any]]) -> dict[Any, list[Any]]:
    """Return the contents for comparison: the order within stores is not guaranteed."""
    return {key: sorted(store, key=repr) for key, store in index.items()}


@pytest.mark.feature("IDX-05", "IDX-07", "IDX-14", "IDX-15")
@rows("seed", range(8))
def test_any_sequence_of_changes_gives_what_a_naive_model_gives(seed: int) -> None:
    chance = random.Random(seed)
    index: ObjectIndex[Any, Any] = ObjectIndex()
    model: Model = {}
    owners = [*"abcdef", "a/1", "b/1"]
    keys: list[Hashable] = [None, "x", "y", 0, ("t", 1), frozenset()]
    for step in range(400):
        owner = chance.choice(owners)
        held = dict(index.items())
        if chance.random() < 0.35:
            index.discard(owner)
            model.pop(owner, None)
        else:
            chosen = chance.sample(keys, chance.choice([0, 1, 1, 1, 2, 3]))
            values = {key: chance.choice([None, step, [step], "same"]) for key in chosen}
            index.replace(owner, values)
            model[owner] = values
        assert show(index) == flatten(model)
        assert all(len(store) == len(list(store)) > 0 for store in index.values())
        assert all(index[key] is store for key, store in held.items() if key in index)
    for owner in owners:
        index.discard(owner)
    assert index == {}


def flatten(model: Model) -> dict[Hashable, list[Any]]:
    """Return what the naive model has by keys."""
    found: dict[Hashable, list[Any]] = {}
    for values in model.values():
        for key, value in values.items():
            found.setdefault(key, []).append(value)
    return {key: sorted(values, key=repr) for key, values in found.items()}


@pytest.mark.feature("IDX-24")
def test_threads_read_while_the_index_changes() -> None:
    index = build_index(stable={"stable": 1, "shared": 1})
    failures: list[BaseException] = []
    rounds = [0, 0]
    enough = threading.Event()

    def read(number: int) -> None:
        try:
            while not enough.is_set():
                assert list(index["stable"]) == [1]
                assert 1 in index["shared"]
                assert {"stable", "shared"} <= set(index)
                assert dict(index.items()).keys() >= {"stable", "shared"}
                assert sum(len(list(store)) for store in index.values()) >= 2
                rounds[number] += 1
        except BaseException as exc:  # noqa: BLE001  to be shown by the test, not by the thread
            failures.append(exc)

    threads = [threading.Thread(target=read, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    step = 0
    while min(rounds) < 30 and not failures:
        step += 1
        index.replace(f"u{step % 50}", {step % 70: step, "shared": 2, f"k{step % 9}": step})
        index.discard(f"u{step * 7 % 50}")
    enough.set()
    for thread in threads:
        thread.join()
    assert failures == []


class Key(str):
    """Counts how often a collection looks at any of them."""

    __slots__ = ()
    looks = 0

    def __hash__(self) -> int:
        Key.looks += 1
        return super().__hash__()

    def __eq__(self, other: object) -> bool:
        Key.looks += 1
        return super().__eq__(other)


@pytest.mark.feature("IDX-25")
def test_the_work_on_one_object_does_not_depend_on_the_number_of_others() -> None:
    costs = []
    for count in (10, 1000):
        index = build_index(**{f"u{n}": {Key(n): n} for n in range(count)})
        Key.looks = 0
        assert list(index[Key("5")]) == [5]
        index.replace("u5", {Key("new"): 1})
        index.discard("u5")
        costs.append(Key.looks)
    # Two keys can meet in the table by chance; nothing grows with the number of objects.
    assert costs[1] <= costs[0] + 10


def build_handler(fn: Any, id: str) -> IndexHandler:
    """Return a handler for all objects."""
    return IndexHandler(id=id, fn=fn, selector=None)


def fn_one(**_: Any) -> None:
    """Stand for a function."""


def fn_two(**_: Any) -> None:
    """Stand for another function."""


@pytest.mark.feature("IDX-01")
def test_handlers_with_one_id_share_an_index_without_overwriting_each_other() -> None:
    first, again, other = (build_handler(fn, "shared") for fn in (fn_one, fn_one, fn_two))
    indexes = Indexes([first, again, other])
    assert list(indexes) == ["shared"]
    assert indexes.feed_of(first) is indexes.feed_of(again)
    indexes.feed_of(first).replace("u1", "x")
    indexes.feed_of(other).replace("u1", "y")
    assert show(indexes["shared"]) == {None: ["x", "y"]}
    indexes.feed_of(again).replace("u1", "z")
    assert show(indexes["shared"]) == {None: ["y", "z"]}
    indexes.feed_of(first).discard("u1")
    assert show(indexes["shared"]) == {None: ["y"]}
