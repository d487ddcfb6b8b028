"""What the API reference adds to docstrings: an extension of griffe (see ``mkdocs.yml``).

Docstrings are written for editors and ``help()``. On the site, literal blocks become code with
colours, roles and names of pages become links, ``**options: Unpack[…]`` becomes tables, and
signatures have no names of types that users cannot import.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import re
from collections.abc import Iterator
from typing import Any

import griffe

import webop
import webop.client
import webop.errors
import webop.models
import webop.testing
from tests.kit.pages import DOCS
from tools.site.options import FAMILIES, Option, list_options
from webop.objects.resources import SelectorNames

MODULES = {
    "webop.lifecycles": webop.lifecycles,
    "webop.testing": webop.testing,
    "webop.client": webop.client,
    "webop.on": webop.on,
    "webop.errors": webop.errors,
    "webop.models": webop.models,
    "webop": webop,
}
"""The modules whose names are public; where two have a name, the last one is the usual one."""

PATHS = [
    f"{module}.{name}"
    for module, content in MODULES.items()
    for name in content.__all__
    if f"{module}.{name}" not in MODULES
]
"""All public names, with their modules."""

PUBLIC = {path.rpartition(".")[2]: path for path in PATHS}

# Only webop makes them: users need not know how.
_MADE_BY_WEBOP = {
    *("Children", "DaemonStopped", "Index", "LocalObjectLogger", "Meta", "ObjectLogger"),
    *("AsyncClient", "OperatorRegistry", "Rule", "Spec", "Status", "Store"),
    *("SyncChildren", "SyncClient", "UserInfo"),
}
_ROLE = re.compile(r":\w+:`~?([\w.]+)(\(\))?`")
_CODE = re.compile(r"``(webop\.[\w.]+?)(\(\))?``")
_PAGE = re.compile(r"\bdocs/([\w/]+)\.md(#[\w-]+)?")
_LITERAL = re.compile(r"^( *)(.*)::\n\n((?:\1 +.*\n|\n)+)", re.MULTILINE)
_RARE = frozenset(
    {*SelectorNames.__annotations__, "param", "registry", "metadata_only", "when_kind_exists"}
)
_ARGUMENTS = (
    "The function gets the **arguments** of [all handlers](../arguments.md#all-handlers), "
    "{}and [those of its kind](../arguments.md#by-the-kind-of-handler)."
)
_OF_OBJECTS = "those of [handlers of objects](../arguments.md#handlers-of-objects), "
_SECTION = re.compile(r"\n\n(?=(?:Args|Attributes|Raises|Returns|Yields):\n)")


class Reference(griffe.Extension):
    """Rewrites the docstrings and the signatures of the package."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Rewrite all objects of the package, when it has been read."""
        if pkg.path != webop.__name__:
            return  # the handler loads others, too
        public = {_find(pkg, path.partition(".")[2]) for path in PATHS}
        for obj in walk(pkg):
            if obj.docstring:
                obj.docstring.value = convert(obj.docstring.value)
            if isinstance(obj, griffe.Class):
                hide_constructor(obj)
            elif isinstance(obj, griffe.Attribute):
                obj.annotation = expand(obj.annotation, pkg)
            elif isinstance(obj, griffe.Function):
                if obj in public or obj.parent in public:
                    document_options(obj)
                obj.returns = expand(obj.returns, pkg)
                for parameter in obj.parameters:
                    parameter.annotation = expand(parameter.annotation, pkg)


def walk(obj: griffe.Object) -> Iterator[griffe.Object]:
    yield obj
    for member in list(obj.members.values()):
        if not member.is_alias:
            yield from walk(member)  # type: ignore[arg-type]


def convert(text: str) -> str:
    """Turn the notation of docstrings into Markdown.

    >>> convert("As :func:`again`; see docs/howto/timers.md.")
    'As [`again`][webop.again]; see [Timers](../../howto/timers.md).'
    """
    text = _LITERAL.sub(_build_fence, f"{text}\n").rstrip("\n")
    for pattern in (_ROLE, _CODE):
        text = pattern.sub(lambda match: link(match[1], match[2] or ""), text)
    return _PAGE.sub(_link_page, text)


def _build_fence(match: re.Match[str]) -> str:
    indent, before, code = match[1], match[2], match[3]
    lines = code.rstrip("\n").split("\n")
    margin = min(len(line) - len(line.lstrip()) for line in lines if line.strip())
    body = "\n".join(f"{indent}{line[margin:]}".rstrip() for line in lines)
    opening = f"{indent}{before}:\n\n" if before else ""
    return f"{opening}{indent}```python\n{body}\n{indent}```\n\n"


def link(name: str, call: str = "") -> str:
    """Link a name of the code to its place in the reference, if it is public."""
    target = name if name in PATHS else PUBLIC.get(name) or PUBLIC.get(name.rpartition(".")[2])
    if target is not None and name.count(".") > 2:
        target = None  # such as a module that has the name of a function
    shown = f"`{name}{call}`"
    return f"[{shown}][{target}]" if target else shown


def _link_page(match: re.Match[str]) -> str:
    page, anchor = match[1], match[2] or ""
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    title = re.search(r"^# (.+)$", text, re.MULTILINE)
    assert title is not None
    return f"[{title[1].partition(':')[0]}](../../{page}.md{anchor})"


def hide_constructor(cls: griffe.Class) -> None:
    """Leave out the arguments of classes that users do not call, such as those of most errors."""
    inherits = "__init__" not in cls.members and cls.module.path == "webop.errors"
    if cls.name in _MADE_BY_WEBOP or inherits:
        cls.bases = []
        cls.members.pop("__init__", None)


def expand(annotation: Any, package: griffe.Module) -> Any:
    """Replace the names of types that are not public by what they stand for."""
    if isinstance(annotation, griffe.ExprName):
        path = annotation.canonical_path.removeprefix(f"{package.path}.")
        is_ours = path != annotation.canonical_path and annotation.name not in PUBLIC
        found = _find(package, path) if is_ours else None
        value = found.value if isinstance(found, griffe.Attribute) else None
        if isinstance(value, griffe.Expr) and not isinstance(value, griffe.ExprCall):  # a TypeVar
            return expand(value, package)
    elif isinstance(annotation, griffe.Expr):
        for field in dataclasses.fields(annotation):
            value = getattr(annotation, field.name)
            if isinstance(value, list):
                setattr(annotation, field.name, [expand(item, package) for item in value])
            elif isinstance(value, griffe.Expr) and field.name != "parent":
                setattr(annotation, field.name, expand(value, package))
    return annotation


def _find(package: griffe.Module, path: str) -> griffe.Object | None:
    with contextlib.suppress(KeyError, griffe.AliasResolutionError):
        found = package[path]
        return found.final_target if found.is_alias else found  # type: ignore[no-any-return]
    return None


def document_options(function: griffe.Function) -> None:
    """Show ``**options: Unpack[…]`` as tables instead of in the signature.

    Those of the decorator itself and those that many users need are open, the rest is folded.
    """
    if "options" not in function.parameters or function.docstring is None:
        return
    options = function.parameters["options"]
    found = re.fullmatch(r"Unpack\[(\w+)\]", str(options.annotation))
    if found is None:
        return
    module, _, name = function.resolve(found[1]).rpartition(".")
    own, shared = list_options(getattr(importlib.import_module(module), name))
    is_decorator = name in FAMILIES
    options.annotation = None
    text, *sections = _SECTION.split(function.docstring.value, maxsplit=1)
    parts = [text]
    if is_decorator and name != "RuleOptions":
        function.returns = None
        parts.append(_ARGUMENTS.format("" if name == "ActivityOptions" else _OF_OBJECTS))
    if is_decorator:
        for parameter in function.parameters:
            parameter.annotation = None
    rare = [option for option in shared if option.name in _RARE]
    shown = [*own, *(option for option in shared if option not in rare)]
    parts += ["**Options**", "\n".join(build_table(shown, is_decorator))]
    if rare:
        table = "\n".join(f"    {line}" for line in build_table(rare))
        parts.append(f'??? note "More options"\n\n{table}')
    function.docstring.value = "\n\n".join([*parts, *sections])


def build_table(options: list[Option], has_defaults: bool = True) -> Iterator[str]:
    yield f"| option | type | {'default | ' * has_defaults}meaning |"
    yield "|---|---|" + "---|" * has_defaults + "---|"
    for option in options:
        default = f"`{option.default}` | " * has_defaults
        yield f"| `{option.name}` | `{option.kind}` | {default}{option.meaning} |"
