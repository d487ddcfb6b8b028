"""The versions of a kind, and how objects get from one version to another. Pure.

Objects are stored in one version, the hub; between two others, they are converted through it. The
functions of users convert models; the metadata of objects, apart from labels and annotations, does
not pass through them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar

import orjson

from webop.errors import ConfigurationError
from webop.models import structural
from webop.models.definitions import Definition, find_definition, is_class, list_versions
from webop.models.fitting import dump, fit
from webop.objects.fields import Json
from webop.objects.names import is_label_key, is_label_value
from webop.objects.storage.codec import ANNOTATIONS_LIMIT, measure_all

if TYPE_CHECKING:
    from pydantic import BaseModel

    from webop.models.schema import Schema

Model: TypeAlias = "type[BaseModel]"

_HEAD = ("apiVersion", "kind", "metadata")
_FREE: tuple[str, ...] = ("labels", "annotations")  # the metadata that conversions may change


class Converter(Protocol):
    """A function that converts objects of one version to another one."""

    @property
    def source(self) -> Model:
        """The model that it gets."""

    @property
    def target(self) -> Model:
        """The model that it returns."""


C = TypeVar("C", bound=Converter)


def get_definition(model: Model) -> Definition:
    """Return what ``webop.models.resource`` says of a model."""
    definition = find_definition(model)
    if definition is None:
        raise ConfigurationError(
            f"{model.__qualname__} is of no kind: decorate it with "
            "@webop.models.resource(GROUP, VERSION)."
        )
    return definition


@dataclass
class Versions(Generic[C]):
    """The versions of one kind, and the converters between them."""

    name: str  # of the CustomResourceDefinition
    hub: str  # the version that objects are stored in
    models: dict[str, Model]  # by version
    steps: dict[tuple[str, str], C] = field(default_factory=dict)  # by the versions from and to

    def find_path(self, source: str, target: str) -> list[C] | None:
        """Return the converters from one version to another one; None if there is no way."""
        if source == target:
            return []
        if (step := self.steps.get((source, target))) is not None:
            return [step]
        first, second = self.steps.get((source, self.hub)), self.steps.get((self.hub, target))
        return None if first is None or second is None else [first, second]

    def find_gaps(self) -> Iterator[str]:
        """Yield what must be written so that all objects can be converted.

        Objects can be stored in versions that are no longer served, but nobody reads these.
        """
        for version, model in self.models.items():
            if version == self.hub:
                continue
            ways = [(model, self.models[self.hub])]
            if get_definition(model).served:
                ways.append((self.models[self.hub], model))
            for source, target in ways:
                before, after = get_definition(source).version, get_definition(target).version
                if (before, after) not in self.steps:
                    yield (
                        f"Objects of {self.name} cannot be converted from {before} to {after}: "
                        f"decorate a function with @webop.on.convert({source.__name__}, "
                        f"to={target.__name__})."
                    )


def collect_versions(converters: Iterable[C]) -> dict[str, Versions[C]]:
    """Return the versions of the kinds that have converters, by the names of their definitions.

    Raises:
        ConfigurationError: two functions convert the same; or a kind is not stored in exactly one
            version.
    """
    grouped: dict[str, list[C]] = {}
    for converter in converters:
        grouped.setdefault(get_definition(converter.source).name, []).append(converter)
    versions = {}
    for name, several in grouped.items():
        used = [model for each in several for model in (each.source, each.target)]
        models = (*list_versions(used[0]), *used)
        own = {get_definition(model).version: model for model in models}
        versions[name] = kind = Versions[C](
            name, find_hub([*map(get_definition, own.values())]), own
        )
        for converter in several:
            key = get_definition(converter.source).version, get_definition(converter.target).version
            if key in kind.steps:
                raise ConfigurationError(
                    f"Two functions convert objects of {name} from {key[0]} to {key[1]}: "
                    f"{kind.steps[key]} and {converter}. Remove one of them."
                )
            kind.steps[key] = converter
    return versions


def find_hub(definitions: Sequence[Definition]) -> str:
    """Return the one version that objects of a kind are stored in."""
    stored = [each.version for each in definitions if each.stored]
    if len(stored) != 1:
        raise ConfigurationError(
            f"Objects of {definitions[0].name} must be stored in exactly one version, but "
            f"{' and '.join(stored) or 'none'} of "
            f"{', '.join(each.version for each in definitions)} would be. Use stored=False in "
            "@webop.models.resource() of the others."
        )
    return stored[0]


def check_pair(source: object, target: object) -> None:
    """Check that a decorator names two versions of one kind."""
    for model in (source, target):
        if not is_class(model):
            raise ConfigurationError(
                "@webop.on.convert() needs two classes with @webop.models.resource(), such as "
                f"@webop.on.convert(WidgetV1, to=WidgetV2), got {model!r:.99}."
            )
    before, after = get_definition(source), get_definition(target)  # type: ignore[arg-type]
    if (before.name, before.kind) != (after.name, after.kind):
        raise ConfigurationError(
            f"@webop.on.convert() is for two versions of one kind, but {before} is a {before.kind} "
            f"and {after} is a {after.kind}. Name the kind with kind= in @webop.models.resource()."
        )
    if before.version == after.version:
        raise ConfigurationError(
            f"@webop.on.convert() is for two versions of a kind, but both classes are {before}."
        )


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """The call of a function for one object."""

    body: Json  # the object in the version of the source
    model: BaseModel  # the same, as the function gets it
    metadata: Any  # as the model has it; the function can change the model

    @classmethod
    def begin(cls, source: Model, body: Json) -> FunctionCall:
        """Return an object as its model."""
        metadata = body.get("metadata") or {}  # of a server-side apply, with nulls
        body = {**body, "metadata": {k: v for k, v in metadata.items() if v is not None}}
        model: BaseModel = fit(source, body)
        return cls(body, model, _dump_metadata(model))

    def end(self, target: Model, result: object) -> Json:
        """Return the object in the version of the target, which the function must return.

        Raises:
            ValueError: it has returned something else, or has changed what it must not.
        """
        if not isinstance(result, target):
            kind = "nothing" if result is None else f"a {type(result).__name__}"
            raise ValueError(f"it must return a {target.__name__}, but returned {kind}")  # noqa: TRY004
        content, schema = get_content(dump(result, is_whole=True)), get_schema(target)
        if structural.is_malformed(content, schema):
            raise ValueError(
                "it returned an embedded object with a wrong apiVersion, kind or metadata"
            )
        content = structural.fit(content, schema, drops_misfits=True)
        found = build_object(target, self._merge_metadata(result), content)
        try:
            orjson.dumps([[[found]]])  # as in the response, which would fail and name no object
        except TypeError as exc:
            raise ValueError(f"it returned an object that is not JSON: {exc}") from exc
        return found

    def _merge_metadata(self, result: BaseModel) -> Json:
        """Return the metadata of the source, with the labels and annotations of the result.

        Fields that the function has not set stay.
        """
        before: Json = self.body.get("metadata") or {}
        if "metadata" not in result.model_fields_set:
            return before
        found = _dump_metadata(result)
        former: Json = self.metadata if isinstance(self.metadata, dict) else {}
        after: Json = found if isinstance(found, dict) else {}
        changed = [key for key in after if key not in _FREE and after[key] != former.get(key)]
        changed = [key for key in changed if after[key] not in (None, [], {})]
        if changed:
            names = " and ".join(f"metadata.{key}" for key in changed)
            raise ValueError(
                f"it must not change {names}: of the metadata, conversions can change only labels "
                "and annotations"
            )
        given = getattr(getattr(result, "metadata", None), "model_fields_set", after.keys())
        merged = dict(before)
        for key in _FREE:
            value = after.get(key) or {}
            # An empty one that was not set is a default of the class.
            if value != (former.get(key) or {}) and (value or key in given):
                _check_texts(key, value)
                merged[key] = value
        return merged


def _check_texts(field: str, texts: Json) -> None:
    """Check labels or annotations as API servers do, which refuse the whole response."""
    are_labels = field == "labels"
    for key, text in texts.items():
        is_right = isinstance(text, str) and is_label_key(key if are_labels else key.lower())
        if not is_right or (are_labels and not is_label_value(text)):
            raise ValueError(f"API servers refuse the {field} {key!r:.99}: {text!r:.99}")
    if not are_labels and (size := measure_all(texts)) > ANNOTATIONS_LIMIT:
        raise ValueError(f"API servers refuse annotations of {size} bytes")


def _dump_metadata(model: BaseModel) -> Any:
    dumped = model.model_dump(mode="json", by_alias=True, exclude_none=True, include={"metadata"})
    return dumped.get("metadata")


@cache
def get_schema(model: Model) -> Schema:
    """Return the structural schema of a model."""
    from webop.models.schema import build_schema  # noqa: PLC0415 - it is slow to import

    return build_schema(model)


def get_content(body: Json) -> Json:
    """Return what an object has beside its kind and its metadata."""
    return {key: value for key, value in body.items() if key not in _HEAD}


def build_object(model: Model, metadata: Json, content: Json) -> Json:
    """Return an object of the version of a model."""
    definition = get_definition(model)
    head = {"apiVersion": definition.api_version, "kind": definition.kind, "metadata": metadata}
    return head | get_content(content)
