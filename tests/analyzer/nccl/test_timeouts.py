"""torch's timeouts tell who waits, who is behind and who did not wait, and no more than the lines show."""

from __future__ import annotations

import pytest

from stepscope.analyzer.nccl import explain_nccl
from stepscope.core.documents.nccl import NcclFinding
from stepscope.core.documents.nccl_facts import GroupProgress, LogEvent, LogPlace, TimedOut, WatchdogStuck

_PLACE = LogPlace("log", 1)


def _timed_out(rank: int, sequence: int | None = 5, *, group: str | None = None, size: int | None = None) -> TimedOut:
    return TimedOut(_PLACE, rank, sequence, "_ALLGATHER_BASE", 600_000, group, size)


def _finding(*events: LogEvent) -> NcclFinding:
    (finding,) = explain_nccl(events).findings
    return finding


@pytest.mark.parametrize(
    ("events", "said"),
    [
        # pytorch#118369
        ([TimedOut(_PLACE, 0, 96117, "ALLREDUCE", 1), TimedOut(_PLACE, 7, 64088, "ALLREDUCE", 1)],
         "they did not make the same number of calls; rank 7 is 32,029 calls behind"),
        # pytorch-lightning#20832
        ([TimedOut(_PLACE, 0, 41, "ALLREDUCE", 1), *[TimedOut(_PLACE, rank, 40, "BROADCAST", 1) for rank in (1, 2)]],
         "they do not call the same in the same order; ranks 1–2 are 1 call behind"),
        ([TimedOut(_PLACE, 0, 9, "ALLREDUCE", 1), TimedOut(_PLACE, 1, 9, "BROADCAST", 1)],
         "rank 0 in ALLREDUCE 9; rank 1 in BROADCAST 9: they do not call the same in the same order"),
    ],
)  # fmt: skip
def test_who_is_behind_and_by_how_many_calls(events: list[LogEvent], said: str) -> None:
    finding = _finding(*events)
    assert finding.code == "desync"
    assert finding.message.endswith(said)


def test_the_group_is_taken_from_the_line_that_names_it() -> None:
    finding = _finding(_timed_out(0), GroupProgress(_PLACE, 0, "7(tp)", 5, 5, 4))
    assert finding.message == "rank 0 waited in _ALLGATHER_BASE 5 of group 7(tp) until torch's timeout"


def test_equal_calls_without_a_group_are_of_the_group_of_the_others() -> None:
    """LlamaFactory#7396: ranks write into each other's lines, and one told only the second time."""
    finding = _finding(
        _timed_out(0), _timed_out(4), GroupProgress(_PLACE, 0, "1", 5, 7, 4), GroupProgress(_PLACE, 3, "1", 5, 7, 4)
    )
    assert (finding.code, finding.ranks) == ("timeout", [0, 3, 4])
    assert finding.message.endswith("(at least 2 further calls were enqueued)")


@pytest.mark.parametrize(
    ("events", "code", "ranks"),
    [
        # the group has all ranks that are known: who is left did not wait
        ([*(_timed_out(rank, group="1", size=4) for rank in (0, 1, 3))], "silent_rank", [2]),
        # the last rank is known by a line of its own alone
        ([*(_timed_out(rank, group="1", size=4) for rank in (0, 1, 2)), GroupProgress(_PLACE, 3, "0", None)],
         "silent_rank", [3]),
        # a group of four among eight ranks may be any four
        ([*(_timed_out(rank, group="1", size=4) for rank in (0, 1, 3)), GroupProgress(_PLACE, 7, "0", None)],
         "timeout", [0, 1, 3]),
        # more ranks are missing than present: their logs are
        ([_timed_out(0, group="1", size=4), GroupProgress(_PLACE, 3, "0", None)], "timeout", [0]),
        ([_timed_out(0), _timed_out(10**17)], "timeout", [0, 10**17]),  # a damaged number
    ],
)  # fmt: skip
def test_who_did_not_wait_is_known_only_where_all_of_the_group_are(
    events: list[LogEvent], code: str, ranks: list[int]
) -> None:
    finding = _finding(*events)
    assert (finding.code, finding.ranks) == (code, ranks)


def test_ranks_that_wait_in_another_group_are_not_silent_in_this_one() -> None:
    """Even ranks in one tensor-parallel group, odd ones in another, as many as the size of either tells."""
    events = [_timed_out(rank, rank % 2, group=f"{rank % 2}(tp)", size=4) for rank in range(4)]
    assert [one.code for one in explain_nccl(events).findings] == ["timeout", "timeout"]


@pytest.mark.parametrize(
    ("lines", "said"), [([GroupProgress(_PLACE, 2, "0", None)], "did not"), ([], "has no timeout")]
)
def test_a_rank_without_any_line_is_not_said_to_be_alive(lines: list[LogEvent], said: str) -> None:
    finding = _finding(*(_timed_out(rank) for rank in (0, 1, 3)), *lines)
    assert finding.ranks == [2]
    assert f"rank 2 {said}" in finding.message


def test_a_timeout_without_a_number() -> None:
    """torch before 2.0."""
    assert _finding(_timed_out(3, None)).message.startswith("rank 3 waited in _ALLGATHER_BASE until torch's timeout")


def test_a_watchdog_that_makes_no_progress_itself() -> None:
    """ArcticTraining#219."""
    finding = _finding(WatchdogStuck(_PLACE, 7, 480), WatchdogStuck(_PLACE, 5, 480))
    assert (finding.code, finding.ranks) == ("watchdog_stuck", [5, 7])
    assert "made no progress for 480 s" in finding.message
