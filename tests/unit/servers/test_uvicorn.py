"""What we rely on in uvicorn is as we know it, in the version that is installed.

A new version of uvicorn that fails here may work all the same: read what has changed in the method
that is named, run the tests of the servers with it, and add its digest.
"""

from __future__ import annotations

import hashlib
import inspect
import textwrap

import pytest
import uvicorn
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

_CLASSES = (HttpToolsProtocol, RequestResponseCycle, FlowControl)

# The SHA-256 of the source of each method, of which 8 digits; in uvicorn 0.39 to 0.54.
_KNOWN = {
    "HttpToolsProtocol.__init__": "e9855a14 f3413a26 264f2f06",
    "HttpToolsProtocol.connection_made": "ba191581",
    "HttpToolsProtocol.connection_lost": "26f849b5 21bb5222",
    "HttpToolsProtocol.eof_received": "cf1db74c",
    "HttpToolsProtocol.on_message_begin": "53f9a9d3 0efab6f9",
    "HttpToolsProtocol.shutdown": "4822ef10 4a09c5af",
    "HttpToolsProtocol.pause_writing": "0d1d5ff8",
    "HttpToolsProtocol.resume_writing": "89f3ffd1",
    "RequestResponseCycle.__init__": "6002921e 459bebd3 a916dc53",
    "RequestResponseCycle.run_asgi": "c3a6430d 6bb69c30",
    "RequestResponseCycle.send": "4f9c8e44 0bd12486 cfc84491",
    "RequestResponseCycle.send_500_response": "4032dec7",
    "FlowControl.__init__": "56685b68",
    "FlowControl.pause_reading": "0c34066c",
    "FlowControl.resume_reading": "06e36d83",
}


@pytest.mark.parametrize("name", _KNOWN)
def test_a_method_of_uvicorn_that_we_build_on_is_one_that_we_know(name: str) -> None:
    owner, _, method = name.partition(".")
    cls = next(cls for cls in _CLASSES if cls.__name__ == owner)
    source = textwrap.dedent(inspect.getsource(getattr(cls, method)))
    digest = hashlib.sha256(source.encode()).hexdigest()[:8]
    assert digest in _KNOWN[name].split(), f"{name} is different in uvicorn {uvicorn.__version__}"
