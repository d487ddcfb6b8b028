"""Types the pages for new users in an empty folder, line by line."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.docs.conftest import read_image, read_loaded_image
from tests.kit.cli_runner import invoke
from tests.kit.pages import DOCS, ROOT, find_blocks
from tests.kit.wheels import make_wheel
from tools.site.playing import Player
from webop.testing import LocalCluster
from webop.version import __version__

# Packages are downloaded, and an environment is made.
pytestmark = [pytest.mark.journey, pytest.mark.timeout(1200)]


HANDLERS = """\
import webop


@webop.on.create("configmaps")
def fn(**_): ...
"""


def read_help() -> str:
    """Return the commands of ``webop --help`` as a page."""
    lines = invoke("--help").output.partition("To get started:\n")[2].partition("\n\n")[0]
    code = "\n".join(line.strip().partition("  ")[0] for line in lines.splitlines())
    return f"```shell\n{code}\n```\n"


def lend_webop(player: Player) -> None:
    """Put the command on the ``PATH`` of a player, as if it were installed."""
    for name in ("python", "webop"):
        tool = player.folder.parent / "tools" / name
        tool.unlink(missing_ok=True)
        tool.write_text(f'#!/bin/sh\nexec {Path(sys.executable).with_name(name)} "$@"\n')
        tool.chmod(0o755)


def test_a_new_operator_runs_after_five_minutes(player: Player) -> None:
    player.play(DOCS / "learn" / "start.md")
    assert (player.folder / "shop" / "Dockerfile").read_text()
    cluster = LocalCluster.attach("default")
    for version, kind in (("apps/v1", "Deployment"), ("v1", "Service")):
        assert cluster.get(version, kind, "shop", "default"), kind
    assert read_image(cluster, "shop") == read_loaded_image(player)


def test_the_help_to_get_started_works_when_typed(player: Player) -> None:
    page = player.folder.parent / "help.md"
    page.write_text(f"{read_help()}\nPress Ctrl-C.\n")
    lend_webop(player)
    player.play(page)
    assert [entry.line for entry in player.transcript][-1].startswith("webop run ")


def test_the_commands_of_a_deployment_work_when_typed(player: Player) -> None:
    found = find_blocks(DOCS / "howto" / "deployment.md")
    blocks = [block.code for block in found if "docker build" in block.code]
    page = player.folder.parent / "deployment.md"
    code = "".join(f"```shell\n{code}```\n" for code in blocks)
    page.write_text(f'```shell\nwebop cluster start\neval "$(webop cluster env)"\n```\n{code}')
    (player.folder / "handlers.py").write_text(HANDLERS)
    (player.folder / "wheels").mkdir()
    make_wheel(player.folder / "wheels", "webop", __version__)
    lend_webop(player)
    player.skips += ("pip wheel",)  # other tests type it
    player.play(page)
    assert read_image(LocalCluster.attach("default"), "my-operator") == read_loaded_image(player)


def test_nobody_installs_a_package_webop_from_an_index() -> None:
    """There is no release, so anybody could publish a package of this name."""
    places = (
        "README.md",
        "docs/**/*.md",
        "examples/**/*.md",
        "webop/**/*.py",
        "webop/**/*.template",
    )
    files = [file for place in places for file in ROOT.glob(place)]
    wrong = re.compile(r"pip install [^\n`|#]*(?<![\w./-])webop(?![\w./-])")
    found = [str(file) for file in files if wrong.search(file.read_text(encoding="utf-8"))]
    assert found == []
