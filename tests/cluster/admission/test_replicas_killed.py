"""Processes that share webhook configurations, and are killed or stopped by signals."""

from __future__ import annotations

import signal

import pytest

from tests.kit.managed_webhooks import Site
from tests.kit.processes import Workshop
from tests.kit.webhook_replicas import Crew
from webop.handlers.model import WebhookType

_HANDLERS = """
import webop

@webop.on.startup()
def configure(settings, **_):
    settings.posting.enabled = False
    settings.admission.server = webop.WebhookServer(port=0)
    settings.admission.managed = {name!r}
    settings.admission.replica_lifetime = {lifetime}
    settings.admission.shutdown_delay = 0

@webop.on.validate({group!r}, 'v1', 'parcels', id='x')
@webop.on.mutate({group!r}, 'v1', {mutated!r}, id='y')
def check(**_):
    raise webop.AdmissionError('No.', code=403)
"""


def write(
    workshop: Workshop, site: Site, lifetime: float, mutated: str = "parcels"
) -> tuple[str, ...]:
    group = site.objects.kind.group
    text = _HANDLERS.format(name=site.name, lifetime=lifetime, group=group, mutated=mutated)
    return str(workshop.write(text)), "--standalone", "-n", site.objects.namespace


async def test_a_process_that_was_paused_for_longer_than_it_counts_comes_back(
    workshop: Workshop, site: Site
) -> None:
    crew = Crew(site)
    args = write(workshop, site, lifetime=1.5)
    async with workshop.start(*args, KUBECONFIG=str(site.cluster.kubeconfig)) as command:
        await site.wait_for_names("x", "y")
        (webhook,) = await site.get_webhooks(WebhookType.VALIDATING) or []
        url = webhook["clientConfig"]["url"].rpartition("/")[0]
        other = await crew.start("x", replica_lifetime=1.5, url=url)
        command.process.send_signal(signal.SIGSTOP)
        await site.wait_for_names("x")
        await other.leave()
        assert await site.has_names()
        command.process.send_signal(signal.SIGCONT)
        await site.wait_for_names("x", "y")
        assert len(await site.get_records()) == 1
        await command.stop(signal.SIGTERM)
    assert await crew.is_clean()


_FAILING = """
@webop.on.startup()
def fail_later(settings, **_):
    from webop.servers.limits import get_hosting
    inner = settings.admission.server

    async def serve(fn):
        async for config in inner(fn):
            yield config
            await get_hosting().confirm(config)  # the webhooks are in the cluster
            break
        raise RuntimeError('This certificate cannot be parsed.')

    settings.admission.server = serve
"""


@pytest.mark.parametrize("end", ["an error", "SIGTERM in a pod"])
async def test_nobody_opens_the_webhooks_by_ending_the_operator(
    workshop: Workshop, site: Site, end: str
) -> None:
    args = write(workshop, site, lifetime=180)
    variables = {"KUBECONFIG": str(site.cluster.kubeconfig)}
    if end == "an error":
        workshop.write((workshop.folder / args[0]).read_text() + _FAILING)
    else:
        variables["KUBERNETES_SERVICE_HOST"] = "127.0.0.1"
    async with workshop.start(*args, **variables) as command:
        if end == "an error":
            await command.wait_for("This certificate cannot be parsed.")
            assert await command.process.wait() == 1
        else:
            await site.wait_for_names("x", "y")
            await command.stop(signal.SIGTERM)
    assert await site.has_names("x", "y")
    assert (await site.create("any")).status_code == 500
