from __future__ import annotations

import io

import pytest

from webop.controlplane.progress_bar import Progress, format_time


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_in_a_log_a_step_is_written_at_its_begin_and_with_its_last_state_at_its_end() -> None:
    stream = io.StringIO()
    progress = Progress(stream)
    for done in range(5):
        progress.step("Building", done, 4, "packages")
    progress.finish()
    assert stream.getvalue().splitlines() == [
        "Building: 0 of 4 packages, 0:00",
        "Building: 4 of 4 packages, 0:00",
    ]


def test_on_a_terminal_one_line_is_rewritten_and_ended_before_a_note() -> None:
    stream = Terminal()
    progress = Progress(stream)
    progress.step("Downloading", 0, 0, "bytes")
    progress.step("Downloading", 2_000_000, 0, "bytes")
    progress.note("Done.")
    assert stream.getvalue() == (
        "\rDownloading: 0 MB, 0:00\x1b[K\rDownloading: 2 MB, 0:00\x1b[K\nDone.\n"
    )


def test_a_new_step_ends_the_one_before() -> None:
    stream = io.StringIO()
    progress = Progress(stream)
    progress.step("Downloading", 1_000_000, 3_000_000, "bytes")
    progress.step("Building", 1, 0, "modules")
    progress.finish()
    assert stream.getvalue().splitlines() == [
        "Downloading: 1 of 3 MB, 0:00",
        "Building: 1 modules, 0:00",
    ]


def test_a_closed_stream_does_not_stop_the_work() -> None:
    stream = io.StringIO()
    progress = Progress(stream)
    stream.close()
    progress.note("Nobody reads this.")
    progress.step("Building", 1, 2, "packages")
    progress.finish()


@pytest.mark.parametrize(("seconds", "text"), [(0.9, "0:00"), (61, "1:01"), (754.2, "12:34")])
def test_times_are_minutes_and_seconds(seconds: float, text: str) -> None:
    assert format_time(seconds) == text
