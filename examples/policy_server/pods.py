"""What a policy says about a pod: no cluster, no framework."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pydantic
import yaml


class Policy(pydantic.BaseModel, extra="forbid"):
    """What is allowed, and what is filled in."""

    registries: list[str]
    requiredLabels: list[str] = []  # noqa: N815 - as users write it
    defaultLimits: dict[str, str] = {}  # noqa: N815


def parse_policy(config_map: Mapping[str, Any]) -> Policy:
    """Return the policy that is written in a ConfigMap.

    Raises:
        ValueError: it is none.
    """
    text = config_map.get("data", {}).get("policy.yaml", "")
    try:
        return Policy.model_validate(yaml.safe_load(text))
    except yaml.YAMLError as exc:
        raise ValueError(f"no YAML: {exc}") from exc


def find_problems(pod: Mapping[str, Any], policy: Policy) -> Iterator[str]:
    """Yield what is wrong with a pod, or with the template of one."""
    labels = pod.get("metadata", {}).get("labels", {})
    for label in policy.requiredLabels:
        if not labels.get(label):
            yield f"The label '{label}' is required."
    for image in list_images(pod):
        if not any(image.startswith(f"{registry}/") for registry in policy.registries):
            allowed = ", ".join(policy.registries)
            yield f"The image '{image}' is not from an allowed registry ({allowed})."


def find_doubts(pod: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is allowed, but should be better."""
    for image in list_images(pod):
        if ":" not in image.rpartition("/")[2]:
            yield f"The image '{image}' has no tag: it can change at any time."


def list_images(pod: Mapping[str, Any]) -> list[str]:
    """Return the images of all containers, each with its registry."""
    kinds = ("initContainers", "containers", "ephemeralContainers")
    containers = [one for kind in kinds for one in pod["spec"].get(kind, ())]
    return [complete_image(container["image"]) for container in containers]


def complete_image(image: str) -> str:
    """Return an image with its registry: 'nginx' is 'docker.io/library/nginx'."""
    host, slash, _ = image.partition("/")
    if not slash:
        return f"docker.io/library/{image}"
    is_host = "." in host or ":" in host or host == "localhost"
    return image if is_host else f"docker.io/{image}"


def fill_in_limits(pod: dict[str, Any], limits: Mapping[str, str]) -> None:
    """Set limits where a container has neither a limit nor a request."""
    for container in pod["spec"].get("initContainers", []) + pod["spec"]["containers"]:
        resources = container.setdefault("resources", {})
        for name, amount in limits.items():
            if name not in resources.get("requests", {}):
                resources.setdefault("limits", {}).setdefault(name, amount)
