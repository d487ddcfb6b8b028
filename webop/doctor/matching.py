"""Whether the handlers of an operator and the webhooks in the cluster fit each other. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from webop.admission.managed.configurations import build_configuration, list_dangers
from webop.admission.managed.marks import list_targets
from webop.doctor.findings import Finding, approve, describe_names, fail, note, warn
from webop.doctor.records import Configuration, Json, Record
from webop.handling.handlers import WebhookHandler, WebhookType
from webop.objects.resources import Resource
from webop.servers.base import WebhookClientConfig

_NOWHERE = WebhookClientConfig(url="https://localhost")


def check_handlers(
    handlers: Sequence[WebhookHandler],
    name: str,
    found: Iterable[Configuration],
    resources: Collection[Resource],
) -> Iterator[Finding]:
    """Compare what the handlers need with what is configured."""
    if not handlers:
        yield note("handlers", "there are none for admission in these files")
    yield from _check_selectors(handlers, resources)
    for text in list_dangers(handlers, resources):  # the operator's own warnings
        subject, _, rest = text.removeprefix("Webhook ").partition(" ")
        what, _, advice = rest.partition(". ")
        advice = advice or "Name other resources, or remove it."
        yield warn(subject.strip("'"), what.rstrip("."), advice)
    for configuration in found:
        yield from _compare(handlers, name, configuration, resources)


def build_expected(
    handlers: Sequence[WebhookHandler],
    reason: WebhookType,
    name: str,
    resources: Collection[Resource],
) -> dict[str, tuple[WebhookHandler, Json]]:
    """Return the webhooks of one kind by their names, each with its handler."""

    def build(chosen: Sequence[WebhookHandler]) -> list[Json]:
        webhooks: list[Json] = build_configuration(
            reason=reason, name=name, handlers=chosen, resources=resources, client_config=_NOWHERE
        )["webhooks"]
        return webhooks

    owners = [handler for handler in handlers for _ in build([handler])]
    built = zip(owners, build(handlers), strict=True)
    return {webhook["name"]: (owner, webhook) for owner, webhook in built}


def _check_selectors(
    handlers: Iterable[WebhookHandler], resources: Collection[Resource]
) -> Iterator[Finding]:
    for handler in handlers:
        selector = handler.selector
        if selector is None or selector.select(resources):
            continue
        if selector.is_ambiguous(resources):
            names = describe_names(sorted(r.name for r in selector.find_candidates(resources)))
            text = f"its resource is ambiguous, so it is not asked: {selector} is {names}"
            yield warn(handler.id, text, "Name the API group, too, in the decorator.")
        else:
            yield warn(
                handler.id,
                f"its resource is not in the cluster: {selector}",
                "Install its definition: kubectl apply -f CRD.yaml; the operator needs no restart.",
            )


def _compare(
    handlers: Sequence[WebhookHandler],
    name: str,
    configuration: Configuration,
    resources: Collection[Resource],
) -> Iterator[Finding]:
    expected = build_expected(handlers, configuration.reason, name, resources)
    present = {record.name: record for record in configuration.records}
    waiting = {key for mark in configuration.marks for key in mark.served}
    for key, (handler, webhook) in expected.items():
        if key in present:
            yield _compare_rules(handler, webhook, present[key])
        elif key in waiting:
            yield note(handler.id, "its webhook waits for all replicas to serve it")
        else:
            yield fail(
                handler.id,
                f"it has no webhook in {configuration.title}: nobody asks it",
                "Start the operator with this file and settings.admission.managed = "
                f"'{configuration.name}'; if it runs, its log says why not.",
            )
    unknown = [key for key in present if key not in expected]
    if unknown:
        yield warn(
            "unknown",
            f"webhooks in {configuration.title} without a handler in these files: "
            f"{describe_names(unknown)}",
            "See that these are all files of the operator, and that its replicas run this version.",
        )


def _compare_rules(handler: WebhookHandler, webhook: Json, record: Record) -> Finding:
    scopes = []
    for rules in (webhook["rules"], record.webhook["rules"]):
        operations = sorted({item for rule in rules for item in rule.get("operations") or ()})
        scopes.append((operations, sorted(list_targets(rules))))
    wanted, actual = (f"{' '.join(ops)} of {describe_names(names, 3)}" for ops, names in scopes)
    if scopes[0] == scopes[1]:
        return approve(handler.id, f"asked about {describe_names(scopes[0][1], 3)}")
    return warn(
        handler.id,
        f"it is for {wanted}, but is asked about {actual}",
        "Restart the operator with this file, or wait for the rollout to end.",
    )
