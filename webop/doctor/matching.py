"""Whether the handlers of an operator and the webhooks in the cluster fit each other. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from webop.admission.managed.configurations import build_configuration
from webop.admission.managed.dangers import list_dangers
from webop.admission.managed.marks import list_targets
from webop.doctor.findings import Finding, approve, fail, note, warn
from webop.doctor.records import Configuration, Json, Record
from webop.doctor.report import describe_names
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
    """Compare what the handlers need with what is configured.

    Args:
        handlers: those of admission.
        name: that of the managed configurations.
        found: the configurations of that name.
        resources: those of the cluster.
    """
    if not handlers:
        yield note("handlers", "there are none for admission in these files")
    yield from _check_selectors(handlers, resources)
    yield from map(_describe_danger, list_dangers(handlers, resources))
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
            reason=reason,
            name=name,
            handlers=chosen,
            resources=resources,
            client_config=_NOWHERE,
        )["webhooks"]
        return webhooks

    owners = [handler for handler in handlers for _ in build([handler])]
    return {
        webhook["name"]: (owner, webhook)
        for owner, webhook in zip(owners, build(handlers), strict=True)
    }


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
            yield _describe_missing(handler, configuration)
    unknown = [key for key in present if key not in expected]
    if unknown:
        yield warn(
            "unknown",
            f"webhooks in {configuration.title} without a handler in these files: "
            f"{describe_names(unknown)}",
            "See that these are all files of the operator, and that its replicas run this version.",
        )


def _describe_missing(handler: WebhookHandler, configuration: Configuration) -> Finding:
    return fail(
        handler.id,
        f"it has no webhook in {configuration.title}: nobody asks it",
        "Start the operator with this file and settings.admission.managed = "
        f"'{configuration.name}'; if it runs, its log says why not.",
    )


def _compare_rules(handler: WebhookHandler, webhook: Json, record: Record) -> Finding:
    wanted, actual = list_targets(webhook["rules"]), list_targets(record.webhook["rules"])
    operations = [_list_operations(item) for item in (webhook, record.webhook)]
    if wanted == actual and operations[0] == operations[1]:
        return approve(handler.id, f"asked about {describe_names(sorted(wanted), 3)}")
    parts = [
        f"{' '.join(operations[index])} of {describe_names(sorted(targets), 3)}"
        for index, targets in enumerate((wanted, actual))
    ]
    return warn(
        handler.id,
        f"it is for {parts[0]}, but is asked about {parts[1]}",
        "Restart the operator with this file, or wait for the rollout to end.",
    )


def _list_operations(webhook: Json) -> list[str]:
    return sorted({item for rule in webhook["rules"] for item in rule.get("operations") or ()})


def _describe_danger(text: str) -> Finding:
    """Turn the operator's own warning into a finding."""
    subject, _, rest = text.removeprefix("Webhook ").partition(" ")
    what, _, advice = rest.partition(". ")
    return warn(
        subject.strip("'"), what.rstrip("."), advice or "Name other resources, or remove it."
    )
