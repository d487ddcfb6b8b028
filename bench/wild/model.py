"""The description of an operator, as its file has it."""

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
    """What happens to the cluster, or to the operator, in this order."""

    step: str
    files: tuple[str, ...] = ()
    """Manifests that the operator brings, by their paths in its sources."""
    apply: tuple[dict[str, Any], ...] = ()
    patch: tuple[dict[str, Any], ...] = ()
    """Merge patches; apiVersion, kind and metadata say of what, as does subresource."""
    delete: tuple[dict[str, Any], ...] = ()
    restart: bool = False


class Explanation(_Strict):
    """Why some differences are as they should be."""

    differences: str
    """A pattern, as for file names, of their places."""
    because: str


class Wild(_Strict):
    """One operator."""

    name: str
    homepage: str
    commit: str | None = None
    """Of the sources on GitHub; without it, the first requirement has the sources."""
    requirements: tuple[str, ...]
    arguments: tuple[str, ...]
    """For ``kopf run`` and ``webop run``; ``{sources}`` is the folder of the sources."""
    variables: dict[str, str] = {}
    definitions: tuple[str, ...] = ()
    """Manifests in the sources that are applied before the start."""
    given: tuple[dict[str, Any], ...] = ()
    """More objects for before the start."""
    random: tuple[str, ...] = ()
    """Patterns of texts that the operator makes up."""
    quiet: float = 8
    """The seconds without a change that end a step."""
    makes: tuple[str, ...]
    """Patterns of objects that must be there after some step, or the play says nothing."""
    steps: tuple[Step, ...]
    explained: tuple[Explanation, ...] = ()


def load(name: str) -> Wild:
    """Read the file of an operator."""
    return Wild(name=name, **yaml.safe_load((_FOLDER / f"{name}.yaml").read_text()))
