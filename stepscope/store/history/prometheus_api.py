"""HTTP API of a Prometheus-compatible server: queries, names of metrics, their types.

Prometheus, Thanos, Mimir and VictoriaMetrics have it alike. Servers that know only a part of an answer are asked to
refuse; a redirection is not followed, as the token would go along.
"""

from __future__ import annotations

import base64
import http.client
import logging
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

import msgspec

from stepscope.core.errors import DataError, UnreachableError, UsageError, printable
from stepscope.core.http_exchange import HTTP_ERRORS, HttpReply, exchange, failure_text, tls_context
from stepscope.store.history.questions import Labels

_log = logging.getLogger(__name__)

_MAX_BYTES = 64 << 20
_MAX_TEXT = 300
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_LIMIT = re.compile(
    r"too many|too large|too long|maximum resolution|exceed|cannot select more than|\blimit\b|max-|larger than",
    re.IGNORECASE,
)
"""Of the errors of Prometheus (query.max-samples, 11,000 points), Mimir (err-mimir-max-...) and VictoriaMetrics."""
_QUERY_AGAIN = re.compile(r'^error when executing query=".*" (?:on the time range|for) \([^)]*\): ')
"""Before the reason in errors of VictoriaMetrics."""
_WHOLE_ANSWERS_ONLY = {"partial_response": "false", "deny_partial_response": "1"}
"""Parameters of Thanos and VictoriaMetrics; others ignore them."""
_AS_ASKED = {"nocache": "1", "latency_offset": "1ms"}
"""VictoriaMetrics: at the times that are asked for, and without repeating older values for the latest 30 seconds."""


class TooMuchError(DataError):
    """The server refuses a query as it takes or gives too much; a shorter range may do."""


class ApiSeries(msgspec.Struct, frozen=True):
    """One series of an answer: labels, and pairs of time (seconds since the epoch) and value."""

    metric: dict[str, str]
    value: tuple[float, str] | None = None
    values: list[tuple[float, str]] = []


class _QueryData(msgspec.Struct, frozen=True, rename="camel"):
    result_type: str
    result: list[ApiSeries]


class _Metadata(msgspec.Struct, frozen=True):
    type: str = ""


class _Reply(msgspec.Struct, frozen=True, rename="camel"):
    status: str
    data: msgspec.Raw = msgspec.Raw()
    error: str = ""
    is_partial: bool = False
    warnings: list[str] | None = None


@dataclass(frozen=True, slots=True)
class PrometheusApi:
    """Client of a server's HTTP API.

    Attributes:
        base: URL without user, password and parameters; ends without a slash.
        host, port, is_https, path: parts of `base`.
        headers: of each request.
        parameters: of each request.
        ca_file, cert_file, key_file: for TLS; empty if not used.
    """

    base: str
    host: str
    port: int
    is_https: bool
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    parameters: Sequence[tuple[str, str]] = ()
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""

    def instant(self, query: str, time_ms: int, *, lookback_seconds: float, deadline: float) -> list[ApiSeries]:
        """Values at a time (ms since the epoch); `deadline` in monotonic seconds.

        Raises:
            UnreachableError: the server does not answer.
            DataError: it does not answer as Prometheus does, or refuses the query.
            TooMuchError: the query takes too much of the server.
        """
        lookback = f"{lookback_seconds:.3f}"
        parameters = {"query": query, "time": _seconds(time_ms), "step": lookback, "lookback_delta": lookback}
        return self._query("query", parameters, "vector", deadline)

    def samples(self, query: str, time_ms: int, *, deadline: float) -> list[ApiSeries]:
        """Samples of a window that ends at a time (ms since the epoch); raises as `instant`."""
        return self._query("query", {"query": query, "time": _seconds(time_ms)}, "matrix", deadline)

    def range(self, query: str, first_ms: int, last_ms: int, step_ms: int, *, deadline: float) -> list[ApiSeries]:
        """Values at each of several times; raises as `instant`."""
        times = {"start": _seconds(first_ms), "end": _seconds(last_ms), "step": _seconds(step_ms)}
        return self._query("query_range", {"query": query, **times}, "matrix", deadline)

    def metric_names(self, selector: str = "", *, deadline: float) -> list[str]:
        """Names of all metrics, or of those that a selector selects; raises as `instant`."""
        parameters = {"start": "0", "end": f"{time.time() + 86400:.0f}", **({"match[]": selector} if selector else {})}
        data = self._get("label/__name__/values", parameters, deadline)
        names: list[str] = self._decoded(data, list[str])
        return names

    def metric_types(self, metric: str = "", *, deadline: float) -> dict[str, str]:
        """Prometheus types by metric, of one or of all, as far as the server knows them; raises as `instant`."""
        data = self._get("metadata", {"metric": metric} if metric else {}, deadline)
        found = self._decoded(data, dict[str, list[_Metadata]] | None) or {}
        return {name: entries[0].type for name, entries in found.items() if entries}

    def _query(self, verb: str, parameters: Mapping[str, str], kind: str, deadline: float) -> list[ApiSeries]:
        timeout = {"timeout": f"{max(deadline - time.monotonic(), 0.001):.3f}"}
        body = urlencode([*self.parameters, *{**parameters, **timeout, **_AS_ASKED, **_WHOLE_ANSWERS_ONLY}.items()])
        reply = self._sent("POST", f"/api/v1/{verb}", deadline, body.encode())
        data: _QueryData = self._decoded(self._data(reply), _QueryData)
        if data.result_type != kind:
            raise self._garbage(f"a {data.result_type} instead of a {kind}")
        return data.result

    def _get(self, path: str, parameters: Mapping[str, str], deadline: float) -> msgspec.Raw:
        parameters_text = urlencode([*self.parameters, *parameters.items()])
        return self._data(self._sent("GET", f"/api/v1/{path}?{parameters_text}", deadline))

    def _sent(self, method: str, path: str, deadline: float, body: bytes | None = None) -> HttpReply:
        headers = {"Accept": "application/json", **self.headers}
        if body is not None:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        connection = (
            http.client.HTTPSConnection(
                self.host, self.port, context=tls_context(self.ca_file, self.cert_file, self.key_file)
            )
            if self.is_https
            else http.client.HTTPConnection(self.host, self.port)
        )
        try:
            reply = exchange(
                connection,
                method,
                self.path + path,
                headers=headers,
                body=body,
                deadline=deadline,
                max_bytes=_MAX_BYTES,
            )
        except TimeoutError:
            raise UnreachableError("has not answered in time", where=self.base, what_next=_ASK_LESS) from None
        except HTTP_ERRORS as error:
            raise UnreachableError(
                f"the server of the history cannot be reached ({failure_text(error)})", where=self.base
            ) from None
        if len(reply.content) > _MAX_BYTES:
            raise TooMuchError(f"answers more than {_MAX_BYTES >> 20} MiB", where=self.base, what_next=_ASK_LESS)
        return reply

    def _data(self, reply: HttpReply) -> msgspec.Raw:
        """The data of an answer.

        Raises:
            UnreachableError, DataError, TooMuchError: it is an error.
        """
        status = reply.status
        if 300 <= status < 400:
            to = reply.location[:_MAX_TEXT] or "somewhere"
            raise UnreachableError(f"redirects to {to}", where=self.base, what_next="name the URL that answers itself")
        try:
            answer = msgspec.json.decode(reply.content, type=_Reply)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            answer = None
        said = answer.error if answer else reply.content.decode(errors="replace")
        said = _QUERY_AGAIN.sub("", printable(" ".join(said.split())))[:_MAX_TEXT] or "no reason given"
        if status in (401, 403, 407):
            raise UnreachableError(
                f"refuses the request with HTTP status {status} ({said})",
                where=self.base,
                what_next="check the token, the user or the tenant",
            )
        if status in (400, 413, 414, 422) and _LIMIT.search(said):
            raise TooMuchError(f"refuses the question as too large ({said})", where=self.base, what_next=_ASK_LESS)
        if status == 429 or status >= 500:
            raise UnreachableError(f"answers with HTTP status {status} ({said})", where=self.base)
        if status == 404 and answer is None:
            raise UnreachableError(
                "has no Prometheus API there", where=self.base, what_next="give its whole URL: http://mimir/prometheus"
            )
        if answer is None:
            raise self._garbage(said)
        if status != 200 or answer.status != "success":
            raise DataError(f"refuses the question ({said})", where=self.base)
        if answer.is_partial:
            raise UnreachableError("knows only a part of the answer", where=self.base, what_next="ask again later")
        for warning in answer.warnings or ():
            _log.warning("%s: %s", self.base, printable(" ".join(warning.split()))[:_MAX_TEXT])
        return answer.data

    def _decoded(self, data: msgspec.Raw, kind: Any) -> Any:
        try:
            return msgspec.json.decode(data, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise self._garbage(str(error)) from None

    def _garbage(self, what: str) -> DataError:
        return DataError(
            f"does not answer as Prometheus does ({what[:_MAX_TEXT]})",
            where=self.base,
            what_next="is that the URL of a Prometheus-compatible server?",
        )


_ASK_LESS = "ask for fewer series or a shorter time"


def prometheus_api(
    url: str,
    *,
    token: str = "",
    user: str = "",
    password: str = "",
    headers: Mapping[str, str] | None = None,
    ca_file: str = "",
    cert_file: str = "",
    key_file: str = "",
) -> PrometheusApi:
    """The client of the server at a URL.

    Args:
        url: http or https, with user:password@ before the host and ?parameters of each request where needed.
        headers: more of them, as {"X-Scope-OrgID": "team-a"} for a tenant of Mimir.

    Raises:
        UsageError: it is not a URL of a server, or a header cannot be sent.
    """
    shown = url.rpartition("@")[2]
    example = "write it as http://prometheus:9090"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise UsageError(f"is not a valid URL ({error})", where=shown, what_next=example) from None
    if parts.scheme not in ("http", "https") or not host or parts.fragment or not url.isprintable() or " " in url:
        raise UsageError("is not the URL of a Prometheus-compatible server", where=shown, what_next=example)
    is_https = parts.scheme == "https"
    path = quote(parts.path.rstrip("/").removesuffix("/api/v1"), safe="/%:@!$&'()*+,;=-._~")
    user, password = user or unquote(parts.username or ""), password or unquote(parts.password or "")
    all_headers = dict(headers or {})
    if token:
        all_headers["Authorization"] = f"Bearer {token}"
    elif user:
        all_headers["Authorization"] = f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"
    for name, value in all_headers.items():
        if _HEADER_NAME.fullmatch(name) is None or not (value.isprintable() and value.isascii()):
            raise UsageError(f"the header {name!r} cannot be sent", where=shown)
    shown_host = f"[{host}]" if ":" in host else host
    base = f"{parts.scheme}://{shown_host}{f':{port}' if port else ''}{path}"
    return PrometheusApi(
        base=base,
        host=host,
        port=port or (443 if is_https else 80),
        is_https=is_https,
        path=path,
        headers=all_headers,
        parameters=tuple(parse_qsl(parts.query, keep_blank_values=True)),
        ca_file=ca_file,
        cert_file=cert_file,
        key_file=key_file,
    )


def _seconds(milliseconds: int) -> str:
    whole, rest = divmod(milliseconds, 1000)
    return f"{whole}.{rest:03d}"


def labels_of(series: ApiSeries) -> Labels:
    """Labels of a series without the metric's name, sorted."""
    return tuple(sorted((name, value) for name, value in series.metric.items() if name != "__name__"))


def number_of(text: str) -> float:
    """The number that a value's text has.

    Raises:
        DataError: it is none.
    """
    try:
        return float(text)
    except ValueError:
        raise DataError(f"{text[:40]!r} is not a value", what_next="is that a Prometheus-compatible server?") from None
