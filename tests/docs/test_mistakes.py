"""The mistakes on the page about them draw the messages that it shows."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.kit.cli_runner import fail
from tests.kit.pages import DOCS
from tests.kit.processes import Workshop

if TYPE_CHECKING:
    from webop.controlplane.cluster import LocalCluster

_PAGE = (DOCS / "help" / "troubleshooting.md").read_text(encoding="utf-8")
PAGE = _PAGE.partition("\n## Mistakes in the code\n")[2].partition("\n## ")[0]
FAILURE = "… failed: "
ROWS = re.findall(r"^\| `([^`]+)` \|", PAGE, re.MULTILINE)
WARNING = "coroutine 'AsyncClient.apply' was never awaited"
FAILURES = [row.removeprefix(FAILURE) for row in ROWS if row.startswith(FAILURE)]
MESSAGES = [row for row in ROWS if not row.startswith((FAILURE, WARNING))]

CREATE = "@webop.on.create('pods')\n"
STARTUP = "@webop.on.startup()\ndef configure(settings, **_):\n    settings."
FN = "\ndef fn(**_): ..."
CODE = {
    "There is no option 'retry'": f"@webop.on.create('pods', retry=5){FN}",
    "timeout= must be": f"@webop.on.create('pods', timeout='5'){FN}",
    "value= requires": f"@webop.on.create('pods', value='x'){FN}",
    "labels['app']": f"@webop.on.create('pods', labels={{'app': None}}){FN}",
    "@webop.on.create needs": f"@webop.on.create{FN}",
    "@webop.on.startup needs": f"@webop.on.startup{FN}",
    "The name of a resource": f"@webop.on.validate('pods/status'){FN}",
    "The handler fn() must accept": f"{CREATE}def fn(spec): ...",
    "The handler fn() takes": f"{CREATE}def fn(spec, /, **_): ...",
    "The handler fn() requires": f"{CREATE}def fn(nam, **_): ...",
    "The handler fn() is a generator function": f"{CREATE}def fn(**_): yield 1",
    "when= must be": (f"async def is_large(**_): ...\n@webop.on.create('pods', when=is_large){FN}"),
    "This handler is a Fn": (
        "class Fn:\n    def __call__(self, **_): ...\nwebop.on.create('pods')(Fn())"
    ),
    "There is no setting": f"{STARTUP}admision.server = None",
    "settings.posting.level": f"{STARTUP}posting.level = 'loud'",
    "webop.WebhookServer()": f"{STARTUP}admission.server = webop.WebhookServer(prot=9443)",
    "Two handlers": f"{CREATE}def fn(**_): ...\n{CREATE}def fn(**_): ...",
    "Timer 'fn' is called only": f"@webop.timer('pods'){FN}",
    "Timer 'fn' is called without a pause": f"@webop.timer('pods', interval=0){FN}",
    "Ignoring the unknown environment": f"@webop.on.create('pods'){FN}",
    "… No module named 'kopf'": (
        "import sys\n"
        "sys.path[:] = [path for path in sys.path if 'site-packages' not in path]\n"
        "import kopf"
    ),
    "There are no handlers in …. Decorate": "def fn(**_): ...",
    "There are no handlers in …. The code": f"import kopf\n@kopf.on.create('pods'){FN}",
    "configmapss": f"@webop.on.event('configmapss'){FN}",
    "deployments.app is": f"@webop.on.event('app', 'deployments'){FN}",
    "deployments.v2.apps": f"@webop.on.event('apps', 'v2', 'deployments'){FN}",
}
CALLS = {
    "KeyError: 'size'": "spec['size']",
    "TypeError: 'Spec'": "spec['size'] = 1",
    "AttributeError: 'StatusPatch'": "patch.status.phase = 'Ready'",
    "TypeError: 'coroutine'": "client.get('pods', 'one')['spec']",
    "LookupError: patch.apply()": "patch.apply()",
}
RUNNING = ("… No module named", "configmapss", "deployments.")
LOCAL = [message for message in MESSAGES if not message.startswith(RUNNING)]


def find_code(message: str, codes: dict[str, str]) -> str:
    (code,) = (code for beginning, code in codes.items() if message.startswith(beginning))
    return code


def get_code(message: str) -> str:
    return f"import webop\n{find_code(message, CODE)}"


def test_each_mistake_on_the_page_is_made_by_a_test() -> None:
    assert len(MESSAGES) == len(CODE)
    assert len(FAILURES) == len(CALLS)


@pytest.mark.parametrize("message", LOCAL)
def test_the_page_shows_what_is_said_to_a_mistake(message: str, tmp_path: Path) -> None:
    path = tmp_path / "handlers.py"
    path.write_text(get_code(message))
    variables = {"WEBOP_POSTING__LEVLE": "10"} if "variable" in message else {}
    output = fail("-A", path, folder=tmp_path, env=variables)
    assert re.search(re.escape(message).replace("…", ".+"), output), output


@pytest.mark.parametrize("message", [each for each in MESSAGES if each not in LOCAL])
async def test_the_page_shows_what_a_running_operator_says_to_a_mistake(
    message: str, connected: Workshop
) -> None:
    async with connected.start("-A", connected.write(get_code(message))) as command:
        await command.wait_for(message.rpartition("…")[2])


async def test_the_page_shows_what_the_log_says_to_a_mistake_in_a_call(
    connected: Workshop, webop_cluster: LocalCluster, webop_namespace: str
) -> None:
    code = "import webop\n"
    for number, message in enumerate(FAILURES):
        line = find_code(message, CALLS)
        code += f"@webop.on.create('configmaps', id='fn{number}')\n"
        is_async = "async " if "client" in line else ""
        code += f"{is_async}def fn(spec, patch, client, **_):\n    {line}\n"
    code += "@webop.on.create('configmaps', id='lost')\n"
    code += "async def fn(client, **_):\n    client.apply({})\n"
    async with connected.start("-n", webop_namespace, connected.write(code)) as command:
        config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "one"}}
        await asyncio.to_thread(webop_cluster.apply, config, namespace=webop_namespace)
        for number, message in enumerate(FAILURES):
            await command.wait_for(f"Handler 'fn{number}'{FAILURE[1:]}{message}")
        await command.wait_for("Handler 'lost' succeeded")
    assert WARNING in ROWS
    assert re.search(rf"py\.warnings +\[WARNING \].*{re.escape(WARNING)}", command.output)
