"""Choose a replica's next step with the Secret that holds the shared certificate.

Pure: the step follows from the content of the Secret, what this replica has seen of it, and the
time. :mod:`webop.servers.certificates.sharing` reads the Secret, takes the steps and writes. Each
certificate has a separate CA whose private key is not kept.

A rotation takes three writes, each by the replica that comes first:
    1. PREPARE: put the next certificate beside the one in use, and its CA into the bundle. Every
       replica advertises the bundle.
    2. PROMOTE, when API servers trust the bundle and every replica has seen it: the next
       certificate becomes the one to serve. Every replica loads it.
    3. RETIRE, after the overlap: remove all other CAs from the bundle.

If the Secret is deleted, damaged or expired, a replica writes the certificate that it serves
(RESTORE), and a rotation follows. Replicas without a certificate wait for that, then make one
(CREATE). A replica whose certificate is not in the Secret adds its CA (JOIN).

Guarantees:
    - A certificate is loaded when its CA has been trusted for the settling time.
    - A CA is removed when every replica has served another certificate for many polls.
    - Clocks matter for renewal and expiry only. Everything else depends on how long this replica
      has seen the Secret unchanged; the others have seen it for as long, up to one poll.
    - All state is in the Secret: restarts and lost responses do no harm.

Caveats:
    If a replica cannot reach the API server for longer than the overlap, but the API server can
    reach it, the replica serves an untrusted certificate until it sees the Secret again.
"""

from __future__ import annotations

import datetime as dt
import enum
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from webop.servers.certificates.secretdata import Leaf, Shared

_MAX_CAS = 9  # limits the bundle if the Secret is deleted again and again
_RENEWAL_SHARE = 2 / 3  # of the lifetime; the rest is for repairing what prevents the renewal


class Step(enum.Enum):
    """The next step; its value is the text for the log."""

    WAIT = "nothing to do"
    LOAD = "its certificate is in use"
    ADVERTISE = "its CA bundle is advertised"
    CREATE = "created a certificate"
    RESTORE = "was lost or unusable; wrote the certificate that is in use"
    JOIN = "added the CA of the certificate that is in use here"
    PREPARE = "a new certificate is due; wrote it and started a rotation"
    PROMOTE = "the new certificate is trusted; it becomes the one to use"
    RETIRE = "removed the old CAs; the rotation is complete"


@dataclass(eq=False)
class Rotation:
    """The view of one replica: what it has seen and serves. All times are in seconds.

    Args:
        names: the hostnames that the certificate needs; the first is the common name.
        lifetime: of certificates.
        poll: how often every replica reads the Secret.
        settle: how long API servers may take to follow a changed configuration.
        overlap: how long, at least, a CA stays trusted after its certificate's last use.
        make: makes a certificate for names and a lifetime.

    Attributes:
        leaf: the certificate that this replica serves; None at first.
        cas: the CA certificates that it has advertised last.
        trusted_since: when API servers began to trust all of these; None if not yet.
        uid: of the Secret that contained the leaf.
        was_foreign: whether somebody else has managed the Secret.
    """

    names: tuple[str, ...]
    lifetime: dt.timedelta
    poll: float
    settle: float
    overlap: float
    make: Callable[[tuple[str, ...], dt.timedelta], Leaf]
    leaf: Leaf | None = None
    cas: tuple[bytes, ...] = ()
    trusted_since: float | None = None
    uid: str = ""
    was_foreign: bool = False
    _seen: object = None
    _seen_since: float = 0.0
    _last_read: float = 0.0

    def __post_init__(self) -> None:
        # For a few polls, replicas may still apply the previous bundle.
        self.promotion = 3 * self.poll + self.settle
        # After this, no replica serves the previous certificate.
        self.retirement = max(self.overlap, self.promotion + self.settle)
        # So long, new replicas let others restore the Secret from the certificate they serve.
        self.absence = 1.5 * self.poll

    def observe(self, shared: Shared, now: dt.datetime, ticks: float) -> None:
        """Record the content of the Secret, with the wall-clock time and the monotonic one."""
        self._shared, self._now, self._ticks = shared, now, ticks
        self._is_usable = shared.leaf is not None and (
            shared.is_foreign or self._is_valid(shared.leaf) or self._is_valid(shared.upcoming)
        )
        seen = (shared.leaf and shared.leaf.cert, shared.cas, self._is_usable)
        # After a long pause, the others may not have seen it either: no API server.
        if seen != self._seen or ticks - self._last_read > self.promotion:
            self._seen, self._seen_since = seen, ticks
        self._last_read = ticks
        if shared.leaf is not None:
            self.was_foreign = shared.is_foreign
            if shared.leaf == self.leaf:
                self.uid = shared.uid

    def decide(self) -> tuple[Step, Shared]:
        """Return the next step, with the content to write if the step writes.

        For ``LOAD`` and ``ADVERTISE``, ``leaf`` and ``cas`` are already set.
        """
        shared, leaf = self._shared, self.leaf
        if not self._is_usable:
            return (Step.WAIT, shared) if shared.is_foreign else self._recover()
        is_elsewhere = leaf != shared.leaf and self.uid != shared.uid and not shared.is_foreign
        if is_elsewhere and self._is_valid(leaf) and not set(_list_cas(leaf)) <= set(shared.cas):
            return Step.JOIN, _put(shared, cas=(*_list_cas(leaf), *shared.cas))
        is_over = leaf == shared.leaf and self._has_seen(self.retirement)
        # A foreign Secret's owner may replace a CA at once, while replicas still use it. Others may
        # have retired the CA in use here, if this replica could not read the Secret for long.
        in_use = self.cas if shared.is_foreign else _list_cas(leaf)
        cas = tuple(dict.fromkeys((*shared.cas, *(() if is_over else in_use))))
        if leaf is not None and set(cas) != set(self.cas):
            self.trusted_since = self.trusted_since if set(cas) <= set(self.cas) else None
            self.cas = cas
            return Step.ADVERTISE, shared
        if leaf != shared.leaf and (not self._is_valid(leaf) or self._is_trusted()):
            self.leaf, self.uid = shared.leaf, shared.uid
            return Step.LOAD, shared
        return (Step.WAIT, shared) if shared.is_foreign else self._advance(is_over=is_over)

    def _recover(self) -> tuple[Step, Shared]:
        """Return the step for a Secret that is missing, damaged or expired."""
        shared = self._shared
        if self.was_foreign and not self._has_seen(self.retirement):
            return Step.WAIT, shared  # its owner may restore it first
        known = (*self.cas, *shared.cas)  # replicas may still use these
        # Without its CA in the bundle, no client would trust it.
        if self._is_valid(self.leaf) and _list_cas(self.leaf):
            restored = replace(shared, leaf=self.leaf, upcoming=None, renew_at=None)
            return Step.RESTORE, _put(restored, cas=known)
        if self.leaf is None and not self._has_seen(self.absence):
            return Step.WAIT, shared  # other replicas may have the certificate in use
        made, renew_at = self.make(self.names, self.lifetime), self._get_renewal()
        created = replace(shared, leaf=made, upcoming=None, renew_at=renew_at)
        return Step.CREATE, _put(created, cas=known)

    def _advance(self, *, is_over: bool) -> tuple[Step, Shared]:
        """Return the next step of a rotation, if it is due."""
        shared = self._shared
        if self._is_valid(shared.upcoming):
            is_ready = self._is_trusted() and self._has_seen(self.promotion)
            if is_ready or not self._is_valid(shared.leaf):
                return Step.PROMOTE, replace(shared, leaf=shared.upcoming, upcoming=None)
            return Step.WAIT, shared
        present = frozenset() if shared.leaf is None else shared.leaf.names
        has_names = present.issuperset(self.names)
        # A time after the expiry was that of the next certificate, which has been lost.
        end = self._now if shared.leaf is None else shared.leaf.expiry
        is_due = shared.renew_at is None or not self._now < shared.renew_at < end
        if is_due or not has_names:
            # Replicas of two versions can need different names. Keep the present ones, or they
            # would replace each other's certificates for ever.
            others = () if has_names else sorted(present.difference(self.names))
            made = self.make((*self.names, *others), self.lifetime)
            return Step.PREPARE, _put(shared, upcoming=made, renew_at=self._get_renewal())
        if is_over and shared.cas != _list_cas(shared.leaf):
            return Step.RETIRE, replace(shared, cas=_list_cas(shared.leaf))
        return Step.WAIT, shared

    def _get_renewal(self) -> dt.datetime:
        return self._now + _RENEWAL_SHARE * self.lifetime

    def _is_valid(self, leaf: Leaf | None) -> bool:
        return leaf is not None and self._now < leaf.expiry

    def _is_trusted(self) -> bool:
        since = self.trusted_since
        return since is not None and self._ticks - since >= self.settle

    def _has_seen(self, seconds: float) -> bool:
        """Return whether the Secret has been unchanged for so long."""
        return self._ticks - self._seen_since >= seconds


def _put(shared: Shared, **changes: Any) -> Shared:
    """Change the content; put the CAs of its certificates first in the bundle."""
    changed = replace(shared, **changes)
    used = (*_list_cas(changed.upcoming), *_list_cas(changed.leaf))
    return replace(changed, cas=tuple(dict.fromkeys((*used, *changed.cas)))[:_MAX_CAS])


def _list_cas(leaf: Leaf | None) -> tuple[bytes, ...]:
    return () if leaf is None or leaf.ca is None else (leaf.ca,)
