"""Random requests, most of them with a mistake: which of them do API servers refuse? Pure.

Each case has an object of its own, so that one difference brings no others: first it is created as
it should be, then comes the request that counts.
"""

from __future__ import annotations

import base64
import copy
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from webop.testing.apiserver import Json

from .drawing import JSON, JSON_PATCH, MERGE_PATCH, Drawn, Place

APPLY = "application/apply-patch+yaml"
ROCKS = Place("rocks", "Rock", "strict.webop.dev", has_status=True)
DEPLOYMENTS = Place("deployments", "Deployment", "apps", has_status=True)
JOBS = Place("jobs", "Job", "batch", has_status=True)
PODS = Place("pods", "Pod", "", has_status=True)
CONFIG_MAPS = Place("configmaps", "ConfigMap", "")
SECRETS = Place("secrets", "Secret", "")

NAMED = (ROCKS, DEPLOYMENTS, JOBS, PODS, CONFIG_MAPS, SECRETS)  # in the table

_TEXT: Json = {"type": "string"}
_NUMBER: Json = {"type": "integer"}
_UUID = "0d5f2c3e-9f1b-4c9a-8a3e-3f0c6a0e7d11"
_PORT: Json = {
    "type": "object",
    "properties": {"name": _TEXT, "port": {"type": "integer", "default": 80}, "host": _TEXT},
    "required": ["name"],
}
_INNER: Json = {"mode": {"type": "string", "default": "slow"}, "count": _NUMBER}


def _array(items: Json, kind: str = "", *keys: str, **more: Any) -> Json:
    schema: Json = {"type": "array", "items": items, **more}
    if kind:
        schema["x-kubernetes-list-type"] = kind
    if keys:
        schema["x-kubernetes-list-map-keys"] = list(keys)
    return schema


def _format(name: str) -> Json:
    return {"type": "string", "format": name}


_WRONG: list[Any] = [None, 5, "x", True, [], {}, 1.5]
# Of each field, its schema and values for it; the servers say which of them are right.
FIELDS: dict[str, tuple[Json, list[Any]]] = {
    "text": ({"type": "string", "minLength": 1, "maxLength": 4}, ["a", "äöüß", "", "abcde", 5]),
    "code": ({"type": "string", "pattern": "^[a-z]+[0-9]$"}, ["ab1", "ab1 ", "AB1", "1", None]),
    "part": ({"type": "string", "pattern": "b+"}, ["abbc", "acd", ""]),
    "colour": ({"type": "string", "enum": ["red", "blue"]}, ["red", "green", "", None, 5]),
    "number": ({"type": "integer", "minimum": 2, "maximum": 9}, [2, 9, 1, 10, 3.0, 3.5, "3"]),
    "small": ({"type": "integer", "format": "int32"}, [1, 2**31 - 1, 2**31, -(2**31), 2**40]),
    "above": ({"type": "integer", "minimum": 2, "exclusiveMinimum": True}, [2, 3, 2.0, 1]),
    "below": ({"type": "number", "maximum": 2, "exclusiveMaximum": True}, [2, 1.999, 2.0, 3]),
    "step": ({"type": "integer", "multipleOf": 5}, [5, 0, 7, -10, 7.5]),
    "ratio": ({"type": "number"}, [1, 1.5, 2.0, "1", True, None]),
    "flag": ({"type": "boolean"}, [True, False, "true", 0, None]),
    "level": ({"x-kubernetes-int-or-string": True}, [1, "10%", 1.5, 2.0, True, None, [], {}]),
    "maybe": ({"type": "string", "nullable": True}, ["a", None, 5]),
    "never": (_TEXT, ["a", None]),
    "filled": ({"type": "string", "default": "full"}, ["a", None, 5]),
    "hollow": ({"type": "object", "properties": _INNER, "default": {}}, [{}, {"count": 1}, None]),
    "inner": ({"type": "object", "properties": _INNER}, [{}, {"mode": "x"}, {"mode": None}, []]),
    "ports": (
        _array(_PORT, "map", "name"),
        [
            [{"name": "a"}, {"name": "b", "port": 1}],
            [{"name": "a"}, {"name": "a", "port": 1}],
            [{"port": 1}],
            [{"name": "a", "what": 1}],
            [None],
            ["a"],
            [],
            None,
        ],
    ),
    "pairs": (
        _array(_PORT, "map", "name", "port"),
        [
            [{"name": "a"}, {"name": "a", "port": 80}],
            [{"name": "a"}, {"name": "a", "port": 1}],
            [{"name": "a", "port": 80}],
        ],
    ),
    "tags": (_array(_TEXT, "set"), [["a", "b"], ["a", "a"], [], [1], [None], "a"]),
    "counts": (_array(_NUMBER, "set"), [[1, 2], [1, 1], [1, 1.0]]),
    "words": (_array(_TEXT, "atomic"), [["a", "a"], ["a", None], [["a"]]]),
    "some": (_array(_TEXT, minItems=1, maxItems=2), [["a"], [], ["a", "b", "c"], None]),
    "labels": (
        {"type": "object", "additionalProperties": _TEXT, "minProperties": 1, "maxProperties": 2},
        [{"a": "b"}, {}, {"a": "1", "b": "2", "c": "3"}, {"a": 5}, {"a": None}, []],
    ),
    "free": ({"x-kubernetes-preserve-unknown-fields": True}, [{"a": {"b": None}}, 5, "x", None]),
    "open": (
        {
            "type": "object",
            "x-kubernetes-preserve-unknown-fields": True,
            "properties": {"known": _NUMBER},
        },
        [{"a": 1}, {"known": "x"}, {"known": 1, "b": {"c": [1]}}, 5],
    ),
    "embedded": (
        {
            "type": "object",
            "x-kubernetes-embedded-resource": True,
            "x-kubernetes-preserve-unknown-fields": True,
        },
        [
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}},
            {"kind": "Pod"},
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"labels": 5}},
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "A_b"}},
            {},
        ],
    ),
    "any": (
        {
            "type": "object",
            "properties": {"a": _NUMBER, "b": _NUMBER},
            "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
        },
        [{"a": 1}, {"a": 1, "b": 2}, {}],
    ),
    "one": (
        {
            "type": "object",
            "properties": {"a": _NUMBER, "b": _NUMBER},
            "oneOf": [{"required": ["a"]}, {"required": ["b"]}],
        },
        [{"a": 1}, {"a": 1, "b": 2}, {}],
    ),
    "not": (
        {"type": "object", "properties": {"a": _NUMBER, "b": _NUMBER}, "not": {"required": ["b"]}},
        [{"a": 1}, {"b": 1}, {}],
    ),
    "all": (
        {"type": "integer", "allOf": [{"minimum": 2}, {"maximum": 4}, {"enum": [1, 2, 3, 9]}]},
        [2, 1, 4, 9, 5],
    ),
    "moment": (
        _format("date-time"),
        [
            "2026-01-01T00:00:00Z",
            "2026-01-01T00:00:00.123+02:00",
            "2026-01-01",
            "2026-13-01T00:00:00Z",
            "2026-01-01 00:00:00Z",
            "x",
            "",
            None,
        ],
    ),
    "day": (_format("date"), ["2026-01-01", "2026-02-30", "2026-1-1", "x", ""]),
    "span": (_format("duration"), ["1h", "22 ns", "1h30m", "1 day", "x", "PT1H", "", "5"]),
    "mail": (_format("email"), ["a@b.de", "a b", "a@", "A <a@b.de>", ""]),
    "host": (_format("hostname"), ["a.b", "a_b", "-a", "a" * 64, "", "a.b."]),
    "ip4": (_format("ipv4"), ["1.2.3.4", "1.2.3", "::1", "01.2.3.4", ""]),
    "ip6": (_format("ipv6"), ["::1", "1.2.3.4", "::ffff:1.2.3.4", "x"]),
    "net": (_format("cidr"), ["10.0.0.0/8", "10.0.0.1/8", "10.0.0.0", "::/0", "10.0.0.0/33"]),
    "mac": (_format("mac"), ["00:11:22:33:44:55", "00-11-22-33-44-55", "0011.2233.4455", "x"]),
    "uri": (_format("uri"), ["https://a.b/c", "/a", "a", "http://a b", "", ":"]),
    "uuid": (_format("uuid"), [_UUID, _UUID.upper(), _UUID.replace("-", ""), "x", ""]),
    "uuid4": (_format("uuid4"), [_UUID, _UUID.replace("4c9a", "3c9a"), "x"]),
    "bytes": (_format("byte"), ["YWJj", "YWI", "a b", "*", ""]),
    "paint": (_format("hexcolor"), ["#fff", "fff", "#ggg", "#ffffff"]),
    "secret": (_format("password"), ["x", ""]),
    "grows": (
        {"type": "integer", "x-kubernetes-validations": [{"rule": "self >= oldSelf"}]},
        [1, 5, 3],
    ),
    "range": (
        {
            "type": "object",
            "properties": {"low": _NUMBER, "high": _NUMBER, "share": {"type": "number"}},
            "x-kubernetes-validations": [
                {"rule": "!has(self.high) || self.low <= self.high", "message": "low above high"},
                {"rule": "!has(self.share) || self.share < 1.0", "fieldPath": ".share"},
            ],
        },
        [{"low": 1, "high": 2}, {"low": 2, "high": 1}, {"high": 1}, {"share": 1}, {"share": 0.5}],
    ),
    "steps": (
        _array(
            {
                "type": "object",
                "properties": {"name": _TEXT, "size": _NUMBER},
                "required": ["name"],
                "x-kubernetes-validations": [
                    {"rule": "!has(oldSelf.size) || self.size == oldSelf.size"}
                ],
            },
            "map",
            "name",
            maxItems=9,
            **{"x-kubernetes-validations": [{"rule": "self.exists(it, it.name == 'a')"}]},
        ),
        [[{"name": "a", "size": 1}], [{"name": "a", "size": 2}], [{"name": "b"}], []],
    ),
    "odd": (_format("no-such-format"), ["x", ""]),
}

_LABELS: Json = {"matchLabels": {"app": "web"}}
_TEMPLATE: Json = {
    "metadata": {"labels": {"app": "web"}},
    "spec": {"containers": [{"name": "web", "image": "web:1"}]},
}
_JOB: Json = {"template": {"spec": {**_TEMPLATE["spec"], "restartPolicy": "OnFailure"}}}
_ROLE: Json = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "a"}
_BACKEND: Json = {"service": {"name": "web", "port": {"number": 80}}}
_PATH: Json = {"path": "/", "pathType": "Prefix", "backend": _BACKEND}
_SCALED: Json = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
# Other kinds, of which few rules are tried.
_OTHERS: dict[Place, Json] = {
    Place("services", "Service", ""): {"spec": {"selector": {"a": "b"}, "ports": [{"port": 80}]}},
    Place("serviceaccounts", "ServiceAccount", ""): {},
    Place("persistentvolumeclaims", "PersistentVolumeClaim", ""): {
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
        }
    },
    Place("endpoints", "Endpoints", ""): {"subsets": [{"addresses": [{"ip": "10.0.0.1"}]}]},
    Place("statefulsets", "StatefulSet", "apps"): {
        "spec": {"selector": _LABELS, "template": _TEMPLATE, "serviceName": "web"}
    },
    Place("daemonsets", "DaemonSet", "apps"): {
        "spec": {"selector": _LABELS, "template": _TEMPLATE}
    },
    Place("replicasets", "ReplicaSet", "apps"): {
        "spec": {"selector": _LABELS, "template": _TEMPLATE}
    },
    Place("cronjobs", "CronJob", "batch"): {
        "spec": {"schedule": "* * * * *", "jobTemplate": {"spec": _JOB}}
    },
    Place("roles", "Role", "rbac.authorization.k8s.io"): {
        "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]
    },
    Place("rolebindings", "RoleBinding", "rbac.authorization.k8s.io"): {
        "roleRef": _ROLE,
        "subjects": [{"kind": "ServiceAccount", "name": "a", "namespace": "b"}],
    },
    Place("networkpolicies", "NetworkPolicy", "networking.k8s.io"): {
        "spec": {"podSelector": {}, "policyTypes": ["Ingress"]}
    },
    Place("ingresses", "Ingress", "networking.k8s.io"): {
        "spec": {"rules": [{"host": "a.b", "http": {"paths": [_PATH]}}]}
    },
    Place("poddisruptionbudgets", "PodDisruptionBudget", "policy"): {
        "spec": {"selector": _LABELS, "minAvailable": 1}
    },
    Place("leases", "Lease", "coordination.k8s.io"): {
        "spec": {"holderIdentity": "a", "leaseDurationSeconds": 15}
    },
}

_BASE: dict[Place, Json] = {
    **_OTHERS,
    ROCKS: {"spec": {"need": "a", "grows": 4, "steps": [{"name": "a", "size": 1}]}},
    CONFIG_MAPS: {"data": {"a": "b"}},
    SECRETS: {"data": {"a": "YWJj"}},
    JOBS: {
        "spec": {
            "template": {
                "spec": {
                    "restartPolicy": "Never",
                    "containers": [{"name": "main", "image": "main:1"}],
                }
            }
        }
    },
    DEPLOYMENTS: {
        "spec": {
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "web", "image": "web:1"}]},
            },
        }
    },
    PODS: {"spec": {"containers": [{"name": "web", "image": "web:1"}]}},
}


def _pod(*keys: str, **fields: Any) -> Json:
    """Return a change of the pod template, or of its only container."""
    if keys:
        name = keys[0]
        return _pod(containers=[{"name": name, "image": f"{name}:1", **fields}])
    return {"spec": {"template": {"spec": fields}}}


def _encode(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


_OWNER = {"apiVersion": "v1", "kind": "ConfigMap", "name": "a"}
_OWNERS = [
    {**_OWNER, "uid": "u1", "controller": True},
    {**_OWNER, "name": "b", "uid": "u2", "controller": True},
]
# Changes of any object.
_COMMON: tuple[Json, ...] = (
    {},
    {"metadata": {"managedFields": [{"manager": "x"}]}},
    {"metadata": {"ownerReferences": _OWNERS}},
    {"metadata": {"ownerReferences": _OWNERS[:1]}},
    {"metadata": {"ownerReferences": [{**_OWNER, "uid": "u", "what": 1}]}},
    {"metadata": {"ownerReferences": [{**_OWNER, "uid": "u", "controller": "yes"}]}},
    {"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Event", **_OWNER, "uid": ""}]}},
    {"metadata": {"what": 1}},
    {"metadata": {"labels": {"a": None}}},
    {"metadata": {"finalizers": ["example.com/a", "example.com/a"]}},
    {"what": {"a": 1}},
    {"status": {"what": 1}},
)


def _draw_rock(rng: random.Random) -> Json:
    chance = rng.random()
    if chance < 0.05:
        return {"spec": rng.choice(({"what": 1}, {"need": None}, {"inner": {"what": 1}}, None, 5))}
    if chance < 0.1:
        return {"status": rng.choice(({"phase": "new"}, {"phase": 5}, {"what": 1}, {}))}
    names = rng.sample(list(FIELDS), rng.choice((1, 1, 2)))
    values = {name: rng.choice(FIELDS[name][1]) for name in names}
    if rng.random() < 0.1:
        values[rng.choice(names)] = rng.choice(_WRONG)
    return {"spec": values}


_CHANGES: dict[Place, tuple[Json, ...]] = {
    **dict.fromkeys(
        _OTHERS,
        (
            {"spec": {"what": 1}},
            {"metadata": {"labels": {"a": "b"}}},
            {"metadata": {"labels": {"a": 5}}},
            {"spec": None},
            {},
        ),
    ),
    CONFIG_MAPS: (
        {"data": {"a": "c"}},
        {"data": {"b c": "d"}},
        {"data": {"a/b": "d"}},
        {"data": {"..": "d"}},
        {"data": {".a_-B": "d"}},
        {"data": {"": "d"}},
        {"data": {"a": 5}},
        {"data": {"a": None}},
        {"data": {"x" * 254: "d"}},
        {"data": []},
        {"data": None},
        {"binaryData": {"b": "YWJj"}},
        {"binaryData": {"a": "YWJj"}},
        {"binaryData": {"b": "*"}},
        {"binaryData": {"b": "YWI"}},
        {"immutable": True},
        {"immutable": True, "data": {"a": "new"}},
        {"immutable": "yes"},
        {"immutable": False},
        {"data": {"big": "x" * 1_100_000}},
    ),
    SECRETS: (
        {"data": {"a": "eHl6"}},
        {"data": {"a": "*"}},
        {"data": {"a": "YWI"}},
        {"data": {"a": "YW\nJj"}},
        {"data": {"a": 5}},
        {"data": {"a": None}},
        {"data": {"a": ""}},
        {"data": {"b c": "YWJj"}},
        {"stringData": {"b": "text"}},
        {"stringData": {"a": "text"}},
        {"stringData": {"b c": "text"}},
        {"stringData": {"b": 5}},
        {"type": "example.com/own"},
        {"type": "Opaque"},
        {"type": ""},
        {"type": "kubernetes.io/tls"},
        {"type": "kubernetes.io/tls", "data": {"tls.crt": "YWJj", "tls.key": "YWJj"}},
        {"type": "kubernetes.io/basic-auth"},
        {"type": "kubernetes.io/basic-auth", "data": {"username": "YWJj"}},
        {"type": "kubernetes.io/ssh-auth"},
        {"type": "kubernetes.io/ssh-auth", "data": {"ssh-privatekey": "YWJj"}},
        {"type": "kubernetes.io/ssh-auth", "data": {"ssh-privatekey": ""}},
        {"type": "kubernetes.io/dockerconfigjson"},
        {
            "type": "kubernetes.io/dockerconfigjson",
            "data": {".dockerconfigjson": _encode('{"auths": {}}')},
        },
        {"type": "kubernetes.io/dockerconfigjson", "data": {".dockerconfigjson": _encode("{")}},
        {"type": "kubernetes.io/dockercfg", "data": {".dockercfg": _encode("{}")}},
        {"type": "kubernetes.io/dockercfg"},
        {"type": "kubernetes.io/service-account-token"},
        {
            "type": "kubernetes.io/service-account-token",
            "metadata": {"annotations": {"kubernetes.io/service-account.name": "default"}},
        },
        {"type": "bootstrap.kubernetes.io/token"},
        {"immutable": True},
        {"immutable": True, "data": {"a": "bmV3"}},
        {"immutable": None},
    ),
    JOBS: (
        _pod("main", image="main:2"),
        _pod("other"),
        _pod("main", what=1),
        _pod("main", name=None),
        _pod("main", image=None),
        _pod("main", env=[{"name": "a", "value": "b"}, {"name": "a", "value": "c"}]),
        _pod("main", env=[{"name": "a", "value": 5}]),
        _pod("main", resources={"limits": {"cpu": 1, "memory": "1Gi"}}),
        _pod("main", resources={"limits": {"cpu": "lots"}}),
        _pod(restartPolicy="Always"),
        _pod(restartPolicy="OnFailure"),
        _pod(restartPolicy=None),
        _pod(restartPolicy="Sometimes"),
        _pod(what=1),
        _pod(containers=None),
        _pod(containers=[]),
        {"spec": {"parallelism": 2}},
        {"spec": {"parallelism": -1}},
        {"spec": {"completions": 3}},
        {"spec": {"completions": "3"}},
        {"spec": {"backoffLimit": 1}},
        {"spec": {"backoffLimit": -1}},
        {"spec": {"suspend": True}},
        {"spec": {"ttlSecondsAfterFinished": 5}},
        {"spec": {"ttlSecondsAfterFinished": -5}},
        {"spec": {"activeDeadlineSeconds": 5}},
        {"spec": {"activeDeadlineSeconds": 2.5}},
        {"spec": {"completionMode": "Indexed"}},
        {"spec": {"completionMode": "Other"}},
        {"spec": {"selector": {"matchLabels": {"a": "b"}}}},
        {"spec": {"manualSelector": True, "selector": {"matchLabels": {"a": "b"}}}},
        {"spec": {"template": {"metadata": {"labels": {"a": "b"}}}}},
        {"spec": {"what": 1}},
        {"spec": None},
        {"status": {"succeeded": 1}},
        {"metadata": {"labels": {"a": "b"}}},
    ),
    DEPLOYMENTS: (
        {"spec": {"replicas": 3}},
        {"spec": {"replicas": -1}},
        {"spec": {"replicas": "3"}},
        {"spec": {"replicas": 1.5}},
        {"spec": {"replicas": None}},
        {"spec": {"what": 1}},
        {"spec": None},
        {"spec": {"selector": None}},
        {"spec": {"selector": {"matchLabels": {"app": "other"}}}},
        {"spec": {"template": {"metadata": {"labels": {"app": "other"}}}}},
        {"spec": {"template": {"metadata": {"labels": {"more": "other"}}}}},
        {"spec": {"strategy": {"type": "Recreate"}}},
        {"spec": {"strategy": {"type": "Recreate", "rollingUpdate": None}}},
        {"spec": {"strategy": {"type": "Other"}}},
        {"spec": {"strategy": {"rollingUpdate": {"maxSurge": "10%"}}}},
        {"spec": {"strategy": {"rollingUpdate": {"maxSurge": 1.5}}}},
        {"spec": {"strategy": {"rollingUpdate": {"maxSurge": "x"}}}},
        {"spec": {"paused": True}},
        {"spec": {"minReadySeconds": 700}},
        {"spec": {"progressDeadlineSeconds": 1000}},
        _pod("web", image="web:2"),
        _pod("web", image="web"),
        _pod("web", image=""),
        _pod("web", image=None),
        _pod("web", what=1),
        _pod("Web_1"),
        _pod("web", ports=[{"containerPort": 80}]),
        _pod("web", ports=[{"containerPort": 80}, {"containerPort": 80, "protocol": "UDP"}]),
        _pod("web", ports=[{"containerPort": 80}, {"containerPort": 80}]),
        _pod("web", ports=[{"containerPort": 0}]),
        _pod("web", ports=[{"containerPort": "80"}]),
        _pod("web", ports=[{"containerPort": 80, "name": "http"}]),
        _pod("web", env=[{"name": "a", "value": "b"}]),
        _pod("web", env=[{"name": "", "value": "b"}]),
        _pod("web", env=[{"value": "b"}]),
        _pod("web", env=[{"name": "a", "value": None}]),
        _pod("web", env=[{"name": "a", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]),
        _pod("web", env=[{"name": "a", "valueFrom": {"secretKeyRef": {"name": "s"}}}]),
        _pod("web", imagePullPolicy="Sometimes"),
        _pod("web", command="run"),
        _pod("web", volumeMounts=[{"name": "v", "mountPath": "/v"}]),
        _pod("web", volumeMounts=[{"name": "v"}]),
        _pod("web", livenessProbe={"httpGet": {"path": "/", "port": 80}}),
        _pod("web", livenessProbe={"httpGet": {"path": "/"}}),
        _pod("web", livenessProbe={}),
        _pod("web", resources={"requests": {"cpu": "100m"}}),
        _pod("web", resources={"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}),
        _pod("web", resources={"requests": {"cpu": "x"}}),
        _pod("web", securityContext={"runAsUser": 5}),
        _pod(volumes=[{"name": "v", "emptyDir": {}}]),
        _pod(volumes=[{"name": "v", "configMap": {"name": "c"}}]),
        _pod(volumes=[{"name": "v", "secret": {"secretName": "s"}}]),
        _pod(volumes=[{"name": "v"}, {"name": "v"}]),
        _pod(volumes=[{"name": "v", "nosuch": {}}]),
        _pod(restartPolicy="Never"),
        _pod(serviceAccountName="x"),
        _pod(terminationGracePeriodSeconds=5),
        _pod(initContainers=[{"name": "init", "image": "i"}]),
        _pod(initContainers=[{"name": "web", "image": "i"}]),
        _pod(containers=[{"name": "web", "image": "a"}, {"name": "web", "image": "b"}]),
        _pod(containers=[{"name": "web", "image": "a"}, {"name": "log", "image": "b"}]),
        _pod(containers=None),
        {"status": {"replicas": 3}},
        {"status": {"readyReplicas": "x"}},
    ),
    PODS: ({"status": {"phase": "Running"}}, {"status": {"phase": 5}}, {"metadata": {}}),
}
_SELECTORS: dict[Place, tuple[str, ...]] = {
    **dict.fromkeys(_OTHERS, ("metadata.name=a", "spec.what=a")),
    ROCKS: ("spec.need=a", "spec.need!=a", "spec.number=3", "spec.flag=true", "spec.text=a"),
    SECRETS: ("type=Opaque", "type!=Opaque", "type=kubernetes.io/tls", "data=x"),
    PODS: ("status.phase=Pending", "status.phase!=Pending", "spec.nodeName=", "spec.what=a"),
    JOBS: ("status.successful=0", "status.successful=1", "status.failed=0"),
    CONFIG_MAPS: ("metadata.name=a", "data.a=b"),
    DEPLOYMENTS: ("metadata.namespace=a", "status.replicas=0"),
}
_WEIGHTS = {
    **dict.fromkeys(_OTHERS, 0.2),
    ROCKS: 10,
    CONFIG_MAPS: 3,
    SECRETS: 5,
    JOBS: 5,
    DEPLOYMENTS: 7,
    PODS: 1,
}


def build_crd() -> Json:
    """Return the definition of the kind with a rich schema."""
    spec = {name: schema for name, (schema, _) in FIELDS.items()} | {"need": _TEXT}
    properties = {
        "spec": {"type": "object", "properties": spec, "required": ["need"]},
        "status": {"type": "object", "properties": {"phase": {"type": "string", "default": "?"}}},
    }
    version: Json = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": {"type": "object", "properties": properties}},
        "subresources": {"status": {}},
        "selectableFields": [{"jsonPath": f".spec.{name}"} for name in ("need", "number", "flag")],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{ROCKS.plural}.{ROCKS.group}"},
        "spec": {
            "group": ROCKS.group,
            "scope": "Namespaced",
            "names": {"plural": ROCKS.plural, "kind": ROCKS.kind},
            "versions": [version],
        },
    }


@dataclass(frozen=True)
class Case:
    """A request, and those that come before it."""

    place: Place
    before: tuple[Drawn, ...]
    request: Drawn


class Cases:
    """Draws cases; the same seed, the same cases."""

    def __init__(self, rng: random.Random, namespace: str) -> None:
        self._rng = rng
        self._namespace = namespace
        self._count = 0
        self._ways: dict[Callable[[Place, Json], Case], int] = {
            self._create: 6,
            self._replace: 3,
            self._merge: 5,
            self._patch_one_field: 2,
            self._apply_new: 4,
            self._apply_again: 4,
            self._write_status: 2,
            self._list: 1,
        }

    def draw(self) -> Case:
        self._count += 1
        place = self._rng.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
        ways, weights = list(self._ways), list(self._ways.values())
        return self._rng.choices(ways, weights)[0](place, self._draw_change(place))

    @property
    def _name(self) -> str:
        return f"case-{self._count}"

    def _draw_change(self, place: Place) -> Json:
        if self._rng.random() < 0.12:
            return copy.deepcopy(self._rng.choice(_COMMON))
        if place is ROCKS:
            return _draw_rock(self._rng)
        return copy.deepcopy(self._rng.choice(_CHANGES[place]))

    def _draw_query(self) -> dict[str, str]:
        chance = self._rng.random()
        return {"fieldValidation": "Strict"} if chance < 0.2 else {}

    def _build(self, place: Place, change: Json | None = None) -> Json:
        body: Json = {
            "apiVersion": place.api_version,
            "kind": place.kind,
            "metadata": {"name": self._name},
            **copy.deepcopy(_BASE[place]),
        }
        return _merge(body, change or {})

    def _post(self, place: Place, body: Json, **query: str) -> Drawn:
        path = place.build_path(self._namespace)
        return Drawn("POST", path, place.plural, body, query=query)

    def _send(
        self, method: str, place: Place, body: Any, content: str = JSON, sub: str = "", **query: str
    ) -> Drawn:
        path = place.build_path(self._namespace, self._name, sub)
        return Drawn(method, path, place.plural, body, content, query)

    def _create(self, place: Place, change: Json) -> Case:
        body = self._build(place, change)
        return Case(place, (), self._post(place, body, **self._draw_query()))

    def _before(self, place: Place) -> tuple[Drawn, ...]:
        body = self._build(place)
        if place in (CONFIG_MAPS, SECRETS) and self._rng.random() < 0.3:
            body["immutable"] = True
        return (self._post(place, body, fieldManager="first"),)

    def _replace(self, place: Place, change: Json) -> Case:
        body = self._build(place, change)
        if isinstance(body["metadata"], dict):
            key = f"{place.plural}/{self._namespace}/{self._name}"
            body["metadata"]["resourceVersion"] = f"$version:{key}"
        request = self._send("PUT", place, body, **self._draw_query())
        return Case(place, self._before(place), request)

    def _merge(self, place: Place, change: Json) -> Case:
        request = self._send("PATCH", place, change, MERGE_PATCH, **self._draw_query())
        return Case(place, self._before(place), request)

    def _patch_one_field(self, place: Place, change: Json) -> Case:
        path = ""
        value: Any = change
        while isinstance(value, dict) and len(value) == 1 and (not path or path.count("/") < 2):
            key, value = next(iter(value.items()))
            path += f"/{key}"
        operations = [{"op": "add", "path": path or "/metadata/labels", "value": value}]
        request = self._send("PATCH", place, operations, JSON_PATCH, **self._draw_query())
        return Case(place, self._before(place), request)

    def _apply_new(self, place: Place, change: Json) -> Case:
        return Case(place, (), self._build_apply(place, self._build(place, change), "second"))

    def _apply_again(self, place: Place, change: Json) -> Case:
        manager = self._rng.choice(("first", "second"))
        before = self._before(place)
        if self._rng.random() < 0.5:
            before = (self._build_apply(place, self._build(place), "first"),)
        return Case(place, before, self._build_apply(place, self._build(place, change), manager))

    def _build_apply(self, place: Place, body: Json, manager: str) -> Drawn:
        query = {"fieldManager": manager, **self._draw_query()}
        if self._rng.random() < 0.5:
            query["force"] = "true"
        return self._send("PATCH", place, body, APPLY, **query)

    def _write_status(self, place: Place, change: Json) -> Case:
        if not place.has_status:
            return self._create(place, change)
        statuses: tuple[Json, ...] = (
            {"phase": "a"},
            {"phase": 5},
            {"what": 1},
            {"conditions": [{"what": 1}]},
            {},
        )
        status = {"status": self._rng.choice(statuses)}
        return Case(
            place,
            self._before(place),
            self._send("PATCH", place, status, MERGE_PATCH, "status", **self._draw_query()),
        )

    def _list(self, place: Place, change: Json) -> Case:
        del change
        query = {"fieldSelector": self._rng.choice(_SELECTORS[place]), "labelSelector": "my=own"}
        body = self._build(place, {"metadata": {"labels": {"my": "own"}}})
        path = place.build_path(self._namespace)
        request = Drawn("GET", path, place.plural, query=query)
        removal = Drawn("DELETE", path, place.plural, query={"labelSelector": "my=own"})
        return Case(place, (removal, self._post(place, body)), request)


def _merge(target: Json, change: Json) -> Json:
    """Return an object with other fields; null stays, lists are replaced."""
    result = dict(target)
    for key, value in change.items():
        before = result.get(key)
        is_deep = isinstance(before, dict) and isinstance(value, dict) and key != "data"
        result[key] = _merge(before, value) if is_deep else value  # type: ignore[arg-type]
    return result
