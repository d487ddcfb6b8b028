"""CEL rules of schemas (Kubernetes: "Validation rules"), if cel-expr-python is installed. Pure.

It is Google's evaluator in C++, with the functions of the language, and those of its extensions for
strings, numbers, bindings and optional values. Not evaluated are rules with other functions of
Kubernetes, such as ``isSorted`` and ``quantity``, those about times, and ``optionalOldSelf``.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib import import_module
from typing import Any

from webop.models.keywords import INT_OR_STRING, LIST_KEYS, RULES
from webop.objects.fields import ABSENT_FIELD

from .messages import Json

_OTHERS = {"byte", "date", "date-time", "datetime", "duration"}
_MODULES = ("cel", "ext.ext_bindings", "ext.ext_math", "ext.ext_optional", "ext.ext_strings")


def find_rule_faults(value: Any, old: Any, schema: Json, path: str = "") -> Iterator[str]:
    """Yield what the rules refuse, each with the path of the field.

    Args:
        value: the value; it fits its schema.
        old: the value before an update; ABSENT_FIELD if there is none.
        schema: its schema.
        path: where it is.
    """
    for rule in schema.get(RULES) or ():
        compiled = compile_rule(rule["rule"])
        is_first = old is ABSENT_FIELD and "oldSelf" in rule["rule"]
        if compiled is None or is_first or not is_evaluated(rule, schema):
            continue
        data = {"self": _convert(value, schema)}
        if old is not ABSENT_FIELD:
            data["oldSelf"] = _convert(old, schema)
        if compiled.eval(data=data).value() is not True:
            field = f"{path}{rule.get('fieldPath', '')}".lstrip(".")
            yield f"{field}: {rule.get('message') or 'failed rule: ' + rule['rule']}"
    if isinstance(value, dict):
        known, rest = schema.get("properties") or {}, schema.get("additionalProperties")
        for name, item in value.items():
            if isinstance(below := known.get(name, rest), dict):
                before = old.get(name, ABSENT_FIELD) if isinstance(old, dict) else ABSENT_FIELD
                yield from find_rule_faults(item, before, below, f"{path}.{name}" if path else name)
    elif isinstance(value, list) and isinstance(below := schema.get("items"), dict):
        keys = schema.get(LIST_KEYS) or ()
        is_map = bool(keys) and isinstance(old, list)
        known = {_read_key(item, keys): item for item in old} if is_map else {}
        for index, item in enumerate(value):
            before = known.get(_read_key(item, keys), ABSENT_FIELD) if keys else ABSENT_FIELD
            yield from find_rule_faults(item, before, below, f"{path}[{index}]")


def list_unevaluated(schema: Json, path: str = "") -> Iterator[str]:
    """Yield the rules of a schema that are not evaluated, each with the path of its field."""
    for rule in schema.get(RULES) or ():
        if not is_evaluated(rule, schema):
            yield f"{path or 'the object'}: {rule['rule']}"
    for name, below in (schema.get("properties") or {}).items():
        yield from list_unevaluated(below, f"{path}.{name}" if path else name)
    for name, sign in (("items", "[]"), ("additionalProperties", "[*]")):
        if isinstance(below := schema.get(name), dict):
            yield from list_unevaluated(below, f"{path}{sign}")


def is_evaluated(rule: Json, schema: Json) -> bool:
    """Return whether a rule can be evaluated: the evaluator takes no times and bytes."""
    is_simple = not rule.get("optionalOldSelf") and not _reads_others(schema, rule["rule"])
    return is_simple and compile_rule(rule["rule"]) is not None


def _reads_others(schema: Json, text: str) -> bool:
    if schema.get("format") in _OTHERS:
        return True
    below = [part for name, part in (schema.get("properties") or {}).items() if name in text]
    below += [schema.get("items"), schema.get("additionalProperties")]
    return any(isinstance(part, dict) and _reads_others(part, text) for part in below)


@cache
def compile_rule(text: str) -> Any:
    """Return a compiled rule; None if it cannot be evaluated."""
    try:
        cel, *extensions = (import_module(f"cel_expr_python.{name}") for name in _MODULES)
    except ImportError:
        return None
    variables = dict.fromkeys(("self", "oldSelf"), cel.Type.DYN)
    loaded = [
        getattr(module, f"Ext{name.removeprefix('ext.ext_').capitalize()}")()
        for module, name in zip(extensions, _MODULES[1:], strict=True)
    ]
    try:
        return cel.NewEnv(variables=variables, extensions=loaded).compile(text)
    except RuntimeError:
        return None


def _read_key(item: Json, keys: Any) -> tuple[Any, ...]:
    return tuple(item.get(key) for key in keys)


def _convert(value: Any, schema: Json) -> Any:
    """Return a value in the type that rules see."""
    if isinstance(value, dict):
        known, rest = schema.get("properties") or {}, schema.get("additionalProperties") or {}
        rest = rest if isinstance(rest, dict) else {}
        return {name: _convert(item, known.get(name, rest)) for name, item in value.items()}
    if isinstance(value, list):
        return [_convert(item, schema.get("items") or {}) for item in value]
    if schema.get("type") == "number" and not schema.get(INT_OR_STRING):
        return float(value)
    return value
