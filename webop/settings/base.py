"""The base class of the groups of settings: defaults, and validation on assignment."""

from __future__ import annotations

import copy
import difflib
import inspect
import itertools
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Final,
    Self,
    TypeVar,
    cast,
    get_origin,
    get_type_hints,
)

from webop.logs.sanitizing import describe_line
from webop.objects.typed_values import LONGEST
from webop.settings.values import parse

T = TypeVar("T")

_HERE = Path(__file__).parent


class UnknownSettingError(AttributeError):
    """Raised when code reads a setting or a group that does not exist."""


class SettingError(ValueError):
    """Raised when code sets a setting that does not exist, or an invalid value.

    Attributes:
        why: what is wrong, such as "it must be a number."; empty if there is no such setting.
    """

    why = ""

    @classmethod
    def build(cls, place: str, value: object, why: str) -> SettingError:
        """Return the error of an invalid value."""
        why = f"{why.rstrip('.')}."
        error = cls(f"{place} = {repr(value)[:LONGEST]} is invalid: {why}")
        error.why = why
        return error


class _Made:
    """A default that each group makes for itself, when it is first read."""

    def __init__(self, factory: Callable[[], Any]) -> None:
        self._factory = factory

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, section: object, owner: type | None = None) -> Any:
        if section is None:
            return self
        return vars(section).setdefault(self._name, self._factory())


def made(factory: Callable[[], T]) -> T:
    """Return a default that each group makes for itself, when it is first read."""
    return cast("T", _Made(factory))


class Section:
    """A group of settings. It refuses unknown names and invalid values on assignment."""

    _given: frozenset[str] = frozenset()  # the names of the settings that were set

    def __init__(self, **values: Any) -> None:
        for name, value in values.items():
            setattr(self, name, value)

    def __repr__(self) -> str:
        shown = (f"{name}={getattr(self, name)!r}" for name in list_fields(type(self)))
        return f"{type(self).__name__}({', '.join(shown)})"

    def copy(self, **values: Any) -> Self:
        """Return a copy with other values; the parts of it are shared."""
        for name in list_fields(type(self)):
            getattr(self, name)  # makes what is made at first use
        found = copy.copy(self)
        for name, value in values.items():
            setattr(found, name, value)
        return found

    def __setattr__(self, name: str, value: Any) -> None:
        """Set a setting, or raise a SettingError; about an unknown name, with a suggestion."""
        kind = type(self)
        hint = list_fields(kind).get(name)
        if hint is not None:
            try:
                value = parse(hint, value)
            except ValueError as exc:
                raise self._build_error(name, value, str(exc)) from None
            vars(self)["_given"] = self._given | {name}
            vars(self)[name] = value
        elif name.startswith("_") or name in find_setters(kind):
            super().__setattr__(name, value)
        else:
            raise SettingError(_describe_absence(kind, name))

    def _build_error(self, name: str, value: Any, why: str) -> SettingError:
        return SettingError.build(_name_setting(type(self), name), value, why)

    if not TYPE_CHECKING:  # mypy reports unknown names itself

        def __getattr__(self, name: str) -> Any:
            """Refuse an unknown name, with a suggestion."""
            if name.startswith("_"):
                raise AttributeError(name)
            raise UnknownSettingError(_describe_absence(type(self), name))


_fields: Final[dict[type[Section], dict[str, Any]]] = {}


def list_fields(section: type[Section]) -> dict[str, Any]:
    """Return the settings of a group that are no properties, with their types."""
    if section not in _fields:
        hints = get_type_hints(section, include_extras=True)
        _fields[section] = {
            name: hint
            for name, hint in hints.items()
            if not (name.startswith("_") or get_origin(hint) is ClassVar)
        }
    return _fields[section]


def find_setters(section: type[Section]) -> dict[str, property]:
    """Return the settings that are properties: ``namespaced``, ``max_workers``."""
    return {
        name: item
        for name, item in inspect.getmembers_static(section)
        if isinstance(item, property) and item.fset is not None
    }


def _describe_absence(kind: type[Section], name: str) -> str:
    nearest = difflib.get_close_matches(name, [*list_fields(kind), *find_setters(kind)], n=1)
    hint = f", did you mean {nearest[0]!r}?" if nearest else "."
    return f"There is no setting {_name_setting(kind, name)}{hint}"


def _name_setting(kind: type[Section], name: str) -> str:
    """Return the name of a setting in code; that of the group is in the name of its class."""
    group = kind.__name__.removesuffix("Settings").lower()
    place = {"operator": "settings", "identity": "settings.operator"}
    return f"{place.get(group, f'settings.{group}')}.{name}"


def find_setting_problem(exc: BaseException) -> str | None:
    """Return the error about a setting as a sentence, with the line of code that set it.

    Return None for other errors.
    """
    is_about_one = isinstance(exc, UnknownSettingError | SettingError)
    return f"{exc}{_locate(exc)}" if is_about_one else None


def _locate(exc: BaseException) -> str:
    """Return the line outside of this package that caused the error."""
    frames = traceback.extract_tb(exc.__traceback__)
    users = list(itertools.takewhile(lambda frame: Path(frame.filename).parent != _HERE, frames))
    if not 0 < len(users) < len(frames):
        return ""
    return f" {describe_line(users[-1].filename, users[-1].lineno, users[-1].line)}"
