"""HTTPS server that stands in for a Kubernetes API server, and the service account that it takes."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from stepscope.collectors.jobs.kubernetes.api_server import KubernetesApi
from tests.agent.web.certificates import self_signed

TOKEN = "eyJhbGciOi.of-a.service-account"


class QuietHandler(BaseHTTPRequestHandler):
    """A handler of HTTP/1.1 that logs nothing."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """A client that does not wait is no error."""


@contextmanager
def https_server(folder: Path, handler: type[QuietHandler], hold: threading.Event) -> Iterator[KubernetesApi]:
    """The server on a free port, its certificate and token in a service account's folder.

    Args:
        hold: set at the end, so that handlers that wait for it end.
    """
    cert, key = self_signed(folder, "api")
    account = folder / "account"
    account.mkdir()
    (account / "ca.crt").write_bytes(cert.read_bytes())
    (account / "token").write_text(TOKEN + "\n")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    server = _Server(("127.0.0.1", 0), handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield KubernetesApi("127.0.0.1", server.server_address[1], account)
    finally:
        hold.set()
        server.shutdown()
        thread.join()
        server.server_close()
