"""Draw the results of ``scale``: ``python -m bench.chart scale.json docs/images/scale.svg``."""

from __future__ import annotations

import argparse
import json
from html import escape
from pathlib import Path
from typing import Any

_PANELS = {
    "cpu_ms_per_object": "CPU, ms per object",
    "seconds_to_idle": "from start to idle, s",
    "rss_peak_mb": "peak RSS, MB",
    "change_to_called_max_ms": "slowest live change, ms",
}
_SIDES = ("webop", "kopf")  # names of classes in the style
_WIDTH, _HEIGHT = 390, 100  # of the plot in a panel
_LEFT, _TOP = 45, 90
_STEP = _HEIGHT + 60
_STYLE = """<style>
    text { font: 13px system-ui, sans-serif; fill: #1f2328; }
    .name { font-size: 14px; font-weight: 600; }
    .ground { fill: #ffffff; }
    .axes { fill: none; stroke: #818b98; }
    .webop { fill: #0969da; }
    .kopf { fill: #bc4c00; }
    polyline.webop { fill: none; stroke: #0969da; stroke-width: 2; }
    polyline.kopf { fill: none; stroke: #bc4c00; stroke-width: 2; }
    @media (prefers-color-scheme: dark) {
      text { fill: #e6edf3; }
      .ground { fill: #0d1117; }
      .webop { fill: #58a6ff; }
      .kopf { fill: #f0883e; }
      polyline.webop { stroke: #58a6ff; }
      polyline.kopf { stroke: #f0883e; }
    }
  </style>"""


def main() -> None:
    """Read the results of a run (``--json``), write the picture."""
    parser = argparse.ArgumentParser(prog="python -m bench.chart", description=__doc__)
    parser.add_argument("document", type=Path)
    parser.add_argument("picture", type=Path)
    options = parser.parse_args()
    options.picture.write_text(build_chart(json.loads(options.document.read_text())))


def build_chart(document: dict[str, Any]) -> str:
    """Draw one panel for each figure, one line for each side: medians by number of objects."""
    scenarios = document["scenarios"].items()
    results = [result for name, result in scenarios if name.startswith("scale ")]
    results.sort(key=lambda result: result["objects"])
    if not results:
        raise SystemExit("The file has no results of the scenario scale.")
    facts = document["facts"]
    about = (
        f"Restart with handled objects, {facts['machine'].split(', ')[-1]}, {facts['date'][:10]}"
    )
    parts = [_write(_LEFT, 22, about, "name")]
    for number, side in enumerate(_SIDES):
        if any(result["samples"].get(side) for result in results):
            parts.append(_write(_LEFT + 70 * number, 42, f"● {side}", side))
    told = []
    for number, (figure, title) in enumerate(_PANELS.items()):
        rows = [(item["objects"], item["summary"][figure]) for item in results]
        panel = _draw_panel(title, rows)
        parts.append(f'<g transform="translate({_LEFT},{_TOP + number * _STEP})">{panel}</g>')
        told.append(f"{title}: {_describe(rows)}")
    width, height = 480, _TOP + len(_PANELS) * _STEP - 20
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" aria-labelledby="title desc">\n'
        f'  <title id="title">{escape(about)}</title>\n'
        f'  <desc id="desc">{escape("; ".join(told))}.</desc>\n  {_STYLE}'
    )
    ground = f'<rect class="ground" width="{width}" height="{height}"/>'
    return "\n".join([head, ground, *parts, "</svg>", ""])


def _describe(rows: list[tuple[int, dict[str, dict[str, float]]]]) -> str:
    return ", ".join(
        f"{side} {_format(cell['median'])} for {_format(objects)} objects"
        for objects, cells in rows
        for side, cell in cells.items()
    )


def _draw_panel(title: str, rows: list[tuple[int, dict[str, dict[str, float]]]]) -> str:
    """Draw axes that begin at zero, and a label at each point."""
    right = rows[-1][0]
    top = 1.15 * max(cell["median"] for _, cells in rows for cell in cells.values()) or 1
    parts = [_write(0, -16, title, "name")]
    parts.append(f'<path class="axes" d="M0 0V{_HEIGHT}H{_WIDTH}"/>')
    parts += [
        _write(_WIDTH * n / right, _HEIGHT + 18, _format(n), anchor="middle") for n, _ in rows
    ]
    for side in _SIDES:
        line = []
        for objects, cells in (row for row in rows if side in row[1]):
            value = cells[side]["median"]
            x, y = _WIDTH * objects / right, _HEIGHT * (1 - value / top)
            line.append(f"{x:.1f},{y:.1f}")
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" class="{side}"/>')
            is_highest = value == max(cell["median"] for cell in cells.values())
            label_y = y - 7 if is_highest or y > _HEIGHT - 20 else y + 17
            parts.append(_write(x, label_y, _format(value), side, anchor="middle"))
        if line:
            parts.append(f'<polyline class="{side}" points="{" ".join(line)}"/>')
    return "".join(parts)


def _write(x: float, y: float, text: str, kind: str = "", *, anchor: str = "start") -> str:
    more = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{escape(text)}</text>'


def _format(value: float) -> str:
    return f"{value:,.0f}".replace(",", " ") if value >= 100 else f"{value:.3g}"


if __name__ == "__main__":
    main()
