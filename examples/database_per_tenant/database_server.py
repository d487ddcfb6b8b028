"""A database server for trials and tests: each database is an SQLite file.

It replaces a real server: it runs outside Kubernetes, can be unavailable, and has an HTTP API:

    PUT    /databases/NAME             {"password": ...}    create it, or change the password
    GET    /databases/NAME                                  404 if there is none
    POST   /databases/NAME/archive                          move the file to the archive
    DELETE /databases/NAME                                  delete it
    POST   /databases/NAME/query       {"sql": ...}         for tenants, with name and password
"""

from __future__ import annotations

import base64
import json
import re
import sqlite3
import sys
import time
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class DatabaseServer(ThreadingHTTPServer):
    """Serves the databases of a folder on a local port; port 0 means any free port."""

    daemon_threads = True

    def __init__(self, folder: Path, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.folder = folder
        self.archive = folder / "archive"
        self.archive.mkdir(parents=True, exist_ok=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_request_for(
        self, method: str, name: str, action: str, body: dict[str, Any], login: str
    ) -> tuple[int, Any]:
        """Handle a request; return the status and the content of the response."""
        file = self.folder / f"{name}.sqlite"
        password = self.folder / f"{name}.password"
        if (method, action) == ("PUT", ""):
            sqlite3.connect(file).close()
            file.touch()
            password.write_text(body["password"])
            return 200, {}
        if not file.exists():
            return 404, {"error": f"no database {name}"}
        match method, action:
            case "GET", "":
                return 200, {"bytes": file.stat().st_size}
            case "POST", "archive":
                file.rename(self.archive / f"{name}-{time.time_ns()}.sqlite")
                password.unlink()
            case "DELETE", "":
                file.unlink()
                password.unlink()
            case "POST", "query":
                if login != f"{name}:{password.read_text()}":
                    return 401, {"error": "wrong name or password"}
                with closing(sqlite3.connect(file)) as connection, connection:
                    return 200, connection.execute(body["sql"]).fetchall()
            case _:
                return 405, {}
        return 200, {}


class _Handler(BaseHTTPRequestHandler):
    server: DatabaseServer

    def _respond(self) -> None:
        match = re.fullmatch(r"/databases/([a-z0-9][a-z0-9.-]*)(?:/(\w+))?", self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        login = base64.b64decode(self.headers.get("Authorization", "").removeprefix("Basic "))
        status, content = 404, None
        if match is not None:
            status, content = self.server.handle_request_for(
                self.command, match[1], match[2] or "", json.loads(body or b"{}"), login.decode()
            )
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(content).encode())

    do_GET = do_PUT = do_POST = do_DELETE = _respond  # noqa: N815 - names of http.server

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        if sys.argv[0] == __file__:
            super().log_message(format, *args)


if __name__ == "__main__":
    DatabaseServer(Path("databases"), port=8090).serve_forever()
