"""Keep a database for each Tenant: create it, check it, and archive or drop it with the Tenant.

Applications read the name and the password of the database from a Secret. Conditions of the Tenant
say whether the database exists, and whether it works now.
"""

from __future__ import annotations

import base64
import os
import secrets
from typing import Any

from databases import DatabaseError, Databases, NoDatabaseError

import webop
from webop.errors import APINotFoundError

TENANTS = ("example.com", "v1", "tenants")
SERVER = os.environ.get("DATABASE_SERVER", "http://database-server:8090")
INTERVAL = float(os.environ.get("CHECK_INTERVAL", "10"))  # seconds


class SecretTakenError(Exception):
    """There is a Secret with the name of the Tenant's that belongs to somebody else."""


@webop.on.startup()
def connect(settings: webop.OperatorSettings, memo: webop.Memo, **_: Any) -> None:
    """Declare the rights of the handlers, and put the databases into the memo of each object."""
    settings.networking.rights = ["secrets:get,create,patch"]
    settings.operator.name = "database-per-tenant"
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
    """Create the database and its Secret, or what an earlier attempt did not create."""
    name = get_database_name(meta)
    try:
        # Create the Secret first: if the next step fails, the next attempt reuses the password.
        password = await find_password(client, meta) or secrets.token_urlsafe(24)
        await client.apply(build_secret(meta, name, password))
        await memo.databases.create(name, password)
    except (DatabaseError, SecretTakenError) as exc:
        reason = "SecretTaken" if isinstance(exc, SecretTakenError) else "NoDatabase"
        patch.status.set_condition("Ready", False, reason=reason, message=str(exc))
        raise webop.TemporaryError(str(exc), delay=INTERVAL) from exc
    patch.status.set_condition("Ready", True, reason="Created")
    patch.status["database"] = name


@webop.daemon(*TENANTS, field="status.database", value=webop.PRESENT)
async def watch_health(
    status: webop.Status,
    patch: webop.Patch,
    memo: webop.Memo,
    stopped: webop.DaemonStopped,
    **_: Any,
) -> None:
    """Write the condition ``Healthy`` as long as the Tenant has a database."""
    while not stopped:
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
    """Archive or drop the database. The Tenant stays until this succeeds."""
    name = get_database_name(meta)
    try:
        if spec.get("onDeletion") == "Drop":
            await memo.databases.drop(name)
        else:
            await memo.databases.archive(name)
    except NoDatabaseError:
        pass  # it was never created, or is already removed
    except DatabaseError as exc:
        raise webop.TemporaryError(str(exc), delay=INTERVAL) from exc


def get_database_name(meta: webop.Meta) -> str:
    """Return a unique name: names of namespaces contain no dots."""
    return f"{meta.namespace}.{meta.name}"


async def find_password(client: webop.AsyncClient, meta: webop.Meta) -> str | None:
    """Return the password from the Secret of a Tenant; None if there is no Secret.

    Raises:
        SecretTakenError: the Secret belongs to somebody else.
    """
    name = f"{meta.name}-database"
    try:
        secret = await client.get("secrets", name, namespace=meta.namespace)
    except APINotFoundError:
        return None
    owners = [owner["uid"] for owner in secret["metadata"].get("ownerReferences", ())]
    if meta.uid not in owners:
        raise SecretTakenError(
            f"The Secret '{name}' belongs to somebody else. Delete or rename it."
        )
    return base64.b64decode(secret["data"]["password"]).decode()


def build_secret(meta: webop.Meta, database: str, password: str) -> dict[str, Any]:
    """Return the Secret of a Tenant; Kubernetes deletes both together."""
    data = {"server": SERVER, "database": database, "password": password}
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": f"{meta.name}-database", "namespace": meta.namespace},
        "data": {key: base64.b64encode(text.encode()).decode() for key, text in data.items()},
    }
    webop.append_owner_reference(secret, block_owner_deletion=False)
    return secret
