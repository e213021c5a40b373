"""Whether a run counts as still written."""

from __future__ import annotations

import pytest

from stepscope.core.documents.run_directory import Attempt, RunManifest
from stepscope.core.documents.stored_runs import RunState
from stepscope.core.documents.upload import NodeUpload, UploadState
from stepscope.workflow.stored_runs.sizes import RunSizes
from stepscope.workflow.stored_runs.states import age_words, state_of

_NOW_NS = 1_790_000_000 * 10**9
_MINUTE, _HOUR, _DAY = 60.0, 3600.0, 86_400.0


def _written(seconds: float) -> RunSizes:
    sizes = RunSizes()
    sizes.add("run.json", 10, _NOW_NS - int(seconds * 1e9))
    return sizes


def _manifest(*ends_ns: int | None) -> RunManifest:
    attempts = [Attempt(1, end, None if end is None else "finished", 2) for end in ends_ns]
    return RunManifest("r", "h", 2, {}, 1, {}, {}, attempts)


@pytest.mark.parametrize(
    ("seconds", "ends_ns", "state"),
    [
        (5 * _MINUTE, (2,), RunState.RUNNING),
        (11 * _MINUTE, (2,), RunState.ENDED),
        (11 * _MINUTE, (2, None), RunState.RUNNING),
        (23 * _HOUR, (None,), RunState.RUNNING),
        (25 * _HOUR, (None,), RunState.KILLED),
        (25 * _HOUR, (None, 2), RunState.ENDED),
        (-_HOUR, (2,), RunState.RUNNING),  # by the clock of another host
    ],
)
def test_by_its_end_and_its_last_write(seconds: float, ends_ns: tuple[int | None, ...], state: RunState) -> None:
    assert state_of(_written(seconds), _manifest(*ends_ns), [], None, _NOW_NS)[0] is state


def test_a_run_without_a_manifest_is_quiet_after_a_day() -> None:
    assert state_of(_written(23 * _HOUR), None, [], None, _NOW_NS)[0] is RunState.RUNNING
    assert state_of(_written(25 * _HOUR), None, [], None, _NOW_NS)[0] is RunState.UNRECORDED


def test_an_open_file_counts_whatever_the_times_say() -> None:
    state, why = state_of(_written(40 * _DAY), _manifest(2), [], "steps/rank3.jsonl", _NOW_NS)
    assert (state, why) == (RunState.RUNNING, "a process writes steps/rank3.jsonl")


def test_a_store_without_times_has_no_old_runs() -> None:
    sizes = RunSizes()
    sizes.add("run.json", 10, None)
    assert state_of(sizes, _manifest(2), [], None, _NOW_NS)[0] is RunState.RUNNING


@pytest.mark.parametrize(
    ("state", "days", "is_written"),
    [(UploadState.UPLOADING, 6.0, True), (UploadState.UPLOADING, 8.0, False), (UploadState.FINISHED, 0.1, False)],
)
def test_an_unfinished_upload_keeps_a_run_for_a_week(state: UploadState, days: float, is_written: bool) -> None:
    uploads = [
        NodeUpload("r", "node1", state=UploadState.FINISHED, updated_ns=_NOW_NS),
        NodeUpload("r", "node2", state=state, updated_ns=_NOW_NS - int(days * _DAY * 1e9)),
    ]
    found, why = state_of(_written(30 * _DAY), _manifest(2), uploads, None, _NOW_NS)
    assert found.is_written is is_written
    assert ("node2" in why) is is_written


@pytest.mark.parametrize(
    ("seconds", "words"), [(40.0, "40 s"), (720.0, "12 min"), (3 * _HOUR, "3 h"), (41 * _DAY, "41 d")]
)
def test_ages_read_well(seconds: float, words: str) -> None:
    assert age_words(seconds) == words
