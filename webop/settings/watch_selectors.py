"""Selectors of watches by kinds: the values of ``settings.watching.label_selectors`` and others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from webop.models.definitions import build_selector, is_class
from webop.objects.resources import Marker, Resource, ResourceFn, Selector, parse_selector

if TYPE_CHECKING:
    from pydantic import BaseModel

SelectorKey: TypeAlias = (
    "str | Marker | ResourceFn | Selector | tuple[str | Marker, ...] | type[BaseModel]"
)
"""Kinds, as decorators name them: ``"pods"``, ``("apps", "deployments")``, a model."""


class SelectorMapping(MutableMapping["SelectorKey", str]):
    """The selectors of kinds.

    The keys are as the arguments of the decorators: a name, a tuple of group, version and name,
    ``EVERYTHING``, a model, or a function of a resource. Iteration yields them parsed. Several
    keys can match the same kind.
    """

    __slots__ = ("_items",)

    def __init__(self, items: Mapping[Any, str] | None = None) -> None:
        self._items: dict[Selector, str] = {}
        self.update(items or {})

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._items!r})"

    def __getitem__(self, key: SelectorKey) -> str:
        return self._items[_parse(key)]

    def __setitem__(self, key: SelectorKey, value: str) -> None:
        if not isinstance(value, str):
            raise TypeError(f"The selector of {key!r} must be a string, got {value!r}.")
        self._items[_parse(key)] = value

    def __delitem__(self, key: SelectorKey) -> None:
        del self._items[_parse(key)]

    def __iter__(self) -> Iterator[Selector]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def collect(self, resource: Resource, *, is_named: bool = False) -> list[str]:
        """Return the selectors of all keys that match a resource, in order; without empty ones.

        With ``is_named``, the key must name the kind: no category, function or ``EVERYTHING``.
        """
        return [
            text
            for key, text in self._items.items()
            if text and key.check(resource) and (key.is_specific or not is_named)
        ]


def _parse(key: SelectorKey) -> Selector:
    """Return the kinds that a key means, or raise a TypeError."""
    if isinstance(key, Selector):
        return key
    if is_class(key):
        return build_selector(key)
    return parse_selector(*key) if isinstance(key, tuple) else parse_selector(key)


def _check(value: Any) -> SelectorMapping:
    """Accept any mapping with such keys."""
    if isinstance(value, SelectorMapping):
        return value
    try:
        if isinstance(value, Mapping):
            return SelectorMapping(value)
    except TypeError as exc:
        raise ValueError(str(exc)) from None
    raise ValueError("it must be a mapping of kinds to selectors, such as {'pods': 'app=x'}")


Selectors = Annotated[SelectorMapping, _check]


def _parse_kinds(value: Any) -> tuple[Selector, ...]:
    """Accept a list of kinds, or names of them separated by spaces."""
    if isinstance(value, str):
        value = value.split()
    try:
        return tuple(map(_parse, value or ()))
    except TypeError as exc:
        raise ValueError(f"it must be a list of kinds, such as ['pods']: {exc}") from None


Kinds = Annotated[tuple[Selector, ...], _parse_kinds]
