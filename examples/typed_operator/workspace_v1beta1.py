"""The older version of workspaces, for clients that still use it.

`owner` is `contact` now, and `size`, such as `2/4Gi`, is split into `quota.cpu` and `quota.memory`.
"""

from __future__ import annotations

from typing import Annotated, Literal

import pydantic
from workspace_models import AMOUNT, Name, Quota, Workspace, WorkspaceSpec, WorkspaceStatus

import webop
from webop.models import CEL, Model, Struct, resource


@CEL("self.stage == 'test' || has(self.owner)", message="production workspaces need an owner")
class OldSpec(Struct):
    """The namespace that somebody wants."""

    namespace: Name
    stage: Literal["test", "production"] = "test"
    owner: Annotated[str, pydantic.Field(max_length=200)] | None = None
    size: Annotated[
        str,
        pydantic.Field(max_length=41, pattern=f"^{AMOUNT}/{AMOUNT}$"),
        CEL("self.split('/').all(it, isQuantity(it))", message="must be two quantities"),
    ] = "2/4Gi"
    pods: int = pydantic.Field(default=20, ge=1, le=500)


@resource("example.com", "v1beta1", kind="Workspace", scope="Cluster", stored=False)
class OldWorkspace(Model):
    """A namespace with a quota."""

    spec: OldSpec
    status: WorkspaceStatus | None = None


@webop.on.convert(OldWorkspace, to=Workspace)
async def upgrade(old: OldWorkspace) -> Workspace:
    """Split the size."""
    cpu, memory = old.spec.size.split("/")
    spec = WorkspaceSpec(
        namespace=old.spec.namespace,
        stage=old.spec.stage,
        contact=old.spec.owner,
        quota=Quota(cpu=cpu, memory=memory, pods=old.spec.pods),
    )
    return Workspace(spec=spec, status=old.status)


@webop.on.convert(Workspace, to=OldWorkspace)
async def downgrade(new: Workspace) -> OldWorkspace:
    """Merge the amounts."""
    spec = OldSpec(
        namespace=new.spec.namespace,
        stage=new.spec.stage,
        owner=new.spec.contact,
        size=f"{new.spec.quota.cpu}/{new.spec.quota.memory}",
        pods=new.spec.quota.pods,
    )
    return OldWorkspace(spec=spec, status=new.status)
