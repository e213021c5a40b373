"""A server that refuses, redirects, knows a part or answers garbage is one clear line; limits make requests smaller."""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import numpy as np
import pytest

from stepscope.core.errors import DataError, UnreachableError, UsageError
from stepscope.core.metrics import MetricKind, Unit
from stepscope.store.history import prometheus_api as api_module
from stepscope.store.history.prometheus import PrometheusHistory
from stepscope.store.history.questions import GroupBy, Question, TimeRange
from tests.agent.web.certificates import self_signed

_SECOND = 10**9
_TIME = TimeRange(1_000 * _SECOND, 4_000 * _SECOND, 60 * _SECOND)
_POWER = Question("stepscope_gpu_power_watts")

Answer = tuple[int, bytes | dict[str, Any]]


class _Server:
    """What was asked, and what is answered to it."""

    def __init__(self, answer: Callable[[str, dict[str, str]], Answer]) -> None:
        self.answer = answer
        self.asked: list[tuple[str, dict[str, str], dict[str, str]]] = []
        self.url = ""


@contextmanager
def _serving(
    answer: Callable[[str, dict[str, str]], Answer], context: ssl.SSLContext | None = None
) -> Iterator[_Server]:
    server = _Server(answer)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self._reply(self.rfile.read(int(self.headers["Content-Length"])).decode())

        def do_GET(self) -> None:
            self._reply(self.path.partition("?")[2])

        def _reply(self, query: str) -> None:
            parameters = {name: values[-1] for name, values in parse_qs(query).items()}
            path = self.path.partition("?")[0]
            server.asked.append((path, parameters, dict(self.headers)))
            status, content = server.answer(path, parameters)
            text = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Location", "http://elsewhere/")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http_server:
        if context is not None:
            http_server.socket = context.wrap_socket(http_server.socket, server_side=True)
        threading.Thread(target=http_server.serve_forever, args=(0.01,), daemon=True).start()
        server.url = f"http{'s' if context else ''}://127.0.0.1:{http_server.server_port}"
        yield server
        http_server.shutdown()


def _success(kind: str, *result: Any) -> dict[str, Any]:
    return {"status": "success", "data": {"resultType": kind, "result": list(result)}}


def _steps(parameters: dict[str, str]) -> list[float]:
    first, last, step = (float(parameters[name]) for name in ("start", "end", "step"))
    return [first + step * number for number in range(round((last - first) / step) + 1)]


def _ones(path: str, parameters: dict[str, str]) -> Answer:
    if path.endswith("/query"):
        return 200, _success("vector", {"metric": {}, "value": [float(parameters["time"]), "1"]})
    return 200, _success("matrix", {"metric": {"gpu": "0"}, "values": [[at, "1"] for at in _steps(parameters)]})


_ERRORS: list[tuple[int, bytes | dict[str, Any], type[Exception], str]] = [
    (200, b"<html>login</html>", DataError, "does not answer as Prometheus does (<html>login</html>)"),
    (200, b"", DataError, "does not answer as Prometheus does"),
    (200, b"\xff\x00", DataError, "does not answer as Prometheus does"),
    (200, b"[" * 100_000, DataError, "does not answer as Prometheus does"),
    (200, {"status": "success"}, DataError, "does not answer as Prometheus does"),
    (200, _success("scalar"), DataError, "a scalar instead of a"),
    (200, _success("matrix", {"metric": {"a": 1}, "values": []}), DataError, "does not answer as Prometheus does"),
    (200, {"status": "error", "error": "no"}, DataError, "refuses the question (no)"),
    (200, {**_success("matrix"), "isPartial": True}, UnreachableError, "only a part"),
    (302, b"", UnreachableError, "redirects to http://elsewhere/"),
    (400, {"status": "error", "error": "parse error\nhere"}, DataError, "refuses the question (parse error here)"),
    (401, b"Unauthorized", UnreachableError, "check the token"),
    (403, b"\x1b[31mred", UnreachableError, r"\x1b[31mred"),
    (404, b"404 page not found", UnreachableError, "has no Prometheus API"),
    (422, {"status": "error", "error": "too many samples"}, DataError, "too large (too many samples)"),
    (429, b"slow down", UnreachableError, "429 (slow down)"),
    (503, {"status": "error", "error": "query timed out"}, UnreachableError, "503 (query timed out)"),
]


@pytest.mark.parametrize(("status", "content", "kind", "words"), _ERRORS)
def test_errors_are_one_line(status: int, content: bytes | dict[str, Any], kind: type[Exception], words: str) -> None:
    def answer(path: str, parameters: dict[str, str]) -> Answer:
        return (status, content) if path.endswith("_range") else _ones(path, parameters)

    with _serving(answer) as server, pytest.raises(kind) as error:
        PrometheusHistory(server.url).range(_POWER, _TIME)
    line = str(error.value)
    assert words in line
    assert line.startswith(server.url)
    assert "\n" not in line
    assert len(line) < 600


def test_no_server_and_no_answer_are_unreachable() -> None:
    with _serving(lambda *_: (200, b"")) as server:
        gone = server.url
    with pytest.raises(UnreachableError, match="Connection refused"):
        PrometheusHistory(gone).metrics()

    def late(path: str, parameters: dict[str, str]) -> Answer:
        time.sleep(1.0)
        return _ones(path, parameters)

    with _serving(late) as server:
        began = time.monotonic()
        with pytest.raises(UnreachableError, match="has not answered in time"):
            PrometheusHistory(server.url, timeout_seconds=0.3).latest(_POWER, at_ns=_TIME.end_ns)
        assert time.monotonic() - began < 0.9


@pytest.mark.parametrize(
    "url", ["", "prometheus:9090", "ftp://a", "http://", "http://a:x", "http://a b", "http://a/#b", "http://[::1"]
)
def test_what_is_no_url_of_a_server_is_refused(url: str) -> None:
    with pytest.raises(UsageError):
        PrometheusHistory(url)


def test_a_header_that_cannot_be_sent_is_refused() -> None:
    for headers in ({"X-Scope-OrgID": "a\r\nHost: b"}, {"X Y": "a"}, {"X": "é"}):
        with pytest.raises(UsageError, match="cannot be sent"):
            PrometheusHistory("http://a", headers=headers)
    with pytest.raises(UsageError, match="cannot be sent"):
        PrometheusHistory("http://a", token="a\nb")


def test_limits_of_the_server_make_requests_shorter() -> None:
    longest = []

    def answer(path: str, parameters: dict[str, str]) -> Answer:
        if path.endswith("_range"):
            longest.append(len(_steps(parameters)))
            if longest[-1] > 7:
                return 422, {"status": "error", "error": "query processing would load too many samples into memory"}
        return _ones(path, parameters)

    with _serving(answer) as server:
        found = PrometheusHistory(server.url).range(_POWER, _TIME)
    assert found.values.shape == (1, 50)
    assert (found.values == 1.0).all()
    assert sum(count for count in longest if count <= 7) == 50
    assert max(longest[4:]) <= 7


def test_answers_that_are_too_long_are_asked_for_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_module, "_MAX_BYTES", 600)
    with _serving(_ones) as server:
        found = PrometheusHistory(server.url).range(_POWER, _TIME)
    assert (found.values == 1.0).all()
    assert found.values.shape == (1, 50)


def test_long_ranges_are_several_requests() -> None:
    with _serving(_ones) as server:
        time = TimeRange(0, 25_000 * _SECOND, _SECOND)
        found = PrometheusHistory(server.url).range(_POWER, time)
        counts = [len(_steps(parameters)) for path, parameters, _ in server.asked if path.endswith("_range")]
    assert found.values.shape == (1, 25_000)
    assert not np.isnan(found.values).any()
    assert max(counts) <= 11_000


def test_other_times_than_asked_for_are_refused() -> None:
    def answer(path: str, parameters: dict[str, str]) -> Answer:
        if path.endswith("_range"):
            return 200, _success("matrix", {"metric": {}, "values": [[float(parameters["start"]) + 7, "1"]]})
        return _ones(path, parameters)

    with _serving(answer) as server, pytest.raises(DataError, match="other times"):
        PrometheusHistory(server.url).range(_POWER, _TIME)


def test_steps_that_no_server_has_are_refused() -> None:
    with _serving(_ones) as server:
        history = PrometheusHistory(server.url)
        with pytest.raises(UsageError, match="whole milliseconds"):
            history.range(_POWER, TimeRange(0, _SECOND, 1_500_000))
        with pytest.raises(UsageError, match="too many steps"):
            history.range(_POWER, TimeRange(0, 10**18, _SECOND))


def test_what_is_configured_goes_with_every_request() -> None:
    with _serving(_ones) as server:
        url = server.url.replace("//", "//ann:p%40ss@") + "/prometheus/?extra_label=cluster%3Da"
        PrometheusHistory(url, headers={"X-Scope-OrgID": "team-a"}).range(_POWER, _TIME)
        PrometheusHistory(server.url, token="secret").latest(_POWER, at_ns=_TIME.end_ns)
        asked = list(server.asked)
    tenant = [(path, parameters, headers) for path, parameters, headers in asked if "X-Scope-OrgID" in headers]
    for path, parameters, headers in tenant:
        assert path.startswith("/prometheus/api/v1/query")
        assert parameters["extra_label"] == "cluster=a"
        assert headers["Authorization"] == "Basic YW5uOnBAc3M="
        assert (parameters["partial_response"], parameters["nocache"]) == ("false", "1")
    others = [headers for _, _, headers in asked if "X-Scope-OrgID" not in headers]
    assert tenant
    assert others
    assert {headers["Authorization"] for headers in others} == {"Bearer secret"}


def test_passwords_are_not_in_errors() -> None:
    with pytest.raises(UnreachableError) as error:
        PrometheusHistory("http://ann:secret@127.0.0.1:1/x?token=hidden").metrics()
    assert "secret" not in str(error.value)
    assert "hidden" not in str(error.value)


def test_https_needs_a_trusted_certificate(tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path, "server")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with _serving(_ones, context) as server:
        with pytest.raises(UnreachableError, match="certificate is not trusted"):
            PrometheusHistory(server.url).range(_POWER, _TIME)
        history = PrometheusHistory(server.url, ca_file=str(certificate))
        assert (history.range(_POWER, _TIME).values == 1.0).all()


def test_the_latest_values_of_victoria_metrics_are_not_repeated() -> None:
    """It repeats values up to now, but not where it is asked for later ones."""
    with _serving(_ones) as server:
        now = time.time_ns() // (15 * _SECOND) * 15 * _SECOND
        found = PrometheusHistory(server.url).range(_POWER, TimeRange(now - 60 * _SECOND, now, 15 * _SECOND))
        (asked,) = [parameters for path, parameters, _ in server.asked if path.endswith("_range")]
    assert found.values.shape == (1, 4)
    assert float(asked["end"]) > now / 1e9 + 30


def test_types_that_the_server_does_not_keep_are_unknown() -> None:
    def answer(path: str, parameters: dict[str, str]) -> Answer:
        if path.endswith("/metadata"):
            return 404, b"404 page not found"
        if path.endswith("/values"):
            return 200, {"status": "success", "data": ["up", "requests_total", "bad name", "stepscope_gpu_power_watts"]}
        return _ones(path, parameters)

    with _serving(answer) as server:
        history = PrometheusHistory(server.url)
        found = {metric.name: (metric.kind, metric.unit) for metric in history.metrics()}
        assert (history.range(Question("up"), _TIME).values == 1.0).all()
    assert found == {
        "requests_total": (MetricKind.COUNTER, None),
        "stepscope_gpu_power_watts": (MetricKind.GAUGE, Unit.WATTS),
        "up": (None, None),
    }


def test_samples_are_read_of_a_jobs_own_gpus_alone() -> None:
    def answer(path: str, parameters: dict[str, str]) -> Answer:
        if path.endswith("_range"):
            labels = {"uuid": "GPU-1", "job_id": "7", "job_kind": "slurm", "instance": "n"}
            return 200, _success("matrix", {"metric": labels, "values": [[at, "1"] for at in _steps(parameters)]})
        if parameters["query"].startswith("stepscope_gpu_energy_joules_total{"):
            end = float(parameters["time"])
            samples = [[end - 5.0, "100"], [end, "600"]]
            return 200, _success("matrix", {"metric": {"uuid": "GPU-1", "instance": "n"}, "values": samples})
        if "increase_prometheus" in parameters["query"]:
            return 400, {"status": "error", "error": "unknown function"}
        return _ones(path, parameters)

    question = Question("stepscope_gpu_energy_joules_total", (GroupBy.JOB,), where={"job_id": "7"})
    with _serving(answer) as server:
        found = PrometheusHistory(server.url).range(question, _TIME)
        asked = [parameters["query"] for _, parameters, _ in server.asked if "query" in parameters]
    assert found.groups == ((("job_id", "7"), ("job_kind", "slurm")),)
    assert np.nanmax(found.values) == 100.0
    raw = [query for query in asked if query.startswith("stepscope_gpu_energy_joules_total{")]
    assert raw
    assert all('uuid=~"GPU-1"' in query for query in raw)
