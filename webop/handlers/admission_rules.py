"""Declare rules that API servers apply themselves: ``webop.rule``.

``webop manifests`` writes them (:mod:`webop.admission.configurations.policies`). The operator never
reads them.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final, Unpack

import pydantic

from webop.errors import ConfigurationError
from webop.handlers.model import Rule
from webop.handlers.options import (
    ResourcePart,
    RuleOptions,
    parse_kind,
    parse_options,
    spell_out,
)
from webop.handlers.registry import get_default_registry
from webop.models.definitions import find_definition
from webop.models.keywords import EMBEDDED, PRESERVE
from webop.models.model import RESERVED
from webop.objects.names import join_names

_ABSENT = {"oldObject": ("CREATE", "object"), "object": ("DELETE", "oldObject")}
_CHANGES = frozenset({"CREATE", "UPDATE"})

_TEXT = re.compile(
    r"""r?(?:'{3}.*?'{3}|"{3}.*?"{3})|r['"][^'"]*['"]|'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|//[^\n]*""",
    re.DOTALL | re.IGNORECASE,
)
_find_names = re.compile(r"(?<![\w.])(?:self|oldSelf|object|oldObject)\b").findall
_find_escape = re.compile(
    rf"\.\s*\??(\w*__(?:underscores|dot|dash|slash)__\w*|__(?:{'|'.join(RESERVED)})__)(?!\w)"
).search
_find_paths = re.compile(r"(?<![\w.])(object|oldObject)((?:\s*\.\s*\??\w+)+)(\s*\()?").finditer
# Kubernetes API, meta/v1 ObjectMeta.
_METADATA: Final = (
    *("annotations", "creationTimestamp", "deletionGracePeriodSeconds", "deletionTimestamp"),
    *("finalizers", "generateName", "generation", "labels", "managedFields", "name", "namespace"),
    *("ownerReferences", "resourceVersion", "selfLink", "uid"),
)


@spell_out("id")
def rule(*resource: ResourcePart, **options: Unpack[RuleOptions]) -> Rule:
    """Have API servers check requests by a rule in CEL, without calling a webhook.

    The rule holds while the operator is down. ``webop manifests`` writes it as an admission policy
    and its binding; the operator needs no right to them::

        webop.rule(
            Database,
            id="engine-is-fixed",
            cel="object.spec.engine == oldObject.spec.engine",
            message="spec.engine cannot be changed",
        )

    Name the kind as in decorators: by a class or by names. The expression reads ``object``,
    ``oldObject``, ``request`` and ``namespaceObject``. Objects that are being deleted are not
    checked, so that their finalizers can be removed.

    Returns:
        The rule, for ``webop.testing.check_agreement``.

    Raises:
        TypeError: an option is unknown, missing, of a wrong type, or conflicts with another one.
        ValueError: an option has an invalid value; or the expression cannot work with the
            operations, reads a field that the class does not have, or is one for the rules of
            schemas (:class:`webop.models.CEL`).

    See "Validating Admission Policy" and "Mutating Admission Policy" in the documentation of
    Kubernetes, and docs/howto/rules.md.
    """
    parsed = parse_options("webop.rule()", options, RuleOptions)
    registry = parsed.pop("registry", None)
    if "id" not in parsed:
        raise TypeError("webop.rule() requires id=, such as id='engine-is-fixed'.")
    _check_parts(parsed)
    text = _TEXT.sub("", next(parsed[name] for name in _PARTS if name in parsed))
    texts = [text, *(_TEXT.sub("", one.expression) for one in parsed.get("match_conditions", ()))]
    _check_names(parsed, texts)
    selector, model = parse_kind("webop.rule", resource, options)
    if not selector.is_specific:
        raise TypeError(f"webop.rule() requires one kind, got {selector}.")
    # Of other subresources, the object is another one, such as a Scale.
    if model is not None and parsed.get("subresource") in (None, "status"):
        _check_paths(parsed["id"], texts, model)
    declared = Rule(
        selector=selector, model=model, object_selector=parsed.pop("labels", None), **parsed
    )
    (get_default_registry() if registry is None else registry).append_rule(declared)
    return declared


_PARTS = ("cel", "apply", "json_patch")


def _check_parts(options: dict[str, Any]) -> None:
    """Check that there is one expression, and only what goes with it."""
    given = [name for name in _PARTS if name in options]
    if not given:
        raise TypeError(
            "webop.rule() requires cel=, an expression that must be true, such as "
            "cel='object.spec.size > 0'; or apply= or json_patch=, which change objects."
        )
    if len(given) > 1:
        raise TypeError(f"{given[0]}= and {given[1]}= exclude each other.")
    if given == ["cel"]:
        if "message" not in options:
            raise TypeError("webop.rule() with cel= requires message=: users see it in denials.")
        if "\n" in options["message"]:
            raise ValueError(f"message= must be one line, got {options['message']!r}.")
        return
    for name in ("message", "action"):
        if name in options:
            raise TypeError(f"{name}= and {given[0]}= exclude each other.")
    if others := options.get("operations", _CHANGES) - _CHANGES:
        found = ", ".join(sorted(others))
        raise ValueError(f"operations= with {given[0]}= must be CREATE and UPDATE, got {found}.")


def _can_be_null(name: str, text: str) -> bool:
    """Return whether an expression asks first if an object is null."""
    asked = rf"\b{name}\s*[!=]=\s*null\b|\bnull\s*[!=]=\s*{name}\b|\b{name}\.\?"
    return bool(re.search(asked, text))


def _check_names(options: dict[str, Any], texts: list[str]) -> None:
    """Check that an expression and its conditions, without texts, have the objects they read.

    By default, a rule is for updates only if it needs the old object.
    """
    text = texts[0]
    names = {name for one in texts for name in _find_names(one)}
    if wrong := names & {"self", "oldSelf"}:
        good = {"self": "object", "oldSelf": "oldObject"}
        hints = " and ".join(f"{good[name]} in place of {name}" for name in sorted(wrong))
        raise ValueError(
            f"Rule {options['id']!r}: write {hints}. self is for rules in schemas "
            "(webop.models.CEL)."
        )
    if found := next(filter(None, map(_find_escape, texts)), None):
        raise ValueError(
            f"Rule {options['id']!r}: {found[1]} is the name of a field in the rules of schemas. "
            "Policies take names as they are: write object.spec.namespace, or "
            "object.spec['a-b'], or object.spec[?'a-b'] if it can be missing."
        )
    needs_old = any(
        "oldObject" in _find_names(one) and not _can_be_null("oldObject", one) for one in texts
    )
    if needs_old and "request.operation" in text and "operations" not in options:
        raise ValueError(
            f"Rule {options['id']!r} reads oldObject, which is null in CREATE, and "
            "request.operation: say which requests it checks, such as operations=['UPDATE']."
        )
    operations = options.setdefault("operations", _CHANGES - ({"CREATE"} if needs_old else set()))
    if not operations:
        raise ValueError("operations= must not be empty.")
    for name, (operation, other) in _ABSENT.items():
        if name not in names or operation not in operations:
            continue
        if operations == {operation}:
            raise ValueError(
                f"Rule {options['id']!r} reads {name}, which is null in each {operation}: use "
                f"{other}, or other operations."
            )
        if not any(_can_be_null(name, one) or "request.operation" in one for one in texts):
            raise ValueError(
                f"Rule {options['id']!r} reads {name}, which is null in {operation}, so that it "
                f"would deny each of these. Remove {operation} from operations=, or begin with "
                f"'{name} == null || '."
            )


def _check_paths(rule_id: str, texts: Iterable[str], model: type[pydantic.BaseModel]) -> None:
    """Check that a class has the fields that expressions without texts and comments read."""
    from webop.models.schema import build_schema  # noqa: PLC0415 - it is slow to import

    if find_definition(model) is None:  # it can have fewer fields than its kind
        return
    try:
        schema = build_schema(model)
    except ConfigurationError:  # the command that writes the definition reports it
        return
    schema["properties"]["metadata"] = {"properties": {key: {} for key in _METADATA}}
    for found in (found for text in texts for found in _find_paths(text)):
        names = re.findall(r"\w+", found[2])
        part, place = schema, found[1]
        for name in names[:-1] if found[3] else names:  # the last one can be a function
            fields = part.get("properties", {})
            if name not in fields:
                is_mapping = part.get("type", "object") == "object"
                is_open = (not fields and is_mapping) or {PRESERVE, EMBEDDED} & part.keys()
                if is_open or (part is schema and name == "status"):
                    break
                near = difflib.get_close_matches(name, fields, 1)
                if not fields:
                    hint = f"{place} is of the type {part['type']}."
                elif near:
                    hint = f"did you mean {place}.{near[0]}?"
                else:
                    hint = f"use {join_names(fields)}."
                raise ValueError(
                    f"Rule {rule_id!r} reads {place}.{name}, but {model.__qualname__} has no such "
                    f"field: {hint}"
                )
            part, place = fields[name], f"{place}.{name}"


def find_unruled_scales(rules: list[Rule]) -> Iterator[str]:
    """Find rules about a field that also changes by the subresource scale, which no rule is for."""
    ruled = {rule.selector for rule in rules if rule.subresource in ("scale", "*")}
    for rule in rules:
        definition = None if rule.model is None else find_definition(rule.model)
        if not rule.cel or not definition or not definition.scale or rule.selector in ruled:
            continue
        written = definition.scale.replicas.strip(".").split(".")
        paths = (re.findall(r"\w+", found[2]) for found in _find_paths(_TEXT.sub("", rule.cel)))
        if any(path == written[: len(path)] for path in paths) and "UPDATE" in rule.operations:
            yield (
                f"{rule} reads {definition.scale.replicas}, which 'kubectl scale' and autoscalers "
                "change without a check by this rule. Use webop.models.CEL, which always holds, or "
                "add a rule with subresource='scale', whose object has spec.replicas."
            )
