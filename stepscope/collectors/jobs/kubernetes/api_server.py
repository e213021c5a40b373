"""Client of the Kubernetes API server: metadata of this node's pods, page by page, with the service account's token.

`Accept: ...as=PartialObjectMetadataList` leaves out specification and status, nine tenths of the bytes.
"""

from __future__ import annotations

import http.client
import json
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from stepscope.core.metrics.readings import MissingReason

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_ACCEPT = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=1,application/json"
_PAGE_SIZE = 100
_MAX_PAGES = 20
_LARGEST_PAGE_BYTES = 8 << 20
"""Bytes of a page."""
_READ_BYTES = 1 << 16


class ApiError(Exception):
    """The API server cannot be reached, or refuses.

    Attributes:
        reason: in the words of readings.
    """

    def __init__(self, reason: MissingReason, detail: str) -> None:
        self.reason = reason
        super().__init__(detail)


@dataclass(frozen=True, slots=True)
class ApiServer:
    """Address of the API server, and the credentials of this process.

    Attributes:
        host, port: of the API.
        account: folder with the files `token` and `ca.crt` of a service account; the token is read anew each time, as
            it is exchanged every hour.
    """

    host: str
    port: int
    account: Path = SERVICE_ACCOUNT

    @classmethod
    def of_pod(cls, environment: Mapping[str, str], account: Path = SERVICE_ACCOUNT) -> ApiServer | None:
        """The API server of this process's pod; None outside of a pod, or without a token."""
        host, port = environment.get("KUBERNETES_SERVICE_HOST", ""), environment.get("KUBERNETES_SERVICE_PORT", "443")
        if not host or not port.isdecimal() or not (account / "token").exists():
            return None
        return cls(host, int(port), account)

    def items(self, node: str, *, seconds: float) -> list[dict[str, Any]]:
        """All pods of a node, each as the API returns it.

        Args:
            node: its name.
            seconds: how long all of it may take.

        Raises:
            ApiError: the server cannot be reached or refuses.
        """
        end = time.monotonic() + seconds
        found: list[dict[str, Any]] = []
        following = ""
        try:
            token = (self.account / "token").read_text().strip()
            trusted = ssl.create_default_context(cafile=str(self.account / "ca.crt"))
            connection = http.client.HTTPSConnection(self.host, self.port, timeout=seconds, context=trusted)
            try:
                for _ in range(_MAX_PAGES):
                    query = {"fieldSelector": f"spec.nodeName={node}", "limit": str(_PAGE_SIZE), "resourceVersion": "0"}
                    if following:
                        query = {
                            "fieldSelector": query["fieldSelector"],
                            "limit": query["limit"],
                            "continue": following,
                        }
                    page = _get_page(connection, f"/api/v1/pods?{urlencode(query, quote_via=quote)}", token, end)
                    items = page.get("items")
                    found += [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []
                    metadata = page.get("metadata")
                    following = str(metadata.get("continue") or "") if isinstance(metadata, dict) else ""
                    if not following:
                        break
            finally:
                connection.close()
        except TimeoutError as error:
            raise ApiError(MissingReason.TIMED_OUT, f"no answer within {seconds:g} s") from error
        except PermissionError as error:
            raise ApiError(MissingReason.NO_PERMISSION, f"{error.filename}: {error.strerror}") from error
        except (OSError, http.client.HTTPException) as error:
            raise ApiError(MissingReason.UNREACHABLE, f"{self.host}:{self.port}: {error}") from error
        return found


def _get_page(connection: http.client.HTTPSConnection, path: str, token: str, end: float) -> dict[str, Any]:
    connection.request("GET", path, headers={"Authorization": f"Bearer {token}", "Accept": _ACCEPT})
    answer = connection.getresponse()
    body = bytearray()
    while len(body) <= _LARGEST_PAGE_BYTES:
        left = end - time.monotonic()
        if left <= 0:
            raise TimeoutError
        if connection.sock is not None:
            connection.sock.settimeout(left)
        part = answer.read1(_READ_BYTES)
        if not part:
            answer.read()  # at its end: Python 3.11 does not see it in read1
            break
        body += part
    if answer.status in (401, 403):
        detail = "it may not list pods: give its service account the verb list on pods"
        raise ApiError(MissingReason.NO_PERMISSION, f"HTTP {answer.status}: {detail}")
    if answer.status != 200:
        raise ApiError(MissingReason.UNREACHABLE, f"HTTP {answer.status} {answer.reason}")
    if len(body) > _LARGEST_PAGE_BYTES:
        raise ApiError(MissingReason.UNREADABLE, f"a page of more than {_LARGEST_PAGE_BYTES >> 20} MiB")
    try:
        page = json.loads(body)
    except ValueError as error:
        raise ApiError(MissingReason.UNREADABLE, f"its answer is not JSON: {error}") from error
    return page if isinstance(page, dict) else {}
