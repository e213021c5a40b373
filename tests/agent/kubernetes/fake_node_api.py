"""A strict stand-in for the Kubernetes API: nodes/status and events over HTTPS, with RBAC of the shipped manifest.

It is as strict as kube-apiserver 1.36 was seen to be (`test_real_api`), and stricter with names of events.
"""

from __future__ import annotations

import copy
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

from stepscope.collectors.jobs.kubernetes.api_server import KubernetesApi
from tests.collectors.jobs.kubernetes.https_server import TOKEN, QuietHandler, https_server
from tests.deploy.conftest import DEPLOY

NODE, UID = "node-7.example", "5a0d32a4-27cd-4b5f-b3bb-7a4c2b1d7b11"
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
_READY = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "ok"}


def shipped_rules() -> list[tuple[str, str, str]]:
    """Namespace (empty: all), resource and verb of each permission in the shipped manifest."""
    rules = []
    for one in yaml.safe_load_all((DEPLOY / "kubernetes/node-condition.yaml").read_text()):
        for rule in one.get("rules", []):
            namespace = one["metadata"].get("namespace", "")
            rules += [(namespace, resource, verb) for resource in rule["resources"] for verb in rule["verbs"]]
    return rules


class _RefusalError(Exception):
    def __init__(self, status: int, reason: str, message: str) -> None:
        self.status = status
        self.body = {"kind": "Status", "status": "Failure", "reason": reason, "message": message, "code": status}
        super().__init__(message)


@dataclass
class NodeServer:
    """The stand-in and what it has.

    Attributes:
        failures: statuses with which the next requests are refused, and headers.
        requests: method and path with its query of each.
        hold: while it is cleared nothing is answered.
    """

    server: KubernetesApi
    rules: list[tuple[str, str, str]] = field(default_factory=shipped_rules)
    conditions: list[dict[str, Any]] = field(default_factory=lambda: [dict(_READY)])
    events: dict[str, dict[str, Any]] = field(default_factory=dict)
    failures: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    version: int = 1
    hold: threading.Event = field(default_factory=threading.Event)

    def condition(self, kind: str = "StepscopeGpuUnhealthy") -> dict[str, Any] | None:
        return next((one for one in self.conditions if one["type"] == kind), None)

    def answer(self, method: str, path: str, headers: Any, body: bytes) -> tuple[int, dict[str, Any], dict[str, str]]:
        self.requests.append(f"{method} {path}")
        self.hold.wait(30)
        try:
            if headers.get("Authorization") != f"Bearer {TOKEN}":
                raise _RefusalError(401, "Unauthorized", "Unauthorized")
            if self.failures:
                status, further = self.failures.pop(0)
                return status, _RefusalError(status, "Conflict" if status == 409 else "", "refused").body, further
            return (*self._route(method, path, headers.get("Content-Type", ""), body), {})
        except _RefusalError as refusal:
            return refusal.status, refusal.body, {}

    def _route(self, method: str, path: str, content_type: str, body: bytes) -> tuple[int, dict[str, Any]]:
        parts = urlsplit(path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        if set(query) - {"dryRun", "fieldManager", "fieldValidation"} or query.get("dryRun", "All") != "All":
            raise _RefusalError(400, "BadRequest", f"invalid query {parts.query}")
        is_kept = "dryRun" not in query
        match = re.fullmatch(r"/api/v1/nodes/([^/]+)/status", parts.path)
        if match and method == "PATCH":
            self._allow("", "nodes/status", "patch")
            if content_type != "application/strategic-merge-patch+json":
                raise _RefusalError(415, "UnsupportedMediaType", f"unknown media type {content_type}")
            if match[1] != NODE:
                raise _RefusalError(404, "NotFound", f'nodes "{match[1]}" not found')
            return 200, self._patch(json.loads(body), is_kept=is_kept)
        match = re.fullmatch(r"/api/v1/namespaces/([^/]+)/events", parts.path)
        if match and method == "POST":
            self._allow(match[1], "events", "create")
            if content_type != "application/json":
                raise _RefusalError(415, "UnsupportedMediaType", f"unknown media type {content_type}")
            return 201, self._create(json.loads(body), match[1], is_kept=is_kept)
        raise _RefusalError(403, "Forbidden", f"may not {method} {parts.path}")

    def _allow(self, namespace: str, resource: str, verb: str) -> None:
        if not any(rule[1:] == (resource, verb) and rule[0] in ("", namespace) for rule in self.rules):
            who = "system:serviceaccount:stepscope:stepscope-agent"
            raise _RefusalError(403, "Forbidden", f'User "{who}" cannot {verb} resource "{resource}"')

    def _patch(self, patch: dict[str, Any], *, is_kept: bool) -> dict[str, Any]:
        if set(patch) - {"status", "metadata"} or set(patch.get("status", {})) - {"conditions"}:
            raise _RefusalError(422, "Invalid", "only conditions here")
        version = patch.get("metadata", {}).get("resourceVersion")
        if version is not None and version != str(self.version):
            raise _RefusalError(409, "Conflict", "the object has been modified")
        conditions = copy.deepcopy(self.conditions)
        for new in patch.get("status", {}).get("conditions", []):
            known = {"type", "status", "reason", "message", "lastHeartbeatTime", "lastTransitionTime"}
            if not new.get("type") or set(new) - known:
                raise _RefusalError(422, "Invalid", f"no such condition: {new}")
            for name in ("lastHeartbeatTime", "lastTransitionTime"):
                if name in new and not _TIME.fullmatch(new[name]):
                    raise _RefusalError(400, "BadRequest", f"{name}: {new[name]}")
            before = next((one for one in conditions if one["type"] == new["type"]), None)
            if before is None:
                conditions.append(new)
            else:
                before.update(new)
        if is_kept and conditions != self.conditions:
            self.conditions, self.version = conditions, self.version + 1
        metadata = {"name": NODE, "uid": UID, "resourceVersion": str(self.version)}
        return {"kind": "Node", "apiVersion": "v1", "metadata": metadata, "status": {"conditions": conditions}}

    def _create(self, event: dict[str, Any], namespace: str, *, is_kept: bool) -> dict[str, Any]:
        name = event["metadata"]["name"]
        if event["metadata"]["namespace"] != namespace:
            raise _RefusalError(400, "BadRequest", "the namespace of the object does not match")
        if event["involvedObject"].get("namespace", "default") != namespace:
            raise _RefusalError(422, "Invalid", "involvedObject.namespace: does not match event.namespace")
        if not _SUBDOMAIN.fullmatch(name) or len(name) > 253:
            raise _RefusalError(422, "Invalid", f"metadata.name: {name}")
        if len(event["message"].encode()) > 1024 or event["type"] not in ("Normal", "Warning"):
            raise _RefusalError(422, "Invalid", "message or type")
        if name in self.events:
            raise _RefusalError(409, "AlreadyExists", f'events "{name}" already exists')
        if is_kept:
            self.events[name] = event
        return event


@contextmanager
def node_server(folder: Path) -> Iterator[NodeServer]:
    """The stand-in on a free port, its certificate and token in a service account's folder."""
    hold = threading.Event()
    hold.set()

    class Handler(QuietHandler):
        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, document, further = api.answer(self.command, self.path, self.headers, body)
            content = json.dumps(document).encode()
            self.send_response(status)
            for name, value in {**further, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = _answer  # noqa: N815 - names of the library

    with https_server(folder, Handler, hold) as server:
        api = NodeServer(server, hold=hold)
        yield api
