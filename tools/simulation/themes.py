"""What histories are mostly about: each seed has one theme, from which the rest is drawn."""

from __future__ import annotations

from dataclasses import dataclass

_FAULTS = ("refused", "hung", "silent", "lost", "slow", "late", "status")
_KINDS = ("create", "update", "delete", "resume", "field", "event", "daemon", "timer", "index")

STATE_KINDS = ("create", "update", "delete", "resume", "field")
BACKGROUND_KINDS = ("timer", "daemon")
_UNGUARDED_KINDS = ("create", "update", "resume", "field", "event", "index")


@dataclass(frozen=True)
class Theme:
    """What a history is mostly about.

    Attributes:
        fate: what happens to processes, network and cluster.
        user: what happens to objects that exist.
        kinds: of handlers that are there for sure.
        pool: of the kinds that the others have.
        effects: of the handlers for changes.
        faults: of the network.
        methods: of the requests that are concerned by them.
        paths: parts of the paths of these.
        statuses: with which requests are refused.
        modes: who acts among the replicas.
        least_replicas: how many there are, unless one is alone.
        worker_limits: how many objects are worked on at once.
        has_webhooks: whether there may be admission webhooks.
    """

    fate: tuple[str, ...] = (
        *("fault",) * 3,
        *("outage", "kill", "stop", "pause", "watches", "compact", "lag", "unlock"),
    )
    user: tuple[str, ...] = ("update",) * 3 + ("label", "delete", "replace")
    kinds: tuple[str, ...] = ()
    pool: tuple[str, ...] = _KINDS
    effects: tuple[str, ...] = ("", "", "status", "label", "fn", "result")
    faults: tuple[str, ...] = _FAULTS
    methods: tuple[tuple[str, ...], ...] = (
        (),
        (),
        ("PATCH",),
        ("GET",),
        ("PUT", "POST", "PATCH"),
    )
    paths: tuple[str, ...] = ("", "", "", "leases", "things")
    statuses: tuple[int, ...] = (500, 503, 504, 429, 401, 403, 409, 422)
    modes: tuple[str, ...] = ("alone", "alone", "lease", "lease", "peering")
    least_replicas: int = 1
    worker_limits: tuple[int | None, ...] = (None, None, 2)
    has_webhooks: bool = True


THEMES = {
    "mixed": Theme(),
    "outages": Theme(
        fate=("outage", "outage", "compact", "lag", "watches"),
        kinds=("index", "event"),
        pool=_UNGUARDED_KINDS,
    ),
    "writes": Theme(
        fate=("fault",),
        kinds=("create", "update"),
        pool=STATE_KINDS,
        faults=("status", "status", "lost", "silent"),
        methods=(("PATCH",),),
        paths=("things",),
        statuses=(503, 429, 429, 409, 409, 403, 422),
    ),
    "background": Theme(
        fate=("fault", "stop", "pause", "lockout"),
        user=("label", "label", "delete", "replace", "update"),
        kinds=("daemon", "timer"),
    ),
    "races": Theme(
        fate=("fault", "fault", "lag"),
        user=("update", "update", "label"),
        kinds=("create", "update"),
        pool=STATE_KINDS,
        effects=("fn", "fn", "status"),
        faults=("slow", "late"),
        methods=(("PATCH",),),
        paths=("things",),
        modes=("alone",),
        has_webhooks=False,
    ),
    "successors": Theme(
        fate=("fault", "lag"),
        user=("replace", "replace", "delete", "update"),
        kinds=("create",),
        pool=_UNGUARDED_KINDS,
        effects=("status", "label", "fn", "result"),
        faults=("slow", "late"),
    ),
    "kinds": Theme(
        fate=("alter", "alter", "outage", "fault", "lockout"),
        kinds=("index", "daemon", "create"),
        has_webhooks=False,
    ),
    "bursts": Theme(
        fate=("burst",), kinds=("create",), pool=STATE_KINDS, modes=("lease",), has_webhooks=False
    ),
    "leases": Theme(
        fate=("takeover", "takeover", "freeze", "hiccup", "unlock", "stop", "stop"),
        kinds=("daemon", "daemon", "create"),
        modes=("lease",),
        least_replicas=2,
        has_webhooks=False,
    ),
    "peers": Theme(
        fate=("deafness", "deafness", "unlock", "stop", "lag", "past"),
        kinds=("daemon", "daemon", "update"),
        modes=("peering",),
        has_webhooks=False,
    ),
    "lockouts": Theme(
        fate=("lockout",),
        kinds=("absent", "delete", "resume", "daemon"),
        modes=("alone",),
        has_webhooks=False,
    ),
    "values": Theme(
        fate=("fault",),
        kinds=("timer", "timer"),
        faults=("status", "lost", "lost"),
        methods=(("PATCH",),),
        paths=("things",),
        statuses=(503, 429, 409),
    ),
    "policies": Theme(
        fate=("policy", "policy", "fault"),
        kinds=("create", "update"),
        effects=("status", "label", "fn", "result"),
        has_webhooks=False,
    ),
    "shards": Theme(
        fate=("fault", "stop", "kill", "pause", "watches", "lag", "unlock", "takeover", "freeze"),
        modes=("shards",),
        least_replicas=2,
        has_webhooks=False,
    ),
}
