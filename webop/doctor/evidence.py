"""What the answer to a dry run says about the webhooks that were called. Pure.

The API server names the webhook that has denied a request, or could not be called. A webhook
whose answer is required must have given one if the request goes through.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable
from dataclasses import dataclass

from webop.doctor.findings import RENEW, Finding, approve, fail, note, warn
from webop.doctor.records import Record
from webop.errors import APIError, APIStatusError
from webop.handling.handlers import WebhookType

_DENIED = re.compile(r'admission webhook "([^"]+)" denied the request')
_UNCALLED = re.compile(
    r'failed calling webhook "([^"]+)": (?:failed to call webhook: )?(.*)', re.DOTALL
)
_REFUSING_USERNAME = re.compile(r'request\.userInfo\.username != ("(?:[^"\\]|\\.)*")')

_TEXT_LIMIT = 250


class Outcome(enum.Enum):
    """How a dry run has ended."""

    ALLOWED = enum.auto()
    DENIED = enum.auto()  # by a webhook
    UNCALLED = enum.auto()  # a webhook could not be called
    INVALID = enum.auto()  # by the schema, after mutating webhooks and before validating ones
    FORBIDDEN = enum.auto()  # by RBAC, before all webhooks
    OTHER = enum.auto()


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a dry run."""

    description: str
    outcome: Outcome
    culprit: str = ""
    reason: str = ""


# Reasons, what they mean, what to do; the first that is found counts. The texts are those of
# k8s.io/apiserver, and of Go's net, crypto/x509 and net/http; those of webop itself come first, as
# they can have the words of others in them.
_CAUSES = (
    (r"There is no webhook '|There are no webhooks for|Webhook '.*' is for ",
     "the operator does not serve this webhook",
     "Wait for the end of a rollout; else restart the operator, or correct the configuration."),
    (r"The review is too large", "the object is too large for the operator",
     "Raise settings.admission.max_body."),
    (r"did not answer within|has taken too long", "a handler takes too long",
     "See the log; make it faster, or raise timeout_seconds=."),
    (r"which is the limit \(settings\.admission\.max_", "the operator has too many reviews at once",
     "Find the handler that hangs in the log; or raise the limit, or the number of replicas."),
    (r"x509: certificate has expired or is not yet valid",
     "the certificate has expired, or is not valid yet",
     "Renew it, or restart the operator if it made it; compare the clocks."),
    (r"x509: certificate is (valid for|not valid for any)|contain any IP SANs|legacy Common Name",
     "the certificate is for another name",
     "Make one for <service>.<namespace>.svc, or for the host of the URL."),
    (r"x509:|failed to verify certificate|unknown authority",
     "the caBundle does not trust the certificate", RENEW),
    (r"server gave HTTP response to HTTPS client|first record does not look like a TLS",
     "what answers does not speak TLS",
     "Let the Service lead to the port of the webhook server."),
    (r"connection refused", "nobody listens there",
     "Start the operator; if it runs, compare its port with the targetPort or the URL."),
    (r"no endpoints available", "no pod behind the Service is ready",
     "See why: kubectl get pods, kubectl logs; and whether the selector of the Service fits."),
    (r"no service port", "the Service has no such port",
     "Add it, or correct service_port= of the webhook server."),
    (r"service \"[^\"]*\" not found", "the Service does not exist",
     "Create it, or correct service= and namespace= of the server."),
    (r"no such host", "the API server does not know the host",
     "Give one that it can resolve by host=, or use a Service."),
    (r"the server could not find the requested resource",
     "who answers does not know this webhook (404)",
     "Check that all replicas run the same version, and where the Service or the URL leads."),
    (r"deadline exceeded|Client\.Timeout|i/o timeout|no route to host|network is unreachable",
     "it does not answer in time",
     "Let firewalls and NetworkPolicies pass the API server; see the log for slow handlers."),
    (r"connection reset|EOF|broken pipe", "the connection is cut",
     "See the log of the operator, and of what is in between."),
    (r"webhook response|couldn't get version/kind|unmarshal",
     "what answers is not an AdmissionReview", "Correct where the Service or the URL leads."),
    (r"an error on the server|^(?!Post )", "it answers with an error",
     "See the log of the operator."),
    (r"", "it cannot be called", "See the log of the operator."),
)  # fmt: skip
_ADVICE = {
    Outcome.FORBIDDEN: "Run the doctor with an account that may do this, or with --no-probe.",
    Outcome.INVALID: "Create an object of this kind to try it on, and run the doctor again.",
    Outcome.OTHER: "Try the same by kubectl --dry-run=server, and see what the API server says.",
}


def read_answer(description: str, error: APIError | None) -> Answer:
    """Return how a dry run has ended, by the error that it has ended with, if any."""
    if error is None:
        return Answer(description, Outcome.ALLOWED)
    text = str(error)
    if found := _UNCALLED.search(text):
        return Answer(description, Outcome.UNCALLED, found[1], _trim(found[2]))
    if found := _DENIED.search(text):
        return Answer(description, Outcome.DENIED, found[1])
    status = error.status if isinstance(error, APIStatusError) else 0
    outcome = {403: Outcome.FORBIDDEN, 422: Outcome.INVALID}.get(status, Outcome.OTHER)
    return Answer(description, outcome, reason=_trim(text))


def _trim(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= _TEXT_LIMIT else f"{flat[:_TEXT_LIMIT]}..."


def classify(reason: str) -> tuple[str, str]:
    """Return why a webhook cannot be called, by the API server's words, and what to do."""
    found = (cause for cause in _CAUSES if re.search(cause[0], reason, re.IGNORECASE))
    return next(found)[1:]


def judge(
    record: Record, own: Answer | str, everything: Iterable[Answer], username: str | None
) -> Finding:
    """Say whether the API server can call a webhook.

    Args:
        record: the webhook.
        own: the answer to the request that was made for it; or why there was none.
        everything: the answers to all requests: any can name this webhook.
        username: who has made the requests.
    """
    name, about = record.name, [one for one in everything if one.culprit == record.name]
    if uncalled := [one for one in about if one.outcome is Outcome.UNCALLED]:
        what, remedy = classify(uncalled[0].reason)
        return fail(name, f"{what}: {uncalled[0].reason}", remedy)
    if about:
        return approve(name, f"reached: it has denied {about[0].description}")
    if isinstance(own, str):
        return note(name, f"not tried: {own}")
    what = own.description
    if own.outcome is Outcome.DENIED:
        return note(name, f"not tried: {own.culprit} has denied {what}")
    if own.outcome is Outcome.UNCALLED:
        text = f"unknown: {what} has failed at another webhook, {own.culprit}"
        return warn(name, text, "Repair that one first, and run the doctor again.")
    # The schema is checked between the mutating and the validating webhooks.
    is_late = own.outcome is Outcome.INVALID and record.reason is WebhookType.MUTATING
    if own.outcome is not Outcome.ALLOWED and not is_late:
        text = f"unknown: {what} failed before this check: {own.reason}"
        return warn(name, text, _ADVICE[own.outcome])
    return _judge_passed(record, what, username)


def _judge_passed(record: Record, what: str, username: str | None) -> Finding:
    """Judge a webhook by a request that has gone through: was it called?"""
    if not record.is_required:
        return note(record.name, f"unknown: {what} passes anyway (failurePolicy Ignore)")
    for condition in record.webhook.get("matchConditions") or ():
        # Known to be fulfilled is only the one that exempts the operator.
        found = _REFUSING_USERNAME.fullmatch(condition.get("expression", ""))
        if not found or username is None or found[1] == f'"{username}"':
            text = f"unknown: {what} has passed, but matchConditions may have exempted it"
            return note(record.name, text)
    return approve(record.name, f"reached by {what}")
