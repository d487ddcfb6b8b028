from __future__ import annotations

import io

from webop.controlplane.progress_bar import Progress


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
