"""What Kubernetes Events can be about: objects as dicts, and as client libraries have them."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import kubernetes
import kubernetes.dynamic.resource
import pykube
import pytest

import webop
from webop.events.event_queue import Message
from webop.events.loggers import Poster, current_poster

BODY: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "pod", "namespace": "ns", "uid": "u1", "labels": {"a": "b"}},
    "spec": {"containers": [{"name": "main", "image": "busybox"}]},
}
REFERENCE = {"apiVersion": "v1", "kind": "Pod", "name": "pod", "namespace": "ns", "uid": "u1"}
MODELS = kubernetes.client
DYNAMIC: Any = kubernetes.dynamic.resource  # without annotations


class Keeper(Poster):
    """Keeps what is to be posted."""

    def __init__(self) -> None:
        super().__init__(webop.OperatorSettings())
        self.messages: list[Message] = []

    def put(self, message: Message) -> None:
        self.messages.append(message)

    @property
    def references(self) -> list[Any]:
        return [message.reference for message in self.messages]


@pytest.fixture
def keeper() -> Iterator[Keeper]:
    keeper = Keeper()
    token = current_poster.set(keeper)
    yield keeper
    current_poster.reset(token)


def build_pod(api_version: str | None = "v1", kind: str | None = "Pod") -> Any:
    metadata = MODELS.V1ObjectMeta(name="pod", namespace="ns", uid="u1", labels={"a": "b"})
    return MODELS.V1Pod(api_version=api_version, kind=kind, metadata=metadata)


def without(*names: str) -> dict[str, Any]:
    return {key: value for key, value in BODY.items() if key not in names}


OBJECTS: dict[str, Any] = {
    "dict": BODY,
    "Body": webop.Body(BODY),
    "model of kubernetes": build_pod(),
    "dict of a model": build_pod().to_dict(),
    "dynamic object of kubernetes": DYNAMIC.ResourceInstance(None, BODY),
    "object of pykube": pykube.Pod(None, BODY),
    "item of a list of pykube": pykube.Pod(None, without("apiVersion", "kind")),
    "attributes as in Kubernetes": SimpleNamespace(**BODY),
}


@pytest.mark.feature("KEV-04", "REF-74")
@pytest.mark.parametrize("name", OBJECTS)
def test_events_are_about_objects_of_all_libraries(keeper: Keeper, name: str) -> None:
    webop.info(OBJECTS[name], reason="R")
    assert keeper.references == [REFERENCE]


@pytest.mark.feature("KEV-04")
def test_events_are_about_many_objects_of_any_kind(keeper: Keeper) -> None:
    every = list(OBJECTS.values())
    webop.info(every, reason="list")
    webop.warn(tuple(every), reason="tuple")
    webop.event(OBJECTS.values(), type="Own", reason="view")
    webop.exception((item for item in [every, every]), exc=ValueError("nested"))
    assert keeper.references == [REFERENCE] * 5 * len(every)


@pytest.mark.feature("KEV-04")
@pytest.mark.parametrize("obj", [5, None, "text", b"bytes", [5]], ids=repr)
def test_what_is_not_an_object_is_refused(keeper: Keeper, obj: Any) -> None:
    with pytest.raises(TypeError, match="must be about Kubernetes objects"):
        webop.info(obj, reason="x")
