"""Make ``import kopf`` import webop in this process: for dependencies that import Kopf."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, cast

_ALIAS, _OWN = "kopf", __package__


class _Aliases:
    """The import hook that returns the module ``webop.x`` for ``kopf.x``."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002  the protocol of imports
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] != _ALIAS:
            return None
        if importlib.util.find_spec(_get_own_name(fullname)) is None:
            raise ModuleNotFoundError(
                f"webop has no module for {fullname!r}, which is private to Kopf. Run 'webop "
                "check-kopf' to see what to import instead.",
                name=fullname,
            )
        return ModuleSpec(fullname, cast("Any", self))  # it needs no base class

    def create_module(self, spec: ModuleSpec) -> None:
        """Let the import system create the module."""

    def exec_module(self, module: ModuleType) -> None:
        """Replace the new module by webop's own; the import system returns that."""
        sys.modules[module.__name__] = importlib.import_module(_get_own_name(module.__name__))


def alias_kopf() -> None:
    """Make all later imports of ``kopf`` and its public modules return webop and its modules."""
    if not is_aliased():
        sys.meta_path.insert(0, _Aliases())
    for name in [name for name in sys.modules if name.partition(".")[0] == _ALIAS]:
        if sys.modules[name] is not sys.modules.get(_get_own_name(name)):
            del sys.modules[name]  # Kopf itself; modules that have imported it keep it


def is_aliased() -> bool:
    """Return whether ``import kopf`` returns webop."""
    return any(isinstance(finder, _Aliases) for finder in sys.meta_path)


def advise_about_kopf() -> str:
    """Return advice if Kopf itself was imported, since its handlers are not webop's; else ""."""
    kopf = sys.modules.get(_ALIAS)
    if kopf is None or kopf is sys.modules.get(_OWN):
        return ""
    return (
        " The code imports Kopf itself, and webop cannot call handlers registered with Kopf. Write "
        "'import webop as kopf', or add --aliased (WEBOP_ALIASED=1)."
    )


def _get_own_name(name: str) -> str:
    return _OWN + name.removeprefix(_ALIAS)
