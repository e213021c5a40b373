"""What-if of jobs that are too large to replay."""

from __future__ import annotations

import pytest

from stepscope.analyzer.what_if.predictions import MAX_SLOTS, replay_causes
from stepscope.core.documents.analysis import RootCause
from stepscope.core.vocabulary import Cause


def test_a_replay_of_too_many_events_is_not_built() -> None:
    straggler = RootCause(Cause.STRAGGLER, [], 0.4, 40.0, (0.4, 0.4), [3], [])

    def build() -> None:
        pytest.fail("it is built")

    what_if, (notice,) = replay_causes(build, [straggler], None, num_events=MAX_SLOTS + 1)
    assert (what_if, notice.code) == ([], "what_if_too_large")
    assert "10,000,001 events to replay; run: stepscope whatif" in notice.message
    assert replay_causes(build, [], None, num_events=MAX_SLOTS + 1) == ([], [])
