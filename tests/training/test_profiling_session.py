"""profile(): captures what it promises, and never harms the training it watches."""

from __future__ import annotations

import gc
import gzip
import itertools
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import stepscope
from stepscope.core.text.verdict import verdict_text
from stepscope.core.vocabulary import Cause
from stepscope.training import once
from stepscope.training.captures import trace_export
from stepscope.training.profiling_session import Profile
from stepscope.workflow.inputs.trace_files import find_trace_files
from stepscope.workflow.run_records import read_steps
from tests.training.processes import fork

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def _single_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("RANK", "WORLD_SIZE", "STEPSCOPE_DISABLE", "STEPSCOPE_RUN"):
        monkeypatch.delenv(variable, raising=False)


def _train(prof: Profile, num_steps: int = 5) -> list[int]:
    """A loop that uses every method; returns the batches it saw."""
    seen = []
    for batch in prof.data(range(num_steps)):
        with prof.phase("checkpoint"):
            torch.ones(8, 8) @ torch.ones(8, 8)
        seen.append(batch)
        prof.step(tokens=16, loss=torch.tensor(1.0))
    return seen


def _lines(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "steps" / "rank0.jsonl").read_text().splitlines()]


def _names(trace: Path) -> set[str]:
    return {event["name"] for event in json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]}


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs")
    with stepscope.profile("r", out, once(wait=2, warmup=1, active=2), labels={"team": "a"}) as prof:
        assert _train(prof, 7) == list(range(7))
    return out / "r"


def test_each_step_has_one_line_with_its_times(finished_run: Path) -> None:
    lines = _lines(finished_run)
    assert [line["index"] for line in lines] == list(range(7))
    assert [line["captured"] for line in lines] == [False] * 3 + [True] * 2 + [False] * 2
    assert all(before["end_ns"] <= after["start_ns"] for before, after in itertools.pairwise(lines))
    assert all(line["phases"]["checkpoint"] > 0 and line["data_wait_ns"] > 0 for line in lines)
    assert all(line["tokens"] == 16 and line["loss"] == 1.0 for line in lines)


def test_export_time_is_recorded_and_outside_every_step(finished_run: Path) -> None:
    lines = _lines(finished_run)
    assert [line["index"] for line in lines if "export_ns" in line] == [4]
    assert lines[5]["start_ns"] - lines[4]["end_ns"] >= lines[4]["export_ns"]


def test_the_time_to_set_the_profiler_up_is_recorded_and_outside_every_step(finished_run: Path) -> None:
    lines = _lines(finished_run)
    assert [line["index"] for line in lines if "prepare_ns" in line] == [1, 2]  # prepared after one, begun after two
    assert all(
        before["end_ns"] + before.get("prepare_ns", 0) <= after["start_ns"]
        for before, after in itertools.pairwise(lines)
    )


def test_the_trace_holds_the_captured_steps_and_the_spans_the_ledger_looks_for(finished_run: Path) -> None:
    names = _names(finished_run / "traces" / "step3" / "rank0.json.gz")
    assert {name for name in names if name.startswith("ProfilerStep#")} == {"ProfilerStep#3", "ProfilerStep#4"}
    assert {"prof.data", "prof.phase: checkpoint", "aten::mm"} <= names


def test_the_manifest_says_who_and_how_it_ended(finished_run: Path) -> None:
    manifest = json.loads((finished_run / "run.json").read_text())
    assert manifest["schema"] == "stepscope.run/1"
    assert manifest["mesh"] == {"tp": 1, "pp": 1, "dp": 1}
    assert manifest["labels"] == {"team": "a"}
    assert manifest["versions"]["torch"] == torch.__version__
    assert manifest["unprofiled_step_ms"] > 0
    assert [attempt["ended"] for attempt in manifest["attempts"]] == ["finished"]


def test_no_temporary_file_is_left(finished_run: Path) -> None:
    names = sorted(str(path.relative_to(finished_run)) for path in finished_run.rglob("*") if path.is_file())
    assert names == ["ranks/rank0.json", "run.json", "steps/rank0.jsonl", "traces/step3/rank0.json.gz"]


def test_a_run_that_ends_inside_the_capture_keeps_its_whole_steps(tmp_path: Path) -> None:
    with stepscope.profile("r", tmp_path, once(wait=0, warmup=1, active=10)) as prof:
        _train(prof, 4)
    names = _names(tmp_path / "r" / "traces" / "step1" / "rank0.json.gz")
    assert {f"ProfilerStep#{step}" for step in (1, 2, 3)} <= names


@pytest.mark.parametrize("error", [KeyError("mine"), KeyboardInterrupt(), SystemExit(7)])
def test_the_users_exception_passes_unchanged_and_ends_the_attempt(tmp_path: Path, error: BaseException) -> None:
    def fail_in_capture() -> None:
        with stepscope.profile("r", tmp_path, once(wait=0, warmup=0, active=9)) as prof:
            _train(prof, 2)
            with prof.phase("checkpoint"):
                raise error

    with pytest.raises(type(error)) as caught:
        fail_in_capture()
    assert caught.value is error
    ended = json.loads((tmp_path / "r" / "run.json").read_text())["attempts"][0]["ended"]
    assert ended == {KeyError: "exception", KeyboardInterrupt: "signal", SystemExit: "finished"}[type(error)]
    trace = tmp_path / "r" / "traces" / "step0" / "rank0.json.gz"  # a crash is when the trace is wanted
    assert {"ProfilerStep#0", "ProfilerStep#1"} <= _names(trace)
    assert json.loads(gzip.decompress(trace.read_bytes()))["stepscope_whole_steps"] == [0, 1]
    torch.profiler.profile().__enter__().__exit__(None, None, None)  # the profiler is free again


def test_an_exception_of_the_loader_passes_unchanged(tmp_path: Path) -> None:
    def batches() -> Iterator[int]:
        yield 1
        raise ConnectionError("storage")

    def train() -> None:
        with stepscope.profile("r", tmp_path) as prof:
            for _ in prof.data(batches()):
                prof.step()

    with pytest.raises(ConnectionError, match="storage"):
        train()


def test_the_wrapped_loader_is_still_the_loader(tmp_path: Path) -> None:
    class Loader(list[int]):
        sampler = "mine"

    with stepscope.profile("r", tmp_path) as prof:
        wrapped: Any = prof.data(Loader([1, 2, 3]))
        assert (len(wrapped), wrapped.sampler, list(wrapped), list(wrapped)) == (3, "mine", [1, 2, 3], [1, 2, 3])


def test_a_directory_that_cannot_be_written_costs_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("no folder")
    with stepscope.profile("r", tmp_path / "file", once(wait=1)) as prof:
        assert _train(prof, 6) == list(range(6))
    assert len(_warnings(caplog)) == 1
    assert "training goes on" in _warnings(caplog)[0]


def test_a_trace_that_cannot_be_written_costs_one_warning_and_the_steps_before_stay(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "traces").write_text("no folder")
    with stepscope.profile("r", tmp_path, once(wait=1, active=1)) as prof:
        assert _train(prof, 6) == list(range(6))
    assert len(_warnings(caplog)) == 1
    assert [line["index"] for line in _lines(tmp_path / "r")][:3] == [0, 1, 2]
    torch.profiler.profile().__enter__().__exit__(None, None, None)


@pytest.mark.parametrize(
    "arguments",
    [
        {"schedule": "often"},
        {"ranks": "some"},
        {"run": "a/b"},
        {"mesh": 7},
        {"out": None},
        {"labels": "abc"},
        {"labels": 5},
    ],
)
def test_wrong_arguments_never_raise_into_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with stepscope.profile(**arguments) as prof:
        assert _train(prof) == list(range(5))
    assert len(_warnings(caplog)) == 1


def test_after_giving_up_no_directory_is_named_and_the_attempt_is_closed(tmp_path: Path) -> None:
    with stepscope.profile("r", tmp_path) as prof:
        assert prof.run_directory == tmp_path / "r"
        prof._log._ended = None  # breaks the next step
        _train(prof)
        assert prof.run_directory is None
    assert json.loads((tmp_path / "r" / "run.json").read_text())["attempts"][0]["ended"] == "measuring stopped"


def test_a_training_shorter_than_the_schedule_says_so_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with stepscope.profile("r", tmp_path) as prof:
        _train(prof, 3)
    (warning,) = _warnings(caplog)
    assert "ended after 3 steps; the first capture would have started at step 4; train 5 steps or more" in warning


def test_a_training_that_ends_inside_the_first_captured_step_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with stepscope.profile("r", tmp_path) as prof:
        _train(prof, 4)
    (warning,) = _warnings(caplog)
    assert "ended inside step 4" in warning
    assert not (tmp_path / "r" / "traces").exists()


def test_a_with_block_around_a_step_is_one_line_and_steps_run_from_call_to_call(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with stepscope.profile("r", tmp_path, stepscope.every(100)) as prof:
        for tokens in range(3):
            with prof.step(tokens=tokens):
                pass
        with pytest.raises(KeyError), prof.step():
            raise KeyError("mine")
    assert [line.get("tokens") for line in _lines(tmp_path / "r")] == [0, 1, 2, None]
    (said,) = [message for message in _warnings(caplog) if "with prof.step" in message]
    assert "call prof.step() once after each optimizer step" in said


def test_figures_that_cannot_be_read_are_named_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with stepscope.profile("r", tmp_path, once(wait=0)) as prof:
        for _ in range(6):
            prof.step(loss="low", grad_norm=torch.ones(2), tokens=3)
    (warning,) = _warnings(caplog)
    assert "loss (str), grad_norm (Tensor)" in warning
    assert all(line["tokens"] == 3 and "loss" not in line for line in _lines(tmp_path / "r"))


def test_a_phase_may_have_any_name(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    wrong: Any = ["a"]
    with stepscope.profile("r", tmp_path, once(wait=0)) as prof:
        for _ in range(6):
            with prof.phase(wrong):
                pass
            prof.step()
    assert _warnings(caplog) == []
    assert "['a']" in _lines(tmp_path / "r")[0]["phases"]


@pytest.mark.parametrize("enabled", [True, False])
def test_a_phase_inside_compiled_code_is_none_and_leaves_its_graph_whole(tmp_path: Path, *, enabled: bool) -> None:
    prof = stepscope.profile("r", tmp_path, enabled=enabled)
    graphs = []

    def keep(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    def doubled(x: Any) -> Any:
        with prof.phase("inside"):
            x = x + 1
        return x * 2

    compiled = torch.compile(doubled, backend=keep, fullgraph=True)
    with prof:
        with prof.phase("around"):
            assert compiled(torch.ones(1)).item() == 4
        prof.step()
    assert compiled(torch.ones(1)).item() == 4
    assert len(graphs) == 1
    if enabled:
        assert [set(line["phases"]) for line in _lines(tmp_path / "r")] == [{"around"}]


def test_a_nested_profile_steps_aside_and_the_outer_keeps_its_trace(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    outer, inner = (stepscope.profile(name, tmp_path, once(wait=1)) for name in ("outer", "inner"))
    with outer, inner:
        for _ in range(6):
            inner.step()
            outer.step()
    assert len(_warnings(caplog)) == 1
    assert "steps aside" in _warnings(caplog)[0]
    assert [path.parent.parent.parent.name for path in tmp_path.rglob("rank0.json.gz")] == ["outer"]


@pytest.mark.parametrize("closes_inside", [True, False])
def test_a_profiler_opened_inside_a_capture_gets_its_events_and_ours_keeps_the_steps_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, closes_inside: bool
) -> None:
    theirs = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
    with stepscope.profile("r", tmp_path, once(wait=0, warmup=1, active=3)) as prof:
        for step in range(6):
            if step == 3:
                with prof.phase("theirs"):  # ends under another profiler than it began
                    theirs.__enter__()
            torch.ones(8, 8) @ torch.ones(8, 8)
            if closes_inside and step == 3:
                theirs.__exit__(None, None, None)
            prof.step()
    if not closes_inside:
        theirs.__exit__(None, None, None)
    theirs.export_chrome_trace(str(tmp_path / "theirs.json"))  # torch crashes here when its recording was taken
    assert "aten::mm" in (tmp_path / "theirs.json").read_text()
    assert len(_warnings(caplog)) == 1
    assert "another torch profiler began" in _warnings(caplog)[0]
    assert {"ProfilerStep#1", "ProfilerStep#2"} <= _names(tmp_path / "r" / "traces" / "step1" / "rank0.json.gz")
    assert not hasattr(torch.autograd.profiler.profile._start_trace, "__wrapped__")


def test_a_profiler_that_begins_while_a_trace_is_written_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[float] = []
    goes_on = threading.Event()

    def slowly(recording: Any, path: Path) -> None:
        goes_on.wait(60)
        recording.save(str(path))
        written.append(time.monotonic())

    monkeypatch.setattr(trace_export, "save_recording", slowly)
    with stepscope.profile("r", tmp_path, once(wait=0, warmup=0, active=1)) as prof:
        _train(prof, 1)
        assert written == []  # the step after the capture does not wait for the file
        threading.Timer(0.3, goes_on.set).start()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as theirs:
            begun = time.monotonic()
            torch.ones(8, 8) @ torch.ones(8, 8)
        prof.step()
    assert len(written) == 1
    assert written[0] <= begun
    assert "aten::mm" in {event.name for event in theirs.events()}
    assert "aten::mm" in _names(tmp_path / "r" / "traces" / "step0" / "rank0.json.gz")


def test_a_recording_ended_behind_our_back_is_given_up_without_a_crash(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with stepscope.profile("r", tmp_path, once(wait=0, warmup=0, active=2)) as prof:
        prof.step()
        torch._C._autograd._disable_profiler()
        assert _train(prof) == list(range(5))
    assert len(_warnings(caplog)) == 1
    assert "another torch profiler ended this capture" in _warnings(caplog)[0]
    assert [line["index"] for line in _lines(tmp_path / "r")] == list(range(6))


def test_what_a_killed_export_left_is_removed_by_the_next_start(tmp_path: Path) -> None:
    folder = tmp_path / "r" / "traces" / "step4"
    folder.mkdir(parents=True)
    for name in (".rank0.json.gz.4194999.plain.part", ".rank0.json.gz.4194999.part", ".rank1.json.gz.4194999.part"):
        (folder / name).touch()
    (folder / f".rank0.json.gz.{os.getpid()}.part").touch()
    with stepscope.profile("r", tmp_path) as prof:
        prof.step()
    assert {path.name for path in folder.iterdir()} == {
        ".rank1.json.gz.4194999.part",
        f".rank0.json.gz.{os.getpid()}.part",
    }


def test_a_run_that_is_continued_numbers_on_and_keeps_the_traces_before(tmp_path: Path) -> None:
    for first_step in (None, None, 12):
        with stepscope.profile("r", tmp_path, stepscope.once(wait=1, active=1), first_step=first_step) as prof:
            _train(prof, 8)
        assert prof.result is not None
    lines = _lines(tmp_path / "r")
    assert [line["index"] for line in lines] == [*range(16), *range(12, 20)]
    assert [line.get("attempt", 1) for line in lines] == [1] * 8 + [2] * 8 + [3] * 8
    assert [line["index"] for line in lines if line["captured"]] == [2, 10, 14]
    assert {path.name for path in (tmp_path / "r" / "traces").iterdir()} == {
        "step2",
        "step10-attempt2",
        "step14-attempt3",
    }
    files = find_trace_files([str(tmp_path / "r")])
    assert [Path(path).parent.name for path in files.paths] == ["step14-attempt3"]
    assert read_steps(str(tmp_path / "r")).num_steps == 20
    assert len(json.loads((tmp_path / "r" / "run.json").read_text())["attempts"]) == 3


def test_a_clock_that_is_set_back_changes_no_steps_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time_ns
    with stepscope.profile("r", tmp_path, stepscope.once(wait=50)) as prof:
        for step in range(4):
            if step == 2:
                monkeypatch.setattr(time, "time_ns", lambda: now() - 3600 * 10**9)
            time.sleep(0.01)
            prof.step()
    times = [(line["end_ns"] - line["start_ns"]) / 1e9 for line in _lines(tmp_path / "r")]
    assert all(0.01 <= seconds < 5 for seconds in times)


def test_a_profile_entered_again_goes_on_with_the_outer_block_and_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with stepscope.profile("r", tmp_path, stepscope.once(wait=50)) as prof:
        for _ in range(2):
            with prof:
                prof.step()
        prof.step()
    assert [line["index"] for line in _lines(tmp_path / "r")] == [0, 1, 2]
    assert "goes on with the outer one here" in _warnings(caplog)[0]
    assert len([text for text in _warnings(caplog) if "measures one with block" in text]) == 1


def test_a_profile_used_again_after_its_block_says_that_it_measures_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    prof = stepscope.profile("r", tmp_path, stepscope.once(wait=0, warmup=0, active=1))
    off = stepscope.profile("off", tmp_path, enabled=False)
    for _ in range(3):
        with prof, off:
            _train(prof, 2)
    (warning,) = _warnings(caplog)
    assert "so this one measures nothing" in warning
    assert len(_lines(tmp_path / "r")) == 2


def test_an_export_in_progress_does_not_look_like_a_trace(tmp_path: Path) -> None:
    from stepscope.training.run.run_files import partial_path

    name = partial_path(tmp_path / "rank0.json.gz", ".plain").name
    assert name.startswith(".")
    assert not name.endswith((".json", ".gz"))


def test_another_running_profiler_costs_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with torch.profiler.profile(), stepscope.profile("r", tmp_path, once(wait=1)) as prof:
        assert _train(prof, 6) == list(range(6))
    assert len(_warnings(caplog)) == 1


def test_a_capture_that_another_profiler_prevents_is_skipped_and_all_else_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    theirs = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
    with stepscope.profile("r", tmp_path, stepscope.every(5, warmup=1, active=1)) as prof:
        for step in range(24):
            if step == 2:
                theirs.__enter__()
            elif step == 12:
                theirs.__exit__(None, None, None)
            torch.ones(8, 8) @ torch.ones(8, 8)
            prof.step()
    (warning,) = _warnings(caplog)  # two captures are skipped
    assert "skipped" in warning
    assert "another torch profiler is recording" in warning
    assert [line["index"] for line in _lines(tmp_path / "r")] == list(range(24))
    captured = [line["index"] for line in _lines(tmp_path / "r") if line["captured"]]
    assert len(captured) == len(list((tmp_path / "r" / "traces").iterdir())) >= 2
    assert min(captured) >= 12


def test_another_profiler_keeps_its_recording(tmp_path: Path) -> None:
    with torch.profiler.profile() as theirs, stepscope.profile("r", tmp_path, once(wait=0, warmup=0)) as prof:
        _train(prof, 6)
    assert "aten::mm" in {event.name for event in theirs.events()}


def test_after_the_block_it_says_the_verdict(tmp_path: Path) -> None:
    with stepscope.profile("r", tmp_path, once(wait=1)) as prof:
        _train(prof, 6)
        assert "after the with block" in prof.summary()
    text = prof.summary()
    assert text.startswith("1 rank, ")
    assert verdict_text(prof.result).head in text
    assert text.endswith(f"more: stepscope analyze {tmp_path / 'r'}")
    assert (tmp_path / "r" / "analysis.json").exists()


def test_without_a_verdict_it_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with stepscope.profile("short", tmp_path) as prof:
        _train(prof, 2)
    assert "no profiled step can be analysed" in prof.summary()
    assert prof.result is not None
    assert prof.result.verdict.cause is Cause.INSUFFICIENT_EVIDENCE
    with stepscope.profile("off", tmp_path, enabled=False) as prof:
        _train(prof, 2)
    assert "nothing was measured" in prof.summary()
    with stepscope.profile("gone", tmp_path, once(wait=1)) as prof:
        _train(prof, 6)
    (tmp_path / "gone" / "traces" / "step2" / "rank0.json.gz").write_bytes(b"")
    assert "no verdict: " in prof.summary()
    assert prof.result is None
    monkeypatch.setenv("RANK", "1")
    with stepscope.profile("r", tmp_path, once(wait=1)) as prof:
        _train(prof, 6)
    assert "rank 0 has the verdict" in prof.summary()


def test_off_is_the_same_object_and_touches_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with stepscope.profile("r", tmp_path, enabled=False) as prof:
        assert _train(prof) == list(range(5))
    monkeypatch.setenv("STEPSCOPE_DISABLE", "1")
    with stepscope.profile("r", tmp_path) as prof:
        assert _train(prof) == list(range(5))
    assert isinstance(prof, Profile)
    assert list(tmp_path.iterdir()) == []
    assert _warnings(caplog) == []


def test_without_torch_it_is_a_no_op_with_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "torch.profiler", None)
    with stepscope.profile("r", tmp_path) as prof:
        assert list(prof.data([1, 2])) == [1, 2]
        prof.step()
    assert len(_warnings(caplog)) == 1


def test_steps_outside_the_with_block_cost_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    prof = stepscope.profile("r", tmp_path)
    prof.step()
    prof.step()
    assert len(_warnings(caplog)) == 1
    assert "with stepscope.profile" in _warnings(caplog)[0]


def test_a_forked_child_writes_nothing_of_its_parents(tmp_path: Path) -> None:
    with stepscope.profile("r", tmp_path) as prof:
        prof.step()
        assert fork(lambda _: (prof.step(), prof.__exit__(None, None, None))).end() == 0
        prof.step()
    assert [line["index"] for line in _lines(tmp_path / "r")] == [0, 1]


def test_a_second_start_of_the_same_run_is_a_second_attempt(tmp_path: Path) -> None:
    for _ in range(2):
        with stepscope.profile("r", tmp_path) as prof:
            prof.step()
    assert len(json.loads((tmp_path / "r" / "run.json").read_text())["attempts"]) == 2


def test_other_ranks_write_steps_but_no_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("WORLD_SIZE", "8")
    with stepscope.profile("r", tmp_path, once(wait=1, active=1), ranks=[0]) as prof:
        _train(prof, 5)
    assert sorted(path.name for path in (tmp_path / "r").rglob("*") if path.is_file()) == ["rank5.json", "rank5.jsonl"]


def test_importing_stepscope_and_making_a_profile_loads_no_torch() -> None:
    code = "import sys, stepscope; stepscope.profile(); stepscope.every(9); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_log_handler_that_raises_does_not_reach_training(tmp_path: Path) -> None:
    class Broken(logging.Handler):
        def handle(self, record: logging.LogRecord) -> bool:
            raise ValueError(record.getMessage())

    broken = Broken()
    logging.getLogger("stepscope").addHandler(broken)
    try:
        with stepscope.profile("r", tmp_path, schedule="often") as prof:
            prof.step()
        with stepscope.profile("s", tmp_path) as prof:
            prof.step()  # said with a warning: shorter than the schedule
    finally:
        logging.getLogger("stepscope").removeHandler(broken)


def test_profiles_that_are_never_left_leave_nothing_behind(tmp_path: Path) -> None:
    def left() -> tuple[int, int, int]:
        return len(os.listdir("/proc/self/fd")), len(gc.callbacks), threading.active_count()

    stepscope.profile("r", tmp_path).__enter__().step()
    gc.collect()
    time.sleep(1.0)
    before = left()
    for _ in range(3):
        stepscope.profile("r", tmp_path).__enter__().step()
        time.sleep(1.2)  # the background_loop has opened what it writes to
        gc.collect()
    deadline = time.monotonic() + 10
    while left() > before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left() <= before
