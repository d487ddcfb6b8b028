"""Draws what a user sees who follows the README: ``python -m tools.site.recording``.

It types the commands of the README on a real API server, and draws those of the quick start with
what they have printed, as the picture ``docs/images/quickstart.svg``. The test of the README types
them again, and compares.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from xml.etree import ElementTree as ET

from tests.kit.pages import ROOT
from tools.site.playing import Entry, Player, build_environment
from webop.controlplane.cache import get_binaries_folder
from webop.testing import LocalCluster

README = ROOT / "README.md"
PICTURE = ROOT / "docs" / "images" / "quickstart.svg"
FIRST = "webop cluster start"  # the first line of the quick start
LAST = "kubectl get configmap blog"  # the last one; it is typed twice

_SVG = "{http://www.w3.org/2000/svg}"
_COLUMNS, _CHARACTER, _LINE, _MARGIN = 64, 7.2, 17, 9
_INDENT = 20  # of the messages in log lines: no line is broken before
_ESCAPE = re.compile(r"\x1b\[([\d;]*)m")
_CLASSES = {"1": "bold", "2": "dim", "31": "red", "32": "green", "33": "yellow", "36": "cyan"}
# What is another one on each machine.
_PRIVATE = {r"^Binaries: .*$": "Binaries: …"}
_ABOUT = (
    "Terminal 1 starts a cluster and the operator. In terminal 2, a ConfigMap is deleted, and is "
    "there again."
)
_STYLE = """<style>
    text { font: 12px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; }
    text { fill: #1f2328; white-space: pre; }
    .ground { fill: #f6f8fa; }
    .bar { fill: #d1d9e0; }
    .bold, .typed { font-weight: 700; }
    .dim { fill: #59636e; }
    .red { fill: #cf222e; }
    .green { fill: #116329; }
    .yellow { fill: #7d4e00; }
    .cyan { fill: #0550ae; }
    @media (prefers-color-scheme: dark) {
      text { fill: #e6edf3; }
      .ground { fill: #151b23; }
      .bar { fill: #3d444d; }
      .dim { fill: #9198a1; }
      .red { fill: #ff7b72; }
      .green { fill: #7ee787; }
      .yellow { fill: #e3b341; }
      .cyan { fill: #79c0ff; }
    }
  </style>"""


@dataclass
class Drawing:
    """The lines of a picture, from top to bottom."""

    y: int = 0
    parts: list[str] = field(default_factory=list)

    def add_title(self, title: str) -> None:
        self.parts.append(f'<rect class="bar" y="{self.y}" width="480" height="22"/>')
        self.parts.append(f'<text class="title" x="{_MARGIN}" y="{self.y + 15}">{title}</text>')
        self.y += 26

    def add_line(self, kind: str, pieces: list[tuple[str, str]]) -> None:
        """Add a line of pieces with their classes; a long one is broken."""
        rest = [(letter, style) for text, style in pieces for letter in text]
        is_first = True
        while rest or is_first:
            spaces = [n for n, (letter, _) in enumerate(rest[:_COLUMNS], 1) if letter == " "]
            is_long = len(rest) > _COLUMNS
            end = spaces[-1] if is_long and spaces and spaces[-1] > _INDENT else _COLUMNS
            part, rest = rest[:end], rest[end:]
            self.y += _LINE
            length = f' textLength="{len(part) * _CHARACTER:g}"' if part else ""
            position = f'x="{_MARGIN}" y="{self.y}"'
            style = kind if is_first else f"{kind} more"
            is_first = False
            self.parts.append(
                f'<text class="{style}" {position}{length}>{"".join(_build_spans(part))}</text>'
            )


def draw(entries: list[Entry]) -> str:
    drawing = Drawing()
    for number in sorted({entry.terminal for entry in entries}):
        drawing.add_title(f"Terminal {number + 1}")
        for entry in entries:
            if entry.terminal == number:
                drawing.add_line("typed", [(f"$ {entry.line}", "")])
                for line in read_output(entry).splitlines():
                    drawing.add_line("printed", list(_split(line)))
        drawing.y += 12
    body = "".join(f"  {part}\n" for part in drawing.parts)
    size = f'viewBox="0 0 480 {drawing.y}" width="480" height="{drawing.y}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="title desc">\n'
        '  <title id="title">The quick start of webop in two terminals</title>\n'
        f'  <desc id="desc">{_ABOUT}</desc>\n  {_STYLE}\n'
        f'  <rect class="ground" width="480" height="{drawing.y}"/>\n{body}</svg>\n'
    )


def read_output(entry: Entry) -> str:
    """Return what a line has printed, without what differs between machines."""
    text = entry.output.replace("\r\n", "\n").rstrip("\n")
    for pattern, general in _PRIVATE.items():
        text = re.sub(pattern, general, text, flags=re.MULTILINE)
    return text


def read_picture(picture: str) -> list[Entry]:
    """Return the lines that a picture shows, with their outputs, without colours."""
    entries, terminal = list[Entry](), -1
    for element in ET.fromstring(picture).iter(f"{_SVG}text"):
        kind, text = element.attrib["class"], "".join(element.itertext())
        if kind == "title":
            terminal += 1
        elif kind == "typed":
            entries.append(Entry(terminal, text.removeprefix("$ "), ""))
        elif kind == "typed more":
            entries[-1].line += text
        else:
            entries[-1].output += text if kind == "printed more" else f"\n{text}"
    for entry in entries:
        entry.output = entry.output.removeprefix("\n")
    return entries


def find_quick_start(transcript: list[Entry]) -> list[Entry]:
    lines = [entry.line for entry in transcript]
    end = len(lines) - lines[::-1].index(LAST)
    return transcript[lines.index(FIRST) : end]


def _split(line: str) -> Iterator[tuple[str, str]]:
    """Yield the parts of a line with the classes of their colours."""
    style = ""
    for number, part in enumerate(_ESCAPE.split(line)):
        if number % 2:
            style = " ".join(_CLASSES[code] for code in part.split(";") if code in _CLASSES)
        elif part:
            yield part, style


def _build_spans(characters: list[tuple[str, str]]) -> Iterator[str]:
    text, current = "", ""
    for letter, style in [*characters, ("", "end")]:
        if style != current:
            if text:
                span = escape(text, quote=False)
                yield f'<tspan class="{current}">{span}</tspan>' if current else span
            text, current = "", style
        text += letter


def main() -> int:
    """Follow the README, and draw."""
    with LocalCluster() as cluster, tempfile.TemporaryDirectory() as parent:
        assets = str(get_binaries_folder(cluster.version.removeprefix("v")))
        folder = Path(parent) / "websites"
        folder.mkdir()
        environment = build_environment(Path(parent), assets)
        player = Player(
            folder,
            environment,
            {"PATH/TO/CLONE": str(ROOT)},
            skips=("docker", "git", "kind", "make"),
        )
        try:
            player.play(README)
        finally:
            player.close()
    PICTURE.write_text(draw(find_quick_start(player.transcript)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
