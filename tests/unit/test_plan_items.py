"""The fields that differ, as plans and the doctor list them."""

from __future__ import annotations

from webop.planning.items import FieldChange, list_changes


def test_names_that_are_no_text_do_not_identify_items() -> None:
    old, new = [{"name": {"first": "Ada"}, "age": 1}], [{"name": {"first": "Ada"}, "age": 2}]
    assert [*list_changes(old, new, "spec.people")] == [FieldChange("spec.people[0].age", 1, 2)]
