"""Which of several replicas acts: the one that holds a Lease (coordination.k8s.io/v1).

Flow: :meth:`Elector.run` stands as a candidate until the Lease is free and taken; then the operator
acts as long as it is renewed in time. All of what it does about objects is behind a fence
(:mod:`webop.handling.fence`), whose end is put off by each renewal, and comes before the others
may take over.

Guarantees:
    - Two replicas never act at once: the right to act is counted from before the renewal was sent,
      and that of the others from after it was seen, each by the own monotonic clock.
    - When renewals fail, nothing new is begun after ``renew_deadline``; what is still being done
      near the end of the lease is cancelled; what cannot be cancelled ends with the process.
    - A replica that stops gives the Lease back when its work is done, and not before.

Caveats:
    Requests that have been sent before the end can arrive after it, as with all leases.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable

from webop.backoff import Once
from webop.client.api import Client
from webop.coordination.lease import NOTHING, LeaseTimes, build_times
from webop.coordination.observed_lease import ObservedLease
from webop.coordination.requests import LeaseAccess
from webop.coordination.watchdog import Watchdog, end_process
from webop.errors import APIError, APIForbiddenError, ConfigurationError, LoginError
from webop.handling.context import OperatorContext
from webop.handling.fence import Fence, fence_child_tasks, read_clock
from webop.handling.stopping import DaemonStoppingReason

logger = logging.getLogger(__name__)

_WHO = "leadership"
_JITTER = 1.2  # as in client-go; candidates are not to come all at once
_POLLING = 0.02  # seconds; for the end of the work, in tasks and threads
_REMINDER = 60.0  # seconds; until a missing right is logged again
_HUNG_TIMEOUT = 5.0  # seconds; for daemons on the way out, as without a lease
_UNWINDING = 1.0  # seconds; for what was cancelled


class Elector:
    """Acquires a Lease, keeps it, hands it over.

    Args:
        operator: the context of the operator; ``settings.leadership`` says which Lease it is.
        namespace: where the Lease is if neither the settings nor the credentials say it.
        clock: in seconds, monotonic, also while the machine sleeps.

    Attributes:
        lease: the namespace and the name of the Lease; empty before :meth:`run`.
        obstacle: why it can never lead, in words: a right is missing; empty if none is.
    """

    def __init__(
        self,
        operator: OperatorContext,
        namespace: str | None = None,
        *,
        clock: Callable[[], float] = read_clock,
    ) -> None:
        self._operator = operator
        self._namespace = namespace
        self._settings = operator.settings.leadership
        self._fence = Fence(clock)
        self._terms: LeaseTimes | None = None
        self._holding: ObservedLease | None = None
        self._watchdog: Watchdog | None = None
        self._lost = ""
        self._failure: LoginError | None = None
        self._trouble = ""
        self._once = Once()
        self._is_leading = False
        self._turned = asyncio.Event()
        self._renewed = asyncio.Event()
        self._told_at = 0.0
        self.lease = ""
        self.obstacle = ""

    @property
    def is_enabled(self) -> bool:
        """Whether there is a Lease to be held at all."""
        return self._settings.lease_name is not None

    @property
    def is_leading(self) -> bool:
        """Whether this replica holds the Lease, and acts by it."""
        return self._is_leading

    async def wait_for_change(self, *, was_leading: bool) -> bool:
        """Wait until it leads, if it did not; or until it does not, if it did; return that."""
        while self._is_leading is was_leading:
            await self._turned.wait()
        return self._is_leading

    def describe(self) -> str:
        """Return the role of this replica in words, for people; nothing if there is no Lease."""
        if not self.is_enabled:
            return ""
        lease = self.lease or self._settings.lease_name
        if self._is_leading:
            return f"leading by the lease {lease}"
        record = NOTHING if self._holding is None else self._holding.seen.record
        trouble = f" ({self._trouble})" if self._trouble else ""
        return f"standing by; the lease {lease} is {record}{trouble}"

    def begin(self) -> None:
        """Pause until elected.

        Raises:
            ConfigurationError: the settings contradict each other.
        """
        if not self.is_enabled:
            return
        self._terms = build_times(self._settings)
        pausing = self._operator.pausing
        pausing.fence = self._fence
        pausing.pause(_WHO, "not elected yet")
        fence_child_tasks(asyncio.get_running_loop())

    async def run(self, client: Client) -> None:
        """Stand as a candidate, lead, and so on; when cancelled, hand over.

        Raises:
            ConfigurationError: it is not known in which namespace the Lease is to be.
            LoginError: there are no credentials.
        """
        if self._terms is not None:
            namespace = self._find_namespace(client)
            name = self._settings.lease_name or ""
            access = LeaseAccess(client, namespace, name, self._terms.patience)
            await self.campaign(access, self._terms)

    def _find_namespace(self, client: Client) -> str:
        """Return where the Lease is to be; all replicas must come to the same.

        Raises:
            ConfigurationError: nothing says it.
        """
        named = self._settings.lease_namespace, client.vault.default_namespace, self._namespace
        namespace = next(filter(None, named), None)
        if namespace is None:
            raise ConfigurationError(
                "In which namespace is the lease? The credentials have none. Set "
                "settings.leadership.lease_namespace (WEBOP_LEADERSHIP__LEASE_NAMESPACE), "
                "the same for all replicas."
            )
        return namespace

    async def campaign(self, access: LeaseAccess, terms: LeaseTimes) -> None:
        """Do so with a certain Lease."""
        self.lease = str(access)
        former, identity = self._holding, self._operator.identity
        self._holding = holding = ObservedLease(access, terms, identity, self._fence, former)
        if self._watchdog is not None:
            self._watchdog.stop()
        self._watchdog = watchdog = Watchdog(self._fence, self._bite)
        watchdog.start()
        async with asyncio.TaskGroup() as group:
            options = self._operator.settings.watching
            watching = group.create_task(holding.watch(options), name="watch of the lease")
            try:
                while True:
                    await self._stand(holding, terms)
                    await self._lead(holding, terms, group)
                    await self._clear_up()
            finally:
                watching.cancel()
                if self._operator.pausing.is_idle:
                    watchdog.stop()  # otherwise it has something to wait for

    async def _stand(self, holding: ObservedLease, terms: LeaseTimes) -> None:
        """Wait until the Lease is free, and take it."""
        while True:
            try:
                await holding.look(if_unwatched=True)
                self._tell_of_holder(holding)
                if not holding.wait and await holding.take():
                    break
                self._ease()
            except APIError as exc:
                self._complain(holding, "acquired", exc)
            pause = terms.period * random.uniform(1.0, _JITTER)  # noqa: S311 - no secret
            await _wait_for(holding.sighted, min(pause, holding.wait or pause))
        self._ease()

    def _tell_of_holder(self, holding: ObservedLease) -> None:
        """Say whom this replica stands by for, once for each."""
        record = holding.seen.record
        term = (record.holder, record.acquired_at)
        if record.holder and not holding.is_own and self._once.is_new("holder", term):
            logger.info("Standing by: the lease %s is %s.", holding, record)

    async def _lead(
        self, holding: ObservedLease, terms: LeaseTimes, group: asyncio.TaskGroup
    ) -> None:
        """Act as long as the Lease is renewed in time; when cancelled, hand over."""
        self._lost, self._failure = "", None
        renewal = self._keep_renewing(holding, terms)
        renewing = group.create_task(renewal, name="renewal of the lease")
        try:
            await self._enforce_terms(holding, terms)
        except asyncio.CancelledError:
            await self._hand_over(holding, terms, renewing)
            raise
        finally:
            renewing.cancel()
            self._pause("the lease is not held")
        if self._failure is not None:
            raise self._failure

    async def _enforce_terms(self, holding: ObservedLease, terms: LeaseTimes) -> None:
        """Enforce the terms until the lease is over, or lost."""
        while not self._lost and holding.age < terms.end:
            if holding.age < terms.deadline:
                is_acting = self._is_leading or self._resume(holding)
                pause = terms.deadline - holding.age if is_acting else _POLLING
            elif holding.age < terms.cancellation:
                self._stand_down(holding)
                pause = terms.cancellation - holding.age
            else:
                self._stand_down(holding)
                self._operator.pausing.cancel()
                pause = terms.end - holding.age
            await _wait_for(self._renewed, pause)
        if self._failure is not None:  # it is held until its end, maybe by other credentials
            logger.error("The lease %s is %s", holding, self._lost)
            return
        if self._lost:
            self._fence.ends_at = 0.0  # others may be at work already
            logger.error("Leadership is lost: the lease %s is %s.", holding, self._lost)
        else:
            self._stand_down(holding)
        self._pause("the lease is lost")
        self._operator.pausing.cancel()

    def _resume(self, holding: ObservedLease) -> bool:
        """Begin to act, if nothing of an earlier term goes on; tell whether it was so."""
        pausing = self._operator.pausing
        if not pausing.is_idle:
            return False
        logger.info("This replica is leading: it holds the lease %s.", holding)
        self._turn(is_leading=True)
        pausing.resume(_WHO)
        return True

    def _stand_down(self, holding: ObservedLease) -> None:
        """Begin nothing any more, as the lease was not renewed in time; say so once."""
        text = f"could not be renewed for {holding.age:.1f} s"
        if self._pause(f"the lease {text}"):
            why = f": {self._trouble}" if self._trouble else "."
            logger.error("Leadership is lost: the lease %s %s%s", holding, text, why)

    def _pause(
        self, why: str, reason: DaemonStoppingReason = DaemonStoppingReason.OPERATOR_PAUSING
    ) -> bool:
        """Begin nothing any more; tell whether it was otherwise before."""
        was_leading = self._is_leading
        self._operator.pausing.pause(_WHO, why, reason)
        self._turn(is_leading=False)
        return was_leading

    def _turn(self, *, is_leading: bool) -> None:
        if self._is_leading is not is_leading:
            self._is_leading = is_leading
            self._turned.set()
            self._turned = asyncio.Event()

    async def _keep_renewing(self, holding: ObservedLease, terms: LeaseTimes) -> None:
        """Renew the Lease; whatever happens here, another task enforces the terms."""
        while not self._lost:
            await _wait_for(holding.sighted, terms.period)
            try:
                if not await holding.renew():
                    self._lost = str(holding.seen.record)
                self._ease()
            except APIError as exc:
                self._complain(holding, "renewed", exc)
            except LoginError as exc:
                self._failure, self._lost = exc, f"not to be renewed: {exc}"
            self._renewed.set()

    async def _hand_over(
        self, holding: ObservedLease, terms: LeaseTimes, renewing: asyncio.Task[None]
    ) -> None:
        """Give the Lease back as soon as the work is done, and keep it until then."""
        pausing = self._operator.pausing
        self._pause("the operator is stopping", DaemonStoppingReason.OPERATOR_EXITING)
        timeout = max(self._operator.settings.batching.exit_timeout, _HUNG_TIMEOUT)
        if not await self._wait_until_idle(timeout, terms.end - terms.cancellation):
            pausing.cancel()
        if not await self._wait_until_idle(_UNWINDING):
            logger.error(
                "The lease %s is not given back, as there is work that cannot be ended. Others "
                "take over in %d seconds.",
                *(holding, terms.duration),
            )
            return
        renewing.cancel()
        await asyncio.wait({renewing}, timeout=terms.patience)
        if not self._lost and self._fence.rest > 0:
            self._fence.ends_at = 0.0
            await self._release(holding, terms)

    async def _wait_until_idle(self, timeout: float, spare: float = 0.0) -> bool:
        """Wait for the end of the work, but not beyond the lease; tell whether it has come.

        It ends ``spare`` seconds before the lease does.
        """
        pausing, until = self._operator.pausing, self._fence.clock() + timeout
        while not pausing.is_idle and not self._lost and self._fence.rest > spare:
            if self._fence.clock() >= until:
                break
            await asyncio.sleep(_POLLING)
        return pausing.is_idle

    async def _release(self, holding: ObservedLease, terms: LeaseTimes) -> None:
        try:
            if await holding.release():
                logger.info("The lease %s is given back.", holding)
        except (APIError, LoginError) as exc:
            logger.warning(
                "The lease %s could not be given back; others take over in %d seconds: %s",
                *(holding, terms.duration, exc),
            )

    async def _clear_up(self) -> None:
        """Wait until nothing of the term goes on, which is not to be long: it is fenced."""
        pausing, until = self._operator.pausing, self._fence.clock() + _UNWINDING
        has_bitten = False
        while not pausing.is_idle:
            if self._fence.clock() >= until and not has_bitten:
                self._bite()
                has_bitten = True
            await asyncio.sleep(_POLLING)

    def _bite(self) -> None:
        """End the process if it does what it has no right to do any more."""
        text = (
            "The lease has ended, and work goes on that cannot be stopped: in threads, or in a "
            "handler that blocks the event loop or ignores its cancellation."
        )
        if self._settings.exits_when_stuck:
            end_process(f"{text} The process ends, so that no two replicas act at once.")
        else:
            logger.critical("%s Others may be at the same work now.", text)

    def _complain(self, holding: ObservedLease, what: str, exc: APIError) -> None:
        """Say what does not work, once for each trouble; a missing right once a minute."""
        text, now = str(exc), self._fence.clock()
        level, self.obstacle = logging.WARNING, ""
        if is_denied := isinstance(exc, APIForbiddenError):
            level = logging.ERROR
            text = (
                f"{text.rstrip('.')}. Needed are get, create and update, best also list and watch."
            )
            self.obstacle = f"the lease {holding} cannot be {what}: {text}"
        is_due = is_denied and now >= self._told_at + _REMINDER
        if self._once.is_new("trouble", type(exc)) or is_due:
            logger.log(level, "The lease %s cannot be %s: %s", holding, what, text)
            self._told_at = now
        self._trouble = text

    def _ease(self) -> None:
        """Forget the trouble: it works."""
        self._trouble = self.obstacle = ""
        self._once.forget("trouble")


async def _wait_for(event: asyncio.Event, timeout: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout):
            await event.wait()
    event.clear()
