"""The bench itself, where it decides something: who takes part, what a figure is made of."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.scenarios.profile import share_among_stages
from tests.kit.processes import run_module


def test_without_go_the_go_peer_is_skipped_with_the_reason(tmp_path: Path) -> None:
    done = run_module("bench", "idle", "--sides", "go", PATH="/nowhere", WEBOP_CACHE=str(tmp_path))
    assert done.returncode == 1
    assert "Go is not on PATH. Skipping the side go." in done.stderr
    assert "No side is available" in done.stderr


@pytest.mark.parametrize("words", [["nothing"], ["idle", "--sides", "rust"]])
def test_unknown_scenarios_and_sides_are_refused(words: list[str]) -> None:
    done = run_module("bench", *words)
    assert done.returncode == 2
    assert f"{words[-1]}: not one of" in done.stderr


def test_a_sample_belongs_to_the_innermost_stage_of_its_stack() -> None:
    called = ["webop.client.api:request", "webop.reactor.saving:save"]
    stacks = [
        (["json:loads", "webop.client.watch:follow", "asyncio.events:run"], 50),
        (["logging:emit", "handlers:handle", "webop.calls.current_call:call"], 30),
        (["webop.novelty:work", "webop.client.watch:follow"], 15),
        (["webop.client.http.connections:send", *called], 10),
        (
            ["webop.client.http.http1:on_body", "asyncio.selector_events:_read_ready__get_buffer"],
            20,
        ),
        (["ssl:read", "asyncio.selector_events:_read_ready__get_buffer"], 4),
        (["selectors:select", "asyncio.base_events:run_forever", "webop.embedding:run"], 5),
    ]
    assert share_among_stages(stacks, total=134) == {
        "all, us per object": 134,
        "watch: lines read, parsed": 50,
        "logging": 30,
        "HTTP, receiving": 20,
        "webop.novelty": 15,
        "HTTP, sending": 10,
        "event loop, all the rest": 5,
        "TLS, receiving": 4,
    }
