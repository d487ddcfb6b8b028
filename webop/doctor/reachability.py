"""Whether API servers reach the webhooks of a configuration, and trust who answers there.

First from here, by the handshake of the API server: the same CAs, and no others; the same name.

Then from there: dry runs (Kubernetes API concepts) make the API server call the webhooks. For each
one, find something that it is called for, an object or a place for one; send the request. The API
server names the webhook that has denied it, or could not be called. A webhook whose answer is
required must have given one if the request goes through.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime as dt
import os
import re
import socket
import ssl
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from webop.client.requests import JSON, MERGE_PATCH, Call, encode_body
from webop.concurrency import run_concurrently
from webop.doctor.context import Context, Json
from webop.doctor.findings import Finding, Level, approve, describe_seconds, fail, note, warn
from webop.doctor.records import has_required
from webop.errors import APIError, APIForbiddenError
from webop.handling.handlers import WebhookType
from webop.objects.resources import Resource
from webop.servers.certificates.certs import read_serial, read_validity, split_certificates
from webop.servers.local import WebhookServer

_TIMEOUT = 5.0  # seconds; of a handshake
_AT_ONCE = 4  # requests; a webhook that does not answer takes 30 s
_LOOKED_AT = "50"  # objects of a kind
_TRIED_TARGETS = 5  # kinds of objects for one webhook
_FORMS = {"In": "{} in ({})", "NotIn": "{} notin ({})", "Exists": "{}", "DoesNotExist": "!{}"}
_TEXT_LIMIT = 250  # characters of a reason
_CULPRIT = re.compile(r'webhook "(\S+)"(?: denied the request|: (?:failed to call webhook: )?(.+))')
_REFUSING_USERNAME = re.compile(r'request\.userInfo\.username != ("(?:[^"\\]|\\.)*")')

RENEW = (
    "The operator writes its own within a minute of its start: start it, or look into its log. "
    "With certificates of your own, give cafile= to the webhook server."
)
# What to do about errors that are not about webhooks, by their status.
_REMEDIES = {
    0: "Try the same by kubectl --dry-run=server, and see what the API server says.",
    403: "Run the doctor with an account that may do this, or with --no-probe.",
    422: "Create an object of this kind to try it on, and run the doctor again.",
}

Webhook = tuple[WebhookType, Json]  # as it is in a configuration of a kind
Attempt = tuple[str, str, bytes, str]  # a dry run: the method, the path, the body, and what it is
Target = tuple[Resource, str | None, bool, bool]  # resource, subresource; updates, creations


class Response(NamedTuple):
    """How a dry run has ended; without a culprit and a reason, it has gone through."""

    what: str
    culprit: str = ""  # the webhook that has denied it; or, with a reason, could not be called
    reason: str = ""
    status: int = 0  # of HTTP, of an error that is not about webhooks


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
    (r"the limit \(settings\.admission\.max_", "the operator has too many reviews at once",
     "Find the handler that hangs in the log; or raise the limit, or the number of replicas."),
    (r"certificate has expired or is not", "the certificate has expired, or is not valid yet",
     "Renew it, or restart the operator if it made it; compare the clocks."),
    (r"certificate is (not )?valid for|IP SANs|Common Name", "the certificate is for another name",
     "Make one for <service>.<namespace>.svc, or for the host of the URL."),
    (r"x509:|failed to verify|unknown auth", "the caBundle does not trust the certificate", RENEW),
    (r"gave HTTP response to HTTPS|not look like a TLS", "what answers does not speak TLS",
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
    (r"could not find the requested resource", "who answers does not know this webhook (404)",
     "Check that all replicas run the same version, and where the Service or the URL leads."),
    (r"deadline exceeded|timeout|no route to|unreachable", "it does not answer in time",
     "Let firewalls and NetworkPolicies pass the API server; see the log for slow handlers."),
    (r"connection reset|EOF|broken pipe", "the connection is cut",
     "See the log of the operator, and of what is in between."),
    (r"webhook response|get version/kind|unmarshal", "what answers is not an AdmissionReview",
     "Correct where the Service or the URL leads."),
    (r"an error on the server|^(?!Post )", "it answers with an error", "See the operator's log."),
    (r"", "it cannot be called", "See the operator's log."),
)  # fmt: skip


async def check_trust(context: Context, webhooks: Sequence[Json]) -> list[Finding]:
    """Check where the webhooks of a configuration lead: usually, all to the same address."""
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
    is_soft = not has_required(webhooks)
    return [
        replace(one, level=Level.WARNING) if is_soft and one.level is Level.FAILURE else one
        for one in findings
    ]


def check_bundle(text: str, now: dt.datetime) -> Finding:
    """Check that a ``caBundle`` can be used, now and for some time. Pure.

    What counts is the certificate in it that lives longest: during a rotation, there are old ones.
    """
    if not text:
        return note("caBundle", "there is none: only CAs that the API server knows are trusted")
    try:
        pems = split_certificates(base64.b64decode(text, validate=True))
        last = max(pems, key=lambda pem: read_validity(pem)[1])
    except ValueError as exc:
        return fail("caBundle", f"it cannot be read: {exc}", RENEW)
    what = "its CA" if len(pems) == 1 else f"the last of its {len(pems)} CAs"
    return judge_life("caBundle", what, last, now)


def judge_life(subject: str, what: str, pem: bytes, now: dt.datetime) -> Finding:
    """Judge what is left of the life of a certificate: its last tenth or week is little. Pure."""
    start, end = read_validity(pem)
    if end - now > min((end - start) * 0.1, dt.timedelta(days=7)):
        return approve(subject, f"{what} is trusted, valid until {end:%Y-%m-%d}")
    span, when = describe_seconds(abs((end - now).total_seconds())), f"{end:%Y-%m-%d %H:%M} UTC"
    if end > now:
        return warn(subject, f"{what} expires on {when}, in {span}", RENEW)
    return fail(subject, f"{what} expired on {when}, {span} ago", RENEW)


async def _check_address(context: Context, url: str, service: Json, bundle: str) -> list[Finding]:
    """Connect to a server if that is possible from here, and check the certificate it shows."""
    parts, place = urlsplit(url), None
    name = str(parts.hostname)
    try:
        if service:
            path = f"/api/v1/namespaces/{service['namespace']}/services/{service['name']}"
            found = await context.read(path)
            if not found:
                remedy = "Create it; or correct service= and namespace= of the webhook server."
                return [fail("address", f"{url}: there is no such Service", remedy)]
            place = found["spec"].get("externalName")
            # Only a pod is sure to resolve the names of Services: elsewhere, they lead anywhere.
            if not place and "KUBERNETES_SERVICE_HOST" not in os.environ:
                text = f"{url} is a Service, which cannot be connected to from here"
                remedy = "Run it inside: kubectl exec deploy/NAME -- webop doctor"
                return [note("address", text, remedy)]
        shown = await _shake_hands(place or name, parts.port or 443, name, bundle)
    except APIForbiddenError as exc:
        return [note("address", f"unknown: {exc}")]
    except ssl.SSLCertVerificationError as exc:
        why = f"the caBundle does not trust that for {name}: {exc.verify_message or exc}"
        return [fail("certificate", why, f"{RENEW} It must have {name} as subjectAltName.")]
    except (OSError, ValueError) as exc:
        is_refused = isinstance(exc, ConnectionRefusedError)
        reason = "connection refused" if is_refused else str(exc) or "no answer in time"
        text = f"{url} cannot be reached from here: {reason}"
        if isinstance(exc, socket.gaierror | ValueError):  # a bad bundle has its own finding
            return [note("address", text, "See below whether API servers reach it; else, host=.")]
        remedy = "Start the operator. If it runs, check the port, and who can reach it."
        return [warn("address", text, remedy)]
    serial = read_serial(shown)
    what = f"that for {name}, serial number {serial},"
    findings = [judge_life("certificate", what, shown, context.now)]
    with contextlib.suppress(OSError, ValueError, LookupError):  # it cannot be read from here
        source, wanted = await _fetch_wanted(context, service)
        if split_certificates(wanted)[0] != shown:
            text = f"shown is {serial}, but in {source} is {read_serial(wanted)}"
            remedy = "Wait a minute for replicas to follow; else restart them, and see their log."
            findings.append(warn("certificate", text, remedy))
    return findings


async def _shake_hands(host: str, port: int, name: str, bundle: str) -> bytes:
    """Return the certificate that a server of a name shows, if it is trusted."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    tls.hostname_checks_common_name = False
    # As for Go, whatever is in the bundle is trusted, not only what is its own CA.
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
    """Return where the operator has its certificate from, and that."""
    server = context.settings.admission.server
    if isinstance(server, WebhookServer) and server.certfile:
        return str(server.certfile), await asyncio.to_thread(Path(server.certfile).read_bytes)
    name = context.name_secret(service["name"])
    secret = await context.read_secret(service["namespace"], name)
    return f"the Secret {name}", base64.b64decode(secret["data"]["tls.crt"])


def read_answer(what: str, error: APIError) -> Response:
    """Return how a dry run has ended, by the error that it has ended with."""
    text = " ".join(str(error).split())
    if found := _CULPRIT.search(text):
        return Response(what, found[1], (found[2] or "")[:_TEXT_LIMIT])
    return Response(what, "", text[:_TEXT_LIMIT], getattr(error, "status", 0))


def judge(
    webhook: Webhook, own: Response | str, everything: Iterable[Response], username: str | None
) -> Finding:
    """Say whether the API server can call a webhook: any answer can name it, its own or another."""
    reason, body = webhook
    name = str(body["name"])
    about = [one for one in everything if one.culprit == name]
    if trouble := next((one.reason for one in about if one.reason), ""):
        causes = (cause for cause in _CAUSES if re.search(cause[0], trouble, re.IGNORECASE))
        _, what, remedy = next(causes)
        return fail(name, f"{what}: {trouble}", remedy)
    if about:
        return approve(name, f"reached: it has denied {about[0].what}")
    if isinstance(own, str):
        return note(name, f"not tried: {own}")
    what = own.what
    if own.culprit and own.reason:
        text = f"unknown: {what} has failed at another webhook, {own.culprit}"
        return warn(name, text, "Repair that one first, and run the doctor again.")
    if own.culprit:
        return note(name, f"not tried: {own.culprit} has denied {what}")
    # The schema is checked between the mutating and the validating webhooks.
    is_late = own.status == 422 and reason is WebhookType.MUTATING
    if own.reason and not is_late:
        text = f"unknown: {what} failed before this check: {own.reason}"
        return warn(name, text, _REMEDIES.get(own.status, _REMEDIES[0]))
    # Of conditions, only the one that exempts another account, the operator, is surely fulfilled.
    mine = f'request.userInfo.username != "{username}"'
    conditions = [one["expression"] for one in body.get("matchConditions") or ()]
    known = [one for one in conditions if username and _REFUSING_USERNAME.fullmatch(one)]
    if not has_required([body]):
        why = "passes anyway (failurePolicy Ignore)"
    elif conditions != known or mine in known:
        why = "has passed, but matchConditions may have exempted it"
    else:
        return approve(name, f"reached by {what}")
    return note(name, f"unknown: {what} {why}")


def parse_selector(selector: Json | None) -> tuple[str, dict[str, str]]:
    """Return a label selector (meta/v1) as that of a query, and labels that it selects."""
    labels = (selector or {}).get("matchLabels") or {}
    others = (selector or {}).get("matchExpressions") or ()
    needs = [(key, "In", [value]) for key, value in labels.items()]
    needs += [(one["key"], one["operator"], one.get("values") or [""]) for one in others]
    query = ",".join(_FORMS[form].format(key, ",".join(values)) for key, form, values in needs)
    forms = ("Exists", "In")  # in this order, as values for a key count more
    return query, {key: v[0] for wanted in forms for key, form, v in needs if form == wanted}


def list_targets(webhook: Json, resources: Iterable[Resource]) -> Iterator[Target]:
    """Return what a webhook can be tried with, of the resources of the cluster.

    Only main bodies and their status can: the operations on other subresources do something else.
    """
    tryable = (resource for resource in resources if {"list", "patch"} <= resource.verbs)
    known = sorted(tryable, key=lambda resource: resource.name)
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
    """Return a change of an object that changes nothing but an annotation."""
    namespace, name = body["metadata"].get("namespace"), body["metadata"]["name"]
    path = resource.get_url(namespace=namespace, name=name, subresource=subresource)
    change: Json = {"metadata": {"annotations": {"webop.dev/doctor": "probe"}}}
    what = "/".join(filter(None, (resource.plural, subresource)))
    where = "/".join(filter(None, (namespace, name)))
    return "PATCH", path, encode_body(change), f"an UPDATE of {what} {where}"


def build_creation(
    resource: Resource, namespace: str | None, labels: Mapping[str, str], model: Json | None
) -> Attempt:
    """Return a creation of an object, which resembles the model if there is one."""
    made = {key: value for key, value in (model or {}).items() if key != "status"}
    metadata = made.get("metadata") or {}
    kept = {key: metadata.get(key) or {} for key in ("labels", "annotations")}
    kept |= {"generateName": "webop-doctor-", "labels": {**labels, **kept["labels"]}}
    made |= {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": kept}
    where = f" in {namespace}" if resource.namespaced else ""
    path = resource.get_url(namespace=namespace)
    return "POST", path, encode_body(made), f"a CREATE of {resource.plural}{where}"


async def probe(context: Context, webhooks: Collection[Webhook]) -> list[Finding]:
    """Make the API server call webhooks; return a finding for each."""
    gate = asyncio.Semaphore(_AT_ONCE)

    async def send(method: str, path: str, body: bytes, what: str) -> Response:
        form = JSON if method == "POST" else MERGE_PATCH
        async with gate:
            try:
                await context.client.perform(Call(method, path, {"dryRun": "All"}, body, form))
            except APIError as exc:
                return read_answer(what, exc)
        return Response(what)

    attempts = await run_concurrently(_prepare(context, body) for _, body in webhooks)
    unique = dict.fromkeys(one for one in attempts if not isinstance(one, str))
    sent = await run_concurrently(send(*one) for one in unique)
    answers = dict(zip(unique, sent, strict=True))
    own = [one if isinstance(one, str) else answers[one] for one in attempts]
    return [judge(*one, sent, context.username) for one in zip(webhooks, own, strict=True)]


async def _prepare(context: Context, webhook: Json) -> Attempt | str:
    """Return a request that a webhook is called for; or say why there is none."""
    places: list[str] | None = None  # the namespaces that it is called for; None for all
    if query := parse_selector(webhook.get("namespaceSelector"))[0]:
        try:
            listed = await context.read("/api/v1/namespaces", labelSelector=query)
        except APIForbiddenError:
            return "its namespaces are unknown: this account may not list namespaces"
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
        return f"there is no object of {names} that it is called for, and no place for one"
    return "it is called only for what a dry run cannot try, or is not in the cluster"


async def _find_object(
    context: Context, resource: Resource, query: str, places: list[str] | None
) -> Json | None:
    """Return an object that the webhook is called for, if there is one that can be read."""
    where = context.namespaces or (None, context.namespace)  # None is the whole cluster
    for path in dict.fromkeys(resource.get_url(namespace=place) for place in where):
        with contextlib.suppress(APIForbiddenError):
            listed = await context.read(path, limit=_LOOKED_AT, labelSelector=query)
            for item in listed.get("items") or ():
                namespace = item["metadata"].get("namespace")  # without, it is called always
                is_served = places is None or namespace is None or namespace in places
                if is_served and "deletionTimestamp" not in item["metadata"]:
                    return dict(item)
    return None
