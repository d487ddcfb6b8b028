"""What the answer to a dry run tells about the webhooks that were asked. Pure.

The API server names the webhook that has refused a request, or could not be called. A webhook
whose answer is needed must have given one if the request goes through.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable
from dataclasses import dataclass

from webop.doctor.findings import Finding, approve, fail, note, warn
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


@dataclass(frozen=True, slots=True)
class Cause:
    """A kind of reasons why a webhook cannot be called, and what to do."""

    pattern: str
    what: str
    remedy: str


# The texts are those of k8s.io/apiserver, of Go's net, crypto/x509 and net/http. The first one
# that is found counts.
_CAUSES = (
    # What webop itself answers comes first: its texts can have the words of others in them.
    Cause(
        r"There is no webhook '|There are no webhooks for|Webhook '.*' is for ",
        "the operator does not serve this webhook",
        "In a rollout, it is over when all replicas have the same handlers. Otherwise restart the "
        "operator, or remove the webhook from a configuration that is kept by hand.",
    ),
    Cause(
        r"The review is too large",
        "the object is too large for the operator",
        "Raise settings.admission.max_body.",
    ),
    Cause(
        r"did not answer within|has taken too long",
        "a handler takes too long",
        "Look into the log of the operator; make the handler faster, or give it more time by "
        "timeout_seconds=.",
    ),
    Cause(
        r"which is the limit \(settings\.admission\.max_",
        "the operator has too many reviews at once",
        "Find the handler that hangs in the log of the operator; or raise the limit, or the number "
        "of replicas.",
    ),
    Cause(
        r"x509: certificate has expired or is not yet valid",
        "the certificate has expired, or is not valid yet",
        "Renew the certificate, or restart the operator if it is of its own making; compare the "
        "clocks of the nodes.",
    ),
    Cause(
        r"x509: certificate is (valid for|not valid for any)|doesn't contain any IP SANs"
        r"|relies on legacy Common Name",
        "the certificate is for another name",
        "Make a certificate with the name that API servers ask for: <service>.<namespace>.svc, or "
        "the host of the URL.",
    ),
    Cause(
        r"x509:|failed to verify certificate|unknown authority",
        "the caBundle does not trust the certificate",
        "Let the operator write its own caBundle: it does so within a minute if it runs and may "
        "patch the configuration. With certificates of your own, give cafile= to the server.",
    ),
    Cause(
        r"server gave HTTP response to HTTPS client|first record does not look like a TLS",
        "what answers does not speak TLS",
        "Let the Service lead to the port of the webhook server, not to that of the probes.",
    ),
    Cause(
        r"connection refused",
        "nobody listens there",
        "Start the operator; if it runs, compare the port of its webhook server with the "
        "targetPort of the Service, or with the URL.",
    ),
    Cause(
        r"no endpoints available",
        "no pod behind the Service is ready",
        "See why: kubectl get pods, kubectl logs; and whether the selector of the Service fits.",
    ),
    Cause(
        r"no service port",
        "the Service has no such port",
        "Add it to the Service, or correct service_port= of the webhook server.",
    ),
    Cause(
        r"service \"[^\"]*\" not found",
        "the Service does not exist",
        "Create it, or correct service= and namespace= of the webhook server.",
    ),
    Cause(
        r"no such host",
        "the host is not known to the API server",
        "Give an address that the API server can resolve by host= of the webhook server, or use "
        "a Service.",
    ),
    Cause(
        r"the server could not find the requested resource",
        "who answers does not know this webhook (404)",
        "See that all replicas run the same version, and that the Service leads to this operator.",
    ),
    Cause(
        r"deadline exceeded|Client\.Timeout|i/o timeout|no route to host|network is unreachable",
        "it does not answer in time",
        "Let firewalls and NetworkPolicies pass the API server's connections to the port of the "
        "webhook server; see in the log of the operator whether handlers are slow.",
    ),
    Cause(
        r"connection reset|EOF|broken pipe",
        "the connection is cut",
        "See the log of the operator, and of what is between it and the API server.",
    ),
    Cause(
        r"webhook response|couldn't get version/kind|unmarshal",
        "what answers is not an AdmissionReview",
        "Let the Service or the URL lead to the webhook server of this operator.",
    ),
    Cause(
        r"an error on the server|^(?!Post )",
        "it answers with an error",
        "See the log of the operator.",
    ),
)
_ADVICE = {
    Outcome.FORBIDDEN: (
        "Run the doctor with an account that may do this, or leave this out: --no-probe."
    ),
    Outcome.INVALID: (
        "Create an object of this kind for the doctor to try it on, and run it again."
    ),
    Outcome.OTHER: ("Try the same by kubectl --dry-run=server, and see what the API server says."),
}
_UNKNOWN_CAUSE = Cause("", "it cannot be called", "See the log of the operator.")


def read_answer(description: str, error: APIError | None) -> Answer:
    """Tell how a dry run has ended by the error that it has ended with, if any."""
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


def classify(reason: str) -> Cause:
    """Return what kind of a failure to call a webhook it is, by the API server's words."""
    found = (cause for cause in _CAUSES if re.search(cause.pattern, reason, re.IGNORECASE))
    return next(found, _UNKNOWN_CAUSE)


def judge(
    record: Record, own: Answer | str, everything: Iterable[Answer], username: str | None
) -> Finding:
    """Say whether the API server can call a webhook."""
    for answer in everything:
        if answer.culprit == record.name and answer.outcome is Outcome.UNCALLED:
            cause = classify(answer.reason)
            return fail(record.name, f"{cause.what}: {answer.reason}", cause.remedy)
    for answer in everything:
        if answer.culprit == record.name and answer.outcome is Outcome.DENIED:
            return approve(record.name, f"reached: it has denied {answer.description}")
    if isinstance(own, str):
        return note(record.name, f"not tried: {own}")
    return _judge_own(record, own, username)


def _judge_own(record: Record, answer: Answer, username: str | None) -> Finding:
    """Judge a request that has not failed because of the webhook itself."""
    is_passed = answer.outcome is Outcome.ALLOWED or (
        # The schema is checked between the mutating and the validating webhooks.
        answer.outcome is Outcome.INVALID and record.reason is WebhookType.MUTATING
    )
    if is_passed and not record.is_required:
        text = f"cannot be told: {answer.description} passes anyway (failurePolicy Ignore)"
        return note(record.name, text)
    if is_passed:
        for condition in record.webhook.get("matchConditions") or ():
            # Known to be fulfilled is only the one that exempts the operator.
            found = _REFUSING_USERNAME.fullmatch(condition.get("expression", ""))
            if not found or username is None or found[1] == f'"{username}"':
                text = f"{answer.description} has passed, but matchConditions may have exempted it"
                return note(record.name, text)
        return approve(record.name, f"reached by {answer.description}")
    if answer.outcome is Outcome.DENIED:
        text = f"not tried: {answer.culprit} has denied {answer.description}"
        return note(record.name, text)
    if answer.outcome is Outcome.UNCALLED:
        text = f"{answer.description} has failed at another webhook: {answer.culprit}"
        return warn(record.name, text, "Put that one right first, and run the doctor again.")
    text = f"cannot be told, {answer.description} has failed before: {answer.reason}"
    return warn(record.name, text, _ADVICE[answer.outcome])


def _trim(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= _TEXT_LIMIT else f"{flat[:_TEXT_LIMIT]}..."
