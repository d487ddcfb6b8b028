"""Leader election: the replica that holds a Lease (coordination.k8s.io/v1) handles objects.

Flow: :meth:`Elector.run` waits until the Lease is free, and acquires it. Then the operator acts as
long as it renews the Lease in time. All its handlers run behind a fence
(:mod:`webop.aio.work_deadline`). Each renewal moves the end of the fence, which comes before other
replicas can take over. With shards, each replica has its own Lease, and acts on the objects of
its shards (:mod:`webop.coordination.members`).

Guarantees:
    - Two replicas never act at once: the leader counts from before it sent the renewal, the others
      from after they saw it, each by its own monotonic clock.
    - If renewals fail, no new handlers are called after ``renew_deadline``. Handlers that still run
      near the end of the Lease are cancelled. If one cannot be cancelled, the process ends.
    - A replica that stops releases the Lease after its handlers have ended, not before.

Caveats:
    Requests that were sent before the end can arrive after it, as with all leases.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Callable

from webop.aio.backoff import Once
from webop.aio.concurrency import wait_and_clear
from webop.aio.work_deadline import Fence, fence_child_tasks
from webop.client.api import Client
from webop.context.operator_context import OperatorContext
from webop.coordination.held_lease import ObservedLease
from webop.coordination.lease_content import NOTHING, LeaseTimes, build_times
from webop.coordination.members import Members
from webop.coordination.timed_requests import LeaseAccess
from webop.coordination.watchdog import Watchdog, end_process
from webop.errors import APIError, APIForbiddenError, ConfigurationError

logger = logging.getLogger(__name__)

_WHO = "leadership"
_JITTER = 1.2  # as in client-go, so that replicas do not try all at once
_POLLING = 0.02  # seconds; while waiting for the end of handlers
_UNWINDING = 1.0  # seconds; for cancelled handlers to end
_RESUMPTION = 10.0  # seconds; then handlers that still run, if any, hold up only their objects


class Elector:
    """Acquires a Lease, renews it, and releases it.

    Args:
        operator: the context of the operator; ``settings.leadership`` names the Lease.
        namespace: the namespace of the Lease if neither the settings nor the credentials have one.

    Attributes:
        is_leading: whether this replica holds the Lease and handles objects.
        lease: the namespace and the name of the Lease; empty before :meth:`run`.
        members: the replicas that share the shards; None before :meth:`run`.
        on_change: called when this replica begins or ends to lead.
        obstacle: a text: which missing permission prevents the leadership; empty if none does.
    """

    def __init__(self, operator: OperatorContext, namespace: str | None) -> None:
        self._operator = operator
        self._namespace = namespace
        self._settings = operator.settings.leadership
        self._fence = Fence()
        self._times: LeaseTimes | None = None
        self._observed: ObservedLease | None = None
        self._lost = ""
        self._problem = ""
        self._once = Once()
        self.is_leading = False
        self._stood_down_at = -math.inf
        self._renewed = asyncio.Event()
        self.lease = ""
        self.members: Members | None = None
        self.on_change: Callable[[], None] = lambda: None
        self.obstacle = ""

    @property
    def is_enabled(self) -> bool:
        """Whether the settings name a Lease."""
        return self._settings.lease_name is not None

    @property
    def is_first(self) -> bool:
        """Whether this replica does what only one of all replicas may do."""
        return self.is_leading and self._operator.ownership.handles(0)

    @property
    def shared(self) -> Members | None:
        """The replicas that share the shards; None if they elect a leader."""
        return self.members if self._settings.sharded else None

    def describe(self) -> str:
        """Return a text: the role of this replica; empty without a Lease."""
        if not self.is_enabled:
            return ""
        lease = self.lease or self._settings.lease_name
        if (shared := self.shared) is not None:
            return shared.describe()
        if self.is_leading:
            return f"leading by the lease {lease}"
        record = NOTHING if self._observed is None else self._observed.record
        problem = f" ({self._problem})" if self._problem else ""
        return f"standing by; the lease {lease} is {record}{problem}"

    def begin(self) -> None:
        """Pause until elected.

        Raises:
            ConfigurationError: the settings contradict each other.
        """
        if self._settings.canary_shards is not None and not self._settings.sharded:
            raise ConfigurationError(
                "settings.leadership.canary_shards (WEBOP_CANARY) needs shards: --shards NAME, or "
                "settings.leadership.sharded."
            )
        if not self.is_enabled:
            if self._settings.sharded:
                raise ConfigurationError(
                    "settings.leadership.sharded needs settings.leadership.lease_name, the name of "
                    "the replicas (or --shards NAME)."
                )
            return
        if self._settings.sharded and self._operator.settings.watching.shard_selectors:
            raise ConfigurationError(
                "settings.watching.shard_selectors and settings.leadership.sharded (--shards) "
                "exclude each other: webop selects the objects of its shards itself."
            )
        self._times = build_times(self._settings)
        self._operator.ownership.divide(self._settings)
        pausing = self._operator.pausing
        pausing.fence = self._fence
        pausing.pause(_WHO, "not elected yet")
        fence_child_tasks(asyncio.get_running_loop())

    async def run(self, client: Client) -> None:
        """Stand by and lead, in turns; when cancelled, hand over."""
        if (times := self._times) is None:
            return
        namespace = self._find_namespace(client)
        name = self._settings.lease_name or ""
        access = LeaseAccess(client, namespace, name, times.request_timeout)
        own = times, self._fence, lambda: self.on_change()  # noqa: PLW0108  set later
        self.members = Members(self._operator, client, access, *own)
        self.lease = str(access)
        lease = ObservedLease(access, times, self._operator.identity, self._fence)
        watchdog = Watchdog(self._fence, self._end_overrun)
        async with asyncio.TaskGroup() as group:
            options, shared = self._operator.settings.watching, self.shared
            observing = lease.watch(options) if shared is None else shared.watch()
            watching = group.create_task(observing, name="watch of the lease")
            try:
                while True:
                    self._observed = held = await self._acquire(lease)
                    await self._lead(held, group)
                    await self._wait_until_stopped()
            finally:
                watching.cancel()
                if self._operator.pausing.is_idle:
                    watchdog.stop()  # otherwise handlers still run

    def _find_namespace(self, client: Client) -> str:
        """Return the namespace of the Lease, which must be the same for all replicas."""
        named = self._settings.lease_namespace, client.vault.default_namespace, self._namespace
        namespace = next(filter(None, named), None)
        if namespace is None:
            raise ConfigurationError(
                "The namespace of the lease is unknown: the credentials have none. Set "
                "settings.leadership.lease_namespace (WEBOP_LEADERSHIP__LEASE_NAMESPACE), "
                "the same for all replicas."
            )
        return namespace

    async def _acquire(self, lease: ObservedLease) -> ObservedLease:
        shared, self._observed = self.shared, lease
        while True:
            pause = lease.times.period * random.uniform(1.0, _JITTER)  # noqa: S311 - no secret
            try:
                held = await (self._try_to_lead(lease) if shared is None else shared.join())
                self._forget_failure()
                if held is not None:
                    return held
                if shared is not None:
                    self.obstacle = shared.obstacle
            except APIError as exc:
                self._log_failure(lease, "acquired", exc)
            if shared is not None:
                await shared.wait(pause)
            else:
                await wait_and_clear(lease.changed, min(pause, lease.wait or pause))

    async def _try_to_lead(self, lease: ObservedLease) -> ObservedLease | None:
        """Acquire the Lease if it is free, and if no other replicas own shards."""
        await lease.refresh(if_unwatched=True)
        self._log_holder(lease)
        if lease.wait or await self._has_sharers() or not await lease.hold():
            return None
        if not await self._has_sharers():  # they look at this Lease before they own shards
            return lease
        await lease.release()
        return None

    async def _has_sharers(self) -> bool:
        """Return whether other replicas of the same operator own shards; log that once."""
        owner = "" if self.members is None else await self.members.find_owner()
        if owner and self._once.is_new("sharers", owner):
            logger.warning("Standing by: %s.", owner)
        return bool(owner)

    def _log_holder(self, lease: ObservedLease) -> None:
        """Log the holder that this replica stands by for, once for each."""
        record = lease.record
        term = (record.holder, record.acquired_at)
        if record.holder and not lease.is_own and self._once.is_new("holder", term):
            logger.info("Standing by: the lease %s is %s.", lease, record)

    async def _lead(self, lease: ObservedLease, group: asyncio.TaskGroup) -> None:
        """Lead as long as the Lease is renewed in time; when cancelled, hand over."""
        self._lost = ""
        renewal = self._keep_renewing(lease)
        renewing = group.create_task(renewal, name="renewal of the lease")
        sharing = group.create_task(self._share(), name="shards")
        try:
            await self._enforce_times(lease)
        except asyncio.CancelledError:
            sharing.cancel()
            await self._hand_over(lease, renewing)
            raise
        finally:
            renewing.cancel()
            sharing.cancel()
            self._pause("the lease is not held")

    async def _share(self) -> None:
        """Take and give up shards, until what this replica owns them by is gone."""
        if (shared := self.shared) is not None:
            self._lost = await shared.run()
            self._renewed.set()

    async def _enforce_times(self, lease: ObservedLease) -> None:
        """Pause and cancel in time, until the Lease is over or lost."""
        times = lease.times
        while not self._lost and lease.age < times.end:
            if lease.age < times.deadline:
                is_acting = self.is_leading or self._resume(lease)
                pause = times.deadline - lease.age if is_acting else _POLLING
            elif lease.age < times.cancellation:
                self._stand_down(lease)
                pause = times.cancellation - lease.age
            else:
                self._stand_down(lease)
                self._operator.pausing.cancel()
                pause = times.end - lease.age
            await wait_and_clear(self._renewed, pause)
        if self._lost:
            self._fence.ends_at = 0.0  # another replica can already act
            logger.error("Leadership is lost (lease %s): %s.", lease, self._lost)
        else:
            self._stand_down(lease)
        self._operator.pausing.cancel()

    def _resume(self, lease: ObservedLease) -> bool:
        """Start to lead; return whether it did.

        It waits for handlers from before a pause, but not forever: abandoned daemons never end.
        """
        pausing = self._operator.pausing
        if not pausing.is_idle and self._fence.clock() < self._stood_down_at + _RESUMPTION:
            return False
        what = "one of those that share the work" if self._settings.sharded else "leading"
        logger.info("This replica is %s: it holds the lease %s.", what, lease)
        self._set_leading(is_leading=True)
        pausing.resume(_WHO)
        return True

    def _stand_down(self, lease: ObservedLease) -> None:
        """Call no new handlers, because the Lease was not renewed in time; log that once."""
        self._stood_down_at = self._fence.clock()
        text = f"could not be renewed for {lease.age:.1f} s"
        if self._pause(f"the lease {text}"):
            why = f": {self._problem}" if self._problem else "."
            logger.error("Leadership is lost: the lease %s %s%s", lease, text, why)

    def _pause(self, why: str) -> bool:
        """Call no new handlers; return whether it was leading before."""
        was_leading = self.is_leading
        self._operator.pausing.pause(_WHO, why)
        self._set_leading(is_leading=False)
        return was_leading

    def _set_leading(self, *, is_leading: bool) -> None:
        if self.is_leading is not is_leading:
            self.is_leading = is_leading
            self.on_change()

    async def _keep_renewing(self, lease: ObservedLease) -> None:
        """Renew the Lease. Another task enforces the times, whatever happens here."""
        while not self._lost:
            await wait_and_clear(lease.changed, lease.times.period)
            try:
                if not (lease.is_own and await lease.hold()):
                    self._lost = f"it is {lease.record}"
                self._forget_failure()
            except APIError as exc:
                self._log_failure(lease, "renewed", exc)
            self._renewed.set()

    async def _hand_over(self, lease: ObservedLease, renewing: asyncio.Task[None]) -> None:
        """Release the Lease, unless handlers still run."""
        if not self._operator.pausing.is_idle:
            logger.error(
                "The lease %s is not released: there is work that cannot be stopped. Another "
                "replica takes over in %d seconds.",
                lease,
                lease.times.duration,
            )
            return
        renewing.cancel()
        await asyncio.wait({renewing}, timeout=lease.times.request_timeout)
        if self._lost or self._fence.rest <= 0:
            return
        self._fence.ends_at = 0.0
        try:
            if (shared := self.shared) is not None:
                await shared.withdraw()
            if await lease.release():
                logger.info("Released the lease %s.", lease)
        except APIError as exc:
            logger.warning(
                "Cannot release the lease %s. Another replica takes over in %d seconds: %s",
                lease,
                lease.times.duration,
                exc,
            )

    async def _wait_until_stopped(self) -> None:
        """Wait until no handlers run; that should be soon, as they are fenced."""
        pausing = self._operator.pausing
        await pausing.wait_until_idle(_UNWINDING)
        if not pausing.is_idle:
            self._end_overrun()
            await pausing.wait_until_idle()

    def _end_overrun(self) -> None:
        """End the process if handlers run without the Lease; or only log it, by the settings."""
        text = (
            "The lease has ended, but work continues that cannot be stopped: in a thread, or in a "
            "handler that blocks the event loop or ignores its cancellation."
        )
        if self._settings.exits_when_stuck:
            end_process(f"{text} Ending the process, so that two replicas never act at once.")
        else:
            logger.critical("%s Another replica may be doing the same work now.", text)

    def _log_failure(self, lease: ObservedLease, what: str, exc: APIError) -> None:
        """Log a failure once for each type of error; a missing permission once a minute."""
        text, level, minute, self.obstacle = str(exc), logging.WARNING, 0.0, ""
        if isinstance(exc, APIForbiddenError):
            level, minute = logging.ERROR, self._fence.clock() // 60
            text = (
                f"{text.rstrip('.')}. Needed: get, create and update; better also list and watch."
            )
            self.obstacle = f"the lease {lease} cannot be {what}: {text}"
        if self._once.is_new("problem", (type(exc), minute)):
            logger.log(level, "The lease %s cannot be %s: %s", lease, what, text)
        self._problem = text

    def _forget_failure(self) -> None:
        self._problem = self.obstacle = ""
        self._once.forget("problem")
