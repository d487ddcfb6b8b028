"""Users that create, change, delete and re-create objects all the time, in spite of faults."""

from __future__ import annotations

import asyncio
import random
import re
import secrets
import time
from collections import Counter

import httpx

from tests.kit.operators import Json, Kind

_FILLING = 60.0  # actions per second until all objects are there
_PAUSE = 0.3  # seconds between attempts to create an object whose predecessor is not gone
_ATTEMPTS = 40
_LABELLED = 0.1  # the share of objects with a timer, and of those with a daemon
_BAD = 0.2  # the share of creations that the webhook must deny first
_FAILED = re.compile(r"^failed: |: 5\d\d$")
_AT_ONCE = 100  # actions in flight, if there are no responses


class Users:
    """Act on a fixed number of names, one at a time on each.

    Attributes:
        counts: the number of actions and of failures, by kind.
    """

    def __init__(self, http: httpx.AsyncClient, url: str, kind: Kind, seed: int) -> None:
        self.counts: Counter[str] = Counter()
        self._http, self._url, self._kind = http, url, kind
        self._chance = random.Random(f"{seed} users")
        self._busy: set[str] = set()
        self._is_over = False

    async def act(self, names: list[str], rate: float) -> None:
        """Create all objects, then act until :meth:`stop`; finish running actions."""
        filling = list(names)
        due = time.monotonic()
        async with asyncio.TaskGroup() as group:
            while not self._is_over:
                if len(self._busy) < _AT_ONCE:
                    name = filling.pop() if filling else self._chance.choice(names)
                    if name not in self._busy:
                        self._busy.add(name)
                        group.create_task(self._visit(name))
                # Do not catch up after everything was stopped.
                due = max(due + 1 / (_FILLING if filling else rate), time.monotonic() - 1)
                await asyncio.sleep(max(0.0, due - time.monotonic()))

    def stop(self) -> None:
        """Begin no more actions."""
        self._is_over = True

    async def _visit(self, name: str) -> None:
        try:
            await self._do_something(name)
        except (httpx.HTTPError, ValueError) as exc:
            self.counts[f"failed: {type(exc).__name__}"] += 1
        finally:
            self._busy.discard(name)

    async def _do_something(self, name: str) -> None:
        found = await self._http.get(f"{self._url}/{name}")
        if found.status_code == 404:
            await self._create(name)
        elif found.status_code == 200:
            body, luck = found.json(), self._chance.random()
            if luck < 0.7:
                await self._change(name, body)
            else:
                self._take("deleted", await self._http.delete(f"{self._url}/{name}"))
                if luck < 0.85:
                    await self._create(name)

    async def _change(self, name: str, body: Json) -> None:
        spec = {**self._build_spec(), "version": body["spec"]["version"] + 1}
        # The change must not hit another object of the same name.
        metadata = {"uid": body["metadata"]["uid"]}
        answer = await self._http.patch(
            f"{self._url}/{name}",
            json={"metadata": metadata, "spec": spec},
            headers={"content-type": "application/merge-patch+json"},
        )
        self._take("changed", answer)

    async def _create(self, name: str) -> None:
        """Create an object, maybe after a bad one, as soon as its predecessor is gone."""
        labels = {
            label: "yes" for label in ("timed", "followed") if self._chance.random() < _LABELLED
        }
        body = {
            "apiVersion": self._kind.resource.api_version,
            "kind": self._kind.kind,
            "metadata": {"name": name, "labels": labels},
            "spec": {**self._build_spec(), "version": 1, "birth": secrets.token_hex(8)},
        }
        if self._chance.random() < _BAD:
            bad = {**body, "spec": {"version": 1, "birth": "", "bad": True}}
            self._take("bad one created", await self._http.post(self._url, json=bad))
        for _ in range(_ATTEMPTS):
            answer = await self._http.post(self._url, json=body)
            if answer.status_code != 409 or self._is_over:
                break
            await asyncio.sleep(_PAUSE)
        self._take("created", answer)

    def _build_spec(self) -> Json:
        is_slow = self._chance.random() < 0.05
        return {
            "pace": self._chance.uniform(1, 4) if is_slow else self._chance.uniform(0, 0.05),
            "fails": self._chance.choices([0, 1, 2, 3], [85, 8, 4, 3])[0],
            "delay": self._chance.choice([0.5, 1, 3]),
            "doomed": self._chance.random() < 0.03,
        }

    def list_failures(self) -> list[str]:
        """Return what has failed although the API server was there."""
        return [f"{count} {what}" for what, count in self.counts.items() if _FAILED.search(what)]

    def _take(self, what: str, answer: httpx.Response) -> None:
        if answer.is_success:
            self.counts[what] += 1
        elif answer.status_code == 400 and "This is bad." in answer.text:
            self.counts["bad one denied"] += 1
        else:
            self.counts[f"{what}: {answer.status_code}"] += 1
