"""Staying logged in to the API server: the login handlers are run whenever credentials run out.

Place in the flow: :class:`webop.running.Operator` runs one :class:`LoginKeeper` beside its work.
API calls take credentials from the :class:`~webop.client.credentials.Vault` and report back those
that are refused; when none are left, the keeper runs the login handlers (chapter
"Authentication", "Credentials lifecycle").
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from webop.backoff import Backoff, Once
from webop.client.credentials import ConnectionInfo, Vault
from webop.client.exec_plugins import login_is_over
from webop.client.logins import (
    ABSENCE,
    Login,
    build_absence_message,
    describe_failure,
    get_default_logins,
)
from webop.errors import ActivityError, LoginError
from webop.handling.activities import run_activity
from webop.handling.context import OperatorContext
from webop.handling.handlers import Activity, ActivityHandler
from webop.handling.registry import OperatorRegistry

logger = logging.getLogger(__name__)

# Seconds between the attempts of an operator that lives without a cluster, too.
_PAUSES = (0.5, 1.0, 2.0, 5.0)
_USELESS = (
    "The login keeps returning credentials that are refused. Check that they are for this API "
    "server, and that it knows their account."
)


class LoginKeeper:
    """Fills a vault whenever it is empty and somebody needs it.

    Flow:
        1. The first login: what it cannot do now, it could not do in a minute; it fails at once.
        2. The next ones, when everything has expired or is refused: the API calls wait. If a
           source of credentials fails this time, it is tried again for a while.
        3. If the login brings nothing but what was refused, although the API server has accepted
           the operator before, the same is tried again: it may have been the server's fault.
        4. With nothing to try, the API calls fail, and so does the operator. The same if all that
           the login brings is refused, again and again; there are pauses between these logins.

    A patient one goes on trying where others would give up: an operator that serves admission
    without a cluster, too.

    Attributes:
        vault: the same.
        wanted: to be set by whoever needs the cluster; before that, nothing is done.
        logged_in: set while there are credentials, as far as is known.
    """

    def __init__(self, context: OperatorContext, vault: Vault, *, is_patient: bool = False) -> None:
        self.vault = vault
        self.wanted = asyncio.Event()
        self.logged_in = asyncio.Event()
        self._context = context
        self._is_patient = is_patient
        self._backoff: Backoff | None = None  # while nothing that the login brings is accepted
        self._problem = ""
        self._said, self._pauses = Once(), Backoff(_PAUSES)
        self._confirmations = 0  # when the problem was noticed

    @property
    def problem(self) -> str:
        """Why nothing can be asked of the API server; empty from the next answer on."""
        return self._problem if self.vault.confirmations == self._confirmations else ""

    async def run(self, *, needs_cluster: Callable[[], bool]) -> None:
        """Run the login handlers whenever there are no credentials, and need of them.

        Args:
            needs_cluster: tells whether reviews are to wait for what the cluster will tell; startup
                handlers decide on it. If not, the operator does not end for lack of credentials.

        Raises:
            LoginError: there are no credentials (unless patient).
            ActivityError: a login handler has failed for good (unless patient).
        """
        await self.wanted.wait()
        over = threading.Event()
        login_is_over.set(over)  # in the context of this task, and of the threads that it starts
        try:
            await self._keep_logged_in(needs_cluster=needs_cluster)
        finally:
            over.set()

    async def _keep_logged_in(self, *, needs_cluster: Callable[[], bool]) -> None:
        view = self._context.cluster_view
        while True:
            view.is_awaited = needs_cluster() and not view.is_known and not self.problem
            try:
                if not self.vault.is_empty():
                    self.logged_in.set()
                    await self._outlast_credentials()
                await self._log_in()
            except (LoginError, ActivityError) as exc:
                if not self._is_patient and needs_cluster():
                    raise
                self.logged_in.clear()
                view.is_awaited = False
                self._report(exc)
                self._backoff = Backoff((), is_endless=False)  # these pauses are long enough
                await asyncio.sleep(self._pauses.next() or 0)

    async def _outlast_credentials(self) -> None:
        """Wait for the next login to be needed, and for longer if the last one was of no use.

        A plugin may mint a new token each time for an account that the API server does not know.

        Raises:
            LoginError: this was so after each of the pauses.
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
            await self.vault.populate({}, reason=_USELESS)  # nobody waits for it any more
            raise self.vault.build_error()
        if pause:
            explanation = self.vault.explain_emptiness()
            logger.warning("%s Retrying the login in %g s.", explanation, pause)
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
        """Fill the vault.

        Raises:
            LoginError: it is as empty as before; those who wait for it get the same.
            ActivityError: a login handler has failed for good.
        """
        is_renewal = self.logged_in.is_set()
        pauses = self._context.settings.networking.error_backoffs if is_renewal else ()
        backoff = Backoff(pauses, is_endless=False)
        while True:
            harvest = await self._collect()
            is_fruitful = any(map(self.vault.is_usable, harvest.infos.values()))
            if is_fruitful or not harvest.failures or (pause := backoff.next()) is None:
                break
            logger.warning("%s Retrying the login in %g s.", harvest.explain(), pause)
            await asyncio.sleep(pause)
        if is_fruitful and harvest.explain():
            logger.warning("%s Continuing with other credentials.", harvest.explain())
        # A server that has accepted the operator before may have been wrong to refuse it.
        is_pardoning = self.vault.confirmations > 0 or not is_renewal
        await self.vault.populate(
            harvest.infos, reason=harvest.explain(), kind=harvest.kind, is_pardoning=is_pardoning
        )
        if self.vault.is_empty():
            raise self.vault.build_error()

    async def _collect(self) -> _Harvest:
        """Call the login handlers.

        Raises:
            ActivityError: one of them has failed for good.
        """
        context = self._context
        has_handlers = bool(context.registry.select_activities(Activity.AUTHENTICATION))
        if not has_handlers:
            context = replace(context, registry=_build_default_registry())
        try:
            results = await run_activity(context, Activity.AUTHENTICATION)
        except ActivityError as exc:
            # Nobody waits for it any more.
            await self.vault.populate({}, reason=_finish(str(exc)), kind=exc.kind)
            raise
        harvest = _sort_results(results)
        if not (harvest.infos or harvest.failures or harvest.mistakes):
            text, kind = build_absence_message(), ABSENCE
            if has_handlers:
                kind = "The login handlers returned nothing."
                text = (
                    f"{kind[:-1]}: {', '.join(results)}. One of them must return a ConnectionInfo."
                )
            harvest.mistakes[text] = kind
        return harvest


@dataclass(frozen=True)
class _Harvest:
    """What the login handlers have brought, and why there is no more: reasons with their kinds."""

    infos: dict[str, ConnectionInfo] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    mistakes: dict[str, str] = field(default_factory=dict)

    def explain(self) -> str:
        return " ".join(self.failures | self.mistakes)

    @property
    def kind(self) -> str:
        """What probes may tell."""
        return " ".join(dict.fromkeys((self.failures | self.mistakes).values()))


def _sort_results(results: Mapping[str, object]) -> _Harvest:
    harvest = _Harvest()
    for key, value in results.items():
        if isinstance(value, ConnectionInfo):
            harvest.infos[key] = value
        elif isinstance(value, _Failure):
            harvest.failures[value.reason] = value.kind
        elif value is not None:
            what = type(value).__name__
            text = f"The login handler {key!r} must return a ConnectionInfo or None, got {what}."
            harvest.mistakes[text] = "A login handler returned a wrong type."
    return harvest


@dataclass(frozen=True)
class _Failure:
    """Why a default way of logging in has failed; others may have succeeded."""

    reason: str
    kind: str


def _build_default_registry() -> OperatorRegistry:
    """Return what is called where no login handlers are declared."""
    registry = OperatorRegistry()
    for login in get_default_logins():
        handler = ActivityHandler(
            id=login.__name__, fn=_make_safe(login), activity=Activity.AUTHENTICATION
        )
        registry.append(handler)
    return registry


def _make_safe(login: Login) -> Callable[..., ConnectionInfo | _Failure | None]:
    @functools.wraps(login)
    def try_to_log_in(**kwargs: Any) -> ConnectionInfo | _Failure | None:
        try:
            return login(**kwargs)
        except LoginError as exc:
            return _Failure(_finish(str(exc)), exc.kind)
        except Exception as exc:  # noqa: BLE001 - of the client libraries, whatever it is
            return _Failure(_finish(describe_failure(login, exc)), "A client library failed.")

    return try_to_log_in


def _finish(text: str) -> str:
    """Make it a sentence, for more to follow."""
    return text.rstrip(". ") + "."
