"""Check pods against a policy. Plain functions, without a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pydantic
import yaml


class Policy(pydantic.BaseModel, extra="forbid"):
    """The content of the policy: what is allowed, and default limits."""

    registries: list[str]
    requiredLabels: list[str] = []  # noqa: N815 - the name in YAML
    defaultLimits: dict[str, str] = {}  # noqa: N815


def parse_policy(config_map: Mapping[str, Any]) -> Policy:
    """Return the policy from a ConfigMap.

    Raises:
        ValueError: the ConfigMap has no valid policy.
    """
    text = config_map.get("data", {}).get("policy.yaml", "")
    try:
        return Policy.model_validate(yaml.safe_load(text))
    except yaml.YAMLError as exc:
        raise ValueError(f"invalid YAML: {exc}") from exc


def find_problems(pod: Mapping[str, Any], policy: Policy) -> Iterator[str]:
    """Yield the problems of a pod or of a pod template."""
    labels = pod.get("metadata", {}).get("labels", {})
    for label in policy.requiredLabels:
        if not labels.get(label):
            yield f"The label '{label}' is required."
    for image in list_images(pod):
        if not any(image.startswith(f"{registry}/") for registry in policy.registries):
            allowed = ", ".join(policy.registries)
            yield f"The image '{image}' is not from an allowed registry ({allowed})."


def find_warnings(pod: Mapping[str, Any]) -> Iterator[str]:
    """Yield warnings about a pod that is allowed."""
    for image in list_images(pod):
        if ":" not in image.rpartition("/")[2]:
            yield f"The image '{image}' has no tag: it can change at any time."


def list_images(pod: Mapping[str, Any]) -> list[str]:
    """Return the images of all containers with their registries."""
    kinds = ("initContainers", "containers", "ephemeralContainers")
    containers = [one for kind in kinds for one in pod["spec"].get(kind, ())]
    return [complete_image(container["image"]) for container in containers]


def complete_image(image: str) -> str:
    """Add the default registry to an image: 'nginx' is 'docker.io/library/nginx'."""
    host, slash, _ = image.partition("/")
    if not slash:
        return f"docker.io/library/{image}"
    is_host = "." in host or ":" in host or host == "localhost"
    return image if is_host else f"docker.io/{image}"


def fill_in_limits(pod: dict[str, Any], limits: Mapping[str, str]) -> None:
    """Set the limits of containers that have neither a limit nor a request."""
    for container in pod["spec"].get("initContainers", []) + pod["spec"]["containers"]:
        resources = container.setdefault("resources", {})
        for name, amount in limits.items():
            if name not in resources.get("requests", {}):
                resources.setdefault("limits", {}).setdefault(name, amount)
