"""Build the table and the ``--json`` document from samples."""

from __future__ import annotations

import statistics
from typing import Any

from bench.model import Sample


def build_summary(samples: dict[str, list[Sample]]) -> dict[str, dict[str, dict[str, Any]]]:
    """Return min, median and ratio by figure and side.

    The ratio is the median divided by that of the first side; None if that is missing or not
    positive.
    """
    medians = {
        side: {
            figure: statistics.median(row.get(figure, 0) for row in rows)
            for figure in dict.fromkeys(figure for row in rows for figure in row)
        }
        for side, rows in samples.items()
        if rows
    }
    bases = medians.get(next(iter(samples), ""), {})
    summary: dict[str, dict[str, dict[str, Any]]] = {}
    for side, figures in medians.items():
        for figure, median in figures.items():
            base = bases.get(figure, 0)
            summary.setdefault(figure, {})[side] = {
                "min": min(row.get(figure, 0) for row in samples[side]),
                "median": median,
                "ratio": median / base if base > 0 else None,
            }
    return summary


def build_table(title: str, result: dict[str, Any]) -> str:
    """Return the table of one scenario, a line for each figure and side, and the errors."""
    objects = f", {result['objects']} objects" if result["objects"] else ""
    lines = [
        "",
        f"{title}{objects}",
        f"  {'side':>36}{'min':>10}{'median':>10}{'ratio':>8}{'runs':>6}",
    ]
    for figure, sides in result["summary"].items():
        for number, (side, row) in enumerate(sides.items()):
            ratio = "-" if row["ratio"] is None else f"{row['ratio']:.2f}"
            cells = f"{_format(row['min']):>10}{_format(row['median']):>10}{ratio:>8}"
            runs = len(result["samples"][side])
            lines.append(f"  {'' if number else figure:<30}{side:>6}{cells}{runs:>6}")
    lines += [f"  {side} failed: {error}" for side, error in result["errors"].items()]
    return "\n".join(lines)


def _format(value: float) -> str:
    return f"{value:.3f}" if value < 10 else f"{value:.1f}"
