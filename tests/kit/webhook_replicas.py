"""Replicas that share webhook configurations on a real API server: what tests of them need."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import webop
from tests.kit.forwarder import Forwarder
from tests.kit.managed_webhooks import Site
from tests.kit.waiting import eventually
from webop.admission.configurations.management import ConfigurationManager
from webop.runtime.operator import Operator, OperatorOptions

SERVICE = "https://localhost:1"  # where nobody answers: what is configured is refused


@contextlib.asynccontextmanager
async def open_crew(site: Site) -> AsyncIterator[Crew]:
    crew = Crew(site)
    yield crew
    for member in crew.members:
        await member.kill()


@dataclass
class Member:
    """A replica, as far as the configurations know of it: it serves nothing."""

    manager: ConfigurationManager
    task: asyncio.Task[None]
    context: Any

    async def wait_applied(self) -> Member:
        """Wait until it has done its first work."""
        waiter = asyncio.create_task(self.manager.is_applied.wait())
        await asyncio.wait({waiter, self.task}, return_when=asyncio.FIRST_COMPLETED)
        waiter.cancel()
        assert not self.task.done(), self.task.exception()
        return self

    async def leave(self, *, is_asked: bool = True) -> None:
        await self.manager.withdraw(is_asked=is_asked)
        await self.kill()

    async def kill(self) -> None:
        """Exit with no farewell."""
        self.task.cancel()
        await asyncio.wait([self.task])

    def know(self, *resources: webop.Resource) -> None:
        """Have it discover the resources of the cluster."""
        self.context.cluster_view.update(resources)


@dataclass
class Crew:
    site: Site
    members: list[Member] = field(default_factory=list)

    def begin(self, *names: str, **options: Any) -> Member:
        """Start a replica.

        Args:
            names: the ids of its handlers: ``x`` validates, ``x!`` does so persistently,
                ``x?`` does not say so, ``~x`` mutates.
            options: ``url`` is where it claims to serve, ``ca`` its bundle, ``client`` is its
                client; others are settings of admission.
        """
        client = options.pop("client", self.site.client)
        registry = webop.OperatorRegistry()
        for name in names:
            decorate = webop.on.mutate if name.startswith("~") else webop.on.validate
            declare = decorate(
                *self.site.names,
                id=name.strip("~!?"),
                persistent=None if name.endswith("?") else name.endswith("!"),
                registry=registry,
            )
            declare(lambda **_: None)
        settings = webop.OperatorSettings()
        config: webop.WebhookClientConfig = {"url": options.pop("url", SERVICE)}
        if "ca" in options:
            config["caBundle"] = options.pop("ca")
        settings.admission.managed = self.site.name
        for name, value in options.items():
            setattr(settings.admission, name, value)
        context = Operator(OperatorOptions(registry=registry, settings=settings)).context
        manager = ConfigurationManager(context, client, lambda: True)
        member = Member(manager, asyncio.create_task(manager.run()), context)
        member.know(self.site.objects.resource)
        manager.announce(config)
        self.members.append(member)
        return member

    async def start(self, *names: str, **options: Any) -> Member:
        return await self.begin(*names, **options).wait_applied()

    async def is_clean(self) -> bool:
        """Tell whether there is neither a webhook nor a replica in the cluster."""
        names = await self.site.has_names()
        return names and not await self.site.get_records()

    async def is_allowed(self, name: str) -> bool:
        answer = await self.site.create(name, {}, "?dryRun=All")
        return answer.status_code == 201

    async def wait_allowed(self, name: str = "any") -> None:
        """Wait until objects pass: the API server has learnt that there are no webhooks."""
        await eventually(lambda: self.is_allowed(name), "the end of the webhooks")


class Balancer(Forwarder):
    """One address for several servers, as a Service is: connections go to the chosen one."""

    def __init__(self) -> None:
        super().__init__()
        self.backends: list[str] = []

    def choose(self, number: int) -> None:
        """Send all that come from now on to another server; cut the connections that are there."""
        self.server = self.backends[number]
        self.cut()

    async def serve(self, fn: webop.WebhookFn) -> AsyncIterator[webop.WebhookClientConfig]:
        """Serve with a certificate of its own behind the common address."""
        async for config in webop.WebhookServer(port=0, host="localhost")(fn):
            self.backends.append(config["url"] or "")
            self.server = self.backends[0]
            yield {**config, "url": f"https://localhost:{self.port}"}
