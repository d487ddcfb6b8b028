"""The kind Workspace: a namespace with a quota. Its definition follows from these classes."""

from __future__ import annotations

from typing import Annotated, Literal

import pydantic

from webop.models import CEL, Conditions, Model, Struct, resource

Name = Annotated[
    str,
    pydantic.Field(max_length=63, pattern="^[a-z]([-a-z0-9]*[a-z0-9])?$"),
    CEL("self == oldSelf", message="the namespace cannot be renamed"),
]
AMOUNT = "[-+.0-9A-Za-z]{1,20}"
Quantity = Annotated[
    str,
    pydantic.Field(max_length=20, pattern=f"^{AMOUNT}$"),
    CEL("isQuantity(self)", message="must be a quantity"),
]


class Quota(Struct):
    """What the pods of a workspace can use together."""

    cpu: Quantity = "2"
    memory: Quantity = "4Gi"
    pods: int = pydantic.Field(default=20, ge=1, le=500)


@CEL("self.stage == 'test' || has(self.contact)", message="production workspaces need a contact")
class WorkspaceSpec(Struct):
    """The namespace that somebody wants."""

    namespace: Name
    """The name of the namespace."""
    stage: Literal["test", "production"] = "test"
    contact: Annotated[str, pydantic.Field(max_length=200)] | None = None
    """Who answers for the workspace, such as an email address."""
    quota: Quota = pydantic.Field(default_factory=Quota)


class WorkspaceStatus(Struct):
    """What the operator has done."""

    conditions: Conditions = pydantic.Field(default_factory=Conditions)


@resource(
    "example.com",
    "v1",
    scope="Cluster",
    short_names=["ws"],
    columns={
        "Namespace": ".spec.namespace",
        "Stage": ".spec.stage",
        "Ready": Conditions.column("Ready"),
    },
    selectable=[".spec.namespace"],
)
class Workspace(Model):
    """A namespace with a quota."""

    spec: WorkspaceSpec
    status: WorkspaceStatus | None = None
