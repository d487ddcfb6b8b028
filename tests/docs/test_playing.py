"""What counts as the text of a page, and what a page says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.site.playing import Step, is_like, read_steps


@pytest.mark.parametrize(
    ("shown", "printed", "expected"),
    [
        ("blog   1   1s", "blog 1 0s\n", True),
        ("blog   1   1s", "blog 2 0s\n", False),
        ("16:58:52 INFO   Ready.", "01:02:03 INFO   Ready.", True),
        ("ready after 4.8 s: v1.36.3 at https://127.0.0.1:28185", None, True),
        ("service 10.0.0.86", "service 10.0.0.7", False),
        ("first\n…\nlast", "first\nand\nmore\nlast", True),
        ("first", "first\nand more", False),
        ('configmap "blog" deleted', 'configmap "blog" deleted from default namespace', True),
        ("spec: Invalid value: too long", 'spec: Invalid value: "object": too long', True),
        ("===== 2 passed in 8.00s =====", "== 2 passed in 1.50s ==", True),
        ("===== 2 passed in 8.00s =====", "== 3 passed in 1.50s ==", False),
        ("a.b", "aXb", False),
    ],
)
def test_what_a_page_shows_is_like_what_is_printed(
    shown: str, printed: str | None, expected: bool
) -> None:
    printed = printed or "ready after 12 s: v1.33.13 at https://127.0.0.1:1"
    assert is_like(printed, shown) is expected


def test_a_page_is_read_from_top_to_bottom(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        'Write:\n\n```py title="a.py"\nx = 1\n```\n\nRun it:\n\n```shell\nwebop run a.py\n```\n\n'
        "!!! note\n\n    ```shell\n    rm a.py\n    ```\n\n"
        "Stop it with Ctrl-C.\n\n```text\nbye\n```\n"
    )
    assert list(read_steps(page)) == [
        Step("page.md:3", "py", "a.py", "x = 1\n"),
        Step("page.md:9", "shell", "", "webop run a.py\n"),
        Step("page.md", "key", "", "Ctrl-C"),
        Step("page.md:21", "text", "", "bye\n"),
    ]
