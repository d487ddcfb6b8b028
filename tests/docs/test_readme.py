"""Types the README's commands in an empty folder, line by line, as a first user does."""

from __future__ import annotations

import json
import re
import tomllib
from xml.etree import ElementTree as ET

import pytest

from tests.docs.conftest import read_image, read_loaded_image
from tests.kit.pages import ROOT, find_blocks
from tools.site.playing import Entry, Player, is_like
from webop.testing import LocalCluster

# Packages are downloaded, and an environment is made.
pytestmark = [pytest.mark.journey, pytest.mark.timeout(1200)]

README = ROOT / "README.md"
IMAGES = ROOT / "docs" / "images"
FIRST = "webop cluster start"  # the first line of the quick start
LAST = "kubectl get configmap blog"  # the last one; it is typed twice
PRIVATE = re.compile(r"^Binaries: .*$", re.MULTILINE)  # another one on each machine


def read_texts(picture: str) -> list[tuple[str, str]]:
    """Return the texts of a picture, with their classes."""
    root = ET.parse(IMAGES / picture).getroot()
    found = root.iter("{http://www.w3.org/2000/svg}text")
    return [(element.attrib["class"], "".join(element.itertext())) for element in found]


def read_picture() -> list[Entry]:
    """Return the lines that the picture of the quick start shows, with their outputs."""
    entries, terminal = list[Entry](), -1
    for kind, text in read_texts("quickstart.svg"):
        if kind == "title":
            terminal += 1
        elif kind == "typed":
            entries.append(Entry(terminal, text.removeprefix("$ "), ""))
        elif kind == "typed more":
            entries[-1].line += text
        else:
            entries[-1].output += text if kind == "printed more" else f"\n{text}"
    return entries


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
    """The picture has the commands of the README, and an output like that of this run."""
    lines = [entry.line for entry in transcript]
    end = len(lines) - lines[::-1].index(LAST)
    fresh = sorted(transcript[lines.index(FIRST) : end], key=lambda entry: entry.terminal)
    for one, shown in zip(fresh, read_picture(), strict=True):
        assert (one.terminal, one.line) == (shown.terminal, shown.line)
        output = PRIVATE.sub("Binaries: …", one.output)
        assert is_like(output, shown.output), f"{one.line}\n{output}\n{shown.output}"


def check_session(transcript: list[Entry]) -> None:
    """The lines below the operator are in the quick start, and print the same there."""
    text = next(block.code for block in find_blocks(README) if block.language == "text")
    assert len(read_session(text)) == 2
    for line, output in read_session(text):
        printed = [entry.output for entry in transcript if entry.line == line]
        assert printed, line
        assert is_like(printed[-1], output), f"{line}\n{printed}"


def test_the_picture_has_the_commands_of_the_readme() -> None:
    blocks = [block.code for block in find_blocks(README) if block.language == "bash"]
    shown = read_picture()
    for number, code in enumerate(blocks[2:4]):
        lines = [entry.line for entry in shown if entry.terminal == number]
        assert lines == code.splitlines()


def test_the_badges_show_what_the_package_declares() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    versions = json.loads((ROOT / ".github" / "versions.json").read_text(encoding="utf-8"))
    facts = {
        "Python": f"{versions['python'][0]} to {versions['python'][-1]}",
        "Kubernetes": f"{versions['kubernetes'][0]} to {versions['kubernetes'][-1]}",
        "licence": project["license"],
    }
    shown = [text for _, text in read_texts("badges.svg")]
    assert shown == [text for pair in facts.items() for text in pair]
    described = ", ".join(f"{name} {value}" for name, value in facts.items())
    assert f'alt="{described}"' in README.read_text(encoding="utf-8")
