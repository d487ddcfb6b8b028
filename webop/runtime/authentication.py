"""Keeping the operator logged in: run the login handlers whenever no credentials are left.

Requests take credentials from the :class:`~webop.client.auth.vault.Vault` and report those that are
refused (chapter "Authentication", "Credentials lifecycle").
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
from collections.abc import Callable, Iterable

from webop.aio.backoff import Backoff, Once, format_pause
from webop.client.auth.exec_plugins import current_login
from webop.client.auth.logins import (
    ABSENCE,
    LoginOutcome,
    build_absence_message,
    call_default_logins,
)
from webop.client.auth.vault import ConnectionInfo, Vault
from webop.context.operator_context import OperatorContext
from webop.errors import ActivityError, LoginError
from webop.handlers.model import Activity
from webop.runtime.activity_handlers import run_activity

logger = logging.getLogger(__name__)

# Seconds between the attempts of an operator that can run without a cluster.
_PAUSES = (0.5, 1.0, 2.0, 5.0)
_USELESS = (
    "The login keeps returning credentials that are refused. Check that they are for this API "
    "server, and that it knows their account."
)


class Authenticator:
    """Fills the vault with credentials whenever it is empty and they are needed.

    Flow:
        1. The first login fails at once if it returns no credentials: a retry would not help.
        2. Later logins happen when all credentials have expired or are refused; the requests wait.
           If a default login fails then, it is retried for some time.
        3. If a login returns only refused credentials, although the API server has accepted the
           operator before, they are tried again: the refusal may have been the server's fault.
        4. Without credentials to try, the requests fail, and so does the operator. The same happens
           if all credentials are refused, login after login; there are pauses between these logins.

    Args:
        keeps_trying: whether to retry instead of failing, for an operator that can serve admission
            without a cluster.

    Attributes:
        wanted: set by anything that needs the cluster; the first login waits for it.
        logged_in: set while there are credentials that may be valid.
    """

    def __init__(
        self, context: OperatorContext, vault: Vault, *, keeps_trying: bool = False
    ) -> None:
        self.vault = vault
        self.wanted = asyncio.Event()
        self.logged_in = asyncio.Event()
        self._context = context
        self._keeps_trying = keeps_trying
        self._backoff: Backoff | None = None  # while no credentials from the login are accepted
        self._problem = ""
        self._said, self._pauses = Once(), Backoff(_PAUSES)
        self._confirmations = 0  # when the problem was noticed

    @property
    def problem(self) -> str:
        """Why requests to the API server are impossible; empty after the next success."""
        return self._problem if self.vault.confirmations == self._confirmations else ""

    async def run(self, *, needs_cluster: Callable[[], bool]) -> None:
        """Run the login handlers whenever credentials are needed and there are none.

        Args:
            needs_cluster: returns whether reviews must wait for data from the cluster, as startup
                handlers decide. If not, the operator does not end without credentials.

        Raises:
            LoginError: there are no credentials (unless it keeps trying).
            ActivityError: a login handler failed for good (unless it keeps trying).
        """
        await self.wanted.wait()
        over = threading.Event()
        current_login.set(over)  # in the context of this task and its threads
        try:
            await self._keep_logged_in(needs_cluster)
        finally:
            over.set()

    async def _keep_logged_in(self, needs_cluster: Callable[[], bool]) -> None:
        view = self._context.cluster_view
        while True:
            view.is_awaited = needs_cluster() and not view.is_known and not self.problem
            try:
                if not self.vault.is_empty():
                    self.logged_in.set()
                    await self._outlast_credentials()
                await self._log_in()
            except (LoginError, ActivityError) as exc:
                if not self._keeps_trying and needs_cluster():
                    raise
                self.logged_in.clear()
                view.is_awaited = False
                self._report(exc)
                # No other pauses: those of this loop are long enough.
                self._backoff = Backoff((), is_endless=False)
                await asyncio.sleep(self._pauses.next() or 0)

    async def _outlast_credentials(self) -> None:
        """Wait until the next login is needed, with a pause if the last one did not help.

        For example, a plugin can create a new token each time for an unknown account.
        """
        refusals, confirmations = self.vault.refusals, self.vault.confirmations
        await self.vault.wait_for_emptiness()
        if self.vault.refusals == refusals or self.vault.confirmations > confirmations:
            self._backoff = None
            return
        if self._backoff is None:
            backoffs = self._context.settings.networking.error_backoffs
            delays = backoffs if isinstance(backoffs, Iterable) else (backoffs,)
            self._backoff = Backoff(itertools.chain((0.0,), delays), is_endless=False)
        pause = self._backoff.next()
        if pause is None:
            await self.vault.populate({}, reason=_USELESS)  # no request needs to wait any longer
            raise self.vault.build_error()
        if pause:
            error = self.vault.build_error()
            logger.warning("%s Retrying the login in %s s.", error, format_pause(pause))
            await asyncio.sleep(pause)

    def _report(self, exc: LoginError | ActivityError) -> None:
        if not self.problem:
            self._said, self._pauses = Once(), Backoff(_PAUSES)
        self._problem = (
            f"There are no credentials for the API server. {exc.kind} See the log for details."
        )
        self._confirmations = self.vault.confirmations
        if self._said.is_new(str(exc)):
            logger.warning(
                "%s Until the login succeeds, only admission and probes are served.", exc
            )

    async def _log_in(self) -> None:
        is_renewal = self.logged_in.is_set()
        pauses = self._context.settings.networking.error_backoffs if is_renewal else ()
        backoff = Backoff(pauses, is_endless=False)
        while True:
            outcome = await self._collect()
            has_usable = any(map(self.vault.is_usable, outcome.infos.values()))
            if has_usable or not outcome.failures or (pause := backoff.next()) is None:
                break
            logger.warning("%s Retrying the login in %s s.", outcome.explain(), format_pause(pause))
            await asyncio.sleep(pause)
        if has_usable and outcome.explain():
            logger.warning("%s Continuing with other credentials.", outcome.explain())
        # If the server has accepted the operator before, its refusal may have been a mistake.
        retries_refused = self.vault.confirmations > 0 or not is_renewal
        await self.vault.populate(
            outcome.infos,
            reason=outcome.explain(),
            kind=outcome.kind,
            retries_refused=retries_refused,
        )
        if self.vault.is_empty():
            raise self.vault.build_error()

    async def _collect(self) -> LoginOutcome:
        """Call the login handlers; without any, the default logins."""
        activity = Activity.AUTHENTICATION
        if not self._context.registry.select_activities(activity):
            outcome = await call_default_logins(
                logging.getLogger(f"webop.activities.{activity.value}")
            )
            if not (outcome.infos or outcome.failures):
                outcome.mistakes[build_absence_message()] = ABSENCE
            return outcome
        try:
            results = await run_activity(self._context, activity)
        except ActivityError as exc:
            # No request needs to wait any longer.
            await self.vault.populate({}, reason=f"{str(exc).rstrip('. ')}.", kind=exc.kind)
            raise
        outcome = LoginOutcome()
        for key, value in results.items():
            if isinstance(value, ConnectionInfo):
                outcome.infos[key] = value
            elif value is not None:
                text = f"The login handler {key!r} must return a ConnectionInfo or None, got"
                mistake = "A login handler returned a wrong type."
                outcome.mistakes[f"{text} {type(value).__name__}."] = mistake
        if not (outcome.infos or outcome.mistakes):
            what, names = "The login handlers returned nothing", ", ".join(results)
            text = f"{what}: {names}. One of them must return a ConnectionInfo."
            outcome.mistakes[text] = f"{what}."
        return outcome
