"""The command ``python -m bench.crds``: compares models with the definitions of known projects."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from bench.crds.comparing import Comparison, Difference, compare
from bench.crds.originals import ORIGINALS, Original, find_original
from bench.model import BenchError
from bench.turns import say
from webop.models.crds import build_crds

_HEAD = """| kind | original | fields | equal | not written | rules | what differs |
|---|---|---|---|---|---|---|"""
_SHOWN = 3  # so many places of a difference; the others are counted


def main() -> int:
    """Run the command line; return 1 if a model differs without a known reason."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.crds",
        description="Compare models with the CustomResourceDefinitions of known projects.",
        epilog="Without a folder, the originals are downloaded from GitHub.",
    )
    parser.add_argument("folder", nargs="?", type=Path, help="a folder with the originals as YAML")
    parser.add_argument("--markdown", action="store_true", help="print the table of README.md")
    options = parser.parse_args()
    failed = False
    if options.markdown:
        print(_HEAD)
    for original in ORIGINALS:
        (ours,) = build_crds([original.load_model()])
        try:
            theirs = find_original(original, ours["metadata"]["name"], options.folder)
        except BenchError as exc:
            say(str(exc))
            failed = True
            continue
        found = compare(theirs, ours)
        print(*(_tabulate if options.markdown else _describe)(original, found), sep="\n")
        failed |= not _is_explained(original, found)
    return int(failed)


def _is_explained(original: Original, found: Comparison) -> bool:
    whats = {each.what for each in found.differences}
    return whats <= original.because.keys() and not found.missing and not found.more


def _tabulate(original: Original, found: Comparison) -> Iterator[str]:
    source = f"[{original.repository} {original.version}]({original.page})"
    reasons: dict[str, list[Difference]] = {}
    for each in found.differences:
        reasons.setdefault(original.because.get(each.what, "no reason is known"), []).append(each)
    texts = [
        f"{', '.join(map(_name, differences))}: {reason}" for reason, differences in reasons.items()
    ]
    texts += [f"only in the model: {_list(found.more)}"] if found.more else []
    numbers = f"{found.fields} | {found.equal} | {len(found.missing)} | {found.rules}"
    yield f"| {original.kind} | {source} | {numbers} | {'; '.join(texts)} |"


def _name(difference: Difference) -> str:
    if difference.what == "version":
        return f"no version {difference.theirs}"
    return f"`{difference.what}` of {_list(difference.places, mark='`')}"


def _list(places: list[str], mark: str = "") -> str:
    unique = [*dict.fromkeys(places)]
    more = f" and {len(unique) - _SHOWN} more" if len(unique) > _SHOWN else ""
    return ", ".join(f"{mark}{place}{mark}" for place in unique[:_SHOWN]) + more


def _describe(original: Original, found: Comparison) -> Iterator[str]:
    yield (
        f"{original.kind} ({original.repository} {original.version}): {found.fields} fields, "
        f"{found.equal} equal, {len(found.missing)} not written, {found.rules} rules"
    )
    for each in found.differences:
        change = f"{each.theirs or 'nothing'} in the original, {each.ours or 'nothing'} here"
        yield f"  {each.what}: {change}: {', '.join(each.places)}"
        yield f"    {original.because.get(each.what, 'no reason is known')}"
    for what, places in (("not written", found.missing), ("only here", found.more)):
        if places:
            yield f"  {what}: {', '.join(places)}"


if __name__ == "__main__":
    raise SystemExit(main())
