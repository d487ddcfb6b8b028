"""Admission webhooks of the comparison: the same judge for both servers, and what it is asked."""

from __future__ import annotations

import base64
import ssl
import tempfile
import threading
import zlib
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import orjson

from webop.servers.certificates.certs import build_certificate_self_signed
from webop.testing.apiserver import Json
from webop.testing.apiserver.webhooks import Review

from .requests import GROUP

PROBE = "probe-"
_NAMES = {
    "mutating": ("first.hooks.example.com", "second.hooks.example.com"),
    "validating": ("third.hooks.example.com", "fourth.hooks.example.com"),
}


class Judge:
    """Decides by what is asked; the fourth webhook never denies, as both orders are possible.

    Attributes:
        asked: the names of the webhooks with the requests of their reviews.
    """

    def __init__(self) -> None:
        self.asked: list[tuple[str, Json]] = []
        self._patches = 0

    def judge(self, name: str, review: Json) -> Json:
        """Return the AdmissionReview that answers another one."""
        request: Json = review["request"]
        self.asked.append((name, request))
        raw = request.get("object") or request.get("oldObject") or {}
        spec = raw.get("spec")
        own = raw["metadata"].get("generateName") or raw["metadata"].get("name")
        topic = [name, request["operation"], own, spec, raw.get("status")]
        chance = zlib.crc32(orjson.dumps(topic, option=orjson.OPT_SORT_KEYS)) % 100
        response: Json = {"uid": request["uid"], "allowed": True}
        if name.startswith("fourth") or own == PROBE:
            chance = 99
        if chance < 10:
            response |= {"allowed": False, "status": {"code": 403, "message": "no", "reason": "No"}}
        elif chance < 15:
            response["allowed"] = False
        elif chance < 20:
            response |= {"allowed": False, "status": {"code": 200, "message": "so be it"}}
        elif chance < 25:
            response["uid"] = "another"
        elif chance < 30:
            return {"apiVersion": review["apiVersion"], "kind": review["kind"]}
        elif chance < 60 and request.get("object") and name in _NAMES["mutating"]:
            self._patches += 1
            response |= _build_patch(name, chance, self._patches)
        return {"apiVersion": review["apiVersion"], "kind": review["kind"], "response": response}

    def admit(self, review: Review) -> Json:
        """Answer the simulated server."""
        return self.judge(review.webhook["name"], orjson.loads(orjson.dumps(review)))


def _build_patch(name: str, chance: int, count: int) -> Json:
    """Return the part of a response that changes an object, never to what it was before."""
    spec = {"size": chance % 9, "maybe": f"{count}"}
    operations: list[Json] = [{"op": "add", "path": "/spec", "value": spec}]
    if chance < 45:
        operations.append({"op": "add", "path": "/metadata/labels", "value": {"by": name[:5]}})
    if chance < 33:
        operations.append({"op": "test", "path": "/spec/size", "value": "wrong"})
    patch = base64.b64encode(orjson.dumps(operations)).decode()
    return {"patchType": "JSONPatch", "patch": patch}


class HookServer:
    """The webhooks of the real server: HTTPS on the loopback interface, in threads.

    Args:
        judge: gets the path and the content of a request; returns the answer.
    """

    def __init__(self, judge: Callable[[str, Json], Json]) -> None:
        pair = build_certificate_self_signed(["127.0.0.1"])
        self.ca = pair.cert
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        with tempfile.TemporaryDirectory() as folder:
            cert, key = Path(folder, "cert.pem"), Path(folder, "key.pem")
            cert.write_bytes(pair.cert)
            key.write_bytes(pair.key)
            context.load_cert_chain(cert, key)

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                length = int(self.headers["content-length"])
                review = orjson.loads(self.rfile.read(length))
                name = self.path.partition("?")[0].strip("/")
                content = orjson.dumps(judge(name, review))
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: Any) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.url = f"https://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def build_configurations(self, name: str, namespace: str) -> dict[str, Json]:
        """Return the webhook configurations by their paths: of all four ways to be selective."""
        group = "admissionregistration.k8s.io"
        selectors: dict[str, Json] = {
            "first": {},
            "second": {
                "objectSelector": {"matchExpressions": [{"key": "colour", "operator": "Exists"}]},
                "failurePolicy": "Ignore",
            },
            "third": {
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
            },
            "fourth": {"objectSelector": {"matchLabels": {"colour": "red"}}},
        }
        result = {}
        for way, hooks in _NAMES.items():
            webhooks = [
                self._build_webhook(hook, selectors[hook.partition(".")[0]]) for hook in hooks
            ]
            result[f"/apis/{group}/v1/{way}webhookconfigurations"] = {
                "apiVersion": f"{group}/v1",
                "kind": f"{way.capitalize()}WebhookConfiguration",
                "metadata": {"name": name},
                "webhooks": webhooks,
            }
        return result

    def _build_webhook(self, name: str, selectors: Json) -> Json:
        rule = {
            "apiGroups": [GROUP],
            "apiVersions": ["v1"],
            "operations": ["*"],
            "resources": ["*", "*/status"],
            "scope": "*" if name.startswith("first") else "Namespaced",
        }
        ca = base64.b64encode(self.ca).decode()
        return {
            "name": name,
            "clientConfig": {"url": f"{self.url}/{name}", "caBundle": ca},
            "rules": [rule],
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
            **selectors,
        }
