"""Push of all metrics to an OTLP/HTTP endpoint, by a process of its own that a slow collector may hold up or end.

There is never more than one page on its way: what comes due meanwhile is skipped and counted, nothing is queued. A
process that has not pushed in time is killed. `otlp_process.py` is that process, and says what it sends.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import select
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

from stepscope.core.errors import UsageError
from stepscope.core.metrics.agent import AGENT
from stepscope.core.metrics.readings import Reading, labels_of
from stepscope.core.process import module_command

_COMMAND = module_command("stepscope.agent.exporter.otlp_process")
_START_SECONDS = 30.0
"""Beside the time of a push: loading the library on a busy machine."""
_MAX_ANSWER_BYTES = 1 << 16
_END_SECONDS = 1.0
_PATH = "/v1/metrics"
_OK, _FAILED, _SKIPPED = "ok", "failed", "skipped"
_log = logging.getLogger(__name__)


def otlp_endpoint_of(text: str) -> str:
    """The URL that metrics are sent to: without a path that of the protocol is added.

    Raises:
        UsageError: it is not a URL, or the library is not installed.
    """
    try:
        parts = urlsplit(text)
        is_url = (
            parts.scheme in ("http", "https") and bool(parts.hostname) and parts.username is None and parts.port != 0
        )
    except ValueError:
        is_url = False
    if not is_url:
        what_next = f"write it as http://collector:4318{_PATH}; credentials go into OTEL_EXPORTER_OTLP_HEADERS"
        raise UsageError("is not the URL of an OTLP/HTTP endpoint", what_next=what_next)
    with suppress(ModuleNotFoundError):  # of a package above it
        if importlib.util.find_spec("opentelemetry.exporter.otlp.proto.http") is not None:
            return text if parts.path.strip("/") else f"{parts.scheme}://{parts.netloc}{_PATH}"
    raise UsageError("OTLP needs OpenTelemetry's exporter", what_next='pip install "stepscope[otlp]"')


class OtlpPush:
    """Pushes the page of metrics each so many seconds while `running`.

    Args:
        endpoint: URL of the OTLP/HTTP endpoint.
        host: name of this machine.
        interval: seconds from one push to the next.
        timeout: seconds that a push may take.
    """

    def __init__(self, endpoint: str, *, host: str, interval: float, timeout: float) -> None:
        self._settings = {"endpoint": endpoint, "host": host, "timeout": timeout}
        self._interval, self._timeout = interval, timeout
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._pushes = dict.fromkeys((_OK, _FAILED, _SKIPPED), 0)
        self._dropped = 0
        self._taken_at = time.monotonic()
        self._last_error = ""
        self._process: _Pusher | None = None

    def readings(self) -> Sequence[Reading]:
        """What became of the pushes, for the page."""
        now_ns = time.time_ns()
        with self._lock:
            counts = [
                Reading(AGENT + "otlp_pushes_total", float(count), labels_of(result=result), now_ns)
                for result, count in self._pushes.items()
            ]
            age = time.monotonic() - self._taken_at
            return [
                *counts,
                Reading(AGENT + "otlp_points_dropped_total", float(self._dropped), (), now_ns),
                Reading(AGENT + "otlp_push_age_seconds", age, (), now_ns),
            ]

    @contextmanager
    def running(self, page: Callable[[], bytes]) -> Iterator[None]:
        """Context in which pages in Prometheus' text format are pushed."""
        thread = threading.Thread(target=self._run, args=(page,), name="stepscope-otlp", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            if self._process is not None:
                self._process.kill()
            thread.join(_END_SECONDS)

    def _run(self, page: Callable[[], bytes]) -> None:
        due = time.monotonic() + self._interval
        while not self._stop.wait(max(0.0, due - time.monotonic())):
            content = page()
            error = self._push(content)
            if self._stop.is_set():
                break
            late = max(0, int((time.monotonic() - due) // self._interval))
            due += self._interval * (late + 1)
            self._note(content, error, late)
        if self._process is not None:
            self._process.kill()

    def _push(self, content: bytes) -> str:
        """Push one page; why it was not taken, empty if it was."""
        try:
            limit = self._timeout
            if self._process is None:
                self._process = _Pusher(self._settings)
                limit += _START_SECONDS
            answer = self._process.push(content, limit)
        except (OSError, ValueError) as error:
            if self._process is not None:
                self._process.kill()
                self._process = None
            return str(error) or type(error).__name__
        return "" if answer.get("ok") is True else str(answer.get("error") or "the endpoint refuses")

    def _note(self, content: bytes, error: str, late: int) -> None:
        with self._lock:
            self._pushes[_FAILED if error else _OK] += 1
            self._pushes[_SKIPPED] += late
            if error:
                self._dropped += sum(1 for line in content.splitlines() if line[:1] not in (b"#", b""))
            else:
                self._taken_at = time.monotonic()
        if error and not self._last_error:
            _log.warning("OTLP: %s: %s", self._settings["endpoint"], error)
        elif self._last_error and not error:
            _log.warning("OTLP: %s takes metrics again", self._settings["endpoint"])
        self._last_error = error


class _Pusher:
    """The process that pushes."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._process = subprocess.Popen(
            [*_COMMAND, json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout
        os.set_blocking(self._input.fileno(), False)
        os.set_blocking(self._output.fileno(), False)

    def push(self, content: bytes, seconds: float) -> dict[str, Any]:
        """Have a page pushed; the answer.

        Raises:
            TimeoutError: there is none in time.
            OSError, ValueError: the process has ended, or answers something else.
        """
        end = time.monotonic() + seconds
        header = json.dumps({"bytes": len(content), "time_ns": time.time_ns()}).encode() + b"\n"
        rest = memoryview(header + content)
        while rest:
            self._wait(end, writes=True)
            with suppress(BlockingIOError):
                rest = rest[os.write(self._input.fileno(), rest) :]
        line = b""
        while not line.endswith(b"\n"):
            self._wait(end, writes=False)
            part = os.read(self._output.fileno(), _MAX_ANSWER_BYTES)
            if not part or len(line) > _MAX_ANSWER_BYTES:
                raise BrokenPipeError("the process that pushes has ended")
            line += part
        answer = json.loads(line)
        if not isinstance(answer, dict):
            raise ValueError("the process that pushes answers something else")
        return answer

    def _wait(self, end: float, *, writes: bool) -> None:
        file = (self._input if writes else self._output).fileno()
        poller = select.poll()
        poller.register(file, select.POLLOUT if writes else select.POLLIN)
        if not poller.poll(max(0.0, end - time.monotonic()) * 1000):
            raise TimeoutError("the endpoint has not answered in time")

    def kill(self) -> None:
        """End it, and what it holds."""
        self._process.kill()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)
        for file in (self._input, self._output):
            with suppress(OSError):
                file.close()
