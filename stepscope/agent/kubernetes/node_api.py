"""Client of the Kubernetes API for one node: patches its status, and creates events.

It needs the verb patch on nodes/status and create on events, and nothing to read: an empty patch is answered with the
node as it is.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote, urlencode

from stepscope.agent.kubernetes.node_report import COMPONENT, EVENT_NAMESPACE
from stepscope.collectors.jobs.kubernetes.api_server import KubernetesAnswer, KubernetesApi, KubernetesApiError
from stepscope.core.errors import printable
from stepscope.core.metrics.readings import MissingReason

ANSWER_SECONDS = 5.0
_MAX_DETAIL = 300
_PATCH = "application/strategic-merge-patch+json"


class NodeApiError(KubernetesApiError):
    """The Kubernetes API server refuses a change of the node.

    Attributes:
        retry_seconds: that the server asks to wait; None where it does not.
        is_final: asking again with the same body changes nothing.
    """

    def __init__(
        self, reason: MissingReason, detail: str, *, retry_seconds: float | None = None, is_final: bool = False
    ) -> None:
        self.retry_seconds = retry_seconds
        self.is_final = is_final
        super().__init__(reason, detail)


class NodeApi:
    """One node at the Kubernetes API.

    Args:
        is_dry_run: the server checks each change and keeps none.
        seconds: for each request, from its begin to the end of its answer.
    """

    def __init__(
        self, server: KubernetesApi, node: str, *, is_dry_run: bool = False, seconds: float = ANSWER_SECONDS
    ) -> None:
        self._server = server
        self.node = node
        self.is_dry_run = is_dry_run
        self._seconds = seconds

    def patch_status(self, body: dict[str, Any]) -> dict[str, Any]:
        """Patch the status; the node after it. An empty body changes nothing.

        Raises:
            NodeApiError: the server cannot be reached or refuses.
        """
        path = f"/api/v1/nodes/{quote(self.node, safe='')}/status"
        return self._request("PATCH", path, body, _PATCH, "patch on nodes/status")

    def create_event(self, event: dict[str, Any]) -> None:
        """Create an event; one of this name that is there already is not created again.

        Raises:
            NodeApiError: the server cannot be reached or refuses.
        """
        path = f"/api/v1/namespaces/{EVENT_NAMESPACE}/events"
        verb = f"create on events in the namespace {EVENT_NAMESPACE}"
        try:
            self._request("POST", path, event, "application/json", verb)
        except _AlreadyThereError:
            return

    def _request(self, method: str, path: str, body: dict[str, Any], content_type: str, verb: str) -> dict[str, Any]:
        query = {"fieldManager": COMPONENT} | ({"dryRun": "All"} if self.is_dry_run else {})
        headers = {"Accept": "application/json", "Content-Type": content_type, "User-Agent": COMPONENT}
        try:
            with self._server.connected(seconds=self._seconds) as connection:
                answer = connection.ask(method, f"{path}?{urlencode(query)}", headers, json.dumps(body))
        except KubernetesApiError as error:
            raise NodeApiError(error.reason, str(error)) from error
        document = _document(answer.content)
        if answer.status in (200, 201):
            return document
        raise _error_of(answer, document, verb)


class _AlreadyThereError(NodeApiError):
    """What is to be created has been created before."""


def _document(content: bytes) -> dict[str, Any]:
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _error_of(answer: KubernetesAnswer, document: dict[str, Any], verb: str) -> NodeApiError:
    said = printable(str(document.get("message") or answer.reason))[:_MAX_DETAIL]
    detail = f"HTTP {answer.status}: {said}"
    if answer.status in (401, 403):
        return NodeApiError(MissingReason.NO_PERMISSION, f"it may not {verb}: {detail}")
    if answer.status == 409 and document.get("reason") == "AlreadyExists":
        return _AlreadyThereError(MissingReason.FAILED, detail)
    wait = answer.headers.get("Retry-After", "")
    is_final = answer.status in (400, 404, 405, 413, 415, 422)
    retry_seconds = float(wait) if wait.isascii() and wait.isdecimal() and len(wait) < 6 else None
    return NodeApiError(MissingReason.FAILED, detail, retry_seconds=retry_seconds, is_final=is_final)
