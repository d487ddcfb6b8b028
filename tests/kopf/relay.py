"""The same file of handlers, run by Kopf and by webop in turns, on the same objects.

A file does not know who runs it: it begins with :data:`_PREAMBLE`, where the framework is imported
under the name ``kopf``. Its handlers note their calls in a file, which outlives the processes.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.kit.operators import Json, Objects, get_progress
from tests.kit.processes import Command, Workshop
from tests.kit.waiting import eventually

KOPF, WEBOP = "kopf", "webop"

_PREAMBLE = """
import importlib, json, os, time

kopf = importlib.import_module(os.environ['RELAY_SIDE'])
TURN = int(os.environ['RELAY_TURN'])
KIND = os.environ['RELAY_KIND']

def note(handler, kwargs):
    names = ('name', 'reason', 'retry', 'old', 'new', 'diff')
    call = {key: kwargs[key] for key in names if key in kwargs}
    call |= {'turn': TURN, 'handler': handler, 'time': time.time()}
    with open(os.environ['RELAY_CALLS'], 'a') as file:
        file.write(json.dumps(call, default=simplify) + '\\n')

def simplify(value):
    return dict(value) if hasattr(value, 'keys') else list(value)

@kopf.on.startup()
def be_quiet(settings, **_):
    settings.posting.enabled = False

@kopf.on.login()
def log_in(**kwargs):
    return kopf.login_with_kubeconfig(**kwargs)  # the client libraries take long to import

@kopf.on.create(KIND, labels={'relay': 'fence'})
def fence(**_): ...
"""


@dataclass(frozen=True)
class Swap:
    """Who comes first, how it is stopped, and who comes then."""

    first: str
    stop: signal.Signals
    second: str

    def __str__(self) -> str:
        return f"{self.first}-{self.stop.name}-{self.second}"


SWAPS = [Swap(KOPF, signal.SIGKILL, WEBOP), Swap(WEBOP, signal.SIGTERM, KOPF)]
"""Both directions, each with one kind of stop: what is on the objects does not depend on it."""


@dataclass
class Relay:
    """The runs of one file of handlers, in turns.

    Attributes:
        objects: of the kind that the handlers are for, in the only namespace that is served.
        turn: the number of the present or the latest run, from 1.
    """

    folder: Path
    kubeconfig: Path
    objects: Objects
    turn: int = 0
    _fences: itertools.count[int] = field(default_factory=itertools.count)

    def write(self, code: str) -> None:
        """Write the file of handlers; ``TURN`` and ``KIND``, ``note`` and ``kopf`` are known."""
        self._path.write_text(_PREAMBLE + code)

    @contextlib.asynccontextmanager
    async def run(self, side: str, *options: str) -> AsyncIterator[Command]:
        """Let one of the two run, standalone by default; it is killed at the end of the block."""
        self.turn += 1
        variables = {
            "KUBECONFIG": str(self.kubeconfig),
            "RELAY_CALLS": str(self._calls_path),
            "RELAY_KIND": self.objects.resource.name,
            "RELAY_SIDE": side,
            "RELAY_TURN": str(self.turn),
        }
        command = await Workshop(self.folder).spawn(
            (side, "run"),
            *(options or ("--standalone",)),
            *("-n", self.objects.namespace, self._path),
            log=f"{self.turn}-{side}.log",
            **variables,
        )
        try:
            yield command
        except AssertionError as exc:
            exc.add_note(f"The end of the log of {side}:\n{command.output[-5000:]}")
            raise
        finally:
            await command.kill()

    @property
    def _path(self) -> Path:
        return self.folder / "relay_handlers.py"

    @property
    def _calls_path(self) -> Path:
        return self.folder / "calls.jsonl"

    def read_calls(self, name: str | None = None, turn: int | None = None) -> list[Json]:
        """Return the calls about an object, or all, those of one turn maybe, in order."""
        path = self._calls_path
        lines = path.read_text().splitlines() if path.exists() else []
        calls: list[Json] = [json.loads(line) for line in lines]
        return [c for c in calls if name in (None, c["name"]) and turn in (None, c["turn"])]

    def list_handlers(self, name: str, turn: int | None = None) -> list[str]:
        """Return who was called about an object, sorted; as often as it was."""
        return sorted(call["handler"] for call in self.read_calls(name, turn))

    async def wait_for_call(self, name: str, handler: str, turn: int) -> None:
        await eventually(
            lambda: handler in self.list_handlers(name, turn),
            f"A call of {handler} for {name} in turn {turn}",
        )

    async def wait_for_records(self, name: str, **states: str) -> Json:
        """Wait until an object has progress records; see :func:`has_records`."""
        return await self.objects.wait(name, lambda body: has_records(body, **states))

    async def pass_fence(self) -> None:
        """Wait until the present operator has seen all that has happened to the objects before."""
        name = f"fence-{next(self._fences)}"
        await self.objects.make(name, labels={"relay": "fence"})


def get_records(body: Json) -> dict[str, Any]:
    """Return the progress records in the annotations of an object, by their names."""
    texts = get_progress(body).items()
    return {key: json.loads(text) for key, text in texts if text.startswith("{")}


def has_records(body: Json, **states: str) -> bool:
    """Tell whether the records are there: ``success``, ``failure`` or ``delayed`` by names."""
    records = get_records(body)
    return all(records.get(name, {}).get(state) for name, state in states.items())
