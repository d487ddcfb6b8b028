"""Reviews as API servers send them, and an app to send them to, with no cluster.

:func:`serve` runs ``webop.create_app()`` as an ASGI server would; what it gives posts reviews.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Unpack

import httpx
from asgi_lifespan import LifespanManager

import webop
from webop import Resource

if TYPE_CHECKING:
    from webop.app import AppOptions

Json = dict[str, Any]

WIDGETS = Resource("tests.webop.dev", "v1", "widgets", kind="Widget")
KEX = ("kopf.dev", "v1", "kopfexamples")
USER: Json = {"username": "admin", "uid": "admin", "groups": ["system:masters"]}
UID = "1ca13837-ad60-4c9e-abb8-86f29d6c0e84"


def build_object(spec: Any = None, **metadata: Any) -> Json:
    """Return an object; further arguments go to its metadata."""
    return {
        "apiVersion": "kopf.dev/v1",
        "kind": "KopfExample",
        "metadata": {"name": "kex", "namespace": "ns", **metadata},
        "spec": {} if spec is None else spec,
    }


def build_review(
    new: Json | None = None,
    old: Json | None = None,
    *,
    resource: tuple[str, str, str] = KEX,
    kind: str = "KopfExample",
    **request: Any,
) -> Json:
    """Return a review; of what has happened to the object unless ``operation`` is given."""
    body = build_object() if new is None and old is None else new
    operation = "CREATE" if old is None else "DELETE" if new is None else "UPDATE"
    group, version, plural = resource
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": UID,  # first, as API servers write it
            "kind": {"group": group, "version": version, "kind": kind},
            "resource": {"group": group, "version": version, "resource": plural},
            "name": "kex",
            "namespace": "ns",
            "operation": operation,
            "userInfo": USER,
            "object": body,
            "oldObject": old,
            "dryRun": False,
            **request,
        },
    }


async def post_review(
    port: int, spec: Any, path: str = "check", resource: Resource = WIDGETS
) -> Json:
    """Post a review to a webhook server, whose certificate is of no interest here."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    kind = (resource.group, resource.version, resource.plural)
    review = build_review(build_object(spec), resource=kind, kind=resource.kind or "")
    async with httpx.AsyncClient(verify=context, trust_env=False) as http:
        answer = await http.post(f"https://127.0.0.1:{port}/{path}", json=review)
    response: Json = answer.json()["response"]
    return response


def read_patch(response: Mapping[str, Any]) -> list[Json]:
    """Return the JSON patch of a response; nothing if it has none."""
    if "patch" not in response:
        return []
    assert response["patchType"] == "JSONPatch"
    operations: list[Json] = json.loads(base64.b64decode(response["patch"]))
    return operations


@dataclass
class Site:
    http: httpx.AsyncClient

    async def post(self, review: object, path: str = "/", **headers: str) -> httpx.Response:
        return await self.http.post(path, content=json.dumps(review), headers=headers)

    async def review(
        self, new: Json | None = None, old: Json | None = None, *, path: str = "/", **request: Any
    ) -> Json:
        answer = await self.post(build_review(new, old, **request), path)
        assert answer.status_code == 200, answer.text
        body: Json = answer.json()
        assert body["response"]["uid"] == UID
        response: Json = body["response"]
        return response

    async def answers(self, status: int, text: str = "") -> bool:
        """Tell whether /readyz answers with a status and a text."""
        answer = await self.get("/readyz")
        return answer.status_code == status and text in answer.text

    async def get(self, path: str) -> httpx.Response:
        return await self.http.get(path)


class Lifespan:
    """What an ASGI server knows of the life of an app (ASGI lifespan protocol)."""

    def __init__(self, app: Any) -> None:
        self.messages: list[Json] = []
        self._sent: asyncio.Queue[Json] = asyncio.Queue()
        self._requests: asyncio.Queue[Json] = asyncio.Queue()
        self.task = asyncio.create_task(app({"type": "lifespan"}, self._requests.get, self._send))

    async def _send(self, message: Json) -> None:
        self.messages.append(message)
        await self._sent.put(message)

    def begin(self, phase: str) -> None:
        self._requests.put_nowait({"type": f"lifespan.{phase}"})

    async def finish(self) -> Json:
        async with asyncio.timeout(10):
            return await self._sent.get()

    async def pass_through(self, phase: str) -> Json:
        """Tell the app to start or to stop, and wait for what it answers."""
        self.begin(phase)
        return await self.finish()


@contextlib.asynccontextmanager
async def serve(**options: Unpack[AppOptions]) -> AsyncIterator[Site]:
    app = webop.create_app(**options)
    async with LifespanManager(app), connect(app) as http:
        yield Site(http)


async def send_review(new: Json | None = None, old: Json | None = None, **request: Any) -> Json:
    """Send one review to an app of the default registry; return the response."""
    async with serve() as site:
        return await site.review(new, old, **request)


@contextlib.asynccontextmanager
async def connect(app: Any) -> AsyncIterator[httpx.AsyncClient]:
    """Give a client of an app, whether it runs or not."""
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://webop") as http:
        yield http
