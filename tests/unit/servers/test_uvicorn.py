"""What we rely on in uvicorn is as we know it, in the version that is installed.

A new version of uvicorn that fails here may work all the same: read what has changed in the code
that is named, run the tests of the servers with it, and add its digest. What our code gets from
uvicorn, directly or by ``super()``, belongs into the list.
"""

from __future__ import annotations

import hashlib
import inspect
import textwrap
from typing import Any

import uvicorn
from uvicorn.protocols.http import flow_control, httptools_impl
from uvicorn.server import ServerState

from tests.kit.rows import rows

_CLASSES = (
    httptools_impl.HttpToolsProtocol,
    httptools_impl.RequestResponseCycle,
    flow_control.FlowControl,
    ServerState,
    uvicorn.Config,
)
_PLACES: dict[str, Any] = {cls.__name__: cls for cls in _CLASSES}

# The SHA-256 of the source, or of the value, of which 8 digits; in uvicorn 0.39 to 0.54.
_KNOWN = {
    "HttpToolsProtocol.__init__": "e9855a14 f3413a26 264f2f06",
    "HttpToolsProtocol.connection_made": "ba191581",
    "HttpToolsProtocol.connection_lost": "26f849b5 21bb5222",
    "HttpToolsProtocol.eof_received": "cf1db74c",
    "HttpToolsProtocol.on_message_begin": "53f9a9d3 0efab6f9",
    "HttpToolsProtocol.shutdown": "4822ef10 4a09c5af",
    "HttpToolsProtocol.pause_writing": "0d1d5ff8",
    "HttpToolsProtocol.resume_writing": "89f3ffd1",
    "HttpToolsProtocol._unset_keepalive_if_required": "58f4ffce",
    "RequestResponseCycle.__init__": "6002921e 459bebd3 a916dc53",
    "RequestResponseCycle.run_asgi": "c3a6430d 6bb69c30",
    "RequestResponseCycle.send": "4f9c8e44 0bd12486 cfc84491",
    "RequestResponseCycle.send_500_response": "4032dec7",
    "FlowControl.__init__": "56685b68",
    "FlowControl.drain": "a9105709",
    "FlowControl.pause_reading": "0c34066c",
    "FlowControl.resume_reading": "06e36d83",
    "FlowControl.pause_writing": "08ac31e0",
    "FlowControl.resume_writing": "b9033427",
    "ServerState.__init__": "5696c8f9",
    "Config.load": "eec24c1b d13c44ad 6e3e1c06 909dce2c",
    "STATUS_LINE": "4736834f 8a85b897",  # its phrases are those of the Python version
    "service_unavailable": "f54bba3c",
    "get_client_addr": "6b99b91b",
    "get_local_addr": "cf98fac8 58af92bb 6be1e239",
    "get_path_with_query_string": "c3327767",
    "get_remote_addr": "babd708a be5f849f 5cb12737",
    "is_ssl": "cfb89711",
}
# They are called by methods only in whose place we have our own.


@rows("name", _KNOWN)
def test_what_we_build_on_in_uvicorn_is_as_we_know_it(name: str) -> None:
    owner, _, method = name.rpartition(".")
    found = getattr(_PLACES[owner] if owner else httptools_impl, method)
    source = textwrap.dedent(inspect.getsource(found)) if callable(found) else repr(found)
    digest = hashlib.sha256(source.encode()).hexdigest()[:8]
    assert digest in _KNOWN[name].split(), f"{name} is different in uvicorn {uvicorn.__version__}"
