"""Parts of Kubernetes' own API that several projects use."""

from __future__ import annotations

import webop


@webop.Atomic()
class SecretKeySelector(webop.Struct):
    """A key of a Secret, or of a ConfigMap."""

    key: str
    name: str = ""
    optional: bool | None = None


class LabelSelectorRequirement(webop.Struct):
    """A requirement of a label selector."""

    key: str
    operator: str
    values: list[str] | None = None


@webop.Atomic()
class LabelSelector(webop.Struct):
    """Selects objects by their labels."""

    match_expressions: list[LabelSelectorRequirement] | None = None
    match_labels: dict[str, str] | None = None
