"""Draws the badges of the README from what the package declares: ``python -m tools.site.badges``.

They are a picture in the repository, so they need no other host, and a test compares them.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from typing import Any

from tests.kit.pages import ROOT

PICTURE = ROOT / "docs" / "images" / "badges.svg"

_HEIGHT, _CHARACTER, _PADDING, _GAP = 20, 6.6, 7, 8
_STYLE = """<style>
    text { font: 11px Verdana, "DejaVu Sans", sans-serif; }
    .ground { fill: none; }
    .key { fill: #d1d9e0; }
    .key-text { fill: #1f2328; }
    .value { fill: #0f766e; }
    .value-text { fill: #ffffff; }
    @media (prefers-color-scheme: dark) {
      .key { fill: #3d444d; }
      .key-text { fill: #e6edf3; }
    }
  </style>"""


def read_facts() -> dict[str, str]:
    with (ROOT / "pyproject.toml").open("rb") as file:
        project: dict[str, Any] = tomllib.load(file)["project"]
    found = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    pythons = sorted(found, key=lambda version: int(version.partition(".")[2]))
    clusters = json.loads((ROOT / ".github" / "versions.json").read_text("utf-8"))["kubernetes"]
    return {
        "Python": f"{pythons[0]} to {pythons[-1]}",
        "Kubernetes": f"{clusters[0]} to {clusters[-1]}",
        "licence": project["license"],
    }


def draw(facts: dict[str, str]) -> str:
    x, parts = 0.0, list[str]()
    for pair in facts.items():
        for kind, text in zip(("key", "value"), pair, strict=True):
            width = round(len(text) * _CHARACTER + 2 * _PADDING, 1)
            length = round(width - 2 * _PADDING, 1)
            parts.append(
                f'<rect class="{kind}" x="{x:g}" width="{width:g}" height="{_HEIGHT}"/>\n'
                f'  <text class="{kind}-text" x="{x + _PADDING:g}" y="14" '
                f'textLength="{length:g}" lengthAdjust="spacing">{text}</text>'
            )
            x = round(x + width, 1)
        x += _GAP
    width = round(x - _GAP)
    body = "".join(f"  {part}\n" for part in parts)
    about = "; ".join(f"{name}: {value}" for name, value in facts.items())
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {_HEIGHT}" width="{width}" '
        f'height="{_HEIGHT}" role="img" aria-labelledby="title desc">\n'
        f'  <title id="title">Facts about webop</title>\n  <desc id="desc">{about}</desc>\n'
        f'  {_STYLE}\n  <rect class="ground" width="{width}" height="{_HEIGHT}"/>\n{body}</svg>\n'
    )


def main() -> int:
    PICTURE.write_text(draw(read_facts()), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
