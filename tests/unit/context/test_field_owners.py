"""Which fields of a child belong to a reconciler, and what an apply alone cannot take back."""

from __future__ import annotations

from typing import Any

from tests.kit.rows import rows
from webop.context.field_owners import take_over

Json = dict[str, Any]
OWN, FORMER = "webop.build.12345678", ".build.9999aaaa"


def build(*entries: Json, **content: Any) -> Json:
    """Return a child with the fields of managers."""
    return {"metadata": {"resourceVersion": "7", "managedFields": [*entries]}, **content}


def entry(manager: str, operation: str = "Apply", **fields: Json) -> Json:
    """Return the fields of a manager."""
    owned = {f"f:{name}": part for name, part in fields.items()}
    return {"manager": manager, "operation": operation, "fieldsV1": owned}


PORT: Json = {".": {}, "f:port": {}}
OLD, NEW = 'k:{"port":80,"protocol":"TCP"}', 'k:{"port":8080,"protocol":"TCP"}'


@rows(
    ("own", "others", "taken", "left"),
    [
        ({}, {NEW: PORT}, {NEW: PORT}, None),  # renamed
        ({OLD: PORT}, {NEW: PORT}, None, None),  # added
        ({}, {OLD: PORT}, None, None),  # edited: a conflict, which the apply wins
        ({}, {}, None, None),  # removed
        ({}, {NEW: PORT, OLD: PORT}, {NEW: PORT}, {OLD: PORT}),
    ],
)
def test_renamed_items_of_lists_are_taken_but_not_those_that_others_add(
    own: Json, others: Json, taken: Json | None, left: Json | None
) -> None:
    def make(own: Json, others: Json | None) -> list[Json]:
        mine = entry(OWN, spec={"f:type": {}, **({"f:ports": own} if own else {})})
        theirs = [] if others is None else [entry("edit", "Update", spec={"f:ports": others})]
        return [mine, *theirs]

    content = {"spec": {"ports": [{"port": 80}]}}
    found = take_over(build(*make(own, others)), OWN, FORMER, content)
    assert found == (None if taken is None else make(taken, left))


def test_items_that_differ_in_one_part_of_their_key_are_told_apart() -> None:
    udp, tcp = 'k:{"port":53,"protocol":"UDP"}', 'k:{"port":53,"protocol":"TCP"}'
    new = 'k:{"port":54,"protocol":"TCP"}'

    def make(own: Json, *others: Json) -> list[Json]:
        return [entry(OWN, ports=own), *(entry("edit", "Update", ports=one) for one in others)]

    content = {"ports": [{"port": 53}, {"port": 53, "protocol": "UDP"}]}
    found = take_over(build(*make({udp: PORT}, {new: PORT})), OWN, FORMER, content)
    assert found == make({udp: PORT, new: PORT})
    assert take_over(build(*make({udp: PORT, tcp: PORT})), OWN, FORMER, content) is None


def test_lists_inside_of_items_of_lists_are_looked_at_too() -> None:
    web, renamed = 'k:{"name":"web"}', 'k:{"name":"hacked"}'

    def make(own: Json, *others: Json) -> list[Json]:
        mine = entry(OWN, list={web: {"f:env": own, "f:name": {}}})
        return [mine, *(entry("edit", "Update", list={web: {"f:env": one}}) for one in others)]

    item: Json = {renamed: {"f:name": {}}}
    content = {"list": [{"name": "web", "env": [{"name": "X"}]}]}
    assert take_over(build(*make({}, item)), OWN, FORMER, content) == make(item)


def test_items_of_others_that_apply_the_object_too_stay() -> None:
    mine = entry(OWN, type={})
    child = build(mine, entry("mesh", ports={NEW: PORT}))
    assert take_over(child, OWN, FORMER, {"ports": [{"port": 80}]}) is None
