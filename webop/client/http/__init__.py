"""The wire: requests, connections and streams of HTTP/1.1."""
