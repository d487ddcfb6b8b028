"""The description of an operator in its file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pydantic
import yaml

_FOLDER = Path(__file__).with_name("operators")
NAMES = tuple(sorted(path.stem for path in _FOLDER.glob("*.yaml")))


class _Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)


class Step(_Strict):
    """A step: the changes of the cluster or of the operator, in this order."""

    step: str
    files: tuple[str, ...] = ()
    """Manifests of the operator, as paths in its sources."""
    apply: tuple[dict[str, Any], ...] = ()
    patch: tuple[dict[str, Any], ...] = ()
    """Merge patches; apiVersion, kind, metadata and subresource name the target."""
    delete: tuple[dict[str, Any], ...] = ()
    restart: bool = False


class Explanation(_Strict):
    """The explanation of some differences."""

    differences: str
    """A pattern, as for file names, of places."""
    because: str


class Wild(_Strict):
    """One operator."""

    name: str
    homepage: str
    commit: str | None = None
    """The commit on GitHub; without one, the first requirement has the sources."""
    requirements: tuple[str, ...]
    arguments: tuple[str, ...]
    """For ``kopf run`` and ``webop run``; ``{sources}`` is the folder of the sources."""
    variables: dict[str, str] = {}
    definitions: tuple[str, ...] = ()
    """Manifests in the sources to apply before the start."""
    given: tuple[dict[str, Any], ...] = ()
    """More objects to apply before the start."""
    random: tuple[str, ...] = ()
    """Patterns of texts that the operator generates at random."""
    quiet: float = 8
    """The seconds without a change that end a step."""
    makes: tuple[str, ...]
    """Patterns of objects that must exist after some step; otherwise the run is invalid."""
    steps: tuple[Step, ...]
    explained: tuple[Explanation, ...] = ()


def load(name: str) -> Wild:
    """Read the file of an operator."""
    return Wild(name=name, **yaml.safe_load((_FOLDER / f"{name}.yaml").read_text()))
