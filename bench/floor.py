"""The lower bound of the comparison: an endpoint that allows all, in Starlette under uvicorn."""

from __future__ import annotations

import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route


async def review(request: Request) -> Response:
    request_body = orjson.loads(await request.body())
    response = {"uid": request_body["request"]["uid"], "allowed": True}
    content = {
        "apiVersion": request_body["apiVersion"],
        "kind": "AdmissionReview",
        "response": response,
    }
    return Response(orjson.dumps(content), media_type="application/json")


app = Starlette(routes=[Route("/{id}", review, methods=["POST"])])
