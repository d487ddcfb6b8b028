"""Replicas of several versions that come, go and die by chance: what holds at any moment."""

from __future__ import annotations

import datetime as dt
import random

import pytest

from tests.admission.planning import SERVICE, Actor, Cluster, build_webhook

_VERSIONS: tuple[dict[str, str], ...] = (
    {"a": "rs", "b": "r"},
    {"b": "st", "c": "r"},
    {"c": "rst", "a": "st", "d": "r"},
)
_STEPS = 60


class Story:
    """What happens to one configuration, step by step, with the promises checked after each."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.cluster = Cluster()
        self.actors: list[Actor] = []
        self.told = [f"seed {seed}"]
        # Whether all replicas look before anything else happens, and have one address.
        self.is_prompt = seed % 2 == 0

    def go_on(self) -> None:
        """Let one thing happen."""
        before = self.list_targets()
        actions = [self.start, self.look, self.look, self.look, self.leave, self.kill, self.wait]
        self.chance.choice(actions)()
        self.check(before)
        if self.is_prompt:
            self.look_all()
            self.check_resources(before)

    def start(self) -> None:
        """Start a replica of some version, at the common address or at one of its own."""
        if len(self.actors) < 5:
            version = self.chance.choice(_VERSIONS)
            number = len(self.told)
            own = [] if self.is_prompt else [f"https://{number}"]
            url = self.chance.choice([SERVICE, SERVICE, *own])
            webhooks = [build_webhook(name, targets) for name, targets in version.items()]
            actor = Actor(self.cluster, f"r{number}", *webhooks, url=url, ca=f"ca{number}")
            self.actors.append(actor)
            self.note(f"start of {number} with {version} at {url}")
            actor.look()

    def look(self) -> None:
        """Have a replica look at the configuration."""
        if self.actors:
            actor = self.chance.choice(self.actors)
            self.note(f"look of {actor.name}")
            actor.look()

    def look_all(self) -> None:
        """Have all replicas look, as they do within a minute."""
        for actor in self.actors:
            actor.look()

    def leave(self) -> None:
        """Have a replica exit gracefully."""
        if self.actors:
            actor = self.take()
            self.note(f"exit of {actor.name}")
            actor.leave()

    def kill(self) -> None:
        """Kill a replica."""
        if self.actors:
            self.note(f"kill of {self.take().name}")

    def wait(self) -> None:
        """Let so much time pass that dead ones are found out, while the others do their duty."""
        self.note("time")
        for _ in range(4):
            self.cluster.now += dt.timedelta(seconds=60)
            self.look_all()

    def take(self) -> Actor:
        return self.actors.pop(self.chance.randrange(len(self.actors)))

    def note(self, text: str) -> None:
        self.told.append(text)

    def list_targets(self) -> set[tuple[str, str]]:
        """Return what is in force: names with resources."""
        names = self.cluster.webhooks
        return {(name, target) for name in names for target in self.cluster.get_targets(name)}

    def check(self, before: set[tuple[str, str]]) -> None:
        """Check what is promised of webhooks, after what was in force before."""
        story = "\n".join(self.told)
        webhooks, records = self.cluster.webhooks, self.cluster.find().records
        served = {name.removesuffix(".x") for record in records.values() for name in record.served}
        missing = {name for name, _ in before} & served - set(webhooks)
        assert not missing, f"{missing}: missing\n{story}"
        if self.cluster.find().stale:
            return  # some are dead, and nobody has looked since
        assert set(webhooks) <= served, f"nobody serves a webhook\n{story}"
        for name, webhook in webhooks.items():
            mine = [record for record in records.values() if f"{name}.x" in record.served]
            places = {f"{record.address['url']}/{name}" for record in mine}
            assert webhook["clientConfig"]["url"] in places, f"{name} leads to nobody\n{story}"
        wanted = {pem.split()[2] for record in records.values() for pem in record.cas}
        assert all(set(trusted) == wanted for trusted in self.cluster.trusted), story
        assert records or not webhooks, story

    def check_resources(self, before: set[tuple[str, str]]) -> None:
        """Check what is promised of the resources of webhooks, once all have looked."""
        story = "\n".join(self.told)
        records, after = self.cluster.find().records.values(), self.list_targets()
        # A webhook has to stay: what serves it now may be for other resources altogether.
        changed = {name for name, _ in before} - {name for name, _ in before & after}
        for name, target in before | after:
            judging = [m for m in records if f"g/v1/{target}" in m.get_targets(f"/{name}")]
            if (name, target) in after:
                assert judging or not self.actors, f"{name} of {target}: of nobody\n{story}"
            else:
                assert not judging, f"{name} of {target} is missing\n{story}"
            if (name, target) not in before and name not in changed:
                assert len(judging) == len(records), f"{name} of {target} came too early\n{story}"

    def settle(self) -> None:
        """Come to rest: then all is as the living want it, and nothing is written any more."""
        self.wait()
        self.look_all()
        self.cluster.writes = 0
        self.look_all()
        assert self.cluster.writes == 0, "\n".join(self.told)


@pytest.mark.parametrize("seed", range(200))
def test_the_promises_hold_at_any_moment_and_all_comes_to_rest(seed: int) -> None:
    story = Story(seed)
    for _ in range(_STEPS):
        story.go_on()
    story.settle()
    while story.actors:
        before = story.list_targets()
        story.leave()
        story.check(before)
