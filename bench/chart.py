"""Draw the results of ``scale``: ``python -m bench.chart scale.json docs/scale.svg``."""

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
_COLORS = {"webop": "#1f6feb", "kopf": "#bf5700"}
_WIDTH, _HEIGHT = 300, 170  # of the plot in a panel
_LEFT, _TOP = 50, 70
_STEP_X, _STEP_Y = _WIDTH + 80, _HEIGHT + 60
_STYLE = "text{font:12px sans-serif;fill:#333}.title{font-size:14px;font-weight:bold}"


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
    parts = [_write(_LEFT, 22, about, "title")]
    for number, (side, color) in enumerate(_COLORS.items()):
        if any(result["samples"].get(side) for result in results):
            parts.append(_write(_LEFT + 70 * number, 42, f"● {side}", style=f"fill:{color}"))
    for number, (figure, title) in enumerate(_PANELS.items()):
        x, y = _LEFT + number % 2 * _STEP_X, _TOP + number // 2 * _STEP_Y
        panel = _draw_panel(title, [(item["objects"], item["summary"][figure]) for item in results])
        parts.append(f'<g transform="translate({x},{y})">{panel}</g>')
    width, height = _LEFT + 2 * _STEP_X, _TOP + 2 * _STEP_Y
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}">'
    )
    ground = f'<style>{_STYLE}</style><rect width="{width}" height="{height}" fill="#fff"/>'
    return "\n".join([head, ground, *parts, "</svg>", ""])


def _draw_panel(title: str, rows: list[tuple[int, dict[str, dict[str, float]]]]) -> str:
    """Draw axes that begin at zero, and a label at each point."""
    right = rows[-1][0]
    top = 1.15 * max(cell["median"] for _, cells in rows for cell in cells.values()) or 1
    parts = [_write(0, -8, title, "title")]
    parts.append(f'<path d="M0 0V{_HEIGHT}H{_WIDTH}" fill="none" stroke="#999"/>')
    parts += [
        _write(_WIDTH * n / right, _HEIGHT + 18, _format(n), anchor="middle") for n, _ in rows
    ]
    for side, color in _COLORS.items():
        line = []
        for objects, cells in (row for row in rows if side in row[1]):
            value = cells[side]["median"]
            x, y = _WIDTH * objects / right, _HEIGHT * (1 - value / top)
            line.append(f"{x:.1f},{y:.1f}")
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{color}"/>')
            is_highest = value == max(cell["median"] for cell in cells.values())
            label_y = y - 7 if is_highest or y > _HEIGHT - 20 else y + 17
            parts.append(_write(x, label_y, _format(value), anchor="middle", style=f"fill:{color}"))
        path = " ".join(line)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>')
    return "".join(parts)


def _write(
    x: float, y: float, text: str, kind: str = "", *, anchor: str = "start", style: str = ""
) -> str:
    more = f' class="{kind}"' if kind else ""
    more += f' style="{style}"' if style else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{escape(text)}</text>'


def _format(value: float) -> str:
    return f"{value:,.0f}".replace(",", " ") if value >= 100 else f"{value:.3g}"


if __name__ == "__main__":
    main()
