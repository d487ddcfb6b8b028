"""What a replica does next about the certificate that all replicas share in a Secret.

Pure: from the content of the Secret, what the replica remembers, and the time, to one step.
:mod:`webop.servers.certificates.sharing` reads, takes the steps, and writes; the tests are tables.

Flow of a rotation: some replica *prepares* it: the upcoming certificate is put into the Secret
beside the one being served, its authority into the bundle. Every replica *advertises* that bundle.
When the API servers trust it for long enough, some replica *promotes* the upcoming certificate,
and every replica *loads* it. When all must have done so for long, some replica *retires* the
authorities of before. If two replicas want to write, the first one wins, the others follow.

Guarantees:
    - A certificate is loaded only when its authority has been trusted for the settling time.
    - An authority leaves the bundle only when the certificate of another one has been the one to
      serve for many polls of every replica.
    - Clocks matter for the time of renewal and for expiry only. All else goes by how long this
      very replica has seen a state: others have seen it for as long, up to one poll.
    - No state is anywhere but in the Secret: a write whose answer is lost does no harm.

Caveats:
    A replica that API servers reach, while it does not reach them for longer than the overlap,
    serves what is not trusted any more, until it sees the Secret again.
"""

from __future__ import annotations

import datetime as dt
import enum
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

_MAX_AUTHORITIES = 8
_RENEWAL_SHARE = 2 / 3  # of the life; the rest is for repairing what prevents the renewal


@dataclass(frozen=True, slots=True)
class Leaf:
    """A certificate of a server, with the key, in PEM.

    Attributes:
        authority: the one that has signed it; None if that is not in the bundle as such.
        expiry: until when it is valid, in UTC.
        names: the hostnames that it is for.
    """

    cert: bytes
    key: bytes = field(repr=False)
    authority: bytes | None
    expiry: dt.datetime
    names: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Shared:
    """The content of the Secret, as far as it can be used.

    Attributes:
        uid: of the Secret; another one means that it was deleted and created again.
        leaf: the certificate to serve; None if there is no usable one.
        upcoming: the certificate to serve next, during a rotation.
        authorities: what clients must trust, the newest first.
        renew_at: when to begin the next rotation; None if that cannot be read.
        wish: the latest wish of the users for a rotation.
        granted: the latest wish for which there was a rotation.
        is_foreign: whether somebody else has made the certificate: it is followed, not changed.
    """

    uid: str
    leaf: Leaf | None
    upcoming: Leaf | None = None
    authorities: tuple[bytes, ...] = ()
    renew_at: dt.datetime | None = None
    wish: str = ""
    granted: str = ""
    is_foreign: bool = False


@dataclass(frozen=True, slots=True)
class Moment:
    """The time by two clocks: by the wall's, and in seconds by one that is never set."""

    now: dt.datetime
    ticks: float


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast it goes, in seconds.

    Attributes:
        poll: how often every replica looks at the Secret.
        settle: how long API servers may take from an applied configuration to going by it.
        overlap: how long, at least, an authority is trusted after its certificate's last use.
    """

    poll: float
    settle: float
    overlap: float

    @property
    def promotion(self) -> float:
        """How long a bundle must be there: no API server goes by the one before any more.

        Replicas that have not seen it yet may put the one before into the cluster again.
        """
        return 3 * self.poll + self.settle

    @property
    def retirement(self) -> float:
        """How long a certificate must be the one to serve: no replica serves the one before."""
        return max(self.overlap, 3 * self.poll + 2 * self.settle)

    @property
    def absence(self) -> float:
        """How long a newcomer leaves it to others to restore the Secret from what they hold."""
        return 1.5 * self.poll


class Step(enum.Enum):
    """What to do next."""

    WAIT = "wait"
    LOAD = "load"  # Serve the certificate of the Secret.
    ADVERTISE = "advertise"  # Let clients trust what list_advertised() says.
    FOUND = "found"  # Write: a first certificate, to be served at once.
    RESTORE = "restore"  # Write: what this replica serves, and an upcoming certificate.
    JOIN = "join"  # Write: the authority of what this replica serves.
    PREPARE = "prepare"  # Write: an upcoming certificate.
    PROMOTE = "promote"  # Write: serve the upcoming certificate.
    RETIRE = "retire"  # Write: no authorities but that of the certificate.


#: The steps for which a new certificate is to be made.
MAKING = frozenset({Step.FOUND, Step.RESTORE, Step.PREPARE})


@dataclass(slots=True)
class Memory:
    """What one replica remembers; it is empty when the process starts.

    Attributes:
        leaf: what it serves.
        authorities: what it has advertised last.
        uid: of the Secret from which ``leaf`` is.
        was_foreign: whether somebody else was in charge of the Secret.
        trusted: since when (in ticks) the authorities are trusted without a break.
    """

    leaf: Leaf | None = None
    authorities: tuple[bytes, ...] = ()
    uid: str = ""
    was_foreign: bool = False
    trusted: dict[bytes, float] = field(default_factory=dict)
    _sightings: dict[str, tuple[object, float]] = field(default_factory=dict)
    _last_look: float = 0.0

    def observe(self, shared: Shared | None, moment: Moment, pace: Pace) -> None:
        """Take in what is seen in the Secret; to be called before any decision about it."""
        if moment.ticks - self._last_look > pace.promotion:
            self._sightings.clear()  # the API server was away, maybe for the others, too
        self._last_look = moment.ticks
        leaf = None if shared is None else shared.leaf
        self._sight("leaf", None if leaf is None else leaf.cert, moment)
        self._sight("authorities", () if shared is None else shared.authorities, moment)
        self._sight("usable", is_usable(shared, moment), moment)
        if shared is not None and leaf is not None:
            self.was_foreign = shared.is_foreign
            if leaf == self.leaf:
                self.uid = shared.uid

    def note_loaded(self, leaf: Leaf, uid: str) -> None:
        """Remember what is served from now on."""
        self.leaf, self.uid = leaf, uid

    def note_advertised(self, authorities: tuple[bytes, ...]) -> None:
        """Remember what is advertised from now on; what is not is not trusted either."""
        self.authorities = authorities
        self.trusted = {pem: since for pem, since in self.trusted.items() if pem in authorities}

    def note_trusted(self, authorities: Iterable[bytes], moment: Moment) -> None:
        """Remember that the API servers were told to trust these, just now or before."""
        for pem in authorities:
            self.trusted.setdefault(pem, moment.ticks)

    def is_waiting_for_trust(self) -> bool:
        """Tell whether some of what is advertised is not known to be trusted yet."""
        return any(pem not in self.trusted for pem in self.authorities)

    def has_trust(self, authorities: Iterable[bytes], seconds: float, moment: Moment) -> bool:
        """Tell whether the authorities are trusted for so long."""
        never = moment.ticks + 1
        return all(moment.ticks - self.trusted.get(pem, never) >= seconds for pem in authorities)

    def has_seen(self, what: str, seconds: float, moment: Moment) -> bool:
        """Tell whether "leaf", "authorities" or "usable" are what they are for so long."""
        return moment.ticks - self._sightings[what][1] >= seconds

    def _sight(self, what: str, value: object, moment: Moment) -> None:
        seen = self._sightings.get(what)
        if seen is None or seen[0] != value:
            self._sightings[what] = (value, moment.ticks)


def choose_step(
    shared: Shared | None, memory: Memory, moment: Moment, pace: Pace, names: frozenset[str]
) -> Step:
    """Tell what to do next; after a step, but for waiting, the question is to be asked again.

    Args:
        shared: the content of the Secret; None if there is no Secret.
        memory: what the replica remembers, with ``shared`` observed.
        moment: the time.
        pace: how fast to go.
        names: the hostnames that the certificate must be for.
    """
    if shared is not None and shared.is_foreign:
        return Step.WAIT if shared.leaf is None else _follow(shared, memory, moment, pace)
    if shared is None or not is_usable(shared, moment):
        return _recover(memory, moment, pace)
    if _needs_joining(shared, memory, moment):
        return Step.JOIN
    step = _follow(shared, memory, moment, pace)
    return _advance(shared, memory, moment, pace, names) if step is Step.WAIT else step


def list_advertised(
    shared: Shared, memory: Memory, moment: Moment, pace: Pace
) -> tuple[bytes, ...]:
    """Return what clients must trust: the bundle of the Secret.

    Whoever makes foreign Secrets may replace an authority at once. So the replica goes on to
    advertise those of before for as long as any replica may serve by them.
    """
    if not shared.is_foreign:
        return shared.authorities
    is_settled = memory.leaf == shared.leaf and memory.has_seen("leaf", pace.retirement, moment)
    return shared.authorities if is_settled else _merge(shared.authorities, memory.authorities)


def build_next(
    step: Step, shared: Shared | None, memory: Memory, made: Leaf | None, renew_at: dt.datetime
) -> Shared:
    """Return the content to write for a step.

    Args:
        step: one of those that write.
        shared: the content of now.
        memory: what the replica remembers.
        made: a new certificate, for the steps of ``MAKING``.
        renew_at: when the certificate that is made is to be renewed.
    """
    present = shared or Shared(uid="", leaf=None)
    leaf, upcoming = present.leaf, present.upcoming
    if step in MAKING:
        leaf = {Step.FOUND: made, Step.RESTORE: memory.leaf, Step.PREPARE: leaf}[step]
        upcoming = None if step is Step.FOUND else made
    elif step is Step.PROMOTE:
        leaf, upcoming = upcoming, None
    return replace(
        present,
        leaf=leaf,
        upcoming=upcoming,
        authorities=_limit(_list_next(step, present, memory, made), leaf, upcoming),
        renew_at=renew_at if step in MAKING else present.renew_at,
        granted=present.wish if step in MAKING else present.granted,
    )


def list_names(shared: Shared | None, names: frozenset[str]) -> frozenset[str]:
    """Return the hostnames for a new certificate.

    Replicas of two versions can want different ones. So where a name is missing, those of now
    are kept; otherwise each of them would replace the certificate of the other, for ever.
    """
    present = frozenset() if shared is None or shared.leaf is None else shared.leaf.names
    return names if names <= present else names | present


def get_renewal(expiry: dt.datetime, lifetime: dt.timedelta) -> dt.datetime:
    """Tell when to renew a certificate: after two thirds of its life."""
    return expiry - (1 - _RENEWAL_SHARE) * lifetime


def is_usable(shared: Shared | None, moment: Moment) -> bool:
    """Tell whether there is something to serve by the Secret."""
    if shared is None or shared.leaf is None:
        return False
    return shared.is_foreign or _is_valid(shared.leaf, moment) or _is_valid(shared.upcoming, moment)


def _recover(memory: Memory, moment: Moment, pace: Pace) -> Step:
    """There is no Secret, or it is spoilt or has expired."""
    if memory.was_foreign and not memory.has_seen("usable", pace.retirement, moment):
        return Step.WAIT  # for its maker, who has the first right
    if _is_valid(memory.leaf, moment):
        return Step.RESTORE
    if memory.leaf is None and not memory.has_seen("usable", pace.absence, moment):
        return Step.WAIT  # for the replicas, if any, that hold what is in use
    return Step.FOUND


def _needs_joining(shared: Shared, memory: Memory, moment: Moment) -> bool:
    """Tell whether others have founded a new Secret without what this replica serves."""
    leaf = memory.leaf
    if leaf is None or leaf == shared.leaf or memory.uid == shared.uid:
        return False
    return _is_valid(leaf, moment) and not set(_get_authorities(leaf)) <= set(shared.authorities)


def _follow(shared: Shared, memory: Memory, moment: Moment, pace: Pace) -> Step:
    if memory.leaf is None:
        return Step.LOAD  # nothing can be served before
    if list_advertised(shared, memory, moment, pace) != memory.authorities:
        return Step.ADVERTISE
    if memory.leaf != shared.leaf and _may_load(shared, memory, moment, pace):
        return Step.LOAD
    return Step.WAIT


def _may_load(shared: Shared, memory: Memory, moment: Moment, pace: Pace) -> bool:
    """Tell whether a change of the certificate does no harm, or less than none."""
    if not _is_valid(memory.leaf, moment):
        return True
    if not set(_get_authorities(memory.leaf)) <= set(memory.authorities):
        return True  # it has been retired, while this replica was away
    needed = _get_authorities(shared.leaf) or shared.authorities
    return memory.has_trust(needed, pace.settle, moment)


def _advance(
    shared: Shared, memory: Memory, moment: Moment, pace: Pace, names: frozenset[str]
) -> Step:
    """Take the rotation one phase further, if it is time for that."""
    if _is_valid(shared.upcoming, moment):
        is_trusted = memory.has_trust(_get_authorities(shared.upcoming), pace.settle, moment)
        is_ready = is_trusted and memory.has_seen("authorities", pace.promotion, moment)
        return Step.PROMOTE if is_ready or not _is_valid(shared.leaf, moment) else Step.WAIT
    if _is_due(shared, moment, names):
        return Step.PREPARE
    is_over = memory.leaf == shared.leaf and memory.has_seen("leaf", pace.retirement, moment)
    has_others = shared.authorities != _get_authorities(shared.leaf)
    return Step.RETIRE if is_over and has_others else Step.WAIT


def _list_next(step: Step, present: Shared, memory: Memory, made: Leaf | None) -> tuple[bytes, ...]:
    if step is Step.RETIRE:
        return _get_authorities(present.leaf)
    if step is Step.JOIN:
        return _merge(present.authorities, _get_authorities(memory.leaf))
    # Who serves what the lost Secret had must be trusted; see _limit() for the rest.
    held = memory.authorities if step in (Step.FOUND, Step.RESTORE) else ()
    return _merge(_get_authorities(made), _merge(held, present.authorities))


def _is_due(shared: Shared, moment: Moment, names: frozenset[str]) -> bool:
    if shared.renew_at is None or moment.now >= shared.renew_at:
        return True
    has_names = shared.leaf is not None and names <= shared.leaf.names
    return not has_names or (bool(shared.wish) and shared.wish != shared.granted)


def _is_valid(leaf: Leaf | None, moment: Moment) -> bool:
    return leaf is not None and moment.now < leaf.expiry


def _get_authorities(leaf: Leaf | None) -> tuple[bytes, ...]:
    return () if leaf is None or leaf.authority is None else (leaf.authority,)


def _merge(first: tuple[bytes, ...], second: tuple[bytes, ...]) -> tuple[bytes, ...]:
    return tuple(dict.fromkeys((*first, *second)))


def _limit(authorities: tuple[bytes, ...], *leaves: Leaf | None) -> tuple[bytes, ...]:
    """Drop the oldest, so that a Secret that is deleted again and again does not outgrow itself."""
    used = [pem for leaf in leaves for pem in _get_authorities(leaf)]
    kept = [pem for pem in authorities if pem in used or pem in authorities[:_MAX_AUTHORITIES]]
    return _merge(tuple(kept), tuple(used))
