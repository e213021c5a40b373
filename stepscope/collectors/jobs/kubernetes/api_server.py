"""Kubernetes API server, asked with the service account of this process: one connection under a deadline."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from stepscope.core.metrics.readings import MissingReason

if TYPE_CHECKING:
    import http.client

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_PODS_ACCEPT = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=1,application/json"
_PAGE_SIZE = 100
_MAX_PAGES = 20
_LARGEST_BYTES = 8 << 20
"""Bytes of an answer, which is a page of a list or an object."""
_READ_BYTES = 1 << 16


class KubernetesApiError(Exception):
    """The Kubernetes API server cannot be reached, or refuses."""

    def __init__(self, reason: MissingReason, detail: str) -> None:
        self.reason = reason
        super().__init__(detail)


@dataclass(frozen=True, slots=True)
class KubernetesAnswer:
    """Answer of the Kubernetes API server to one request."""

    status: int
    reason: str
    headers: http.client.HTTPMessage
    content: bytes


@dataclass(frozen=True, slots=True)
class KubernetesConnection:
    """Connection to the Kubernetes API server, for several requests until a deadline.

    Attributes:
        end: of the clock `time.monotonic`.
    """

    http: http.client.HTTPSConnection
    token: str
    end: float

    def ask(self, method: str, path: str, headers: Mapping[str, str], body: str | None = None) -> KubernetesAnswer:
        """Send a request and read the answer whole.

        Raises:
            TimeoutError: the deadline has passed.
            KubernetesApiError: the answer is too large.
        """
        self.http.request(method, path, body, {"Authorization": f"Bearer {self.token}", **headers})
        answer = self.http.getresponse()
        content = bytearray()
        while len(content) <= _LARGEST_BYTES:
            left = self.end - time.monotonic()
            if left <= 0:
                raise TimeoutError
            if self.http.sock is not None:
                self.http.sock.settimeout(left)
            part = answer.read1(_READ_BYTES)
            if not part:
                answer.read()  # at its end: Python 3.11 does not see it in read1
                return KubernetesAnswer(answer.status, answer.reason, answer.headers, bytes(content))
            content += part
        raise KubernetesApiError(MissingReason.UNREADABLE, f"an answer of more than {_LARGEST_BYTES >> 20} MiB")


@dataclass(frozen=True, slots=True)
class KubernetesApi:
    """Address of the Kubernetes API server, and the credentials of this process.

    Attributes:
        account: folder with the files `token` and `ca.crt` of a service account; the token is read anew each time, as
            it is exchanged every hour.
    """

    host: str
    port: int
    account: Path = SERVICE_ACCOUNT

    @classmethod
    def of_pod(cls, environment: Mapping[str, str], account: Path = SERVICE_ACCOUNT) -> KubernetesApi | None:
        """The API server of this process's pod; None outside of a pod, or without a token."""
        host, port = environment.get("KUBERNETES_SERVICE_HOST", ""), environment.get("KUBERNETES_SERVICE_PORT", "443")
        if not host or not port.isdecimal() or not (account / "token").exists():
            return None
        return cls(host, int(port), account)

    @contextmanager
    def connected(self, *, seconds: float) -> Iterator[KubernetesConnection]:
        """A connection for requests within this time; errors of the block are those of the server.

        Raises:
            KubernetesApiError: the server cannot be reached.
        """
        import http.client  # with TLS, 5 MB that an agent without Kubernetes does without
        import ssl

        end = time.monotonic() + seconds
        try:
            token = (self.account / "token").read_text().strip()
            trusted = ssl.create_default_context(cafile=str(self.account / "ca.crt"))
            connection = http.client.HTTPSConnection(self.host, self.port, timeout=seconds, context=trusted)
            try:
                yield KubernetesConnection(connection, token, end)
            finally:
                connection.close()
        except TimeoutError as error:
            raise KubernetesApiError(MissingReason.TIMED_OUT, f"no answer within {seconds:g} s") from error
        except PermissionError as error:
            raise KubernetesApiError(MissingReason.NO_PERMISSION, f"{error.filename}: {error.strerror}") from error
        except (OSError, http.client.HTTPException) as error:
            raise KubernetesApiError(MissingReason.UNREACHABLE, f"{self.host}:{self.port}: {error}") from error

    def items(self, node: str, *, seconds: float) -> list[dict[str, Any]]:
        """All pods of a node, each as the API returns it; raises as `listed`."""
        query = {"fieldSelector": f"spec.nodeName={node}"}
        return self.listed("/api/v1/pods", query, accept=_PODS_ACCEPT, seconds=seconds)

    def listed(
        self, path: str, query: Mapping[str, str], *, seconds: float, accept: str = "application/json"
    ) -> list[dict[str, Any]]:
        """All objects of a list, each as the API returns it.

        Raises:
            KubernetesApiError: the server cannot be reached or refuses.
        """
        found: list[dict[str, Any]] = []
        following = ""
        with self.connected(seconds=seconds) as connection:
            for _ in range(_MAX_PAGES):
                page_query = {**query, "limit": str(_PAGE_SIZE)}
                page_query |= {"continue": following} if following else {"resourceVersion": "0"}
                url = f"{path}?{urlencode(page_query, quote_via=quote)}"
                page = _page(connection.ask("GET", url, {"Accept": accept}), path)
                items = page.get("items")
                found += [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []
                metadata = page.get("metadata")
                following = str(metadata.get("continue") or "") if isinstance(metadata, dict) else ""
                if not following:
                    break
        return found


def _page(answer: KubernetesAnswer, path: str) -> dict[str, Any]:
    if answer.status in (401, 403):
        what = path.rpartition("/")[2]
        detail = f"it may not list {what}: give its service account the verb list on {what}"
        raise KubernetesApiError(MissingReason.NO_PERMISSION, f"HTTP {answer.status}: {detail}")
    if answer.status != 200:
        raise KubernetesApiError(MissingReason.UNREACHABLE, f"HTTP {answer.status} {answer.reason}")
    try:
        page = json.loads(answer.content)
    except ValueError as error:
        raise KubernetesApiError(MissingReason.UNREADABLE, f"its answer is not JSON: {error}") from error
    return page if isinstance(page, dict) else {}
