"""Check that conversions between the versions of a kind lose nothing.

Flow: :func:`check_round_trips` → objects of hypothesis → the functions of
``@webop.on.convert``, as API servers call them → the object must be the same again.
"""

from __future__ import annotations

import importlib.util
import json
from itertools import permutations
from typing import Any

from webop.errors import ConfigurationError, MisfitError
from webop.handlers.model import ConversionHandler
from webop.handlers.registry import OperatorRegistry, get_default_registry
from webop.models.fitting import dump, fit
from webop.models.versions import Model, Versions, collect_versions, get_definition
from webop.objects.diffs import diff
from webop.objects.field_errors import render_path
from webop.objects.fields import Json
from webop.testing.conversions import call_converter


def check_round_trips(
    *models: Model, examples: int = 200, registry: OperatorRegistry | None = None
) -> None:
    """Check that objects are the same after a conversion to another version and back.

    ::

        def test_conversions_lose_nothing() -> None:
            webop.testing.check_round_trips(DatabaseV1, DatabaseV2)

    For each of the versions, hypothesis makes objects that fit it, and converts them to each of the
    others and back. It needs the package ``hypothesis``, which is in ``webop[test]``.

    Args:
        models: versions of one kind, two or more.
        examples: the number of objects for each way there and back.
        registry: has the converters; by default, ``webop.get_default_registry()``.

    Raises:
        AssertionError: an object differs, or a function fails; the message names the field and has
            the object.
        ConfigurationError: there is no way from one of the versions to another one.
    """
    if importlib.util.find_spec("hypothesis") is None:
        raise ConfigurationError("check_round_trips() needs hypothesis: pip install hypothesis")
    if len(models) < 2:
        raise ConfigurationError("check_round_trips() needs two or more versions of a kind.")
    chosen = get_default_registry() if registry is None else registry
    kinds = collect_versions(chosen.select_converters())
    name = get_definition(models[0]).name
    if name not in kinds:
        raise ConfigurationError(
            f"The registry has no converters of {name}: import the module with the functions, or "
            "pass registry=."
        )
    for source, target in permutations(models, 2):
        _RoundTrip(kinds[name], source, target).check(examples)


class _RoundTrip:
    """The way of an object to another version and back."""

    def __init__(self, kind: Versions[ConversionHandler], source: Model, target: Model) -> None:
        self._source = source
        before, after = get_definition(source).version, get_definition(target).version
        there, back = kind.find_path(before, after), kind.find_path(after, before)
        if there is None or back is None:
            raise ConfigurationError("\n".join(kind.find_gaps()))
        self._path = [*there, *back]
        self._name = f"{before} → {after} → {before}"

    def check(self, examples: int) -> None:
        """Check it for some objects; hypothesis reports the smallest one that differs."""
        from hypothesis import given  # noqa: PLC0415 - an optional package

        from webop.testing.object_strategies import build_settings, generate  # noqa: PLC0415 - it needs hypothesis

        build_settings(examples)(given(generate(self._source))(self._check_one))()

    def _check_one(self, body: Json) -> None:
        before = dump(fit(self._source, body))
        converted = body
        for handler in self._path:
            converted = self._convert(handler, converted, body)
        after = dump(fit(self._source, converted))
        if changes := diff(before, after):
            texts = [
                f"{render_path(item.field)}: {_show(item.old)} became {_show(item.new)}"
                for item in changes
            ]
            listed = "\n  ".join(texts)
            raise AssertionError(f"{self._name} changes the object:\n  {listed}\n{_show(body)}")

    def _convert(self, handler: ConversionHandler, body: Json, origin: Json) -> Json:
        try:
            return call_converter(handler, body)
        except MisfitError as exc:
            version = get_definition(handler.source).version
            why = f"the object does not fit {version}: {exc}\nThe object: {_show(body)}"
        except Exception as exc:
            why = f"{handler}: {exc!r}" if not isinstance(exc, ValueError) else f"{handler}: {exc}"
            raise AssertionError(f"{self._name}: {why}\n{_show(origin)}") from exc
        raise AssertionError(f"{self._name}: {why}\nIt was made of: {_show(origin)}")


def _show(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
