"""A Kubernetes API: a real HTTPS server that lists pods in pages, to whoever has the token."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from stepscope.collectors.jobs.kubernetes.api_server import KubernetesApi
from tests.collectors.jobs.kubernetes.https_server import QuietHandler, https_server

NODE = "node-7"


@dataclass(slots=True)
class Api:
    """What it has, and how it answers.

    Attributes:
        server: for whoever asks.
        pods: items of the list.
        slices: endpoint slices of the service "stepscope-agent" in the namespace "stepscope".
        status: other than 200: an error.
        body: instead of a list.
        page: items a page.
        drip: seconds between the bytes of a body.
        asked: queries, in their order.
        hold: set it to let it answer.
    """

    server: KubernetesApi
    pods: list[dict[str, Any]] = field(default_factory=list)
    slices: list[dict[str, Any]] = field(default_factory=list)
    status: int = 200
    body: bytes | None = None
    page: int = 100
    drip: float = 0.0
    asked: list[dict[str, list[str]]] = field(default_factory=list)
    accepted: list[str] = field(default_factory=list)
    hold: threading.Event = field(default_factory=threading.Event)

    def answer(self, path: str, token: str, accept: str) -> tuple[int, bytes]:
        """Status and body."""
        parts = urlsplit(path)
        query = parse_qs(parts.query)
        self.asked.append(query)
        self.accepted.append(accept)
        self.hold.wait(20)
        if token != f"Bearer {(self.server.account / 'token').read_text().strip()}":
            return 401, _failure(401, "Unauthorized")
        if self.status != 200:
            return self.status, _failure(self.status, 'pods is forbidden: User "stepscope" cannot list resource "pods"')
        if self.body is not None:
            return 200, self.body
        objects = self._objects(parts.path, query)
        if objects is None:
            return 404, _failure(404, "not found")
        begin = int(query.get("continue", ["0"])[0])
        items, rest = objects[begin : begin + self.page], objects[begin + self.page :]
        metadata = {"resourceVersion": "1"} | ({"continue": str(begin + self.page)} if rest else {})
        kind = {"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1"}
        return 200, json.dumps(kind | {"metadata": metadata, "items": items}).encode()

    def _objects(self, path: str, query: dict[str, list[str]]) -> list[dict[str, Any]] | None:
        if path == "/api/v1/pods" and query["fieldSelector"] == [f"spec.nodeName={NODE}"]:
            return self.pods
        if path == "/apis/discovery.k8s.io/v1/namespaces/stepscope/endpointslices":
            return self.slices if query["labelSelector"] == ["kubernetes.io/service-name=stepscope-agent"] else []
        return None


@contextmanager
def running(folder: Path) -> Iterator[Api]:
    """The server on a free port, its certificate and token in a service account's folder."""
    hold = threading.Event()
    hold.set()

    class Handler(QuietHandler):
        def do_GET(self) -> None:  # noqa: N802 - a name of the library
            headers = self.headers
            status, body = api.answer(self.path, headers.get("Authorization", ""), headers.get("Accept", ""))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with suppress(OSError):  # it did not wait for all of it
                for begin in range(0, len(body), step := 1 if api.drip else max(1, len(body))):
                    self.wfile.write(body[begin : begin + step])
                    time.sleep(api.drip)

    with https_server(folder, Handler, hold) as server:
        api = Api(server, hold=hold)
        yield api


def pod(
    namespace: str,
    name: str,
    uid: str = "",
    labels: dict[str, str] | None = None,
    owner: tuple[str, str] | None = None,
    annotations: dict[str, str] | None = None,
) -> dict[str, Any]:
    """A pod as the API tells its metadata."""
    metadata: dict[str, Any] = {
        "name": name,
        "namespace": namespace,
        "uid": uid or f"uid-of-{name}",
        "resourceVersion": "123",
        "creationTimestamp": "2026-11-01T00:00:00Z",
        "labels": labels or {},
        "annotations": annotations or {},
    }
    if owner is not None:
        kind, owner_name = owner
        metadata["ownerReferences"] = [
            {"apiVersion": "v1", "kind": "Node", "name": "x", "uid": "u"},
            {"apiVersion": "batch/v1", "kind": kind, "name": owner_name, "uid": "u", "controller": True},
        ]
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata}


def _failure(code: int, message: str) -> bytes:
    return json.dumps({"kind": "Status", "status": "Failure", "message": message, "code": code}).encode()
