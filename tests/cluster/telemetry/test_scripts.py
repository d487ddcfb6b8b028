"""Traces of a script's requests; and scripts and operators without OpenTelemetry."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import webop
from tests.cluster.telemetry.conftest import Spans, get_id, get_parent, get_trace, read

MAPS = webop.Resource("", "v1", "configmaps", kind="ConfigMap", namespaced=True)
ANSWER = b'{"kind":"ConfigMapList","apiVersion":"v1","metadata":{},"items":[]}'


async def test_a_request_in_a_span_hands_it_on_to_the_api_server(
    spans: Spans, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heads: list[str] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            heads.append(head.decode())
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(ANSWER) + ANSWER)

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    config = {
        "current-context": "x",
        "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
        "clusters": [{"name": "x", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "x", "user": {"token": "secret-token"}}],
    }
    (tmp_path / "config").write_text(yaml.safe_dump(config))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    async with server, webop.client.connect() as client:
        await client.list(MAPS)
        with spans.provider.get_tracer("mine").start_as_current_span("own") as own:
            await client.list(MAPS, labels={"secret-label": "x"})
    span = spans.find("GET configmaps")
    assert get_parent(span) == own.get_span_context().span_id
    assert read(span)["server_port"] == port
    plain, traced = (head.lower() for head in heads)
    assert "traceparent" not in plain
    assert f"\r\ntraceparent: 00-{get_trace(span):032x}-{get_id(span):016x}-01\r\n" in traced
    assert "secret" not in spans.text


CODE = """
import asyncio, json, sys

if sys.argv[1] == "absent":
    sys.modules["opentelemetry"] = None

import httpx, webop
from tests.kit.reviews import build_review, serve
from tests.kit.operators import build_settings

@webop.on.validate("kopfexamples", id="check")
def check(**_):
    pass

async def main():
    webop.configure(log_format=webop.LogFormat.JSON)
    async with serve(settings=build_settings()) as site:
        answer = await site.post(build_review(), traceparent=f"00-{1:032x}-{1:016x}-01")
    print(answer.json()["response"]["allowed"])

asyncio.run(main())
print(any(name.startswith("opentelemetry.") for name in sys.modules))
"""


@pytest.mark.parametrize("case", ["absent", "not imported"])
def test_without_opentelemetry_reviews_are_served_and_nothing_of_it_is_imported(case: str) -> None:
    command = [sys.executable, "-c", CODE, case]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.split() == ["True", "False"], done.stderr
