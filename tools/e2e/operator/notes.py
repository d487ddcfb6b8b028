"""The operator of the tests on nodes: it checks Notes, and keeps a ConfigMap for each."""

from __future__ import annotations

import os
from typing import Any

import webop


class NoteSpec(webop.Struct):
    text: str


@webop.resource("e2e.webop.dev", "v1")
class Note(webop.Model):
    spec: NoteSpec


@webop.on.startup()
def configure(settings: webop.OperatorSettings, **_: Any) -> None:
    """Serve the webhooks behind the Service in a cluster, otherwise on a free local port."""
    is_local = "E2E_LOCAL" in os.environ
    server = webop.WebhookServer(port=0) if is_local else webop.WebhookServiceServer()
    settings.admission.server = server
    settings.admission.managed = "notes.e2e.webop.dev"


@webop.on.validate(Note, id="not-bad")
def refuse_bad_texts(spec: NoteSpec, **_: Any) -> None:
    if spec.text == "bad":
        raise webop.AdmissionError("spec.text is bad")


@webop.reconcile(Note, owns=["configmaps"])
async def keep_config_map(spec: NoteSpec, name: str, children: webop.Children, **_: Any) -> None:
    child = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}
    await children.apply({**child, "data": {"text": spec.text}})
