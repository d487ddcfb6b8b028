"""Check that a rule in CEL denies what a validating handler denies, and nothing else.

Flow: :func:`check_agreement` → requests of hypothesis → the API server with the rule as a policy,
and the handler in the app of the operator → both must decide alike.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import random
import secrets
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from webop.admission.configurations.policies import build_policy
from webop.client.api import Client
from webop.client.auth.vault import ConnectionInfo
from webop.client.discovery import discover
from webop.client.standalone import connect_command
from webop.errors import APINotFoundError, APIStatusError, ClusterError, ConfigurationError
from webop.handlers.model import MatchCondition, Rule, WebhookType
from webop.handlers.registry import OperatorRegistry, get_default_registry
from webop.models.crds import build_crds
from webop.models.definitions import find_definition, list_versions
from webop.objects.fields import Json
from webop.objects.resources import Resource, parse_selector
from webop.testing.admission_client import AdmissionClient
from webop.testing.waiting import eventually

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from webop.controlplane.cluster import LocalCluster
    from webop.testing.request_strategies import Attempt

_METHODS: Final = {"CREATE": "POST", "UPDATE": "PUT", "DELETE": "DELETE"}
_MAPS: Final = Resource("", "v1", "configmaps", kind="ConfigMap", namespaced=True)
_SET: Final = {"creationTimestamp", "generation", "namespace", "resourceVersion", "uid"}
_PATIENCE = 30.0  # seconds until policies are in force
_ENOUGH = 0.1  # of the objects must be valid


class _Decision(NamedTuple):
    allowed: bool
    message: str = ""

    def __str__(self) -> str:
        return "allows it" if self.allowed else f"denies it: {self.message}"


_Judged = tuple["Attempt", _Decision, _Decision]  # those of the handler and of the rule


def check_agreement(  # noqa: PLR0913 - what to compare, and how often
    handler: Callable[..., Any],
    *,
    rule: Rule,
    cluster: LocalCluster,
    examples: int = 200,
    seed: int | None = None,
    objects: SearchStrategy[Json] | None = None,
    registry: OperatorRegistry | None = None,
) -> None:
    """Check that a validating handler and a rule decide alike, so that the rule can replace it.

    ::

        def test_the_rule_can_replace_the_handler(webop_cluster):
            webop.testing.check_agreement(check_size, rule=SIZE, cluster=webop_cluster)

    hypothesis makes objects of the rule's class, and changes of objects, for the operations of the
    rule. Some of their values are constants of the rule and of the handler, and their neighbours.
    The API server decides with the rule as a policy; the handler decides in the app of the
    operator, on the objects as the API server has them. Objects that the schema refuses do not
    count. The check needs the package ``hypothesis``, which is in ``webop[test]``.

    Args:
        handler: a function with ``@webop.on.validate``.
        rule: the result of ``webop.rule``; its ``namespace_selector`` and ``action`` do not count.
        cluster: the API server. The policy is only for dry runs in a new namespace there (for
            kinds without namespaces, for all dry runs). The CustomResourceDefinition of the class
            is applied.
        examples: the number of requests.
        seed: makes the requests of an earlier check again; its error has the number.
        objects: what makes objects; by default, made from the class of the rule.
        registry: has the handler; by default, ``webop.get_default_registry()``.

    Raises:
        AssertionError: they decide differently on a request; the message has the smallest one that
            was found. Or neither has denied any request, so that the check shows nothing.
        ConfigurationError: they cannot be compared: the handler is in no registry, or the rule
            changes objects, or names no class.
        ClusterError: the API server refuses the rule; or few of the objects are valid.
    """
    if importlib.util.find_spec("hypothesis") is None:
        raise ConfigurationError("check_agreement() needs hypothesis: pip install hypothesis")
    from webop.testing import request_strategies as made  # noqa: PLC0415 - it needs hypothesis

    name = getattr(handler, "__name__", repr(handler))
    own = OperatorRegistry()
    for one in (get_default_registry() if registry is None else registry).select_webhooks():
        if one.fn is handler and one.reason is WebhookType.VALIDATING:
            own.append(one)
    if not len(own):
        raise ConfigurationError(
            f"{name}() is no validating handler of the registry: import the module with it, or "
            "pass registry=."
        )
    if rule.is_mutating:
        raise ConfigurationError(f"{rule} changes objects: only rules with cel= can be compared.")
    if rule.model is not None and find_definition(rule.model) is not None:
        constants = made.collect_constants(rule.cel, handler)
        objects = made.generate_near(rule.model, constants) if objects is None else objects
        cluster.apply(*build_crds(list_versions(rule.model)))
    elif objects is None:
        raise ConfigurationError(
            f"{rule} names no class with @webop.models.resource(), from which objects could be "
            "made: pass objects=."
        )
    number = random.SystemRandom().randrange(2**32) if seed is None else seed
    attempts = made.build_attempts(objects, rule.operations & _METHODS.keys())
    comparison = _Comparison(name, rule, cluster, examples, number)
    with ThreadPoolExecutor(1) as pool:  # an async test has a loop that runs
        pool.submit(asyncio.run, comparison.run(own, attempts)).result()


@dataclass
class _Comparison:
    """One check: what decides, and how often it has done so."""

    handler: str
    rule: Rule
    cluster: LocalCluster
    examples: int
    seed: int
    policy: str = field(default_factory=lambda: f"check-agreement-{secrets.token_hex(4)}")
    namespace: str = ""
    refusal: str = ""
    judged: int = 0
    denied: int = 0

    async def run(self, registry: OperatorRegistry, attempts: SearchStrategy[Attempt]) -> None:
        cluster, selector = self.cluster, self.rule.selector
        info = ConnectionInfo(server=cluster.server, ca_data=cluster.ca_data, token=cluster.token)
        async with connect_command(info=info) as client:
            known = (await discover(client)).resources
            kinds = selector.select(known)
            if len(kinds) != 1:
                raise ClusterError(
                    f"{self.rule}: the cluster has no kind {selector}.{selector.suggest(known)}"
                )
            (kind,) = kinds
            async with (
                AdmissionClient(registry, resources=kinds, cluster=cluster) as admission,
                self._applying(client, kind),
            ):
                loop = asyncio.get_running_loop()

                def judge(attempt: Attempt) -> _Judged | None:
                    judging = self._judge(client, admission, kind, attempt)
                    return asyncio.run_coroutine_threadsafe(judging, loop).result()

                await asyncio.to_thread(self._explore, attempts, judge)
        if self.judged < self.examples * _ENOUGH:
            raise ClusterError(
                f"Only {self.judged} of {self.examples} objects were valid for the API server, so "
                f"the check of {self.rule} shows little. Pass objects= that fit the schema. The "
                f"last refusal: {self.refusal}"
            )
        if not self.denied:
            raise AssertionError(
                f"{self.handler}() and the rule {self.rule.id!r} have both allowed all of the "
                f"{self.judged} requests, so the check shows nothing. Pass more examples=, or "
                "objects= that violate the rule."
            )

    def _explore(
        self, attempts: SearchStrategy[Attempt], judge: Callable[[Attempt], _Judged | None]
    ) -> None:
        """Judge attempts; hypothesis reports the smallest one with different decisions."""
        from hypothesis import assume, given  # noqa: PLC0415
        from hypothesis import seed as seeded  # noqa: PLC0415
        from hypothesis.errors import Unsatisfiable  # noqa: PLC0415

        from webop.testing.object_strategies import build_settings  # noqa: PLC0415

        options = build_settings(self.examples)

        def check(attempt: Attempt) -> None:
            judged = judge(attempt)
            assume(judged is not None)
            assert judged is not None  # noqa: S101 - for the type checker
            seen, of_handler, of_rule = judged
            self.judged += 1
            self.denied += not of_rule.allowed
            if of_handler.allowed != of_rule.allowed:
                raise AssertionError(self._describe(seen, of_handler, of_rule))

        with contextlib.suppress(Unsatisfiable):  # none was valid
            seeded(self.seed)(options(given(attempts)(check)))()

    def _describe(self, attempt: Attempt, of_handler: _Decision, of_rule: _Decision) -> str:
        objects = (("The old object", attempt.old), ("The object", attempt.new))
        lines = [
            f"{self.handler}() and the rule {self.rule.id!r} disagree on this {attempt.operation}:",
            f"  the handler {of_handler}",
            f"  the rule {of_rule}",
            *(f"{what}: {_show(body)}" for what, body in objects if body is not None),
            f"To see it again, pass seed={self.seed}, examples={self.examples}.",
        ]
        return "\n".join(lines)

    @contextlib.asynccontextmanager
    async def _applying(self, client: Client, kind: Resource) -> AsyncIterator[None]:
        """Keep the rule in the cluster, for dry runs in a new namespace.

        The API server notices policies some time later, older ones first. So the one after it,
        which denies a ConfigMap of its name, shows when both are in force.
        """
        self.namespace = self.cluster.create_namespace("check-agreement-")
        here = f"request.namespace == '{self.namespace}'"
        dry = f"request.dryRun && {here}" if kind.namespaced else "request.dryRun"
        conditions = (*self.rule.match_conditions, MatchCondition("check-agreement", dry))
        tried = replace(
            self.rule, action="Deny", namespace_selector=None, match_conditions=conditions
        )
        canary = Rule(
            id="canary",
            selector=parse_selector("v1", "configmaps"),
            cel=f"object.metadata.name != '{self.policy}'",
            message="The policies are in force.",
            operations=frozenset({"CREATE"}),
            match_conditions=(MatchCondition("check-agreement", here),),
        )
        places = {self.policy: (tried, kind), f"{self.policy}-canary": (canary, _MAPS)}
        made = [
            each
            for name, (rule, one) in places.items()
            for each in build_policy(rule, name, [one], labels={})
        ]
        try:
            self.cluster.apply(*made)
            await eventually(
                partial(self._is_noticed, client), "the policies are in force", timeout=_PATIENCE
            )
            yield
        finally:
            for each in reversed(made):
                self.cluster.delete(each["apiVersion"], each["kind"], each["metadata"]["name"])
            self.cluster.delete_namespace(self.namespace)

    async def _is_noticed(self, client: Client) -> bool:
        path, body = _MAPS.get_url(namespace=self.namespace), {"metadata": {"name": self.policy}}
        try:
            await _send(client, "POST", path, body, is_dry=True)
        except APIStatusError as exc:
            return f"ValidatingAdmissionPolicy '{self.policy}" in str(exc)  # one of the two
        return False

    async def _judge(
        self, client: Client, admission: AdmissionClient, kind: Resource, attempt: Attempt
    ) -> _Judged | None:
        """Return the attempt with the objects of the API server, and both decisions.

        A dry run has the decision of the rule. If it is denied, the same request without it passes,
        and has the object that a webhook would get. None if the API server has other reasons.
        """
        operation, old, new = attempt
        where = self.namespace if kind.namespaced else None
        for body in filter(None, (old, new)):
            body["metadata"] |= {} if where is None else {"namespace": where}
        path = kind.get_url(namespace=where)
        one = kind.get_url(namespace=where, name=(old or new or {})["metadata"]["name"])
        send = partial(_send, client, _METHODS[operation], path if old is None else one)
        of_rule, is_stored = _Decision(allowed=True), old is not None
        try:
            if old is not None:
                old = await _send(client, "POST", path, old)
            if old is not None and new is not None:
                new["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"]
            try:
                done = await send(new, is_dry=True)
            except APIStatusError as exc:
                if f"ValidatingAdmissionPolicy '{self.policy}'" not in str(exc):
                    raise
                message = str(exc).partition(f"with binding '{self.policy}' ")[2]
                of_rule, is_stored = _Decision(allowed=False, message=message), True
                done = {} if new is None else await send(new)
            new = new and done
        except APIStatusError as exc:
            if not 400 <= exc.status < 500:
                raise
            self.refusal = str(exc)
            return None
        finally:
            if is_stored:
                with contextlib.suppress(APINotFoundError):
                    await client.request("DELETE", one)
        if operation == "CREATE":
            result = await admission.create(new or {})
        elif operation == "UPDATE":
            result = await admission.update(old or {}, new or {})
        else:
            result = await admission.delete(old or {})
        of_handler = _Decision(allowed=result.allowed, message=result.message)
        return attempt._replace(old=old, new=new), of_handler, of_rule


async def _send(
    client: Client, method: str, path: str, body: Json | None, *, is_dry: bool = False
) -> Json:
    params = {"dryRun": "All"} if is_dry else None
    found: Json = await client.request(method, path, params=params, body=body)
    found.get("metadata", {}).pop("managedFields", None)
    return found


def _show(body: Json) -> str:
    """Return an object without what the API server sets."""
    metadata = {key: value for key, value in body["metadata"].items() if key not in _SET}
    return json.dumps({**body, "metadata": metadata}, ensure_ascii=False)
