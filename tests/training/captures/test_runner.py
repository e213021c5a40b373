"""Training continues while a disk blocks a trace, and captures resume afterwards."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest

import stepscope
from stepscope.training.captures import runner, trace_export
from stepscope.training.captures.trace_export import gzip_trace

pytest.importorskip("torch")


@pytest.mark.usefixtures("no_job")
def test_a_trace_that_a_slow_disk_keeps_costs_the_next_capture_and_a_bounded_wait_that_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(runner, "_WAITS_FOR_TRACE_SECONDS", 0.3)
    answers = threading.Event()

    def slowly(plain: Path, target: Path) -> int:
        answers.wait(60)
        return gzip_trace(plain, target)

    monkeypatch.setattr(trace_export, "gzip_trace", slowly)
    with stepscope.profile("r", tmp_path, stepscope.every(5, warmup=1, active=1)) as prof:
        for _ in range(7):  # a capture of step 5, whose beginning may take torch seconds
            prof.step()
        began = time.monotonic()
        for _ in range(10):  # steps 10 and 15 were to be captured
            prof.step()
        assert time.monotonic() - began < 5
        answers.set()
        deadline = time.monotonic() + 30
        while prof._captures is None or prof._captures.is_writing:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        for _ in range(10):
            prof.step()
    assert sorted(path.parent.name for path in tmp_path.rglob("rank0.json.gz")) == ["step20", "step25", "step5"]
    assert "capture of step 10 is skipped, later ones are tried: the trace of the capture before" in caplog.text
    lines = [json.loads(line) for line in (tmp_path / "r" / "steps" / "rank0.jsonl").read_text().splitlines()]
    assert [line["index"] for line in lines] == list(range(27))
    assert 0.25e9 < lines[8]["export_ns"] < 3e9  # before step 9, in which the capture of step 10 would be prepared
    assert "export_ns" not in lines[13]  # the trace of step 5 has had all the time it gets
