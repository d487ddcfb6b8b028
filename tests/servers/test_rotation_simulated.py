"""The rotation of shared certificates: many replicas in a world of virtual time.

Their clocks differ, they look at different moments, their writes conflict, answers get lost, API
servers take notice late. At every second, all must serve what all API servers trust.
"""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from webop.servers.certificates.rotation import Rotation, Step
from webop.servers.certificates.secretdata import Leaf, Shared

START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
POLL = 10.0
SETTLE = 15.0
NAMES = ("svc.ns.svc",)
LIFETIME = dt.timedelta(hours=3)


def make(number: int, expiry: dt.datetime) -> Leaf:
    return Leaf(b"leaf%d" % number, b"key%d" % number, b"ca%d" % number, expiry, frozenset(NAMES))


@dataclass
class World:
    """The Secret with its versions, the managed configuration, and the time."""

    random: random.Random
    ticks: float = 0.0
    shared: Shared | None = None
    version: int = 0
    uids: int = 0
    made: int = 0
    #: What API servers were told to trust, with the time; they take up to the settling time.
    told: list[tuple[float, tuple[bytes, ...]]] = field(default_factory=list)
    promotions: int = 0
    retirements: int = 0
    conflicts: int = 0
    away_until: float = 0.0

    def put(self, shared: Shared | None) -> None:
        if shared is not None and not shared.uid:
            self.uids += 1
            shared = replace(shared, uid=f"u{self.uids}")
        self.shared = shared
        self.version += 1

    def list_trusted(self) -> set[bytes]:
        """Return what all API servers trust, however late each of them is."""
        before = [bundle for time, bundle in self.told if time <= self.ticks - SETTLE]
        recent = [told for told in self.told if told[0] > self.ticks - SETTLE]
        bundles = before[-1:] + [bundle for _, bundle in recent]
        self.told = self.told[len(before[:-1]) :]
        return set.intersection(*map(set, bundles)) if bundles else set()


@dataclass
class Replica:
    """A replica that looks at the Secret at moments of its own, by a clock of its own."""

    world: World
    skew: float
    next_look: float
    pending: tuple[Step, int, Shared] | None = None
    confirm_at: float | None = None
    cut_off_until: float = 0.0
    has_been_ready: bool = False

    def __post_init__(self) -> None:
        def make_next(names: tuple[str, ...], lifetime: dt.timedelta) -> Leaf:
            self.world.made += 1
            return make(self.world.made, self.get_time() + lifetime)

        self.rotation = Rotation(NAMES, LIFETIME, POLL, SETTLE, overlap=600, make=make_next)

    def get_time(self) -> dt.datetime:
        return START + dt.timedelta(seconds=self.world.ticks + self.skew)

    def run(self) -> None:
        """Do what is due at this moment; a write comes later than what it goes by."""
        world = self.world
        if world.ticks < max(world.away_until, self.cut_off_until):
            return
        rotation = self.rotation
        # Not by what a replica knew before it was cut off for long: real configurations have what
        # all advertise.
        if self.next_look > world.ticks and self.confirm_at is not None:
            if world.ticks >= self.confirm_at:
                self.confirm_at = None
                self.has_been_ready = True
                world.told.append((world.ticks, rotation.cas))
                rotation.trusted_since = rotation.trusted_since or world.ticks
        elif (
            self.next_look > world.ticks
            and rotation.trusted_since is not None
            and world.random.random() < 0.01
        ):
            # For other reasons, and maybe by what is not in the Secret any more.
            world.told.append((world.ticks, rotation.cas))
        if self.pending is not None:
            self.write()
        elif world.ticks >= self.next_look:
            self.look()

    def look(self) -> None:
        world = self.world
        self.next_look = world.ticks + POLL
        self.rotation.observe(world.shared or Shared(), self.get_time(), world.ticks)
        for _ in range(10):
            step, content = self.rotation.decide()
            if step is Step.WAIT:
                return
            if step is Step.ADVERTISE:
                self.confirm_at = world.ticks + world.random.uniform(0, 60)
            elif step is not Step.LOAD:
                self.pending = (step, world.version, content)
                return

    def write(self) -> None:
        world = self.world
        assert self.pending is not None
        step, version, shared = self.pending
        self.pending = None
        self.next_look = world.ticks  # it looks again, whatever comes of it
        if version != world.version:
            world.conflicts += 1
            return
        world.promotions += step is Step.PROMOTE
        world.retirements += step is Step.RETIRE
        world.put(shared)
        if world.random.random() < 0.2:
            self.next_look = world.ticks + POLL  # the answer is lost


def simulate(world: World, hours: float, disturb: Callable[[World, list[Replica]], None]) -> None:
    """Run five replicas, whose clocks differ by up to a minute; check them every second."""
    replicas = [
        Replica(world, world.random.uniform(-30, 30), world.random.uniform(0, 10)) for _ in range(5)
    ]
    while world.ticks < hours * 3600:
        world.ticks += 1
        disturb(world, replicas)
        for replica in world.random.sample(replicas, len(replicas)):
            replica.run()
        if world.ticks < 300:
            continue  # API servers call nobody before the first configuration
        trusted = world.list_trusted()
        for replica in replicas:
            leaf = replica.rotation.leaf
            is_ready = leaf is not None and replica.has_been_ready
            assert not is_ready or (leaf and leaf.ca in trusted), (world.ticks, leaf)
            assert leaf is None or replica.get_time() < leaf.expiry


@pytest.mark.parametrize("seed", range(2))
def test_every_replica_is_trusted_at_every_moment_of_many_rotations(seed: int) -> None:
    world = World(random.Random(seed))
    simulate(world, 12, lambda world, replicas: None)
    assert world.promotions >= 4
    assert world.retirements >= 4
    assert len(world.shared.cas if world.shared else ()) <= 2


@pytest.mark.parametrize("seed", range(2))
def test_every_replica_is_trusted_when_the_secret_is_deleted_and_replicas_come_and_go(
    seed: int,
) -> None:
    def disturb(world: World, replicas: list[Replica]) -> None:
        if world.ticks % 1500 == 0:
            world.put(None)
            # Users are impatient: a rollout just after that.
            index = world.random.randrange(len(replicas))
            replicas[index] = Replica(world, world.random.uniform(-30, 30), world.ticks + 1)
        if world.ticks % 1777 == 0 and world.shared is not None:
            world.put(replace(world.shared, renew_at=None))
        if world.ticks % 1999 == 0 and world.shared is not None:
            world.put(replace(world.shared, leaf=None))

        if world.ticks % 613 == 0:
            world.away_until = world.ticks + world.random.uniform(0, 200)
        if world.ticks % 419 == 0:
            replica = world.random.choice(replicas)
            replica.cut_off_until = world.ticks + world.random.uniform(0, 200)

    world = World(random.Random(seed))
    simulate(world, 6, disturb)
    assert world.promotions >= 10
    assert world.conflicts > 0
