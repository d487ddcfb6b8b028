"""Which webhook configurations are the operator's, and what is in them, by the API server."""

from __future__ import annotations

from webop.client.calls import MERGE_PATCH
from webop.doctor.findings import Finding, note, warn
from webop.doctor.records import (
    GROUP,
    KINDS,
    Configuration,
    Json,
    parse_configuration,
    select_marked,
)
from webop.doctor.visit import Visit
from webop.errors import APIError, APIForbiddenError, APINotFoundError
from webop.handling.handlers import WebhookType

_SUBJECT = "configurations"
_RESOURCES = ", ".join(resource.plural for resource in KINDS.values())


async def list_names(visit: Visit) -> list[str] | Finding:
    """Return the names of the operator's configurations; or what prevents to know them.

    Raises:
        APIError: the API server is not available.
    """
    given = visit.options.managed or visit.settings.admission.managed
    if given:
        return [given]
    names: dict[str, None] = {}
    try:
        for resource in KINDS.values():
            answer = await visit.read(resource.get_url()) or {}
            names.update(dict.fromkeys(select_marked(answer.get("items") or ())))
    except APIForbiddenError:
        rule = f"{{apiGroups: [{GROUP}], resources: [{_RESOURCES}], verbs: [list]}}"
        return warn(
            _SUBJECT,
            "this account may not list them",
            f"Name them: --managed NAME, as in settings.admission.managed; or grant {rule}.",
        )
    if not names:
        return warn(
            _SUBJECT,
            "no replica of webop keeps any in this cluster",
            "Set settings.admission.managed in the operator; or, if they are made by hand, name "
            "them: --managed NAME.",
        )
    return list(names)


async def fetch_configurations(visit: Visit, name: str) -> list[Configuration] | Finding:
    """Read both configurations of a name; or tell why they cannot be read.

    Raises:
        APIConnectionError: the API server is not available.
    """
    try:
        return [
            parse_configuration(reason, name, await _fetch(visit, reason, name)) for reason in KINDS
        ]
    except APIForbiddenError as exc:
        return note(_SUBJECT, f"{name} cannot be read: {exc}", "Run it as the operator's account.")


async def _fetch(visit: Visit, reason: WebhookType, name: str) -> Json | None:
    """Read a configuration as somebody who may get it; or, as operators, may patch it.

    An empty patch changes nothing, and returns the object.

    Raises:
        APIError: the account may do neither.
    """
    path = KINDS[reason].get_url(name=name)
    try:
        return await visit.read(path)
    except APIForbiddenError as forbidden:
        try:
            return await visit.ask("PATCH", path, {}, content_type=MERGE_PATCH, is_dry=True)
        except APINotFoundError:
            return None
        except APIError:
            raise forbidden from None
