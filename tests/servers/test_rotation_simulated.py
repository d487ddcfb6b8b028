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

from webop.servers.certificates.rotation import (
    MAKING,
    Leaf,
    Memory,
    Moment,
    Pace,
    Shared,
    Step,
    build_next,
    choose_step,
    get_renewal,
    list_advertised,
)

START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
PACE = Pace(poll=10, settle=15, overlap=600)
NAMES = frozenset({"svc.ns.svc"})
LIFETIME = dt.timedelta(hours=3)


def make(number: int, expiry: dt.datetime) -> Leaf:
    return Leaf(b"leaf%d" % number, b"key%d" % number, b"ca%d" % number, expiry, NAMES)


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
        before = [bundle for time, bundle in self.told if time <= self.ticks - PACE.settle]
        recent = [told for told in self.told if told[0] > self.ticks - PACE.settle]
        bundles = before[-1:] + [bundle for _, bundle in recent]
        self.told = self.told[len(before[:-1]) :]
        return set.intersection(*map(set, bundles)) if bundles else set()


@dataclass
class Replica:
    """A replica that looks at the Secret at moments of its own, by a clock of its own."""

    world: World
    skew: float
    next_look: float
    memory: Memory = field(default_factory=Memory)
    pending: tuple[Step, int, Shared] | None = None
    confirm_at: float | None = None
    cut_off_until: float = 0.0

    def get_moment(self) -> Moment:
        ticks = self.world.ticks
        return Moment(START + dt.timedelta(seconds=ticks + self.skew), ticks)

    def run(self) -> None:
        """Do what is due at this moment; a write comes later than what it goes by."""
        world = self.world
        if world.ticks < max(world.away_until, self.cut_off_until):
            return
        if self.confirm_at is not None and world.ticks >= self.confirm_at:
            self.confirm_at = None
            world.told.append((world.ticks, self.memory.authorities))
            self.memory.note_trusted(self.memory.authorities, self.get_moment())
        elif self.memory.trusted and self.next_look > world.ticks and world.random.random() < 0.01:
            # For other reasons, and maybe by what is not in the Secret any more. Only one that
            # was cut off for long is left out: real configurations have what all advertise.
            world.told.append((world.ticks, self.memory.authorities))
        if self.pending is not None:
            self.write()
        elif world.ticks >= self.next_look:
            self.look()

    def look(self) -> None:
        world, memory = self.world, self.memory
        self.next_look = world.ticks + PACE.poll
        memory.observe(world.shared, self.get_moment(), PACE)
        for _ in range(10):
            step = choose_step(world.shared, memory, self.get_moment(), PACE, NAMES)
            if step is Step.WAIT:
                return
            if step is Step.LOAD:
                assert world.shared is not None
                assert world.shared.leaf is not None
                memory.note_loaded(world.shared.leaf, world.shared.uid)
            elif step is Step.ADVERTISE:
                assert world.shared is not None
                bundle = list_advertised(world.shared, memory, self.get_moment(), PACE)
                memory.note_advertised(bundle)
                self.confirm_at = world.ticks + world.random.uniform(0, 60)
            else:
                self.pending = (step, world.version, self.build(step))
                return

    def build(self, step: Step) -> Shared:
        world = self.world
        made = None
        if step in MAKING:
            world.made += 1
            made = make(world.made, self.get_moment().now + LIFETIME)
        renew_at = get_renewal(self.get_moment().now + LIFETIME, LIFETIME)
        return build_next(step, world.shared, self.memory, made, renew_at)

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
            self.next_look = world.ticks + PACE.poll  # the answer is lost


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
            leaf = replica.memory.leaf
            is_ready = leaf is not None and bool(replica.memory.trusted)
            assert not is_ready or (leaf and leaf.authority in trusted), (world.ticks, leaf)
            assert leaf is None or replica.get_moment().now < leaf.expiry


@pytest.mark.parametrize("seed", range(2))
def test_every_replica_is_trusted_at_every_moment_of_many_rotations(seed: int) -> None:
    world = World(random.Random(seed))
    simulate(world, 12, lambda world, replicas: None)
    assert world.promotions >= 4
    assert world.retirements >= 4
    assert len(world.shared.authorities if world.shared else ()) <= 2


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
            world.put(replace(world.shared, wish=str(world.ticks)))
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
