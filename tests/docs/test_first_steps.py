"""Types the pages for new users in an empty folder, line by line."""

from __future__ import annotations

import pytest

from tests.docs.playing import Player
from tests.kit.pages import DOCS
from webop.testing import LocalCluster

# Packages are downloaded, and an environment is made.
pytestmark = [pytest.mark.timeout(1200), pytest.mark.usefixtures("needs_kubectl")]


def test_webop_can_be_installed(player: Player) -> None:
    player.skips += ("webop image", "webop manifests")  # there are no handlers yet
    player.play(DOCS / "installation.md")
    assert list(player.folder.glob("wheels/webop-*.whl"))


def test_a_new_operator_runs_after_five_minutes(player: Player) -> None:
    player.play(DOCS / "init.md")
    assert (player.folder / "shop" / "Dockerfile").read_text()
    cluster = LocalCluster.attach("default")
    for version, kind in (("apps/v1", "Deployment"), ("v1", "Service")):
        assert cluster.get(version, kind, "shop", "default"), kind
