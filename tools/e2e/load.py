"""Creates Notes while a command runs, such as an upgrade of the operator that checks them.

``python -m tools.e2e.load -- helm upgrade …`` uses the cluster of ``KUBECONFIG`` by kubectl, which
repeats no request. It exits with 1 if the command failed, if a webhook could not be called, if a
wrong Note was created, or if a Note has no ConfigMap a minute later.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from dataclasses import dataclass, field
from typing import Any

from tools.soak.steady_load import run_steadily

_BAD = 10  # each tenth Note is one that the webhook must deny
_PATIENCE = 60.0  # seconds until each Note has its ConfigMap
_ATTEMPTS = 10
_PAUSE = 1.0  # between attempts


@dataclass
class Tally:
    created: set[str] = field(default_factory=set)
    denied: int = 0
    repeated: int = 0
    problems: list[str] = field(default_factory=list)


@dataclass
class Load:
    attempts: int
    tally: Tally = field(default_factory=Tally)

    async def act(self, number: int) -> None:
        name, is_bad = f"note-{number}", number % _BAD == _BAD - 1
        note = {
            "apiVersion": "e2e.webop.dev/v1",
            "kind": "Note",
            "metadata": {"name": name, "namespace": "default", "labels": {"e2e": "load"}},
            "spec": {"text": "bad" if is_bad else name},
        }
        code, printed = await run_kubectl("create", "-f", "-", stdin=json.dumps(note))
        for _ in range(self.attempts - 1):
            if "failed calling webhook" not in printed:
                break
            self.tally.repeated += 1
            await asyncio.sleep(_PAUSE)
            code, printed = await run_kubectl("create", "-f", "-", stdin=json.dumps(note))
        if code == 0 and not is_bad:
            self.tally.created.add(name)
        elif code and is_bad and "denied the request: spec.text is bad" in printed:
            self.tally.denied += 1
        else:
            self.tally.problems.append(f"{name}: {printed.strip()}")


async def run_kubectl(*args: str, stdin: str | None = None) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        *("kubectl", *args),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    printed, _ = await process.communicate((stdin or "").encode())
    return process.returncode or 0, printed.decode()


async def run(command: list[str], rate: float, attempts: int) -> int:
    load = Load(attempts)
    tally = load.tally
    async with run_steadily(load.act, rate):
        process = await asyncio.create_subprocess_exec(*command)
        if await process.wait():
            tally.problems.append(f"The command failed with {process.returncode}.")
    missing = await wait_for_config_maps(tally.created)
    tally.problems += [f"{name} has no ConfigMap." for name in sorted(missing)]
    await run_kubectl("delete", "notes.e2e.webop.dev", "-n", "default", "-l", "e2e=load")
    total = (
        f"{len(tally.created)} created, {tally.denied} denied as they must be, "
        f"{tally.repeated} repeated, {len(tally.problems)} problems"
    )
    sys.stdout.write("\n".join([total, *tally.problems[:20]]) + "\n")
    is_good = tally.created and tally.denied and not tally.problems
    return 0 if is_good else 1


async def wait_for_config_maps(names: set[str]) -> set[str]:
    """Return the Notes that have no ConfigMap with their text when the time is over."""
    missing = names
    for _ in range(int(_PATIENCE)):
        _, printed = await run_kubectl("get", "configmaps", "-n", "default", "-o", "json")
        found: list[dict[str, Any]] = json.loads(printed)["items"]
        missing = names - {one.get("data", {}).get("text") for one in found}
        if not missing:
            break
        await asyncio.sleep(1)
    return missing


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rate", type=float, default=5, help="Notes per second")
    parser.add_argument(
        "--repeat",
        action="store_true",
        help="repeat a request whose webhook could not be called, for at most ten seconds: "
        "a killed pod stays in the Service until its node notices",
    )
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    attempts = _ATTEMPTS if options.repeat else 1
    return asyncio.run(run(options.command, options.rate, attempts))


if __name__ == "__main__":
    sys.exit(main())
