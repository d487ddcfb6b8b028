"""What the fork server of :mod:`.forking` imports once, for all commands that it forks."""

from __future__ import annotations

import contextlib
import gc
import importlib
import pkgutil

import cryptography.x509
import httpx
import uvicorn

import tests.kit.forking
import webop

_OTHERS = ("webop.__main__", "webop.app", "webop.testing", "webop.client.http.aiohttp_sessions")

for module in pkgutil.walk_packages(webop.__path__, "webop."):
    if not module.name.startswith(_OTHERS):
        importlib.import_module(module.name)

with contextlib.suppress(ImportError):  # it comes with the extra "dev"
    importlib.import_module("kopf.cli")

gc.freeze()

__all__ = ["cryptography", "httpx", "tests", "uvicorn"]
