"""Which messages become Kubernetes Events, by table and with an explicit time."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kit.rows import rows
from webop.events.event_queue import CountedEvent, EventQueue, Message
from webop.settings.groups import PostingSettings

MOMENT = 1_000_000.0  # Unix time at the moment 0 of the tests


class Reference(dict[str, str]):
    """A reference to an object that can be watched to go; a plain dict cannot."""


def build_message(
    text: str, now: float = 0, *, uid: str = "u1", type: str = "Normal", reason: str = "Logging"
) -> Message:
    reference: Any = Reference(kind="KopfExample", name=uid, uid=uid)
    return Message(reference, type, reason, text, MOMENT + now)


class Machine:
    """A queue with a clock."""

    def __init__(self, **settings: Any) -> None:
        self.now = 0.0
        self.queue = EventQueue(PostingSettings(**settings), self.now)

    def tell(self, *texts: str, **options: Any) -> None:
        for text in texts:
            self.queue.add(build_message(text, self.now, **options), self.now)

    def get(self) -> CountedEvent:
        event = self.queue.get(self.now)
        assert event is not None
        return event

    def send(self) -> list[tuple[str, int, bool]]:
        """Return the texts, the counts, and whether these are updates, of all that is due."""
        return [(e.message.text, e.count, is_update) for e, is_update in self.send_events()]

    def send_events(self) -> list[tuple[CountedEvent, bool]]:
        sent = []
        while (event := self.queue.get(self.now)) is not None:
            sent.append((event, event.is_posted))
            event.is_posted = True
            self.queue.done(event)
        return sent

    @property
    def lost(self) -> str:
        return self.queue.losses.pop_report(self.now)


@pytest.mark.feature("D-60")
def test_repetitions_of_a_posted_message_update_its_event() -> None:
    machine = Machine()
    machine.tell("a")
    machine.send()
    machine.now = 60
    machine.tell("a", "a")
    ((event, is_update),) = machine.send_events()
    assert is_update
    assert (event.count, event.first, event.message.moment) == (3, MOMENT, MOMENT + 60)


@pytest.mark.feature("D-60")
@rows(("pause", "expected"), [(600, ("a", 2, True)), (601, ("a", 1, False))])
def test_after_the_interval_a_message_is_a_new_event(
    pause: float, expected: tuple[str, int, bool]
) -> None:
    machine = Machine()
    machine.tell("a")
    machine.send()
    machine.now = pause
    machine.tell("a")
    assert machine.send() == [expected]


@pytest.mark.feature("D-60")
def test_the_operator_as_a_whole_is_limited() -> None:
    machine = Machine(rate=10, burst=3)
    for number in range(6):
        machine.tell("a", uid=f"u{number}")
    assert len(machine.send()) == 3
    assert machine.queue.compute_pause(0) == pytest.approx(0.1)
    machine.now = 0.21
    assert len(machine.send()) == 2
    machine.now = 1000
    assert len(machine.send()) == 1
    for number in range(6):  # what is saved up is no more than the burst
        machine.tell("b", uid=f"u{number}")
    assert len(machine.send()) == 2
    assert not machine.lost


@pytest.mark.feature("D-60")
def test_a_full_queue_keeps_half_of_its_places_for_what_is_not_normal() -> None:
    machine = Machine(queue_limit=4)
    for number in range(4):
        machine.tell("info", uid=f"u{number}")
    for number in range(4):
        machine.tell("error", uid=f"u{number}", type="Error")
    machine.tell("info", "info", uid="u0")  # it waits already: this needs no place
    assert [sent[:2] for sent in machine.send()] == [
        ("info", 3),
        ("info", 1),
        ("error", 1),
        ("error", 1),
    ]
    assert machine.lost.startswith(
        "4 Kubernetes Events were not posted: 4 because too many were waiting"
    )
