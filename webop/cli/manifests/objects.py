"""Build the Kubernetes objects of an operator, except RBAC, as YAML with comments that say why."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from webop.cli.yaml_text import dump
from webop.servers.service_server import WebhookServiceServer

PROBES_PORT = 8080
STATUS_PORT = 8081
#: Ephemeral storage is for /tmp and for the log.
RESOURCES = """\
requests: {cpu: 50m, memory: 96Mi, ephemeral-storage: 64Mi}
limits: {memory: 256Mi, ephemeral-storage: 256Mi}"""
#: The classes that every cluster has are for its vital parts.
SYSTEM_PRIORITY = "system-cluster-critical"
_CANARY_SHARDS = "2"
_OPEN_POLICY = """\
# This policy is open: all pods of the cluster can connect to the webhooks. A policy cannot select
# API servers, which are not pods. So exclude the networks of the pods (--pod-network or --cluster),
# or admit only the addresses of your control plane (kubectl get endpoints kubernetes)."""
_CLOSED_POLICY = """\
# Only API servers can connect to the webhooks, and the kubelet to the probes (it needs no rule).
# A policy cannot select API servers, which are not pods. So it excludes the networks of the pods.
# It is better to replace both blocks by the addresses of your control plane (kubectl get endpoints
# kubernetes). In some clusters, API servers connect through agents in kube-system (konnectivity).\
"""


def _dump(value: Any) -> str:
    """Return a value as YAML: mappings in one line, each item of a list in its own line."""
    return dump(value, is_flow=isinstance(value, dict), width=10_000)


@dataclass(frozen=True, kw_only=True)
class Request:
    """The options of ``webop manifests``; its help describes those that are not listed here.

    Attributes:
        sources: the arguments of ``webop run`` that name files and modules.
        namespaces: where the operator works; empty for the whole cluster.
        is_chart: whether names are stand-ins for values of a chart.
    """

    sources: Sequence[str]
    name: str
    home: str
    image: str
    replicas: int | None
    variables: Mapping[str, str]
    namespaces: tuple[str, ...]
    has_lease: bool
    lease: str | None
    sharded: bool
    canary: str | None
    peering: str | None
    service: str | None
    managed: str | None
    ca: Path | None
    rbac: Sequence[str]
    metrics: str | None
    crds: Sequence[Path]
    asks_cluster: bool
    calls_startup: bool
    pod_networks: Sequence[str]
    priority: str | None
    creates_namespace: bool
    rights_for: str = "run"
    is_chart: bool = False

    @property
    def configurations(self) -> str:
        """The name of the webhook configurations, if the settings have none."""
        return f"{self.name}.{self.home}.svc" if self.managed in (None, "none") else self.managed


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A deployment: the request, and what follows from it, the handlers and the settings.

    Attributes:
        arguments: the arguments of ``webop`` in the container.
        variables: the environment variables of the container.
        replicas: the number of replicas.
        is_shared: whether several replicas can run: with a Lease, or with webhooks only.
        is_sharded: whether they divide the objects by shards.
        server: the webhook server, if it is behind a Service.
        pod_networks: the networks that cannot connect to the webhooks; empty if unknown.
        priority: the priority class of the pods, or None.
    """

    request: Request
    arguments: Sequence[str]
    variables: Mapping[str, str]
    replicas: int
    is_shared: bool
    is_sharded: bool
    server: WebhookServiceServer | None
    pod_networks: Sequence[str]
    priority: str | None

    @property
    def labels(self) -> dict[str, str]:
        """The labels of all objects and of the pods."""
        return {"app.kubernetes.io/name": self.request.name}

    @property
    def service(self) -> str:
        """The name of the Service."""
        return (self.server and self.server.service) or self.variables["WEBOP_SERVICE"]

    @property
    def _name(self) -> str:
        return _dump(self.request.name)

    def _build_head(self, api_version: str, kind: str, name: str = "") -> str:
        return f"""\
apiVersion: {api_version}
kind: {kind}
metadata:
  name: {_dump(name or self.request.name)}
  namespace: {_dump(self.request.home)}
  labels:
    app.kubernetes.io/name: {self._name}"""

    def build_namespace(self) -> str:
        """Return the namespace; it refuses pods with more privileges than the operator's."""
        return f"""\
apiVersion: v1
kind: Namespace
metadata:
  name: {_dump(self.request.home)}
  labels:
    pod-security.kubernetes.io/enforce: restricted"""

    def build_account(self) -> str:
        """Return the service account."""
        return self._build_head("v1", "ServiceAccount")

    def build_canary(self, image: str) -> str:
        """Return the Deployment of a canary; its pods have the labels of the others, too."""
        request = replace(self.request, image=image)
        variables = {**self.variables, "WEBOP_CANARY": _CANARY_SHARDS}
        plan = replace(self, request=request, replicas=1, variables=variables)
        return f"""\
# A canary: a replica of another version, for {_CANARY_SHARDS} of the 64 shards. It gives them up if
# its handlers fail. To promote the version, give the image to the other Deployment, and delete
# this one. The Service leads to it, too.
{plan.build_deployment("canary")}"""

    def build_deployment(self, component: str = "") -> str:
        """Return the Deployment; one for a component has it in its name and in its labels."""
        name = f"{self.request.name}-{component}" if component else self.request.name
        label = f"\napp.kubernetes.io/component: {component}" if component else ""
        labels = f"app.kubernetes.io/name: {self._name}{label}"
        variables = "".join(
            f"            - {_dump({'name': name, 'value': value})}\n"
            for name, value in self.variables.items()
        )
        ports = [f"            - {{name: probes, containerPort: {PROBES_PORT}}}"]
        if self.server:
            port = self.server.port or self.server.DEFAULT_PORT
            ports.append(f"            - {{name: webhooks, containerPort: {port}}}")
        return f"""\
{self._build_head("apps/v1", "Deployment", name)}
spec:
  replicas: {self.replicas}
  strategy:
{textwrap.indent(self._build_strategy(), "    ")}
  selector:
    matchLabels:
{textwrap.indent(labels, "      ")}
  template:
    metadata:
      labels:
{textwrap.indent(labels, "        ")}
{self._build_annotations()}\
    spec:
      serviceAccountName: {self._name}
{self._build_priority()}\
      # Ten seconds to serve webhooks while traffic drains, ten for open requests, the rest for
      # handlers.
      terminationGracePeriodSeconds: 60
      securityContext:
        runAsNonRoot: true
        seccompProfile: {{type: RuntimeDefault}}
{textwrap.indent(self._build_spread(), "      ")}\
      containers:
        - name: operator
          image: {_dump(self.request.image)}
          args:
{textwrap.indent(_dump(list(self.arguments)), "            ")}
          env:
            # The name of the replica, for the Lease, the log and "webop doctor".
            - name: POD_ID
              valueFrom: {{fieldRef: {{fieldPath: metadata.name}}}}
{variables}\
          ports:
{chr(10).join(ports)}
          # Startup handlers have ten minutes.
          startupProbe:
            httpGet: {{path: /livez, port: probes}}
            periodSeconds: 5
            timeoutSeconds: 5
            failureThreshold: 120
          readinessProbe:
            httpGet: {{path: /readyz, port: probes}}
            periodSeconds: 5
            timeoutSeconds: 5
          # It succeeds while the API server is down, as a restart would not help. A busy operator
          # must not be restarted: all its work would come again.
          livenessProbe:
            httpGet: {{path: /livez, port: probes}}
            periodSeconds: 10
            timeoutSeconds: 5
            failureThreshold: 6
          resources:
{textwrap.indent(RESOURCES, "            ")}
          securityContext:
            allowPrivilegeEscalation: false
            readOnlyRootFilesystem: true
            capabilities: {{drop: [ALL]}}
          volumeMounts:
            - {{name: tmp, mountPath: /tmp}}
      volumes:
        - name: tmp
          emptyDir: {{sizeLimit: 64Mi}}"""

    def _build_priority(self) -> str:
        if self.priority is None:
            return ""
        reason = "# Without these pods, API servers refuse requests." if self.server else ""
        lines = [reason, f"priorityClassName: {_dump(self.priority)}"]
        return "".join(f"      {line}\n" for line in lines if line)

    def _build_annotations(self) -> str:
        if self.request.metrics is None:
            return ""
        return f"""\
      # For a Prometheus that reads annotations; others need a PodMonitor for the port "probes".
      annotations:
        prometheus.io/scrape: "true"
        prometheus.io/port: "{PROBES_PORT}"
        prometheus.io/path: /metrics
"""

    def _build_strategy(self) -> str:
        if self.is_sharded:
            return (
                "# For a change between --lease and --shards, use Recreate (page Shards).\n"
                "type: RollingUpdate\nrollingUpdate: {maxUnavailable: 0, maxSurge: 1}"
            )
        if self.is_shared:
            return "type: RollingUpdate\nrollingUpdate: {maxUnavailable: 0, maxSurge: 1}"
        return (
            "# Without a Lease, two pods would handle the same objects during an update.\n"
            "type: Recreate"
        )

    def _build_spread(self) -> str:
        """Return the constraints that spread replicas over nodes and zones."""
        rules = (
            f"""\
  - topologyKey: {key}
    maxSkew: 1
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        app.kubernetes.io/name: {self._name}
    matchLabelKeys: [pod-template-hash]
"""
            for key in ("kubernetes.io/hostname", "topology.kubernetes.io/zone")
        )
        return f"topologySpreadConstraints:\n{''.join(rules)}"

    def build_budget(self) -> str:
        """Return the PodDisruptionBudget, which keeps a replica while nodes are drained."""
        return f"""\
{self._build_head("policy/v1", "PodDisruptionBudget")}
spec:
  maxUnavailable: 1
  # Pods that are not ready do not block the drain of a node.
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels:
      app.kubernetes.io/name: {self._name}"""

    def build_quota(self) -> str:
        """Return the ResourceQuota without which GKE refuses pods of the system's priority."""
        return f"""\
# Some clusters (GKE) allow this priority only in namespaces with such a quota.
{self._build_head("v1", "ResourceQuota")}
spec:
  hard: {{pods: "100"}}
  scopeSelector:
    matchExpressions:
      - {{scopeName: PriorityClass, operator: In, values: [{_dump(self.priority)}]}}"""

    def build_service(self) -> str:
        """Return the Service for the webhooks."""
        port = self.server.service_port if self.server else 443
        return f"""\
# API servers call the webhooks of ready pods at this Service.
{self._build_head("v1", "Service", self.service)}
spec:
  selector:
    app.kubernetes.io/name: {self._name}
  ports:
    - {{name: webhooks, port: {port}, targetPort: webhooks}}"""

    def build_policy(self) -> str:
        """Return the NetworkPolicy: API servers, the kubelet and scrapers can connect to pods."""
        head, rules = "# Only the kubelet can connect to the pods; it needs no rule.", ""
        if self.server:
            head, rules = _OPEN_POLICY, "\n    - ports:\n        - {protocol: TCP, port: webhooks}"
        if self.server and self.pod_networks:
            head = _CLOSED_POLICY
            rules += f"""
      from:
{self._build_blocks()}\
        - namespaceSelector:
            matchLabels: {{kubernetes.io/metadata.name: kube-system}}
          podSelector:
            matchLabels: {{k8s-app: konnectivity-agent}}"""
        if self.request.metrics is not None:
            head = head if self.server else "# The kubelet needs no rule to call the probes."
            rules += f"""
    # Pods of this namespace scrape the metrics, at the port of the probes.
    - ports:
        - {{protocol: TCP, port: probes}}
      from:
        - namespaceSelector:
            matchLabels: {{kubernetes.io/metadata.name: {_dump(self.request.metrics)}}}"""
        ingress = f"\n  ingress:{rules}" if rules else ""
        return f"""\
{head}
{self._build_head("networking.k8s.io/v1", "NetworkPolicy")}
spec:
  podSelector:
    matchLabels:
      app.kubernetes.io/name: {self._name}
  policyTypes: [Ingress]{ingress}"""

    def _build_blocks(self) -> str:
        """Return all addresses but those of pods."""
        lines = []
        for everything in ("0.0.0.0/0", "::/0"):
            own = [cidr for cidr in self.pod_networks if (":" in cidr) == (":" in everything)]
            more = f", except: {json.dumps(own)}" if own else ""
            lines.append(f"        - ipBlock: {{cidr: {json.dumps(everything)}{more}}}\n")
        return "".join(lines)
