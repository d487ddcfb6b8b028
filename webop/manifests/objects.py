"""The Kubernetes objects of an operator, but for its rights: YAML with the reasons beside it."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from webop.manifests.yaml_text import dump
from webop.servers.service import WebhookServiceServer

PROBES_PORT = 8080
STATUS_PORT = 8081


def _dump(value: Any) -> str:
    """Return a value in YAML: mappings in one line, items of lists in one each."""
    return dump(value, is_flow=isinstance(value, dict), width=10_000)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is deployed.

    Attributes:
        name: of the objects.
        home: the namespace of the objects.
        image: of the container.
        arguments: of ``webop`` in the container.
        variables: of the environment.
        replicas: how many there are.
        is_shared: whether replicas get along with each other: by a Lease, or with webhooks only.
        server: of the webhooks, if they are behind a Service.
        pod_networks: who must not get to the webhooks.
        scraper: the namespace of those who get the metrics, if anybody does.
    """

    name: str
    home: str
    image: str
    arguments: Sequence[str]
    variables: Mapping[str, str]
    replicas: int
    is_shared: bool
    server: WebhookServiceServer | None
    pod_networks: Sequence[str]
    scraper: str | None

    @property
    def labels(self) -> dict[str, str]:
        """The labels of all objects, and of the pods."""
        return {"app.kubernetes.io/name": self.name}

    @property
    def service(self) -> str:
        """The name of the Service."""
        return (self.server and self.server.service) or self.variables["WEBOP_SERVICE"]

    @property
    def _name(self) -> str:
        return _dump(self.name)

    @property
    def _head(self) -> str:
        return f"""\
metadata:
  name: {self._name}
  namespace: {_dump(self.home)}
  labels:
    app.kubernetes.io/name: {self._name}"""

    def build_namespace(self) -> str:
        """Return the namespace; pods that could do more than the operator's are refused in it."""
        return f"""\
apiVersion: v1
kind: Namespace
metadata:
  name: {_dump(self.home)}
  labels:
    pod-security.kubernetes.io/enforce: restricted"""

    def build_account(self) -> str:
        """Return the service account."""
        return f"apiVersion: v1\nkind: ServiceAccount\n{self._head}"

    def build_deployment(self) -> str:
        """Return the Deployment."""
        variables = "".join(
            f"            - {_dump({'name': name, 'value': value})}\n"
            for name, value in self.variables.items()
        )
        ports = [f"            - {{name: probes, containerPort: {PROBES_PORT}}}"]
        if self.server:
            port = self.server.port or self.server.DEFAULT_PORT
            ports.append(f"            - {{name: webhooks, containerPort: {port}}}")
        return f"""\
apiVersion: apps/v1
kind: Deployment
{self._head}
spec:
  replicas: {self.replicas}
  strategy:
{textwrap.indent(self._build_strategy(), "    ")}
  selector:
    matchLabels:
      app.kubernetes.io/name: {self._name}
  template:
    metadata:
      labels:
        app.kubernetes.io/name: {self._name}
{self._build_annotations()}\
    spec:
      serviceAccountName: {self._name}
      # Webhooks are served for ten seconds more, what is in flight has ten, handlers the rest.
      terminationGracePeriodSeconds: 60
      securityContext:
        runAsNonRoot: true
        seccompProfile: {{type: RuntimeDefault}}
{textwrap.indent(self._build_spread(), "      ")}\
      containers:
        - name: operator
          image: {_dump(self.image)}
          args:
{textwrap.indent(_dump(list(self.arguments)), "            ")}
          env:
            # The name of the replica: in the Lease, in the log, for "webop doctor".
            - name: POD_ID
              valueFrom: {{fieldRef: {{fieldPath: metadata.name}}}}
{variables}\
          ports:
{chr(10).join(ports)}
          readinessProbe:
            httpGet: {{path: /readyz, port: probes}}
            periodSeconds: 5
          # It is fine also while the API server is away: a restart would not help.
          livenessProbe:
            httpGet: {{path: /livez, port: probes}}
            initialDelaySeconds: 10
          resources:
            requests: {{cpu: 50m, memory: 96Mi}}
            limits: {{memory: 256Mi}}
          securityContext:
            allowPrivilegeEscalation: false
            readOnlyRootFilesystem: true
            capabilities: {{drop: [ALL]}}
          volumeMounts:
            - {{name: tmp, mountPath: /tmp}}
      volumes:
        - name: tmp
          emptyDir: {{}}"""

    def _build_annotations(self) -> str:
        if self.scraper is None:
            return ""
        return f"""\
      # For a Prometheus that goes by them; one that does not needs a PodMonitor of port "probes".
      annotations:
        prometheus.io/scrape: "true"
        prometheus.io/port: "{PROBES_PORT}"
        prometheus.io/path: /metrics
"""

    def _build_strategy(self) -> str:
        if self.is_shared:
            return "type: RollingUpdate\nrollingUpdate: {maxUnavailable: 0, maxSurge: 1}"
        return (
            "# Without a Lease, two would handle the same objects during an update.\ntype: Recreate"
        )

    def _build_spread(self) -> str:
        """Return what puts replicas on different nodes, and in different zones."""
        if self.replicas < 2:
            return ""
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
        """Return what keeps a replica while nodes are drained."""
        return f"""\
apiVersion: policy/v1
kind: PodDisruptionBudget
{self._head}
spec:
  maxUnavailable: 1
  # Pods that are not ready are no reason to keep a node.
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels:
      app.kubernetes.io/name: {self._name}"""

    def build_service(self) -> str:
        """Return the Service, by which API servers reach the webhooks."""
        port = self.server.service_port if self.server else 443
        head = self._head.replace(f"name: {self._name}", f"name: {_dump(self.service)}", 1)
        return f"""\
# By this, API servers reach the webhooks of pods that are ready.
apiVersion: v1
kind: Service
{head}
spec:
  selector:
    app.kubernetes.io/name: {self._name}
  ports:
    - {{name: webhooks, port: {port}, targetPort: webhooks}}"""

    def build_policy(self) -> str:
        """Return who reaches the pods: API servers, the kubelet, those who get the metrics."""
        policy = f"""\
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
{self._head}
spec:
  podSelector:
    matchLabels:
      app.kubernetes.io/name: {self._name}
  policyTypes: [Ingress]"""
        scraping = (
            ""
            if self.scraper is None
            else f"""
    # Metrics are got by this namespace, at the port of the probes.
    - ports:
        - {{protocol: TCP, port: probes}}
      from:
        - namespaceSelector:
            matchLabels: {{kubernetes.io/metadata.name: {_dump(self.scraper)}}}"""
        )
        if self.server is None and scraping:
            return f"# The kubelet reaches the probes with no rule.\n{policy}\n  ingress:{scraping}"
        if self.server is None:
            return f"# Nobody reaches the pods but the kubelet, which needs no rule.\n{policy}"
        blocks = "".join(
            f"        - ipBlock: {{cidr: {json.dumps(everything)}, except: {json.dumps(own)}}}\n"
            if own
            else f"        - ipBlock: {{cidr: {json.dumps(everything)}}}\n"
            for everything, own in (
                ("0.0.0.0/0", [cidr for cidr in self.pod_networks if ":" not in cidr]),
                ("::/0", [cidr for cidr in self.pod_networks if ":" in cidr]),
            )
        )
        return f"""\
# API servers reach the webhooks, the kubelet the probes (it needs no rule), and nobody else. For a
# policy, API servers are no pods, and their addresses are not known here. So the pods are kept out:
# --pod-network must be that of your cluster. Better still, put the addresses of your control plane
# in place of both blocks (kubectl get endpoints kubernetes). Some clusters lead API servers through
# agents in kube-system (konnectivity).
{policy}
  ingress:
    - ports:
        - {{protocol: TCP, port: webhooks}}
      from:
{blocks}\
        - namespaceSelector:
            matchLabels: {{kubernetes.io/metadata.name: kube-system}}
          podSelector:
            matchLabels: {{k8s-app: konnectivity-agent}}{scraping}"""
