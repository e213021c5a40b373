"""profile(reduce="view"): which traces stay, and that training waits for nothing and loses nothing."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import stepscope
from stepscope.core.documents.run_directory import KeepTraces
from stepscope.training.captures import reduction
from stepscope.training.captures.reduction import TraceReduction, parse_reduction
from stepscope.training.hangs.stall import helper_processes
from stepscope.training.run import side_process
from stepscope.workflow.analyze import analyze
from tests.training.processes import fork

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def _views_are_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STEPSCOPE_VIEWS", "on")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for variable in ("RANK", "WORLD_SIZE", "STEPSCOPE_RUN", "STEPSCOPE_REDUCE", "STEPSCOPE_KEEP_TRACES"):
        monkeypatch.delenv(variable, raising=False)


@pytest.mark.parametrize(
    ("reduce", "keep_traces", "kept"),
    [
        (None, None, None),
        ("off", None, None),
        ("off", "all", None),
        ("view", None, KeepTraces.OUTLIERS),
        ("view", "outliers", KeepTraces.OUTLIERS),
        ("view", "all", KeepTraces.ALL),
        ("view", "none", KeepTraces.NONE),
    ],
)
def test_the_settings(reduce: str | None, keep_traces: str | None, kept: KeepTraces | None) -> None:
    assert parse_reduction(reduce, keep_traces) is kept


@pytest.mark.parametrize(
    ("reduce", "keep_traces", "why"),
    [
        ("views", None, 'reduce is "view" or "off"'),
        ("view", "some", "keep_traces is 'outliers', 'all', 'none', not 'some'"),
        ("view", 3, "keep_traces is"),
        ("view", ["none"], "keep_traces is"),
        (None, "none", 'reduce="view" must be given'),
        ("off", "outliers", 'reduce="view" must be given'),
    ],
)
def test_other_settings_are_refused(reduce: str | None, keep_traces: str | None, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_reduction(reduce, keep_traces)


def test_a_wrong_setting_costs_one_line_and_no_trace(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    _train(tmp_path, num_steps=6, reduce="small")
    assert "stepscope measures and keeps all traces: reduce is" in caplog.text
    assert _trace(tmp_path).exists()
    assert not (tmp_path / "r" / "views").exists()


def _trace(folder: Path) -> Path:
    return folder / "r" / "traces" / "step1" / "rank0.json.gz"


def _view(folder: Path) -> Path:
    return folder / "r" / "views" / "step1" / "rank0.view"


_PATIENCE_SECONDS = 240.0
"""A process that gives way has little of a machine that is full."""


def _train(folder: Path, *, num_steps: int = 10**6, until: Callable[[], bool] = lambda: False, **options: str) -> None:
    give_up = time.monotonic() + _PATIENCE_SECONDS
    with stepscope.profile("r", folder, stepscope.once(wait=0, warmup=1, active=2), **options) as prof:
        for _ in range(num_steps):
            torch.ones(8, 8) @ torch.ones(8, 8)
            prof.step()
            if until() or time.monotonic() > give_up:
                return
            if _trace(folder).parent.exists():
                time.sleep(0.02)


def _wait_until(is_so: Callable[[], bool], seconds: float = _PATIENCE_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_the_trace_goes_while_training_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    record = _view(tmp_path).with_name("rank0.removed.json")

    def is_over() -> bool:
        return record.exists() and not _trace(tmp_path).exists()

    _train(tmp_path, until=is_over, reduce="view", keep_traces="none")
    assert is_over()
    assert helper_processes.running == set()
    assert not [each for each in caplog.records if "reduced" in each.getMessage()]
    analysis = analyze([str(tmp_path / "r")]).analysis
    assert (analysis.job.ranks, analysis.job.num_steps) == ([0], 2)


def test_it_goes_on_by_itself_where_training_ends_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPSCOPE_REDUCE", "view")
    monkeypatch.setenv("STEPSCOPE_KEEP_TRACES", "none")
    fork(lambda _: _train(tmp_path, num_steps=4)).end()
    assert _trace(tmp_path).exists()  # a trace is reduced once it is some seconds old
    _wait_until(lambda: not _trace(tmp_path).exists())
    assert _view(tmp_path).exists()


def test_the_only_rank_s_trace_is_an_outlier_s(tmp_path: Path) -> None:
    record = _view(tmp_path).with_name("rank0.removed.json")
    _train(tmp_path, until=record.exists, reduce="view")
    assert _trace(tmp_path).exists()
    assert '"rank0.json.gz": "spends most time itself"' in record.read_text()


def _warning_after(command: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> str:
    """The only warning of a rank whose process ends so, for two traces."""
    monkeypatch.setattr(side_process, "module_command", lambda *_: (sys.executable, "-c", command))
    task = TraceReduction(0, [0], KeepTraces.NONE)
    with caplog.at_level(logging.WARNING):
        for name in ("a", "b"):
            task.trace_written(Path(name), is_requested=False)
            task.run_task()
            deadline = time.monotonic() + _PATIENCE_SECONDS
            while task._process is not None:
                assert time.monotonic() < deadline
                time.sleep(0.02)
                task.run_task()
    task.close()
    assert helper_processes.running == set()
    (message,) = {record.getMessage() for record in caplog.records}
    assert len(caplog.records) == 1
    return message


def test_a_killed_process_costs_one_line(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    command = f"import os; os.kill(os.getpid(), {int(signal.SIGKILL)})"
    message = _warning_after(command, monkeypatch, caplog)
    assert message == "a trace is not reduced to its view and stays: its process was killed by SIGKILL"


def test_its_own_words_are_logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    message = _warning_after("print('rank0: no room'); raise SystemExit(1)", monkeypatch, caplog)
    assert message == "a trace is not reduced to its view and stays: rank0: no room"


def test_one_that_never_ends_is_killed(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(reduction, "_MOST_SECONDS", 0.1)
    message = _warning_after("import time; time.sleep(600)", monkeypatch, caplog)
    assert message.endswith("its process had not ended after 0 minutes")


def test_no_process_costs_one_line(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def none(*_: object, **__: object) -> None:
        raise OSError("no more processes")

    monkeypatch.setattr(reduction, "SideProcess", none)
    assert "no process can be started (no more processes)" in _warning_after("", monkeypatch, caplog)


def test_traces_that_were_requested_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = tmp_path / "arguments"
    script = f"import sys; open({str(written)!r}, 'a').write(' '.join(sys.argv[1:]) + '|')"
    monkeypatch.setattr(side_process, "module_command", lambda *given: (sys.executable, "-c", script, *given[2:]))
    task = TraceReduction(3, [0, 1, 2, 7, 9, 10], KeepTraces.NONE)
    for name, is_requested in (("a", False), ("b", False), ("c", True)):
        task.trace_written(Path(name), is_requested=is_requested)
    task.close()
    _wait_until(lambda: written.exists() and written.read_text().count("|") == 2)
    runs = "[[0, 2], [7, 7], [9, 10]]"
    assert set(written.read_text().split("|")) == {f"3 {runs} none a b", f"3 {runs} all c", ""}


def test_a_killed_training_s_process_ends_later_but_ends() -> None:
    from stepscope.core.process import end_after_parent

    def child(tell: Callable[[str], None]) -> None:
        end_after_parent(os.getppid() + 1, 0.2)  # its parent is gone
        tell("began ")
        time.sleep(60)

    training = fork(child)
    training.wait_for("began")
    began = time.monotonic()
    assert training.end() == 0
    assert time.monotonic() - began < 10.0
