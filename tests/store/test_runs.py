"""Run store: finds runs, reports their state, and keeps their results."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.core.documents.run_directory import LIVE_VERDICT_FILE, RankTimeline
from stepscope.core.errors import DataError
from stepscope.core.protocol.verdicts import LiveVerdict, live_verdict_document
from stepscope.core.vocabulary import CATEGORY_ORDER, Cause
from stepscope.store.documents import decode_analysis, decode_timelines, encode_document, encode_timelines
from stepscope.store.runs import NotAnalysedError, RunStatus, RunStore, UnknownRunError, save_analysis
from tests.dashboard import example_run as example
from tests.workflow.written_runs import write_run


def test_an_analysis_survives_the_way_to_disk_and_back(tmp_path: Path) -> None:
    written = example.write_run(tmp_path)

    assert RunStore(tmp_path).load_analysis("h100-2x2x2-pp-few") == written


def test_time_lines_survive_the_way_to_disk_and_back(tmp_path: Path) -> None:
    example.write_run(tmp_path)

    assert RunStore(tmp_path).load_timeline("h100-2x2x2-pp-few") == example.make_timelines()


def test_the_document_names_its_schema_first() -> None:
    analysis = example.make_analysis(example.make_timelines())
    content = encode_document(analysis)

    assert content.startswith(b'{"schema":"stepscope.analysis/1","job":{"world_size":8')
    assert decode_analysis(content) == analysis


def test_a_summary_says_what_the_verdict_costs(tmp_path: Path) -> None:
    analysis = example.write_run(tmp_path)
    row = next(row for row in analysis.root_causes if row.cause is Cause.PIPELINE_BUBBLE)

    (summary,) = RunStore(tmp_path).list_runs()

    assert summary.status is RunStatus.ANALYSED
    assert (summary.cause, summary.cause_fraction, summary.cause_ms_per_step) == (
        row.cause,
        row.fraction,
        row.ms_per_step,
    )
    assert (summary.world_size, summary.mesh.pp, summary.started_ns) == (8, 2, example.ORIGIN_NS)
    assert (summary.gpu, summary.device_kind) == (analysis.job.gpu, analysis.job.device_kind)
    assert summary.problem is None


def test_runs_are_found_by_any_of_three_signs_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "only-traces" / "traces").mkdir(parents=True)
    (tmp_path / "only-analysis").mkdir()
    save_analysis(tmp_path / "only-analysis", example.make_analysis(example.make_timelines()))
    (tmp_path / "only-manifest").mkdir()
    example.write_manifest(tmp_path / "only-manifest", "only-manifest")
    (tmp_path / "something-else").mkdir()
    (tmp_path / ".hidden" / "traces").mkdir(parents=True)
    (tmp_path / "a-file").write_text("x")

    found = {run.id: run.status for run in RunStore(tmp_path).list_runs()}

    assert found == {
        "only-traces": RunStatus.NOT_ANALYSED,
        "only-analysis": RunStatus.ANALYSED,
        "only-manifest": RunStatus.NOT_ANALYSED,
    }


def test_the_latest_run_comes_first(tmp_path: Path) -> None:
    for name, started in (("old", 10), ("new", 30), ("middle", 20)):
        (tmp_path / name).mkdir()
        example.write_manifest(tmp_path / name, name, started_ns=started)
    (tmp_path / "undated" / "traces").mkdir(parents=True)

    assert [run.id for run in RunStore(tmp_path).list_runs()] == ["new", "middle", "old", "undated"]


def test_the_root_itself_may_be_the_run(tmp_path: Path) -> None:
    written = example.write_run(tmp_path, "alone")
    store = RunStore(tmp_path / "alone")

    assert [run.id for run in store.list_runs()] == ["alone"]
    assert store.load_analysis("alone") == written
    with pytest.raises(UnknownRunError):
        store.load_analysis("other")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[]",
        b'{"schema": "stepscope.analysis/1"}',
        b'{"schema": "stepscope.analysis/2"}',
        b"null",
        b'{"schema": "stepscope.analysis/1", "unknown": ' + b"[" * 200_000,
    ],
)
def test_a_damaged_analysis_is_one_line_that_names_the_file(tmp_path: Path, content: bytes) -> None:
    directory = tmp_path / "broken"
    directory.mkdir()
    (directory / "analysis.json").write_bytes(content)
    store = RunStore(tmp_path)

    (summary,) = store.list_runs()
    with pytest.raises(DataError) as caught:
        store.load_analysis("broken")

    assert summary.status is RunStatus.UNREADABLE
    assert summary.problem == str(caught.value)
    assert "broken/analysis.json" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_analysed_run_with_a_damaged_manifest_stays_readable_and_says_so(tmp_path: Path) -> None:
    example.write_run(tmp_path, "half")
    (tmp_path / "half" / "run.json").write_text("{")

    (summary,) = RunStore(tmp_path).list_runs()

    assert summary.status is RunStatus.ANALYSED
    assert summary.problem is not None
    assert "run.json" in summary.problem


@pytest.mark.parametrize(
    "damage",
    [
        b'{"unknown": ' + b"[" * 200_000,
        b'{"attempts": [{"start_ns": 400000000000000000000, "end_ns": null, "ended": null, "world_size": 1}]}',
        b'{"attempts": [{"start_ns": -1, "end_ns": null, "ended": null, "world_size": 1}]}',
        b'{"world_size": 1' + b"0" * 5000 + b"}",
        b'{"mesh": {"tp": 18446744073709551616}}',
    ],
    ids=["deep", "late", "early", "huge", "mesh"],
)
def test_one_bad_manifest_leaves_the_rest_of_the_list_alone(tmp_path: Path, damage: bytes) -> None:
    for name in ("good", "bad"):
        (tmp_path / name).mkdir()
        example.write_manifest(tmp_path / name, name)
    good = (tmp_path / "bad" / "run.json").read_bytes()
    # msgspec lets the last of two equal keys win, so the damage comes after what it replaces
    (tmp_path / "bad" / "run.json").write_bytes(good.rstrip(b"}") + b"}," + damage.lstrip(b"{"))

    runs = {run.id: run for run in RunStore(tmp_path).list_runs()}

    assert (runs["good"].status, runs["good"].problem) == (RunStatus.NOT_ANALYSED, None)
    assert runs["bad"].status is RunStatus.UNREADABLE
    assert "bad/run.json" in (runs["bad"].problem or "")
    assert len(runs["bad"].problem or "") < 500


def test_a_job_of_impossible_size_is_refused(tmp_path: Path) -> None:
    analysis = example.write_run(tmp_path, "vast")
    save_analysis(tmp_path / "vast", replace(analysis, job=replace(analysis.job, world_size=10**20)))

    (summary,) = RunStore(tmp_path).list_runs()

    assert summary.status is RunStatus.UNREADABLE
    assert "1e+20" in (summary.problem or "")


def test_a_name_longer_than_the_file_system_takes_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(UnknownRunError):
        RunStore(tmp_path).path_of("x" * 5000)


def test_a_run_without_analysis_says_which_command_makes_one(tmp_path: Path) -> None:
    (tmp_path / "fresh" / "traces").mkdir(parents=True)

    with pytest.raises(NotAnalysedError, match=r"stepscope analyze .*fresh"):
        RunStore(tmp_path).load_analysis("fresh")


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../secret", "/etc", "a/b", "a\\b", ".hidden", "a\0b", "a\nb", "missing"]
)
def test_no_name_leads_out_of_the_root(tmp_path: Path, name: str) -> None:
    root = tmp_path / "runs"
    (root / ".hidden" / "traces").mkdir(parents=True)
    (root / "a" / "b" / "traces").mkdir(parents=True)
    (tmp_path / "secret" / "traces").mkdir(parents=True)

    with pytest.raises(UnknownRunError):
        RunStore(root).path_of(name)


def test_a_missing_root_is_a_data_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="--runs"):
        RunStore(tmp_path / "nowhere").list_runs()


def test_a_changed_file_is_seen_the_next_time(tmp_path: Path) -> None:
    (tmp_path / "run" / "traces").mkdir(parents=True)
    store = RunStore(tmp_path)
    before = store.get("run").status
    save_analysis(tmp_path / "run", example.make_analysis(example.make_timelines()))

    assert (before, store.get("run").status) == (RunStatus.NOT_ANALYSED, RunStatus.ANALYSED)


def test_the_live_verdict_is_of_a_run_that_has_not_ended(tmp_path: Path) -> None:
    run, verdict = write_run(tmp_path / "r", num_steps=3), LiveVerdict("r", 5, "copy", 0.5)
    store, file = RunStore(tmp_path), run / LIVE_VERDICT_FILE
    assert store.get("r").live_verdict is None
    file.write_text(json.dumps(live_verdict_document(verdict)))
    assert store.get("r").live_verdict == verdict
    for content in (b"", b"[" * 10_000, b" " * 100_000, json.dumps({"schema": "x"}).encode()):
        file.write_bytes(content)
        assert store.get("r").live_verdict is None
    file.write_text(json.dumps(live_verdict_document(verdict)))
    manifest = json.loads((run / "run.json").read_bytes())
    manifest["attempts"][0]["end_ns"] = 7
    (run / "run.json").write_text(json.dumps(manifest))
    assert store.get("r").live_verdict is None


def test_a_write_that_fails_leaves_the_old_file_and_no_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    example.write_run(tmp_path, "run")
    before = (tmp_path / "run" / "analysis.json").read_bytes()

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", refuse)
    with pytest.raises(DataError, match="No space left"):
        save_analysis(tmp_path / "run", example.make_analysis(example.make_timelines(seed=8)))

    assert (tmp_path / "run" / "analysis.json").read_bytes() == before
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["analysis.json", "run.json", "timeline.json"]


@given(
    start=st.integers(0, 2**62),
    slices=st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, len(CATEGORY_ORDER) - 1)), max_size=40),
)
def test_any_time_line_survives_its_document(start: int, slices: list[tuple[int, int]]) -> None:
    starts, clock = [], start
    for duration, _ in slices:
        starts.append(clock)
        clock += duration
    line = RankTimeline(3, starts, clock, [code for _, code in slices], [start], [7])

    decoded = decode_timelines(encode_timelines([line]))

    assert [line] == decoded


def test_codes_follow_the_documents_own_list_of_headings() -> None:
    document = {
        "schema": "stepscope.timeline/1",
        "headings": ["host_bound", "compute_bound"],
        "ranks": [
            {
                "rank": 0,
                "start_ns": 5,
                "durations_ns": [2, 3],
                "headings": [1, 0],
                "step_starts_ns": [],
                "step_indices": [],
            }
        ],
    }

    (line,) = decode_timelines(msgspec.json.encode(document))

    assert [CATEGORY_ORDER[code].value for code in line.categories] == ["compute_bound", "host_bound"]
    assert (line.start_ns, line.end_ns) == ([5, 7], 10)


@pytest.mark.parametrize(
    "change",
    [{"headings": [0]}, {"headings": [0, 9]}, {"headings": [0, -1]}, {"durations_ns": [2, -3]}, {"step_indices": [1]}],
)
def test_lists_that_do_not_fit_together_are_refused(change: dict[str, list[int]]) -> None:
    row = {
        "rank": 0,
        "start_ns": 5,
        "durations_ns": [2, 3],
        "headings": [0, 0],
        "step_starts_ns": [],
        "step_indices": [],
    }
    document = {"schema": "stepscope.timeline/1", "headings": ["host_bound"], "ranks": [{**row, **change}]}

    with pytest.raises(DataError, match="rank 0"):
        decode_timelines(msgspec.json.encode(document))


@pytest.mark.parametrize(
    "change",
    [
        {"start_ns": 2**63},
        {"start_ns": -1},
        {"durations_ns": [2**63]},
        {"step_starts_ns": [2**63], "step_indices": [0]},
        {"step_starts_ns": [5], "step_indices": [10**30]},
        {"rank": 2**64},
    ],
)
def test_times_that_no_64_bits_hold_are_refused(change: dict[str, object]) -> None:
    row = {"rank": 0, "start_ns": 5, "durations_ns": [2], "headings": [0], "step_starts_ns": [], "step_indices": []}
    document = {"schema": "stepscope.timeline/1", "headings": ["host_bound"], "ranks": [{**row, **change}]}

    with pytest.raises(DataError, match="impossible size or time"):
        decode_timelines(json.dumps(document).encode())


def test_an_unknown_heading_is_refused_by_name() -> None:
    document = {"schema": "stepscope.timeline/1", "headings": ["daydreaming"], "ranks": []}

    with pytest.raises(DataError, match="daydreaming"):
        decode_timelines(msgspec.json.encode(document))
