"""Compare the selectors of watches with the handlers, and let the API server check them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from webop.cli.doctor.check_context import Context
from webop.cli.doctor.findings import Finding, approve, fail, warn
from webop.errors import APIForbiddenError, APIStatusError
from webop.handlers.model import (
    ABSENT,
    PRESENT,
    MetaCriterion,
    MetaFilterToken,
    ResourceHandler,
)
from webop.objects.label_selectors import Requirement, parse_label_selector
from webop.objects.resources import NAMESPACES, Resource

_REMEDY = "Change the filter of the handler, or settings.watching.label_selectors."


async def check_selectors(context: Context) -> list[Finding]:
    """Find selectors that the API server refuses, and those that exclude handlers."""
    watching, findings = context.settings.watching, list[Finding]()
    for resource in sorted(context.handled, key=lambda one: one.name):
        if selectors := watching.build_selectors(resource):
            findings += await _check_kind(context, resource, selectors)
    unused = watching.list_unused({*context.handled, NAMESPACES}) if context.handled else ()
    for name, key in unused:
        text = f"settings.watching.{name} has a key for which there are no handlers"
        findings.append(warn(str(key), text, "Write it as in the decorators of the handlers."))
    return findings


async def _check_kind(
    context: Context, resource: Resource, selectors: Mapping[str, str]
) -> list[Finding]:
    namespace = next(iter(context.namespaces), None) if resource.namespaced else None
    path = resource.get_url(namespace=namespace)
    shown = " and ".join(f"{name}={text}" for name, text in selectors.items())
    try:
        await context.read(path, limit="1", **selectors)
    except APIForbiddenError:
        pass  # another check reports it
    except APIStatusError as exc:
        remedy = "Correct it in settings.watching: until then, webop sees no object of the kind."
        return [fail(resource.plural_name, f"the API server refuses {shown}: {exc}", remedy)]
    handlers = [
        handler
        for handler in context.registry.select_resource_handlers()
        if handler.selector and resource in handler.selector.select(context.resources)
    ]
    text = selectors.get("labelSelector", "")
    found = list(find_contradictions(resource, text, handlers))
    return found or [approve(resource.plural_name, f"webop sees only {shown}")]


def find_contradictions(
    resource: Resource, text: str, handlers: Iterable[ResourceHandler]
) -> Iterator[Finding]:
    """Yield findings about handlers whose ``labels=`` no object in a label selector has. Pure."""
    for handler in handlers:
        for key, criterion in (handler.labels or {}).items():
            for requirement in parse_label_selector(text) or ():
                if requirement.key == key and _excludes(requirement, criterion):
                    filters = f"labels={{{key!r}: {_describe(criterion)}}}"
                    what = f"{handler} is never called: {filters} contradicts {text!r}"
                    yield warn(resource.plural_name, what, _REMEDY)


def _excludes(requirement: Requirement, criterion: MetaCriterion) -> bool:
    """Return whether no value of a label meets both; functions can accept anything."""
    if criterion is ABSENT:
        return requirement.is_wanted
    if criterion is PRESENT:
        return requirement.values is None and not requirement.is_wanted
    if not isinstance(criterion, str):
        return False
    return not requirement.holds({requirement.key: criterion})


def _describe(criterion: MetaCriterion) -> str:
    return f"webop.{criterion.name}" if isinstance(criterion, MetaFilterToken) else repr(criterion)
