"""What the comments of the roles say."""

from __future__ import annotations

from pathlib import Path

from tests.kit.cli_runner import invoke

CODE = """
import webop

@webop.reconcile("v1", "configmaps", owns=["secrets"], formerly_owns=["services"])
def build(**_): ...
"""


def test_the_right_to_own_children_has_a_comment_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "owning_children.py"
    file.write_text(CODE)
    made = invoke("manifests", "--name=shop", "--image=shop:1", str(file))
    assert made.exit_code == 0, made.output
    rule = made.stdout.split("resources: [configmaps/finalizers]")[0].splitlines()
    assert rule[-3].startswith("  # To make these objects owners of children")
    assert "verbs: [get, list, watch, create, patch, delete]" in made.stdout
    assert "verbs: [get, list, watch, delete]" in made.stdout  # services
