"""Turn the manifests of an operator into a Helm chart.

Flow: the manifests are built with stand-ins for the names and the image; the templates are these
texts, with values in place of the stand-ins. So a chart renders the same objects.
"""

from __future__ import annotations

import dataclasses
import re
import textwrap
from collections.abc import Mapping, Sequence

from webop.cli.manifests.objects import RESOURCES, Request
from webop.cli.yaml_text import dump

# Names that are valid, and that nobody has.
_NAME, _HOME, _IMAGE = "webop-chart-name", "webop-chart-home", "webop-chart-image"
_CANARY = "webop-chart-canary"
_VALUES = {
    _NAME: ".Values.name",
    _HOME: "(.Values.namespace | default .Release.Namespace)",
    _IMAGE: ".Values.image",
    _CANARY: ".Values.canary",
}
_STAND_IN = re.compile("|".join(_VALUES))
# A whole value, not a part of one.
_WHOLE = re.compile(rf"(?<![^\s\[,])(?:{'|'.join(_VALUES)})(?![^\s,}}\]])")
_VERSION = re.compile(r"\d+\.\d+\.\d+(-[\w.-]+)?", re.ASCII)
_REPLICAS = re.compile(r"^  replicas: \d+$", re.MULTILINE)


def prepare(request: Request, *, is_placed: bool) -> Request:
    """Return a request for manifests that :func:`build_chart` accepts.

    If the namespace is given (``is_placed``), it is no value of the chart.
    """
    home = request.home if is_placed else _HOME
    canary = _CANARY if request.canary or request.sharded else None
    return dataclasses.replace(
        request, name=_NAME, home=home, image=_IMAGE, canary=canary, is_chart=True
    )


def build_chart(
    files: Mapping[str, Sequence[str]], request: Request, head: str, *, is_placed: bool
) -> dict[str, str]:
    """Return the texts of a chart by their paths.

    The files are those of the prepared request, the request is the one before that. Each text
    begins with the head.
    """
    deployment = files["deployment"][0]
    replicas = _REPLICAS.search(deployment) if "type: Recreate" not in deployment else None
    tag = request.image.rpartition("/")[2].partition("@")[0].partition(":")[2]
    values = f"# The name of all objects.\n{_dump({'name': request.name})}\n"
    if not is_placed:
        values += "# The namespace of the objects; if it is empty, that of the release.\n"
        values += 'namespace: ""\n'
    values += f"{_dump({'image': request.image})}\n"
    single = "# No value: replicas. Without a Lease, there must be only one.\n\n"
    values += f"{replicas[0].strip()}\n" if replicas else single
    if files["canary"]:
        values += "# The image that a canary tries; if it is empty, there is no canary.\n"
        values += f"{_dump({'canary': request.canary or ''})}\n"
    values += f"resources:\n{textwrap.indent(RESOURCES, '  ')}\n"
    chart = {
        "apiVersion": "v2",
        "name": request.name,
        "description": f"The Kubernetes operator {request.name}.",
        "type": "application",
        "version": tag if _VERSION.fullmatch(tag) else "0.1.0",
        "appVersion": tag or "latest",
    }
    hint = "# These are the defaults. Set others with helm: --set NAME=VALUE, or --values FILE."
    made = {
        "Chart.yaml": f"{head}\n{_dump(chart)}\n",
        "values.yaml": f"{head.splitlines()[0]}\n{hint}\n\n{values}",
    }
    for stem, documents in files.items():
        text = "\n---\n".join([head, *documents]) + "\n"
        is_scalable = bool(replicas) and stem != "canary"
        made[f"templates/{stem}.yaml"] = _build_template(text, is_scalable=is_scalable)
    if files["canary"]:
        text = made["templates/canary.yaml"]
        text = text.replace("\n---\n", "\n{{- if .Values.canary }}\n---\n", 1)
        made["templates/canary.yaml"] = f"{text}{{{{- end }}}}\n"
    return made


def _build_template(text: str, *, is_scalable: bool) -> str:
    """Return manifests with values of the chart in place of stand-ins."""
    text = text.replace("{{", '{{ "{{" }}')
    # With quotes, all values are texts.
    text = _WHOLE.sub(lambda match: f"{{{{ {_VALUES[match[0]]} | quote }}}}", text)
    text = _STAND_IN.sub(lambda match: f"{{{{ {_VALUES[match[0]]} }}}}", text)
    if is_scalable:
        text = _REPLICAS.sub("  replicas: {{ .Values.replicas }}", text)
    resources = textwrap.indent(RESOURCES, " " * 12)
    return text.replace(resources, " " * 12 + "{{- toYaml .Values.resources | nindent 12 }}")


def _dump(value: object) -> str:
    return dump(value, is_flow=False)
