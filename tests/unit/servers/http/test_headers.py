"""The mapping of HTTP headers that handlers see."""

from __future__ import annotations

import pytest

from webop.servers.http.review_head import RequestHeaders

RAW = [
    (b"host", b"localhost:54321"),
    (b"authorization", b"Basic dXNzc2VyOnBhc3Nzdw=="),
    (b"content-type", b"application/x-www-form-urlencoded"),
    (b"x-forwarded-for", b"10.0.0.1"),
    (b"x-forwarded-for", b"10.0.0.2"),
    (b"x-name", "Jürgen".encode("latin-1")),
]


@pytest.mark.feature("ADM-25")
def test_names_are_spelled_as_in_the_manual() -> None:
    assert dict(RequestHeaders(RAW)) == {
        "Host": "localhost:54321",
        "Authorization": "Basic dXNzc2VyOnBhc3Nzdw==",
        "Content-Type": "application/x-www-form-urlencoded",
        "X-Forwarded-For": "10.0.0.1, 10.0.0.2",
        "X-Name": "Jürgen",
    }


def test_names_are_found_in_any_spelling() -> None:
    headers = RequestHeaders(RAW)
    for name in ("Content-Type", "content-type", "CONTENT-TYPE"):
        assert headers[name] == headers.get(name) == "application/x-www-form-urlencoded"
    assert "Cookie" not in headers
    with pytest.raises(KeyError, match="Cookie"):
        headers["cookie"]
