"""The options of decorators: checked at import, so that a mistake is told where it was made.

Used by :mod:`webop.on` and :mod:`webop.embedding`. Mistakes are ``TypeError`` and ``ValueError``,
as for any function that is called in a wrong way; their texts name the option and the remedy.
"""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from webop.handling.handlers import ErrorsMode
from webop.objects.fields import parse_field

F = TypeVar("F", bound=Callable[..., Any])

SELECTOR_KEYS = ("group", "version", "kind", "plural", "singular", "shortcut", "category")

_OPERATIONS = frozenset({"CREATE", "UPDATE", "DELETE", "CONNECT"})
_REST = frozenset({"_", "kwargs", "kw"})
_KWARGS = frozenset(
    {
        *("body", "spec", "meta", "status", "name", "namespace", "uid", "labels", "annotations"),
        *("logger", "patch", "memo", "param", "retry", "started", "runtime", "event", "type"),
        *("old", "new", "diff", "reason", "stopped", "warnings", "dryrun", "userinfo"),
    }
)
_NUMBERS = (
    "timeout",
    "backoff",
    "retries",
    "interval",
    "idle",
    "cancellation_backoff",
    "cancellation_timeout",
    "cancellation_polling",
)
_TYPES: dict[str, tuple[type, str]] = {
    "id": (str, "a string"),
    "errors": (ErrorsMode, "one of webop.ErrorsMode"),
    "labels": (Mapping, "a mapping of labels to what they are to be"),
    "annotations": (Mapping, "a mapping of annotations to what they are to be"),
}


def spell_out(*required: str, **defaults: Any) -> Callable[[F], F]:
    """Let ``inspect.signature`` and ``help()`` see what ``**options: Unpack[…]`` stands for.

    Args:
        required: the options that have no default.
        defaults: those whose default is not None.
    """

    def decorator(fn: F) -> F:
        signature = inspect.signature(fn)
        *others, options = signature.parameters.values()
        found = re.fullmatch(r"Unpack\[(\w+)\]", str(options.annotation))
        if found is None:
            raise TypeError(f"{fn} takes no options by a TypedDict.")
        names = fn.__globals__[found[1]].__annotations__
        spelt = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if name in required else defaults.get(name),
                annotation=getattr(annotation, "__forward_arg__", annotation),
            )
            for name, annotation in names.items()
        ]
        fn.__signature__ = signature.replace(parameters=[*others, *spelt])  # type: ignore[attr-defined]
        return fn

    return decorator


def parse_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options as attributes of a handler; None means the default everywhere.

    Raises:
        TypeError: options of wrong types, or options that exclude or need each other.
        ValueError: a label or an annotation is to be None (use ``webop.ABSENT``).
    """
    skipped = {"registry", *SELECTOR_KEYS}
    parsed = {k: v for k, v in options.items() if k not in skipped and v is not None}
    check_types(parsed)
    for family in ("labels", "annotations"):
        for key, criterion in parsed.get(family, {}).items():
            if criterion is None:
                raise ValueError(f"{family}={{{key!r}: None}} is unclear: PRESENT or ABSENT?")
    transition = [name for name in ("old", "new") if name in parsed]
    if transition and "value" in parsed:
        raise TypeError(f"value= and {transition[0]}= exclude each other.")
    if (transition or "value" in parsed) and "field" not in parsed:
        raise TypeError(f"{(*transition, 'value')[0]}= needs to know the field: field='spec.x'.")
    if "field" in parsed:
        parsed["field"] = parse_field(parsed["field"])
    return parsed


def parse_operations(operation: str | None, operations: Collection[str] | None) -> frozenset[str]:
    """Return the operations of a webhook, which can be given in two ways (D-17); none for all.

    Raises:
        TypeError: they are given in both ways.
        ValueError: there is no such operation.
    """
    if operation is not None and operations is not None:
        raise TypeError("operation= and operations= exclude each other.")
    chosen = {operation} if operation is not None else set(operations or ())
    unknown = sorted(chosen - _OPERATIONS)
    if unknown:
        raise ValueError(f"There is no operation {unknown[0]!r}: {', '.join(sorted(_OPERATIONS))}.")
    return frozenset(chosen)


def check_names(owner: str, options: Mapping[str, Any], known: Any) -> None:
    """Check that all options are known.

    Args:
        owner: what they are options of, for the message, such as "create handlers".
        options: what is given.
        known: the TypedDict of its options.

    Raises:
        TypeError: there is no such option; with the one that was probably meant.
    """
    names = known.__annotations__
    for option in options:
        if option not in names:
            close = difflib.get_close_matches(option, names, n=1)
            advice = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(names)}."
            raise TypeError(f"There is no option {option!r} of {owner}: {advice}")


def is_handler(value: object) -> bool:
    """Tell whether a value is a handler for sure: a function of what only handlers are given."""
    names = list(inspect.signature(value).parameters) if inspect.isfunction(value) else []
    return bool(names) and ((len(names) == 1 and names[0] in _REST) or names[0] in _KWARGS)


def check_types(options: Mapping[str, Any]) -> None:
    """Check the types of the options, where a wrong one would show much later.

    Raises:
        TypeError: an option is of a wrong type.
    """
    for name, value in options.items():
        if value is None:
            continue
        expected = _find_expected(name, value)
        if expected:
            raise TypeError(f"{name}= is to be {expected}, not {value!r}.")


def _find_expected(name: str, value: Any) -> str:
    """Return what a value should have been, in words; nothing if it is fine."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if name in _NUMBERS:
        return "" if is_number else "a number"
    if name == "when":
        return "" if callable(value) else "a function"
    if name == "initial_delay":
        return "" if is_number or callable(value) else "a number or a function"
    kind, words = _TYPES.get(name, (object, ""))
    return "" if isinstance(value, kind) else words
