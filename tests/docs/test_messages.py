"""The page of messages has all that the code says, in the words of a log."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

from tests.kit.processes import Workshop
from tools.site.messages import collect, find_entries
from webop.errors import ClusterError

if TYPE_CHECKING:
    from webop.controlplane.cluster import LocalCluster

OPERATOR = """
import webop

@webop.on.startup()
def configure(settings, **_):
    settings.admission.server = webop.WebhookServer(port=0)
    settings.admission.managed = "messages.example.com"
    settings.admission.shutdown_delay = 0

@webop.on.validate("configmaps", namespace_selector=NAMESPACE)
def check(name, **_):
    if name == "bad":
        raise webop.AdmissionError("No.", code=422)

@webop.on.create("configmaps", backoff=0.1)
def publish(retry, **_):
    if not retry:
        raise KeyError("title")

@webop.on.create("configmaps")
def wait(retry, **_):
    if not retry:
        raise webop.TemporaryError("Not there yet.", delay=0.1)

@webop.on.create("configmaps", retries=1)
def break_down(**_): 1/0

@webop.on.delete("configmaps")
def give_up(**_):
    raise webop.PermanentError("No.")

@webop.daemon("configmaps")
async def idle(stopped, **_):
    await stopped.wait()

@webop.on.event("absentees.example.com")
def look(**_): ...
"""


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('logger.info("It is stopping (%s).", name)', "INFO: It is stopping (<name>)."),
        (
            'log.log(logging.DEBUG, "%.1f s of %d %% are over", self.delay, n)',
            "DEBUG: <delay> s of",
        ),
        ('raise LoginError(f"There is no {kind!r}.")', "Exceptions: There is no <kind>."),
        ('click.echo(f"Found {len(found)} objects of it.")', "Command line: Found <found> objects"),
        ('text = f"It is lost: {a.why}"', "Parts of messages: It is lost: <why>"),
        ('"""Return what it is."""', ""),
        ('raise KeyError(f"{key}")', ""),
    ],
)
def test_texts_are_found(source: str, expected: str) -> None:
    found = [f"{entry.group}: {entry.text}" for entry in collect("webop.example", source)]
    assert " ".join(found).startswith(expected)
    assert bool(found) == bool(expected)


async def test_each_line_of_an_operator_is_found_on_the_page(
    connected: Workshop, webop_cluster: LocalCluster, webop_namespace: str
) -> None:
    selector = {"matchLabels": {"kubernetes.io/metadata.name": webop_namespace}}
    path = connected.write(OPERATOR.replace("NAMESPACE", repr(selector)))
    arguments = ("-n", webop_namespace, "--verbose", "--log-format=json", path)
    async with connected.start(*arguments) as command:
        await command.wait_for("The operator is running")
        await command.wait_for("Webhooks in ")
        good, bad = (
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}
            for name in ("good", "bad")
        )
        await asyncio.to_thread(webop_cluster.apply, good, namespace=webop_namespace)
        with pytest.raises(ClusterError, match=r"No\."):
            await asyncio.to_thread(webop_cluster.apply, bad, namespace=webop_namespace)
        await command.wait_for("Denied (422)")
        await command.wait_for("handled: ")
        assert await command.stop() == 0
    lines = [json.loads(line) for line in command.output.splitlines() if line.startswith("{")]
    messages = dict.fromkeys(line["message"] for line in lines)
    assert len(messages) > 15
    assert [message for message in messages if not find_entries(message)] == []
