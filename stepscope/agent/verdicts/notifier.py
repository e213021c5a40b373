"""Calls of a webhook and a command when the live verdict of a run changes, on a thread that nothing waits for.

One call at a time: meanwhile changes wait in the verdicts themselves. What a run says about itself reaches the command
on standard input alone, never as an argument or a variable.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from urllib.parse import urlsplit

from stepscope.agent.verdicts.changes import VerdictChange, VerdictChanges, change_document
from stepscope.core.documents.node import RunVerdict
from stepscope.core.errors import UsageError
from stepscope.core.metrics.agent import AGENT
from stepscope.core.metrics.readings import Reading, labels_of

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 2.0
_END_SECONDS = 1.0
_WEBHOOK, _COMMAND = "webhook", "command"
_OK, _FAILED = "ok", "failed"


def check_targets(webhook: str) -> None:
    """Check the URL of a webhook; empty is none.

    Raises:
        UsageError: it is not the URL of an HTTP server. The text does not have it, as it may be secret.
    """
    try:
        parts = urlsplit(webhook)
        is_server = bool(parts.hostname) and parts.username is None and parts.port != 0
        is_url = parts.scheme in ("http", "https") and is_server
    except ValueError:
        is_url = False
    if webhook and not (is_url and webhook.isascii() and webhook.isprintable() and " " not in webhook):
        raise UsageError("is not the URL of an HTTP server", what_next="write it as https://host/path, without a user")


class VerdictNotifier:
    """Calls a webhook and a command when a verdict changes; a context manager, which works while it is open.

    Args:
        verdicts: the newest of each run; must not block.
        host: name of this machine.
        webhook: URL, or empty.
        command: with its arguments, or empty.
        timeout: seconds that a call may take.
    """

    def __init__(
        self,
        verdicts: Callable[[], Sequence[RunVerdict]],
        changes: VerdictChanges,
        *,
        host: str,
        webhook: str = "",
        command: Sequence[str] = (),
        timeout: float = 10.0,
        look_seconds: float = _LOOK_SECONDS,
    ) -> None:
        self._verdicts, self._changes = verdicts, changes
        self._host, self._webhook, self._command = host, webhook, tuple(command)
        self._timeout, self._look_seconds = timeout, look_seconds
        self._calls: dict[str, Callable[[bytes], None]] = {}
        if webhook:
            self._calls[_WEBHOOK] = self._post
        if command:
            self._calls[_COMMAND] = self._run_command
        self._counts = {(target, result): 0 for target in self._calls for result in (_OK, _FAILED)}
        self._failing: set[str] = set()
        self._process: subprocess.Popen[bytes] | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stepscope-verdicts", daemon=True)

    def __enter__(self) -> VerdictNotifier:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._kill()
        self._thread.join(_END_SECONDS)

    def readings(self) -> Sequence[Reading]:
        """What became of the calls, for the page."""
        now_ns = time.time_ns()
        return [
            Reading(AGENT + "verdict_calls_total", float(count), labels_of(target=target, result=result), now_ns)
            for (target, result), count in self._counts.items()
        ]

    def _run(self) -> None:
        while not self._stop.wait(self._look_seconds):
            try:
                for change in self._changes.take(self._verdicts(), time.monotonic()):
                    self._call(change)
            except Exception:  # the thread's edge
                _log.exception("changes of verdicts are not seen; it continues")

    def _call(self, change: VerdictChange) -> None:
        content = json.dumps(change_document(change, self._host)).encode() + b"\n"
        for target, call in self._calls.items():
            if self._stop.is_set():
                return
            try:
                call(content)
            except Exception as error:  # whatever the endpoint or the command does
                self._counts[target, _FAILED] += 1
                if target not in self._failing:
                    self._failing.add(target)
                    _log.warning("verdicts.%s fails: %s; further failures are counted only", target, _why(error))
            else:
                self._counts[target, _OK] += 1
                if target in self._failing:
                    self._failing.discard(target)
                    _log.warning("verdicts.%s works again", target)

    def _post(self, content: bytes) -> None:
        from urllib import request  # 3 MB that an agent without a change does without

        class NoRedirect(request.HTTPRedirectHandler):
            def redirect_request(self, *_: object) -> None:
                return None

        headers = {"Content-Type": "application/json", "User-Agent": "stepscope-agent"}
        post = request.Request(self._webhook, content, headers, method="POST")
        with request.build_opener(NoRedirect).open(post, timeout=self._timeout):
            pass

    def _run_command(self, content: bytes) -> None:
        environment = {"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8"}
        self._process = process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
            cwd="/",
            start_new_session=True,
        )
        try:
            process.communicate(content, timeout=self._timeout)
        finally:
            self._kill()
        if process.returncode:
            raise _CallFailedError(f"it ended with status {process.returncode}")

    def _kill(self) -> None:
        """End the command, and what it has started."""
        process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_END_SECONDS)


class _CallFailedError(Exception):
    """A call failed for the reason in the text."""


def _why(error: Exception) -> str:
    """Why a call failed, without the URL, which may be secret."""
    if isinstance(error, _CallFailedError):
        return str(error)
    code, reason = getattr(error, "code", None), getattr(error, "reason", None)
    if isinstance(code, int):
        return f"HTTP status {code}"
    if isinstance(error, (subprocess.TimeoutExpired, TimeoutError)) or isinstance(reason, TimeoutError):
        return "it took too long"
    return f"{type(reason or error).__name__}: {getattr(reason or error, 'strerror', None) or ''}".removesuffix(": ")
