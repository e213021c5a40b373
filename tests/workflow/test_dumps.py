"""Dumps in a run directory are part of its analysis; what cannot be read is a warning."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from stepscope.core.documents.analysis import Analysis
from stepscope.core.text.verdict import verdict_text
from stepscope.core.vocabulary import Cause, Reason
from stepscope.store.runs import has_current_analysis, load_analysis
from stepscope.workflow import dumps
from stepscope.workflow.analyze import analyze
from stepscope.workflow.inputs.trace_files import NoCaptureError
from stepscope.workflow.panels.report import render_report
from tests.analyzer.dumps.jobs import nccl_log

HANGS = Path(__file__).with_name("recorded_hangs")
NUM_STEPS = 40
MS = 1_000_000
BEGIN_NS = 1_700_000_000_000_000_000


def write_run(folder: Path, *, world_size: int = 4, attempts: list[dict[str, Any]] | None = None) -> Path:
    """A run of 40 steps of 40 ms, of which 12 ms wait for data."""
    first = {"start_ns": BEGIN_NS, "end_ns": None, "ended": None, "world_size": world_size}
    manifest = {
        "schema": "stepscope.run/1",
        "run": folder.name,
        "host": "node0",
        "world_size": world_size,
        "mesh": {},
        "num_cpus": 8,
        "versions": {},
        "environment": {},
        "attempts": [first] if attempts is None else attempts,
    }
    (folder / "steps").mkdir(parents=True)
    for name in ("flight", "memory", "nccl"):
        (folder / name).mkdir()
    (folder / "run.json").write_text(json.dumps(manifest))
    for rank in range(world_size):
        lines = [
            {
                "index": step,
                "start_ns": BEGIN_NS + step * 40 * MS,
                "end_ns": BEGIN_NS + (step + 1) * 40 * MS,
                "data_wait_ns": 12 * MS,
            }
            for step in range(NUM_STEPS)
        ]
        (folder / f"steps/rank{rank}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def hang_into(run: Path, shared_traces: Path) -> None:
    for rank in range(4):
        shutil.copy(shared_traces / f"diag/fr_gloo_torch214/hang/_dump_{rank}", run / f"flight/rank{rank}")


def analysed(run: Path) -> Analysis:
    return analyze([str(run)]).analysis


def layers(analysis: Analysis) -> dict[str, bool]:
    assert analysis.job_time is not None
    return {layer.layer: layer.used for layer in analysis.job_time.layers}


def test_empty_folders_add_nothing(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    with_folders = analysed(run)
    for name in ("flight", "memory", "nccl"):
        (run / name).rmdir()
    assert with_folders == analysed(run)
    assert with_folders.verdict.cause is Cause.DATA_LOADING
    assert not {"flight", "memory", "nccl"} & {*layers(with_folders)}


def test_a_recorded_hang_is_the_verdict_of_its_run(tmp_path: Path, shared_traces: Path) -> None:
    run = write_run(tmp_path / "run")
    assert analysed(run).verdict.cause is Cause.DATA_LOADING
    assert has_current_analysis(run)
    hang_into(run, shared_traces)
    assert not has_current_analysis(run)
    analysis = analysed(run)
    assert (analysis.verdict.cause, analysis.verdict.reasons, analysis.verdict.ranks) == ("hang", ["host"], [2])
    assert analysis.verdict.next is not None
    assert analysis.verdict.next.cause is Cause.DATA_LOADING
    assert layers(analysis)["flight"]
    assert load_analysis(run) == analysis
    page = render_report(analysis, [], title=run.name, version="1")
    assert "rank 2 never called the collective" in page


@pytest.mark.parametrize("case", sorted(HANGS.iterdir()), ids=lambda case: case.name)
def test_a_run_of_dumps_alone_gets_what_stepscope_hang_says(case: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(case, run)
    truth = json.loads((case / "truth.json").read_text())
    if not truth["guilty"]:
        with pytest.raises(NoCaptureError):
            analyze([str(run)])
        return
    verdict = analysed(run).verdict
    assert (verdict.cause, verdict.ranks) == (Cause.HANG, truth["guilty"])


@pytest.mark.parametrize("damage", [b"", b"\x80\x04}garbage entries", b"{"])
def test_of_damaged_dumps_nobody_is_blamed(damage: bytes, tmp_path: Path, shared_traces: Path) -> None:
    run = write_run(tmp_path / "run")
    hang_into(run, shared_traces)
    (run / "flight/rank2").write_bytes(damage + b"pg_config entries" if damage else b"")
    analysis = analysed(run)
    assert analysis.verdict.cause is Cause.DATA_LOADING
    assert any("rank2" in notice.message for notice in analysis.warnings)
    for rank in range(4):
        (run / f"flight/rank{rank}").write_bytes(b"")
    assert analysed(run).verdict.cause is Cause.DATA_LOADING


def test_files_of_other_kinds_are_left_alone(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    for name in ("flight", "memory", "nccl"):
        (run / name / "rank0").write_text("hello")
        (run / name / "rank1.pickle").write_bytes(b"\x80\x04cos\nsystem\n(S'true'\ntR.")
        (run / name / "link").symlink_to("/nowhere")
        (run / name / "rank3-folder").mkdir()
    assert analysed(run).verdict.cause is Cause.DATA_LOADING


def test_too_much_is_not_read(tmp_path: Path, shared_traces: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_run(tmp_path / "run")
    hang_into(run, shared_traces)
    (run / "nccl/log").write_text("\n".join(nccl_log()))
    shutil.copy(shared_traces / "diag/memory_h100/leak.pickle.gz", run / "memory/rank0-oom.pickle.gz")
    for limit in ("_MAX_FLIGHT_BYTES", "_MAX_SNAPSHOT_BYTES", "_MAX_LOG_BYTES"):
        monkeypatch.setattr(dumps, limit, 100)
    analysis = analysed(run)
    assert analysis.verdict.cause is Cause.DATA_LOADING
    told = " ".join(notice.message for notice in analysis.warnings)
    assert all(f"stepscope {command} " in told for command in ("hang", "nccl", "memory"))


def test_memory_that_ran_out_is_the_verdict(tmp_path: Path, shared_traces: Path) -> None:
    run = write_run(tmp_path / "run")
    shutil.copy(shared_traces / "diag/memory_h100/leak.pickle.gz", run / "memory/rank1-oom.pickle.gz")
    analysis = analysed(run)
    assert (analysis.verdict.cause, analysis.verdict.reasons) == (Cause.OUT_OF_MEMORY, [Reason.LEAK])
    assert analysis.verdict.ranks == [1]
    assert "do not keep what is allocated at" in analysis.verdict.actions[0]
    assert verdict_text(analysis).lines()[0].startswith("OUT OF MEMORY  leak in optimizer: rank 1 asked for 16.0 MiB")


@pytest.mark.parametrize("content", [b"", b"damaged"])
def test_of_a_snapshot_that_cannot_be_read_the_note_beside_it_tells(content: bytes, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    (run / "memory/rank3-oom.pickle").write_bytes(content)
    assert analysed(run).verdict.cause is Cause.DATA_LOADING
    note = {"requested_bytes": 2 << 30, "training_phase": "backward", "time_ns": BEGIN_NS + NUM_STEPS * 40 * MS}
    (run / "memory/rank3-oom.json").write_text(json.dumps(note))
    verdict = analysed(run).verdict
    assert (verdict.cause, verdict.reasons, verdict.ranks) == (Cause.OUT_OF_MEMORY, [], [3])
    assert verdict.summary == "rank 3 asked for 2.0 GiB in backward; its snapshot was not read"
    assert "stepscope memory" in verdict.actions[0]


def test_a_recorded_log_s_transports_are_told(tmp_path: Path, shared_traces: Path) -> None:
    run = write_run(tmp_path / "run")
    shutil.copy(shared_traces / "diag/nccl_logs/socket_4x1_efa_missing.log", run / "nccl/worker-0.53")
    analysis = analysed(run)
    assert analysis.verdict.cause is Cause.DATA_LOADING
    assert layers(analysis)["nccl"]
    assert any("use NET/Socket" in notice.message for notice in analysis.warnings)


@pytest.mark.parametrize(
    ("via", "agrees", "action"),
    [("SHM/direct/direct", True, "unset NCCL_P2P_DISABLE (now 1)"), ("P2P/CUMEM", False, "")],
)
def test_a_recorded_slow_job_and_its_log(
    via: str, agrees: bool, action: str, tmp_path: Path, shared_traces: Path
) -> None:
    """Two GPUs without peer access: the trace shows slow collectives, the log why, or that it is of another time."""
    run = write_run(tmp_path / "run", world_size=2)
    shutil.rmtree(run / "steps")
    (run / "traces/step5").mkdir(parents=True)
    for rank in range(2):
        trace = shared_traces / f"h100x2/fsdp_p2poff/fsdp_p2poff.rank{rank}.json.gz"
        shutil.copy(trace, run / f"traces/step5/rank{rank}.json.gz")
    alone = analysed(run)
    assert layers(alone)["nccl"] is False
    lines = nccl_log(2, hosts=1, environment=["NCCL_P2P_DISABLE=1"])
    (run / "nccl/node0.100").write_text("\n".join(lines).replace("P2P/CUMEM", via))
    analysis = analysed(run)
    assert analysis.verdict.cause is Cause.COMMUNICATION
    assert analysis.job_time is not None
    assert next(layer for layer in analysis.job_time.layers if layer.layer == "nccl").agrees is agrees
    assert analysis.verdict.actions[0] == (action or alone.verdict.actions[0])
    assert (analysis.verdict == alone.verdict) is not agrees


def test_a_run_with_a_damaged_manifest_takes_its_size_from_what_there_is(tmp_path: Path, shared_traces: Path) -> None:
    run = write_run(tmp_path / "run")
    (run / "run.json").write_text("{}")
    hang_into(run, shared_traces)
    (run / "nccl/node0.100").write_text("\n".join(nccl_log(environment=["NCCL_IB_DISABLE=1"])))
    analysis = analysed(run)
    assert analysis.verdict.ranks == [2]
    assert any("ranks 0–3 use NET/Socket: NCCL_IB_DISABLE=1" in notice.message for notice in analysis.warnings)


def test_a_log_of_an_earlier_attempt_is_not_used(tmp_path: Path) -> None:
    later = {"start_ns": 2**62, "end_ns": None, "ended": None, "world_size": 4}
    earlier = {"start_ns": BEGIN_NS, "end_ns": 2**61, "ended": "exception", "world_size": 4}
    run = write_run(tmp_path / "run", attempts=[earlier, later])
    (run / "nccl/node0.100").write_text("\n".join(nccl_log()))
    analysis = analysed(run)
    assert "nccl" not in layers(analysis)
    assert any("of an earlier attempt" in notice.message for notice in analysis.warnings)
