"""Which messages become Kubernetes Events, by table and with an explicit time."""

from __future__ import annotations

from typing import Any

import pytest

from webop.correlation import Correlator, Entry, Loss, Losses, Message, TokenBucket
from webop.settings import PostingSettings

MOMENT = 1_000_000.0  # Unix time at the moment 0 of the tests


def build_message(
    text: str, now: float = 0, *, uid: str = "u1", type: str = "Normal", reason: str = "Logging"
) -> Message:
    reference: Any = {"kind": "KopfExample", "name": uid, "uid": uid}
    return Message(reference, type, reason, text, MOMENT + now)


class Machine:
    """A correlator with a clock."""

    def __init__(self, **settings: Any) -> None:
        self.now = 0.0
        self.settings = PostingSettings(**settings)
        self.correlator = Correlator(self.settings, self.now)

    def tell(self, *texts: str, **options: Any) -> None:
        for text in texts:
            self.correlator.take_in(build_message(text, self.now, **options), self.now)

    def pick(self) -> list[tuple[str, int, bool]]:
        """Return the texts, the counts, and whether these are updates, of all that is due."""
        return [(entry.text, entry.count, is_update) for entry, is_update in self.pick_entries()]

    def pick_entries(self) -> list[tuple[Entry, bool]]:
        picked = []
        while (entry := self.correlator.pick(self.now)) is not None:
            picked.append((entry, entry.is_posted))
            entry.is_posted = True
        return picked

    @property
    def lost(self) -> str:
        return self.correlator.losses.pop_report(self.now)


@pytest.mark.feature("D-60", "KEV-05")
def test_messages_come_out_in_order() -> None:
    machine = Machine()
    machine.tell("a", "b")
    machine.tell("c", uid="u2")
    machine.tell("d", type="Error")
    assert machine.pick() == [(text, 1, False) for text in "abcd"]
    assert machine.correlator.compute_pause(0) is None
    assert not machine.lost


@pytest.mark.feature("D-60")
def test_identical_messages_that_wait_are_one_event() -> None:
    machine = Machine()
    machine.tell("a", "b", "a", "a")
    assert machine.pick() == [("a", 3, False), ("b", 1, False)]


@pytest.mark.feature("D-60")
def test_repetitions_of_a_posted_message_update_its_event() -> None:
    machine = Machine()
    machine.tell("a")
    machine.pick()
    machine.now = 60
    machine.tell("a", "a")
    ((entry, is_update),) = machine.pick_entries()
    assert is_update
    assert (entry.count, entry.first, entry.last) == (3, MOMENT, MOMENT + 60)


@pytest.mark.feature("D-60")
@pytest.mark.parametrize(
    "options", [{"uid": "u2"}, {"type": "Warning"}, {"reason": "Other"}], ids=str
)
def test_only_messages_alike_in_all_are_identical(options: dict[str, str]) -> None:
    machine = Machine()
    machine.tell("a")
    machine.tell("a", **options)
    assert machine.pick() == [("a", 1, False)] * 2


@pytest.mark.feature("D-60")
@pytest.mark.parametrize(("pause", "expected"), [(600, ("a", 2, True)), (601, ("a", 1, False))])
def test_after_the_interval_a_message_is_a_new_event(
    pause: float, expected: tuple[str, int, bool]
) -> None:
    machine = Machine()
    machine.tell("a")
    machine.pick()
    machine.now = pause
    machine.tell("a")
    assert machine.pick() == [expected]


@pytest.mark.feature("D-60")
def test_many_similar_messages_share_a_combined_event() -> None:
    machine = Machine(aggregation_limit=3)
    machine.tell("1", "2", "3", "4")
    machine.tell("other", reason="Other")
    entries = [entry for entry, _ in machine.pick_entries()]
    assert [(e.text, e.is_combined) for e in entries] == [
        *((text, False) for text in "123"),
        ("4", True),
        ("other", False),
    ]
    machine.tell("5", "6", "1")
    assert machine.pick() == [("6", 3, True), ("1", 2, True)]
    assert not machine.lost


@pytest.mark.feature("D-60")
def test_similar_messages_are_told_apart_again_after_the_interval() -> None:
    machine = Machine(aggregation_limit=2, aggregation_interval=10)
    machine.tell("1", "2", "3")
    machine.pick()
    machine.now = 11
    machine.tell("4")
    assert machine.pick() == [("4", 1, False)]


@pytest.mark.feature("D-60")
def test_an_object_that_repeats_itself_is_slowed_down_but_its_count_is_right_in_the_end() -> None:
    machine = Machine(object_burst=3, object_interval=300)
    sent = []
    for second in range(250):
        machine.now = float(second)
        machine.tell("a")
        sent += machine.pick()
    assert sent == [("a", 1, False), ("a", 2, True), ("a", 3, True)]
    pause = machine.correlator.compute_pause(machine.now)
    assert pause is not None
    assert pause == pytest.approx(300 - 249, abs=2)
    machine.now += pause
    assert machine.pick() == [("a", 250, True)]
    assert machine.correlator.compute_pause(machine.now) is None
    assert not machine.lost


@pytest.mark.feature("D-60")
def test_new_events_of_an_object_over_its_limit_are_lost_and_counted() -> None:
    machine = Machine(object_burst=2, object_interval=300)
    machine.tell("1", "2", "3", "4")
    machine.tell("other", uid="u2")
    machine.tell("warning", type="Warning")  # one type does not starve another
    assert [text for text, *_ in machine.pick()] == ["1", "2", "other", "warning"]
    assert "2 over the limits of their objects" in machine.lost
    machine.now = 300
    machine.tell("5", "6")
    assert machine.pick() == [("5", 1, False)]


@pytest.mark.feature("D-60")
def test_types_of_the_users_own_share_one_limit() -> None:
    machine = Machine(object_burst=2)
    for number in range(5):
        machine.tell("a", type=f"Own{number}")
    assert len(machine.pick()) == 2


@pytest.mark.feature("D-60")
def test_the_operator_as_a_whole_is_limited() -> None:
    machine = Machine(rate=10, burst=3)
    for number in range(6):
        machine.tell("a", uid=f"u{number}")
    assert len(machine.pick()) == 3
    assert machine.correlator.has_waiting
    assert machine.correlator.compute_pause(0) == pytest.approx(0.1)
    machine.now = 0.21
    assert len(machine.pick()) == 2
    machine.now = 1000
    assert len(machine.pick()) == 1
    assert not machine.lost


@pytest.mark.feature("D-60")
def test_a_full_queue_keeps_half_of_its_places_for_what_is_not_normal() -> None:
    machine = Machine(queue_limit=4)
    for number in range(4):
        machine.tell("info", uid=f"u{number}")
    for number in range(4):
        machine.tell("error", uid=f"u{number}", type="Error")
    assert [text for text, *_ in machine.pick()] == ["info", "info", "error", "error"]
    assert machine.lost.startswith(
        "4 Kubernetes Events were not posted: 4 because too many were waiting"
    )


@pytest.mark.feature("D-60")
def test_an_update_waits_outside_of_a_full_queue() -> None:
    machine = Machine(queue_limit=2)
    machine.tell("a")
    machine.pick()
    machine.tell("new", uid="u2")
    machine.tell("a")
    assert machine.pick() == [("new", 1, False)]
    machine.tell("a")
    assert machine.correlator.compute_pause(machine.now) == 1
    machine.now = 1
    assert machine.pick() == [("a", 3, True)]
    assert not machine.lost


@pytest.mark.feature("D-60")
def test_what_could_not_be_sent_is_the_next_again_with_the_news_of_meanwhile() -> None:
    machine = Machine()
    machine.tell("a", "b")
    first = machine.correlator.pick(0)
    assert first is not None
    machine.tell("a")
    machine.correlator.put_back(first)
    assert machine.pick() == [("a", 2, False), ("b", 1, False)]


@pytest.mark.feature("D-60")
def test_what_could_not_be_sent_goes_earlier_than_its_held_news() -> None:
    machine = Machine(object_burst=1)
    machine.tell("a")
    first = machine.correlator.pick(0)
    assert first is not None
    machine.tell("a")
    machine.correlator.put_back(first)
    assert machine.pick() == [("a", 2, False)]
    assert machine.correlator.compute_pause(0) is None


@pytest.mark.feature("D-60")
def test_the_least_recent_objects_are_forgotten() -> None:
    machine = Machine(memory_limit=2)
    for uid in ("u1", "u2", "u1", "u3"):
        machine.tell("a", uid=uid)
    assert machine.pick() == [("a", 2, False), ("a", 1, False), ("a", 1, False)]
    machine.tell("a", uid="u1")
    machine.tell("a", uid="u2")
    assert machine.pick() == [("a", 3, True), ("a", 1, False)]


@pytest.mark.feature("D-60")
def test_memory_counts_events_not_only_objects() -> None:
    machine = Machine(memory_limit=4)
    machine.tell("1", "2", "3", uid="u1")
    machine.tell("1", "2", "3", uid="u2")
    machine.tell("x", uid="u3")
    machine.pick()
    machine.tell("1", uid="u1")
    assert machine.pick() == [("1", 1, False)]


@pytest.mark.feature("D-60")
def test_updates_that_nothing_can_hold_are_lost_and_counted() -> None:
    machine = Machine(memory_limit=1, object_burst=1)
    machine.tell("a")
    machine.tell("a", uid="u2")
    machine.pick()
    machine.tell("a", uid="u2")  # is held
    machine.tell("b", type="Error", uid="u2")
    machine.pick()
    machine.tell("b", type="Error", uid="u2")
    assert machine.lost.startswith(
        "1 Kubernetes Event was not posted: 1 because too many were waiting"
    )


@pytest.mark.feature("D-60")
def test_permits_are_saved_up_to_the_burst_and_come_at_the_rate() -> None:
    bucket = TokenBucket(2, now=0)
    taken = []
    for now in (0, 0, 0, 0.5, 1, 1, 100, 100, 100):
        if pause := bucket.compute_pause(rate=1, burst=2, now=now):
            taken.append(pause)
        else:
            bucket.take()
            taken.append(0)
    assert taken == [0, 0, 1, 0.5, 0, 1, 0, 0, 1]


@pytest.mark.feature("D-60", "KEV-09")
def test_losses_are_told_once_a_minute_with_figures() -> None:
    losses = Losses()
    assert losses.compute_pause(0) is None
    assert not losses.pop_report(0)
    losses.note(Loss.QUEUE, 10)
    for _ in range(3):
        losses.note(Loss.OBJECT, 10.5)
    losses.note(Loss.FAILURE, 10.6, "boo")
    assert losses.compute_pause(10.5) == 0.5
    assert losses.pop_report(11) == (
        "5 Kubernetes Events were not posted: "
        "3 over the limits of their objects (posting.object_burst), "
        "1 because too many were waiting (posting.rate, posting.queue_limit), "
        "1 failed. The last failure: boo"
    )
    losses.note(Loss.QUEUE, 12)
    assert losses.compute_pause(12) == 59
    assert "boo" not in losses.pop_report(71)
    losses.note(Loss.QUEUE, 200)
    assert losses.compute_pause(200) == 1


@pytest.mark.feature("KEV-09")
def test_namespaces_that_go_are_no_reason_for_alarm() -> None:
    losses = Losses()
    losses.note(Loss.NAMESPACE, 0)
    assert not losses.is_alarming
    losses.note(Loss.FAILURE, 0)
    assert losses.is_alarming


@pytest.mark.feature("D-60")
def test_ten_thousand_failing_objects_do_not_flood_the_api_server() -> None:
    machine = Machine(rate=50, burst=500, queue_limit=2000)
    sent = 0
    for second in range(0, 300, 60):  # each object fails once a minute
        for tick in range(60):
            machine.now = second + tick
            for number in range(tick, 10_000, 60):
                machine.tell("boo", uid=f"u{number}", type="Error")
            sent += len(machine.pick())
    assert sent <= 500 + 50 * 300
    assert sent > 14_000
