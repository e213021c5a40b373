"""Worker processes that hang, die or send garbage are distinguished from working ones; none outlives its parent."""

from __future__ import annotations

import os
import sys
import time

import pytest

from stepscope.workflow.preflight.workers import (
    FailureKind,
    Unsupported,
    Worker,
    WorkerFailure,
    ask_worker,
    ask_workers,
)

_ECHO = """
import json, sys
for line in sys.stdin:
    request = json.loads(line)
    {body}
"""


def worker(body: str) -> Worker:
    return Worker((sys.executable, "-c", _ECHO.format(body=body)), os.environ)


def test_answers_come_together_and_who_hangs_is_not_waited_for() -> None:
    good = worker('print(json.dumps({"n": request["n"]}), flush=True)')
    large = worker('print(json.dumps({"text": "x" * 300000}), flush=True)')
    hung = worker("import time; time.sleep(600)")
    with good, large, hung:
        replies = ask_workers({good: {"n": 1}, large: {"n": 2}, hung: {"n": 3}}, 3.0)
        assert replies[good] == {"n": 1}
        assert isinstance(large_reply := replies[large], dict)
        assert len(large_reply["text"]) == 300000
        assert replies[hung] == WorkerFailure(FailureKind.HUNG, "no answer within 3 s")
        again = time.monotonic()
        assert ask_worker(hung, {"n": 4}, 600.0) == replies[hung]
        assert time.monotonic() - again < 10.0
        assert ask_worker(good, {"n": 5}, 60.0) == {"n": 5}


@pytest.mark.parametrize(
    ("body", "kind", "detail"),
    [
        ("sys.exit(7)", FailureKind.DIED, "its process ended with exit code 7"),
        ('sys.exit("no driver")', FailureKind.DIED, "its process ended with exit code 1: no driver"),
        ("import os; os.kill(os.getpid(), 11)", FailureKind.DIED, "its process ended with SIGSEGV"),
        ('print("hello", flush=True)', FailureKind.DIED, "its answer is not valid"),
        ('print("[1]", flush=True)', FailureKind.DIED, "its answer is not valid"),
        ("""print('{"error": "broken"}', flush=True)""", FailureKind.ERROR, "broken"),
    ],
)
def test_who_does_not_answer(body: str, kind: FailureKind, detail: str) -> None:
    with worker(body) as one:
        assert ask_worker(one, {}, 60.0) == WorkerFailure(kind, detail)
        assert one.failure is not None


def test_what_cannot_be_done_is_no_failure() -> None:
    with worker("""print('{"unsupported": "no units"}', flush=True)""") as one:
        assert ask_worker(one, {}, 60.0) == Unsupported("no units")
        assert one.failure is None


def test_one_that_listens_to_nothing_is_killed() -> None:
    body = 'import signal, time; signal.signal(15, signal.SIG_IGN); print("{}", flush=True); time.sleep(600)'
    one = worker(body)
    assert ask_worker(one, {}, 60.0) == {}
    one.close()
    assert one._process.poll() == -9
