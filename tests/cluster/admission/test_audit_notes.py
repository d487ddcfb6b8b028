"""What the audit log of a real API server has of reviews."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import webop
from tests.kit.managed_webhooks import Site, open_site
from tests.kit.operators import Kind, connect, define_kinds
from tests.kit.waiting import eventually

if TYPE_CHECKING:
    from webop.controlplane.cluster import LocalCluster

Json = dict[str, Any]

AUDIT_POLICY = """
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  verbs: [create]
  resources:
  - group: verdicts.webop.dev
- level: None
"""
KIND = Kind("verdicts.webop.dev", "boxes", "Box")


@pytest.fixture(scope="module")
def audit_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("audit") / "audit.log"


@pytest.fixture(scope="module")
def cluster(audit_log: Path) -> Iterator[LocalCluster]:
    from webop.controlplane.cluster import LocalCluster  # noqa: PLC0415 - only if it is used

    policy = audit_log.with_name("policy.yaml")
    policy.write_text(AUDIT_POLICY)
    flags = [f"--audit-policy-file={policy}", f"--audit-log-path={audit_log}"]
    with LocalCluster(apiserver_flags=flags) as started:
        yield started


@pytest.fixture(scope="module")
def kind(cluster: LocalCluster) -> Kind:
    return next(define_kinds(cluster, [KIND]))


@pytest.fixture
async def site(cluster: LocalCluster, kind: Kind) -> AsyncIterator[Site]:
    namespace = await asyncio.to_thread(cluster.create_namespace)
    async with connect(cluster) as client, open_site(cluster, client, namespace, kind) as opened:
        yield opened


async def test_notes_of_handlers_are_in_the_audit_log(site: Site, audit_log: Path) -> None:
    @webop.on.validate(*site.names, id="check")
    def check(audit_annotations: dict[str, str], name: str, **_: Any) -> None:
        audit_annotations["size"] = "checked"
        audit_annotations["not/valid"] = "x"
        audit_annotations["x" * 63] = "ä"
        if name == "four":
            raise webop.AdmissionError("Meh!")

    @webop.on.mutate(*site.names, id="fill_in")
    def fill(audit_annotations: dict[str, str], **_: Any) -> None:
        audit_annotations["filled"] = "yes"

    async def read_notes(name: str) -> Json:
        """Return the annotations of our webhooks in the entry of a creation."""
        text = await asyncio.to_thread(audit_log.read_text)
        for line in text.splitlines():
            entry = json.loads(line)
            if entry["objectRef"].get("name") == name:
                notes = entry["annotations"].items()
                return {key: value for key, value in notes if f".{site.name}/" in key}
        return {}

    async with site.run():
        await site.wait_for_names("check", "fill-in")
        assert (await site.create("three")).status_code == 201
        assert (await site.create("four")).status_code == 500
        for name in ("three", "four"):
            await eventually(partial(read_notes, name), "the entry in the audit log")
            assert await read_notes(name) == {
                f"check.{site.name}/size": "checked",
                f"check.{site.name}/{'x' * 63}": "ä",
                f"fill-in.{site.name}/filled": "yes",
            }
