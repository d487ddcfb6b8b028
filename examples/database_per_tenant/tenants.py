"""A database for each Tenant: created, watched, and archived or dropped with it.

The applications of a tenant find the name and the password in a Secret. Conditions of the Tenant
say whether the database is ready, and whether it works right now.
"""

from __future__ import annotations

import base64
import os
import secrets
from typing import Any

from databases import DatabaseError, Databases, NoDatabaseError

import webop

TENANTS = ("example.com", "v1", "tenants")
SERVER = os.environ.get("DATABASE_SERVER", "http://database-server:8080")
INTERVAL = float(os.environ.get("CHECK_INTERVAL", "10"))  # seconds


class SecretTakenError(Exception):
    """Somebody else has a Secret of the name that a Tenant's would have."""


@webop.on.startup()
def connect(settings: webop.OperatorSettings, memo: webop.Memo, **_: Any) -> None:
    """Say what the handlers may do, and give them the databases: memos begin with what is here."""
    settings.networking.rights = ["secrets:get,create,patch"]
    settings.networking.field_manager = "database-per-tenant"
    memo.databases = Databases(SERVER)


@webop.on.cleanup()
async def disconnect(memo: webop.Memo, **_: Any) -> None:
    await memo.databases.close()


@webop.on.create(*TENANTS)
async def provision(
    meta: webop.Meta,
    patch: webop.Patch,
    memo: webop.Memo,
    client: webop.AsyncClient,
    **_: Any,
) -> None:
    """Create the database and its Secret; or the rest, if an attempt before has not come far."""
    name = get_database_name(meta)
    try:
        # The Secret comes first: if the rest fails, the next attempt finds the same password.
        password = await find_password(client, meta) or secrets.token_urlsafe(24)
        await client.apply(build_secret(meta, name, password))
        await memo.databases.create(name, password)
    except (DatabaseError, SecretTakenError) as exc:
        reason = "SecretTaken" if isinstance(exc, SecretTakenError) else "NoDatabase"
        patch.status.set_condition("Ready", False, reason=reason, message=str(exc))
        raise webop.TemporaryError(str(exc), delay=INTERVAL) from exc
    patch.status.set_condition("Ready", True, reason="Created")
    patch.status["database"] = name


@webop.daemon(*TENANTS)
async def watch_health(
    meta: webop.Meta,
    status: webop.Status,
    patch: webop.Patch,
    memo: webop.Memo,
    stopped: webop.DaemonStopped,
    **_: Any,
) -> None:
    """Say in a condition whether the database works, as long as there is one."""
    while not stopped:
        if "database" in status:
            try:
                await memo.databases.check(status["database"])
            except NoDatabaseError as exc:
                patch.status.set_condition("Healthy", False, reason="Lost", message=str(exc))
            except DatabaseError as exc:
                patch.status.set_condition("Healthy", None, reason="NoAnswer", message=str(exc))
            else:
                patch.status.set_condition("Healthy", True, reason="Answers")
            await patch.apply()
        await stopped.wait(INTERVAL)


@webop.on.delete(*TENANTS)
async def remove(meta: webop.Meta, spec: webop.Spec, memo: webop.Memo, **_: Any) -> None:
    """Archive or drop the database. Until that is done, the Tenant stays."""
    name = get_database_name(meta)
    try:
        if spec.get("onDeletion") == "Drop":
            await memo.databases.drop(name)
        else:
            await memo.databases.archive(name)
    except NoDatabaseError:
        pass  # it was never created, or is removed already
    except DatabaseError as exc:
        raise webop.TemporaryError(str(exc), delay=INTERVAL) from exc


def get_database_name(meta: webop.Meta) -> str:
    """Return a name that no other Tenant has: names of namespaces have no dots."""
    return f"{meta.namespace}.{meta.name}"


async def find_password(client: webop.AsyncClient, meta: webop.Meta) -> str | None:
    """Return the password in the Secret of a Tenant; None if there is no Secret yet.

    Raises:
        SecretTakenError: the Secret belongs to somebody else.
    """
    name = f"{meta.name}-database"
    try:
        secret = await client.get("secrets", name, namespace=meta.namespace)
    except webop.APINotFoundError:
        return None
    owners = [owner["uid"] for owner in secret["metadata"].get("ownerReferences", ())]
    if meta.uid not in owners:
        raise SecretTakenError(f"The Secret '{name}' is not of this Tenant: delete it.")
    return base64.b64decode(secret["data"]["password"]).decode()


def build_secret(meta: webop.Meta, database: str, password: str) -> dict[str, Any]:
    """Return the Secret of a Tenant, which Kubernetes deletes together with it."""
    data = {"server": SERVER, "database": database, "password": password}
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": f"{meta.name}-database", "namespace": meta.namespace},
        "data": {key: base64.b64encode(text.encode()).decode() for key, text in data.items()},
    }
    webop.append_owner_reference(secret, block_owner_deletion=False)
    return secret
