"""Types the README's commands in an empty folder, line by line, as a first user does."""

from __future__ import annotations

import re

import pytest

from tests.docs.conftest import read_image, read_loaded_image
from tests.kit.pages import find_blocks
from tools.site import badges
from tools.site.playing import Entry, Player, is_like
from tools.site.recording import PICTURE, README, draw, find_quick_start, read_output, read_picture
from webop.testing import LocalCluster

# Packages are downloaded, and an environment is made.
pytestmark = [pytest.mark.journey, pytest.mark.timeout(1200)]


def read_session(text: str) -> list[tuple[str, str]]:
    parts = re.split(r"^\$ (.*)\n", text, flags=re.MULTILINE)[1:]
    return list(zip(parts[::2], parts[1::2], strict=True))


def test_the_readme_can_be_typed_in_an_empty_folder(player: Player) -> None:
    player.play(README)
    dockerfile = (player.folder / "Dockerfile").read_text()
    assert "--prefix=/operator wheels/*.whl\n" in dockerfile
    assert 'COPY ["websites.py", "./"]' in dockerfile
    cluster = LocalCluster.attach("default")
    for version, kind in (
        ("apps/v1", "Deployment"),
        ("networking.k8s.io/v1", "NetworkPolicy"),
        ("policy/v1", "PodDisruptionBudget"),
    ):
        assert cluster.get(version, kind, "websites", "default"), kind
    assert read_image(cluster, "websites") == read_loaded_image(player)
    assert cluster.get("v1", "ConfigMap", "blog", "default")["data"] == {  # type: ignore[index]
        "index.html": "<h1>Hello</h1>"
    }
    check_picture(player.transcript)
    check_session(player.transcript)


def check_picture(transcript: list[Entry]) -> None:
    """The picture has the commands of the README, and an output like that of this run.

    ``python -m tools.site.recording`` draws it again.
    """
    fresh, shown = find_quick_start(transcript), read_picture(PICTURE.read_text(encoding="utf-8"))
    assert [(one.terminal, one.line) for one in shown] == [
        (one.terminal, one.line) for one in fresh
    ]
    for one, other in zip(shown, read_picture(draw(fresh)), strict=True):
        assert is_like(other.output, one.output), f"{one.line}\n{other.output}\n{one.output}"


def check_session(transcript: list[Entry]) -> None:
    """The lines below the operator are in the quick start, and print the same there."""
    text = next(block.code for block in find_blocks(README) if block.language == "text")
    assert len(read_session(text)) == 2
    for line, output in read_session(text):
        printed = [read_output(entry) for entry in transcript if entry.line == line]
        assert printed, line
        assert is_like(printed[-1], output), f"{line}\n{printed}"


def test_the_picture_has_the_commands_of_the_readme() -> None:
    blocks = [block.code for block in find_blocks(README) if block.language == "bash"]
    shown = read_picture(PICTURE.read_text(encoding="utf-8"))
    for number, code in enumerate(blocks[2:4]):
        lines = [entry.line for entry in shown if entry.terminal == number]
        assert lines == code.splitlines()


def test_the_badges_show_what_the_package_declares() -> None:
    """``python -m tools.site.badges`` draws them again."""
    facts = badges.read_facts()
    assert badges.PICTURE.read_text(encoding="utf-8") == badges.draw(facts)
    text = README.read_text(encoding="utf-8")
    described = ", ".join(f"{name} {value}" for name, value in facts.items())
    assert described in text
