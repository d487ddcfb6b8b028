"""Rights that handlers declare: the requests that they send to the API server."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from webop.objects.resources import Selector, parse_selector

VERBS: Final = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")
_FORM: Final = re.compile(r"((?:\w[\w.-]*/){0,2}\w[\w.-]*):([a-z]+(?:,[a-z]+)*)")
_HINT: Final = (
    "must be [GROUP/]KIND[/SUBRESOURCE]:VERB,VERB, such as 'secrets:get,list' or "
    "'apps/deployments/scale:patch'"
)
#: All groups that are not of Kubernetes itself have dots in their names.
_GROUP: Final = re.compile(r"core|apps|autoscaling|batch|extensions|policy|.+\..+")
_VERSION: Final = re.compile(r"v\d+((alpha|beta)\d+)?")


@dataclass(frozen=True)
class Right:
    """Verbs for a kind, or for a subresource of it."""

    text: str
    selector: Selector
    subresource: str
    verbs: tuple[str, ...]

    def __str__(self) -> str:
        return f"The right '{self.text}'"


def parse_right(text: str) -> Right:
    """Return a right of a text such as "secrets:get,list", "apps/deployments/scale:patch".

    Kinds have the names that decorators take, or a group before them ("core" for the core API).

    Raises:
        ValueError: it has another form, or a verb does not exist.
    """
    matched = _FORM.fullmatch(text.replace(" ", ""))
    if matched is None:
        raise ValueError(f"{text!r} {_HINT}")
    names, verbs = matched[1].split("/"), tuple(matched[2].split(","))
    if unknown := [verb for verb in verbs if verb not in VERBS]:
        raise ValueError(f"{text!r} {_HINT}; {unknown[0]!r} is none of {', '.join(VERBS)}")
    if version := next(filter(_VERSION.fullmatch, names), None):
        raise ValueError(f"{text!r} {_HINT}; rights are for all versions: leave out {version!r}")
    has_group = len(names) == 3 or (len(names) == 2 and bool(_GROUP.fullmatch(names[0])))
    group = [names.pop(0)] if has_group else []
    name, subresource = (*names, "")[:2]
    group = [""] if group == ["core"] else group
    return Right(text, parse_selector(*group, name), subresource, verbs)
