"""Daemons of objects that vanish between two listings, as after "410 Gone": no watch tells of them.

Events go to the controller directly: a real API server keeps its history for minutes.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import webop
from tests.kit.operators import FINALIZER, build_settings
from tests.kit.timeline import Timeline
from webop.client.api import Client
from webop.client.auth.vault import Vault
from webop.context.memos import Memo, Memos
from webop.context.operator_context import OperatorContext
from webop.events.loggers import Poster
from webop.lifecycles import get_default_lifecycle
from webop.objects.resources import Resource
from webop.reactor.controller import Controller
from webop.reactor.queue import SharedSlots, WorkQueue
from webop.reactor.reconciler import Reconciler
from webop.reactor.resource_context import ResourceContext

WIDGETS = Resource("tests.webop.dev", "v1", "widgets", kind="Widget", namespaced=True)


def build_object(name: str, version: int = 1) -> dict[str, Any]:
    metadata = {
        "name": name,
        "namespace": "default",
        "uid": f"uid-of-{name}",
        "resourceVersion": str(version),
        "finalizers": [FINALIZER],
    }
    return {"metadata": metadata, "spec": {"name": name}}


@pytest.mark.feature("DMN-03", "EVT-10", "CON-05")
async def test_daemons_stop_when_their_object_is_missing_in_a_new_listing(
    registry: webop.OperatorRegistry,
) -> None:
    timeline = Timeline()

    @webop.daemon("widgets", registry=registry, id="fn")
    async def fn(spec: webop.Spec, stopped: webop.DaemonStopped, **_: Any) -> None:
        name = spec["name"]
        timeline.note(f"begun {name}")
        await stopped.wait()
        # The last known state is still there to be looked at.
        why = webop.DaemonStoppingReason.RESOURCE_DELETED
        timeline.note(f"ended {spec['name']} {stopped.is_set(why)}")

    settings = build_settings()
    operator = OperatorContext(
        settings=settings,
        registry=registry,
        memos=Memos(Memo()),
        lifecycle=get_default_lifecycle(),
        identity="test",
        poster=Poster(settings),
    )
    async with Client(Vault(), settings.networking) as client, asyncio.TaskGroup() as group:
        handlers = registry.handlers_of(registry.collect_selectors())
        queue = WorkQueue("widgets", SharedSlots())
        ctx = ResourceContext(operator, client, WIDGETS, handlers, queue)
        reconciler = Reconciler(ctx, spawn=group.create_task)
        controller = Controller(
            reconciler,
            spawn=group.create_task,
            spawn_indexing=group.create_task,
            queue=queue,
            on_indexed=lambda: None,
        )
        controller.set_paused(None)
        for names in (["kept", "vanished"], ["kept"]):
            controller.begin_listing()
            for name in names:
                controller.apply_event(None, build_object(name))
            controller.finish_listing()
            for name in names:
                await timeline.wait(f"begun {name}")
        await timeline.wait("ended vanished True")
        assert not timeline.of("ended kept True")
        assert len(controller.uids) == 1
        assert len(operator.memos) == 1
        await controller.drain(5)
    await timeline.wait("ended kept False")
