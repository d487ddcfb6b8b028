"""A record of each state of each object that the API server stores, by an undisturbed watch."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import json

import httpx

from tests.kit.operators import DIFFBASE, FINALIZER, Json, get_annotations, get_progress, is_handled
from tools.long_runs import read_clock
from tools.soak.evidence import CHANGES, Life

_PAUSE = 0.2  # seconds between two attempts to watch
_SILENCE = 15.0  # seconds; the API server can be stopped


class LifeRecorder:
    """Follows the objects of a namespace by a watch.

    Attributes:
        lives: all objects that ever existed, by uid.
        gaps: how often states were missed: a restarted API server has no earlier events.
    """

    def __init__(self, http: httpx.AsyncClient, url: str) -> None:
        self.lives: dict[str, Life] = {}
        self.gaps = -1  # the first list is no gap
        self._http, self._url = http, url
        self._version = ""

    async def watch(self) -> None:
        """Watch until cancelled."""
        while True:
            # A line that is cut off with its connection is not valid JSON.
            with contextlib.suppress(httpx.HTTPError, json.JSONDecodeError):
                if not self._version:
                    await self._list()
                await self._follow()
            await asyncio.sleep(_PAUSE)

    async def _list(self) -> None:
        answer = (await self._http.get(self._url)).raise_for_status().json()
        self.gaps += 1
        present = {item["metadata"]["uid"] for item in answer["items"]}
        for item in answer["items"]:
            self.note("LISTED", item)
        for life in self.lives.values():
            if life.gone is None and life.uid not in present:
                life.gone = read_clock()
        self._version = answer["metadata"]["resourceVersion"]

    async def _follow(self) -> None:
        options = {"watch": "true", "resourceVersion": self._version, "allowWatchBookmarks": "true"}
        timeout = httpx.Timeout(10, read=_SILENCE)
        async with self._http.stream("GET", self._url, params=options, timeout=timeout) as answer:
            if answer.status_code == 410:
                self._version = ""
            answer.raise_for_status()
            async for line in answer.aiter_lines():
                event = json.loads(line)
                if event["type"] == "ERROR":
                    self._version = "" if event["object"].get("code") == 410 else self._version
                    return
                self._version = event["object"]["metadata"]["resourceVersion"]
                if event["type"] != "BOOKMARK":
                    self.note(event["type"], event["object"])

    async def list_unsettled(self) -> list[str]:
        """Return the names of objects whose newest state is not handled."""
        try:
            items = (await self._http.get(self._url)).raise_for_status().json()["items"]
        except httpx.HTTPError as exc:
            return [repr(exc)]
        return [
            item["metadata"]["name"]
            for item in items
            if "deletionTimestamp" in item["metadata"] or not is_handled(item)
        ]

    def note(self, event: str, body: Json) -> None:
        now, metadata, spec = read_clock(), body["metadata"], body["spec"]
        uid = metadata["uid"]
        life = self.lives.setdefault(uid, Life(uid, metadata["name"]))
        life.version = spec["version"]
        finalizers = metadata.get("finalizers") or []
        life.is_followed = (metadata.get("labels") or {}).get("followed") == "yes"
        if "deletionTimestamp" in metadata and life.marked is None:
            life.marked = now
        if life.had_finalizer and FINALIZER not in finalizers:
            life.recorded.setdefault(("deleted", 0), now)
        life.had_finalizer |= FINALIZER in finalizers
        if event == "DELETED":
            life.gone = now
        self._note_outcomes(life, body, now)
        if spec.get("bad") or spec.get("stamped") is not True:
            life.oddities.append(f"{life.name} was admitted: {spec}")
        progress = {key: json.loads(text) for key, text in get_progress(body).items()}
        delays = {
            h: _parse(record["delayed"]) for h, record in progress.items() if "delayed" in record
        }
        if delays:
            life.delays[int(metadata["resourceVersion"])] = delays
        marked = "marked, " if life.marked is not None else ""
        life.history.append(
            f"{now:.3f} {event} rv {metadata['resourceVersion']}, version {life.version}, {marked}"
            f"finalizers {len(finalizers)}, status {body.get('status')}, records {progress}"
        )

    def _note_outcomes(self, life: Life, body: Json, now: float) -> None:
        for handler, result in (body.get("status") or {}).items():
            if handler not in CHANGES:
                continue
            if result["uid"] != life.uid:
                life.oddities.append(f"{life.name} has got the result {result} of {handler}")
            life.recorded.setdefault((handler, result["version"]), now)
        text = get_annotations(body).get(DIFFBASE)
        if text:
            # It is empty if others changed the object during its creation: an update must follow.
            unknown = {"birth": body["spec"]["birth"], "version": 0}
            stored = unknown | (json.loads(text).get("spec") or {})
            if stored["birth"] != body["spec"]["birth"]:
                life.oddities.append(f"{life.name} has got the state of another one: {stored}")
            life.recorded.setdefault(("all", stored["version"]), now)


def _parse(moment: str) -> float:
    time = dt.datetime.fromisoformat(moment)
    return (time if time.tzinfo else time.replace(tzinfo=dt.UTC)).timestamp()
