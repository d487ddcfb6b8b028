"""The structure of indexes: what is where, whose it is, and what readers see meanwhile."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Collection, Hashable, Mapping
from typing import Any

import pytest

from webop.context.indexes import Index, Indexes, ObjectIndex, Store
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


@pytest.mark.feature("IDX-04", "IDX-05")
def test_an_index_and_its_stores_are_read_only_collections() -> None:
    index = build_index(a={"x": 1})
    assert isinstance(index, Index)
    assert isinstance(index, Mapping)
    assert isinstance(index["x"], Store)
    assert isinstance(index["x"], Collection)
    for name in ("__setitem__", "__delitem__", "pop", "clear", "update", "append", "add"):
        assert not hasattr(index, name)
        assert not hasattr(index["x"], name)


@pytest.mark.feature("IDX-05", "IDX-07", "IDX-14", "IDX-15")
@pytest.mark.parametrize("seed", range(20))
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
def test_changes_in_the_midst_of_iterations_disturb_nobody() -> None:
    index = build_index(**{f"u{n}": {"all": n, n: n} for n in range(10)})
    for key in index:
        index.replace(f"new{key}", {f"new{key}": 1, "all": 1})
        index.discard("u5")
    for value in index["all"]:
        index.replace(f"newer{value}", {"all": 2})
    for key, store in index.items():
        index.replace(f"newest{key}", {f"newest{key}": 1})
        assert len(store) > 0
    for _ in index.values():
        index.replace(f"last{len(index)}", {len(index): 1})
    assert 5 not in index


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


class Key:
    """A key that counts how often it is looked at by any collection."""

    looks = 0

    def __init__(self, text: str) -> None:
        self.text = text

    def __hash__(self) -> int:
        Key.looks += 1
        return hash(self.text)

    def __eq__(self, other: object) -> bool:
        Key.looks += 1
        return isinstance(other, Key) and self.text == other.text


def count_looks(work: Callable[[], object]) -> int:
    """Return how often keys are hashed or compared by some work."""
    before = Key.looks
    work()
    return Key.looks - before


@pytest.mark.feature("IDX-25")
def test_the_work_on_one_object_does_not_depend_on_the_number_of_others() -> None:
    costs = []
    for count in (10, 10_000):
        index: ObjectIndex[Key, int] = ObjectIndex()
        for number in range(count):
            index.replace(f"uid-{number}", {Key(f"{number}"): number})
        works: dict[str, Callable[[], object]] = {
            "lookup": lambda index=index: index[Key("5")],  # type: ignore[misc]
            "update": lambda index=index: index.replace("uid-5", {Key("new"): 1}),  # type: ignore[misc]
            "delete": lambda index=index: index.discard("uid-5"),  # type: ignore[misc]
        }
        costs.append({name: count_looks(work) for name, work in works.items()})
    small, large = costs
    # Two keys can meet in the table by chance; nothing grows with the number of objects.
    assert all(large[name] <= small[name] + 10 for name in small)


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
