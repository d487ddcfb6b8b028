"""The floor of the comparison: an endpoint that does nothing, in Starlette under uvicorn."""

from __future__ import annotations

import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route


async def answer(request: Request) -> Response:
    review = orjson.loads(await request.body())
    response = {"uid": review["request"]["uid"], "allowed": True}
    content = {"apiVersion": review["apiVersion"], "kind": "AdmissionReview", "response": response}
    return Response(orjson.dumps(content), media_type="application/json")


app = Starlette(routes=[Route("/{id}", answer, methods=["POST"])])
