"""The kind Workspace: a namespace with a quota. Its definition follows from these classes."""

from __future__ import annotations

from typing import Annotated, Literal

import pydantic

import webop

Name = Annotated[
    str,
    pydantic.Field(max_length=63, pattern="^[a-z]([-a-z0-9]*[a-z0-9])?$"),
    webop.CEL("self == oldSelf", message="the namespace cannot be renamed"),
]
AMOUNT = "[-+.0-9A-Za-z]{1,20}"
Quantity = Annotated[
    str,
    pydantic.Field(max_length=20, pattern=f"^{AMOUNT}$"),
    webop.CEL("isQuantity(self)", message="must be a quantity"),
]


class Quota(webop.Struct):
    """What the pods of a workspace can use together."""

    cpu: Quantity = "2"
    memory: Quantity = "4Gi"
    pods: int = pydantic.Field(default=20, ge=1, le=500)


@webop.CEL(
    "self.stage == 'test' || has(self.contact)", message="production workspaces need a contact"
)
class WorkspaceSpec(webop.Struct):
    """The namespace that somebody wants."""

    namespace: Name
    """The name of the namespace."""
    stage: Literal["test", "production"] = "test"
    contact: Annotated[str, pydantic.Field(max_length=200)] | None = None
    """Who answers for the workspace, such as an email address."""
    quota: Quota = pydantic.Field(default_factory=Quota)


class WorkspaceStatus(webop.Struct):
    """What the operator has done."""

    conditions: webop.Conditions = pydantic.Field(default_factory=webop.Conditions)


@webop.resource(
    "example.com",
    "v1",
    scope="Cluster",
    short_names=["ws"],
    columns={
        "Namespace": ".spec.namespace",
        "Stage": ".spec.stage",
        "Ready": webop.Conditions.column("Ready"),
    },
    selectable=[".spec.namespace"],
)
class Workspace(webop.Model):
    """A namespace with a quota."""

    spec: WorkspaceSpec
    status: WorkspaceStatus | None = None
