"""Check that API servers can connect to the webhooks of a configuration, and trust them.

First the doctor connects itself, with the handshake of the API server: the same CAs and no others,
the same name.

Then dry runs (Kubernetes API concepts) make the API server call the webhooks. For each webhook, the
doctor finds an object that the webhook is called for, or a namespace to create one in, and sends
the request. The API server's error names the webhook that denied it or could not be called. If the
request succeeds, every webhook with failurePolicy Fail has responded.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime as dt
import re
import socket
import ssl
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from webop.aio.concurrency import run_concurrently
from webop.cli.doctor.check_context import Context, Json
from webop.cli.doctor.findings import Finding, Level, approve, describe_seconds, fail, note, warn
from webop.cli.doctor.records import TAKE_OVER, has_required
from webop.client.http.requests import JSON, MERGE_PATCH, Call, encode_body
from webop.errors import APIError, APIForbiddenError
from webop.handlers.model import WebhookType
from webop.identities import is_in_pod
from webop.objects.resources import Resource
from webop.servers.certificates.certs import read_certificate, split_certificates
from webop.servers.local import WebhookServer
from webop.servers.service_server import WebhookServiceServer

_TIMEOUT = 5.0  # seconds; of a handshake
_AT_ONCE = 4  # requests; a webhook that does not answer takes 30 s
_LISTED_OBJECTS = "50"  # of a kind
_TRIED_TARGETS = 5  # kinds of objects for one webhook
_FORMS = {"In": "{} in ({})", "NotIn": "{} notin ({})", "Exists": "{}", "DoesNotExist": "!{}"}
_TEXT_LIMIT = 250  # characters of an error's text
_CULPRIT = re.compile(r'webhook "(\S+)"(?: denied the request|: (?:failed to call webhook: )?(.+))')
_REFUSING_USERNAME = re.compile(r'request\.userInfo\.username != ("(?:[^"\\]|\\.)*")')

RENEW = (
    "The operator writes its own caBundle within a minute of its start: start it, or read its log. "
    "For your own certificates, set cafile= of the webhook server."
)
# Remedies for errors that are not about webhooks, by HTTP status.
_REMEDIES = {
    0: "Try the same with kubectl --dry-run=server, and read the error of the API server.",
    403: "Run the doctor with an account that may do this, or with --no-probe.",
    422: "Create an object of this kind for the dry run, and run the doctor again.",
}

Webhook = tuple[WebhookType, Json]  # the kind of its configuration, and its entry there
Attempt = tuple[str, str, bytes, str]  # a dry run: method, path, body, description
Target = tuple[Resource, str | None, bool, bool]  # resource, subresource; updates, creations


class DryRun(NamedTuple):
    """The outcome of a dry run; without a culprit and a reason, it succeeded."""

    what: str
    culprit: str = ""  # the webhook that denied it or, with a reason, could not be called
    reason: str = ""
    status: int = 0  # the HTTP status of an error that is not about webhooks


# Pattern of a reason, its meaning, its remedy; the first match counts. The texts are those of
# k8s.io/apiserver, and of Go's net, crypto/x509 and net/http. Those of webop come first, since they
# can contain the others.
_CAUSES = (
    (r"There is no webhook '|There are no webhooks for|Webhook '.*' is for ",
     "the operator does not serve this webhook",
     "Wait until a rollout is complete; else restart the operator, or correct the configuration."),
    (r"The review is too large", "the object is too large for the operator",
     "Raise settings.admission.max_body."),
    (r"did not answer within|review took too long", "a handler takes too long",
     "Find the handler in the log. Make it faster, or raise timeout_seconds=."),
    (r"the limit \(settings\.admission\.max_", "the operator has too many reviews at once",
     "Find the slow handler in the log; or raise the limit or the number of replicas."),
    (r"certificate has expired or is not", "the certificate has expired, or is not valid yet",
     "Renew it, or restart the operator if the operator made it. Compare the clocks."),
    (r"certificate is (not )?valid for|IP SANs|Common Name", "the certificate is for another name",
     "Issue one for <service>.<namespace>.svc, or for the host of the URL."),
    (r"x509:|failed to verify|unknown auth", "the caBundle does not trust the certificate", RENEW),
    (r"gave HTTP response to HTTPS|not look like a TLS", "the server there does not use TLS",
     "Point the Service at the port of the webhook server."),
    (r"connection refused", "no server listens there",
     f"Start the operator. {TAKE_OVER} If it runs, compare its port with the URL or targetPort."),
    (r"no endpoints available", "no pod behind the Service is ready",
     "Check the pods (kubectl get pods, kubectl logs) and the selector of the Service."),
    (r"no service port", "the Service has no such port",
     "Add it, or correct service_port= of the webhook server."),
    (r"service \"[^\"]*\" not found", "the Service does not exist",
     "Create it, or correct service= and namespace= of the webhook server."),
    (r"no such host", "the API server cannot resolve the host",
     "Set host= to a name that it can resolve, or use a Service."),
    (r"could not find the requested resource", "the server there does not know this webhook (404)",
     "Check that all replicas run the same version, and the target of the Service or the URL."),
    (r"deadline exceeded|timeout|no route to|unreachable", "it does not respond in time",
     "Let the API server pass firewalls and NetworkPolicies; look for slow handlers in the log."),
    (r"connection reset|EOF|broken pipe", "the connection was closed",
     "Read the log of the operator, and of proxies in between."),
    (r"webhook response|get version/kind|unmarshal", "the response is not an AdmissionReview",
     "Correct the target of the Service or the URL."),
    (r"an error on the server|^(?!Post )", "it responds with an error", "Read the operator's log."),
    (r"", "it cannot be called", "Read the operator's log."),
)  # fmt: skip


async def check_trust(context: Context, webhooks: Sequence[Json]) -> list[Finding]:
    """Check the addresses of the webhooks of a configuration; usually, all have the same one."""
    addresses: dict[tuple[str, str], Json] = {}
    for config in (webhook["clientConfig"] for webhook in webhooks):
        service, address = config.get("service") or {}, urlsplit(config.get("url") or "").netloc
        if service:
            address = f"{service['name']}.{service['namespace']}.svc:{service.get('port', 443)}"
        addresses[address, config.get("caBundle") or ""] = service
    findings: list[Finding] = []
    for (address, bundle), service in addresses.items():
        findings.append(check_bundle(bundle, context.now))
        findings += await _check_address(context, f"https://{address}", service, bundle)
    is_optional = not has_required(webhooks)
    return [
        replace(one, level=Level.WARNING) if is_optional and one.level is Level.FAILURE else one
        for one in findings
    ]


def check_bundle(text: str, now: dt.datetime) -> Finding:
    """Check that a ``caBundle`` is readable, and valid for some time. Pure.

    The certificate that expires last counts: during a rotation, the bundle also has old ones.
    """
    if not text:
        return note("caBundle", "none: the API server trusts only the CAs of its system")
    try:
        pems = split_certificates(base64.b64decode(text, validate=True))
        last = max(pems, key=lambda pem: read_certificate(pem).end)
    except ValueError as exc:
        return fail("caBundle", f"cannot be read: {exc}", RENEW)
    what = "its CA" if len(pems) == 1 else f"the last of its {len(pems)} CAs"
    return judge_life("caBundle", what, last, now)


def judge_life(subject: str, what: str, pem: bytes, now: dt.datetime) -> Finding:
    """Return a finding about the validity of a certificate. Pure.

    It is a warning in the last tenth of the validity, at most a week.
    """
    found = read_certificate(pem)
    end = found.end
    if end - now > min((end - found.start) * 0.1, dt.timedelta(days=7)):
        return approve(subject, f"{what} is trusted and valid until {end:%Y-%m-%d}")
    span, when = describe_seconds(abs((end - now).total_seconds())), f"{end:%Y-%m-%d %H:%M} UTC"
    if end > now:
        return warn(subject, f"{what} expires on {when}, in {span}", RENEW)
    return fail(subject, f"{what} expired on {when}, {span} ago", RENEW)


async def _check_address(context: Context, url: str, service: Json, bundle: str) -> list[Finding]:
    """Connect to a server if possible from here, and check the certificate that it sends."""
    parts, place = urlsplit(url), None
    name = str(parts.hostname)
    try:
        if service:
            path = f"/api/v1/namespaces/{service['namespace']}/services/{service['name']}"
            found = await context.read(path)
            if not found:
                remedy = "Create it, or correct service= and namespace= of the webhook server."
                return [fail("address", f"{url}: the Service does not exist", remedy)]
            place = found["spec"].get("externalName")
            # Only pods resolve the names of Services reliably.
            if not place and not is_in_pod():
                text = f"{url} is a Service, which is reachable only inside the cluster"
                remedy = "Run the doctor in a pod: kubectl exec deploy/NAME -- webop doctor"
                return [note("address", text, remedy)]
        shown = await _shake_hands(place or name, parts.port or 443, name, bundle)
    except APIForbiddenError as exc:
        return [note("address", f"unknown: {exc}")]
    except ssl.SSLCertVerificationError as exc:
        reason = exc.verify_message or exc
        why = f"the caBundle does not trust the certificate for {name}: {reason}"
        return [fail("certificate", why, f"{RENEW} It must have {name} as subjectAltName.")]
    except (OSError, ValueError) as exc:
        is_refused = isinstance(exc, ConnectionRefusedError)
        reason = "connection refused" if is_refused else str(exc) or "no response in time"
        text = f"{url} cannot be reached from here: {reason}"
        if isinstance(exc, socket.gaierror | ValueError):  # a bad bundle has its own finding
            remedy = "If the API server cannot call it either (see below), set host= of the server."
            return [note("address", text, remedy)]
        remedy = f"Start the operator. {TAKE_OVER} Else check its port, firewalls, NetworkPolicies."
        return [warn("address", text, remedy)]
    serial = read_certificate(shown).serial
    what = f"the one for {name}, serial number {serial},"
    findings = [judge_life("certificate", what, shown, context.now)]
    with contextlib.suppress(OSError, ValueError, LookupError):  # not readable from here
        source, wanted = await _fetch_wanted(context, service)
        if split_certificates(wanted)[0] != shown:
            expected = read_certificate(wanted).serial
            text = f"the server uses {serial}, but {source} has {expected}"
            remedy = "Wait a minute for the replicas to load it; else restart them, read their log."
            findings.append(warn("certificate", text, remedy))
    return findings


async def _shake_hands(host: str, port: int, name: str, bundle: str) -> bytes:
    """Return the certificate of a server as PEM.

    Raises:
        ssl.SSLCertVerificationError: the CA bundle does not trust it, or it has another name.
    """
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    tls.hostname_checks_common_name = False
    # As in Go, every certificate in the bundle is trusted, not only self-signed ones.
    tls.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if bundle:
        tls.load_verify_locations(cadata=base64.b64decode(bundle, validate=True).decode())
    else:
        tls.load_default_certs()
    async with asyncio.timeout(_TIMEOUT):
        _, writer = await asyncio.open_connection(host, port, ssl=tls, server_hostname=name)
    shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.transport.abort()
    return ssl.DER_cert_to_PEM_cert(shown).encode()


async def _fetch_wanted(context: Context, service: Json) -> tuple[str, bytes]:
    """Return the source of the operator's certificate, and the certificate there."""
    server = context.settings.admission.server
    if isinstance(server, WebhookServer) and server.certfile:
        return str(server.certfile), await asyncio.to_thread(Path(server.certfile).read_bytes)
    name = (context.service_server or WebhookServiceServer()).name_secret(service["name"])
    secret = await context.read_secret(service["namespace"], name)
    return f"the Secret {name}", base64.b64decode(secret["data"]["tls.crt"])


def parse_error(what: str, error: APIError) -> DryRun:
    """Return the outcome of a dry run that failed."""
    text = " ".join(str(error).split())
    if found := _CULPRIT.search(text):
        return DryRun(what, found[1], (found[2] or "")[:_TEXT_LIMIT])
    return DryRun(what, "", text[:_TEXT_LIMIT], getattr(error, "status", 0))


def judge(
    webhook: Webhook,
    own: DryRun | str,
    everything: Iterable[DryRun],
    username: str | None,
    names: Collection[str] = (),
) -> Finding:
    """Return whether the API server can call a webhook; the error of any dry run can name it.

    Args:
        webhook: the webhook.
        own: the outcome of its dry run, or the reason why there was none.
        everything: the outcomes of all dry runs.
        username: the name of this account, None if unknown.
        names: of all webhooks that are judged; nobody else reports the failure of another one.
    """
    reason, body = webhook
    name = str(body["name"])
    about = [one for one in everything if one.culprit == name]
    if trouble := next((one.reason for one in about if one.reason), ""):
        what, remedy = explain(trouble)
        return fail(name, f"{what}: {trouble}", remedy)
    if about:
        return approve(name, f"called: it denied {about[0].what}")
    if isinstance(own, str):
        return note(name, f"not called: {own}")
    what = own.what
    if own.culprit and own.reason:
        meaning, remedy = explain(own.reason)
        text = f"unknown: {what} failed at another webhook, {own.culprit}: {meaning}"
        level = Level.WARNING if own.culprit in names else Level.FAILURE
        return Finding(level, name, text, f"Fix that one first. {remedy}")
    if own.culprit:
        return note(name, f"not called: {own.culprit} denied {what}")
    # The schema is checked between the mutating and the validating webhooks.
    is_late = own.status == 422 and reason is WebhookType.MUTATING
    if own.reason and not is_late:
        text = f"unknown: {what} failed before this check: {own.reason}"
        return warn(name, text, _REMEDIES.get(own.status, _REMEDIES[0]))
    # Only the condition that exempts another account (the operator's) is certainly true.
    mine = f'request.userInfo.username != "{username}"'
    conditions = [one["expression"] for one in body.get("matchConditions") or ()]
    known = [one for one in conditions if username and _REFUSING_USERNAME.fullmatch(one)]
    if not has_required([body]):
        why = "succeeds in any case (failurePolicy Ignore)"
    elif conditions != known or mine in known:
        why = "succeeded, but matchConditions may have exempted it"
    else:
        return approve(name, f"called by {what}")
    return note(name, f"unknown: {what} {why}")


def explain(reason: str) -> tuple[str, str]:
    """Return the meaning of an error in a call of a webhook, and the remedy."""
    causes = (cause for cause in _CAUSES if re.search(cause[0], reason, re.IGNORECASE))
    _, what, remedy = next(causes)
    return what, remedy


def parse_selector(selector: Json | None) -> tuple[str, dict[str, str]]:
    """Return a label selector (meta/v1) as a query, and some labels that it selects."""
    labels = (selector or {}).get("matchLabels") or {}
    others = (selector or {}).get("matchExpressions") or ()
    needs = [(key, "In", [value]) for key, value in labels.items()]
    needs += [(one["key"], one["operator"], one.get("values") or [""]) for one in others]
    query = ",".join(_FORMS[form].format(key, ",".join(values)) for key, form, values in needs)
    forms = ("Exists", "In")  # in this order, as values for a key count more
    return query, {key: v[0] for wanted in forms for key, form, v in needs if form == wanted}


def list_targets(webhook: Json, resources: Iterable[Resource]) -> Iterator[Target]:
    """Yield the resources of the cluster that a dry run can use to call a webhook.

    Of subresources, only ``status`` is suitable: operations on others have side effects.
    """
    suitable = (resource for resource in resources if {"list", "patch"} <= resource.verbs)
    known = sorted(suitable, key=lambda resource: resource.name)
    for rule, resource in product(webhook.get("rules") or (), known):
        group, version, plural, names = *resource, set(rule["resources"])
        scope = "Namespaced" if resource.namespaced else "Cluster"
        given = rule["apiGroups"], rule["apiVersions"], [rule.get("scope", "*")]
        own = group, version, scope
        if any({"*", one}.isdisjoint(some) for one, some in zip(own, given, strict=True)):
            continue
        verbs = set(rule["operations"])
        updates, creates = (bool(verbs & {"*", one}) for one in ("UPDATE", "CREATE"))
        if (updates or creates) and names & {"*", "*/*", plural}:
            yield resource, None, updates, creates
        forms = {"*/*", "*/status", f"{plural}/*", f"{plural}/status"}
        if updates and names & forms and "status" in resource.subresources:
            yield resource, "status", True, False


def build_update(resource: Resource, subresource: str | None, body: Json) -> Attempt:
    """Return a dry run that updates one annotation of an object."""
    namespace, name = body["metadata"].get("namespace"), body["metadata"]["name"]
    path = resource.get_url(namespace=namespace, name=name, subresource=subresource)
    change: Json = {"metadata": {"annotations": {"webop.dev/doctor": "probe"}}}
    what = "/".join(filter(None, (resource.plural, subresource)))
    where = "/".join(filter(None, (namespace, name)))
    return "PATCH", path, encode_body(change), f"an UPDATE of {what} {where}"


def build_creation(
    resource: Resource, namespace: str | None, labels: Mapping[str, str], model: Json | None
) -> Attempt:
    """Return a dry run that creates an object, as a copy of the model if there is one."""
    made = {key: value for key, value in (model or {}).items() if key != "status"}
    metadata = made.get("metadata") or {}
    kept = {key: metadata.get(key) or {} for key in ("labels", "annotations")}
    kept |= {"generateName": "webop-doctor-", "labels": {**labels, **kept["labels"]}}
    made |= {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": kept}
    where = f" in {namespace}" if resource.namespaced else ""
    path = resource.get_url(namespace=namespace)
    return "POST", path, encode_body(made), f"a CREATE of {resource.plural}{where}"


async def probe(context: Context, webhooks: Collection[Webhook]) -> list[Finding]:
    """Make the API server call webhooks; return one finding for each."""
    limit = asyncio.Semaphore(_AT_ONCE)

    async def send(method: str, path: str, body: bytes, what: str) -> DryRun:
        form = JSON if method == "POST" else MERGE_PATCH
        async with limit:
            try:
                await context.client.perform(Call(method, path, {"dryRun": "All"}, body, form))
            except APIError as exc:
                return parse_error(what, exc)
        return DryRun(what)

    attempts = await run_concurrently(_prepare(context, body) for _, body in webhooks)
    unique = dict.fromkeys(one for one in attempts if not isinstance(one, str))
    sent = await run_concurrently(send(*one) for one in unique)
    outcomes = dict(zip(unique, sent, strict=True))
    own = [one if isinstance(one, str) else outcomes[one] for one in attempts]
    names = {body["name"] for _, body in webhooks}
    return [judge(*one, sent, context.username, names) for one in zip(webhooks, own, strict=True)]


async def _prepare(context: Context, webhook: Json) -> Attempt | str:
    """Return a dry run that calls a webhook, or the reason why there is none."""
    places: list[str] | None = None  # the namespaces that it is called for; None for all
    if query := parse_selector(webhook.get("namespaceSelector"))[0]:
        try:
            listed = await context.read("/api/v1/namespaces", labelSelector=query)
        except APIForbiddenError:
            return "this account is not allowed to list namespaces, to find those of the webhook"
        places = [item["metadata"]["name"] for item in listed["items"]]
    query, labels = parse_selector(webhook.get("objectSelector"))
    targets = list(list_targets(webhook, context.resources))
    for resource, subresource, updates, creates in targets[:_TRIED_TARGETS]:
        found = await _find_object(context, resource, query, places)
        if found is not None and updates:
            return build_update(resource, subresource, found)
        present = found and found["metadata"].get("namespace")
        known = (present, *(context.namespaces or (context.namespace, *(places or ()))))
        served = [name for name in known if name and (places is None or name in places)]
        if creates and (served or not resource.namespaced):
            return build_creation(resource, served[0] if served else None, labels, found)
    if names := ", ".join(dict.fromkeys(resource.plural for resource, *_ in targets)):
        return f"no object of {names} matches it, and there is no namespace to create one in"
    return "its rules match only operations that a dry run cannot do, or kinds not in the cluster"


async def _find_object(
    context: Context, resource: Resource, query: str, places: list[str] | None
) -> Json | None:
    """Return an object that the webhook is called for; None if this account can read none."""
    where = context.namespaces or (None, context.namespace)  # None is the whole cluster
    for path in dict.fromkeys(resource.get_url(namespace=place) for place in where):
        with contextlib.suppress(APIForbiddenError):
            listed = await context.read(path, limit=_LISTED_OBJECTS, labelSelector=query)
            for item in listed.get("items") or ():
                namespace = item["metadata"].get("namespace")  # cluster-wide objects always match
                is_served = places is None or namespace is None or namespace in places
                if is_served and "deletionTimestamp" not in item["metadata"]:
                    return dict(item)
    return None
