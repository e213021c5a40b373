"""Another torch profiler is detected before it starts, and torch is left unchanged."""

from __future__ import annotations

from typing import Any

import pytest

from stepscope.training.captures.recording import OtherProfilerWatch

torch = pytest.importorskip("torch")


def _begin_and_end() -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        pass


def test_it_is_told_while_it_watches_and_torch_is_itself_again() -> None:
    from torch.autograd.profiler import profile

    before = dict(vars(profile))
    told: list[bool] = []
    watch = OtherProfilerWatch(lambda: told.append(torch._C._autograd._profiler_enabled()))
    watch.start()
    watch.start()
    _begin_and_end()
    assert told
    assert not told[0]  # before it begins
    num_told = len(told)
    watch.stop()
    watch.stop()
    _begin_and_end()
    assert len(told) == num_told
    assert dict(vars(profile)) == before


def test_a_wrapper_around_ours_stays_and_ours_says_nothing_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.autograd.profiler import profile

    monkeypatch.setattr(profile, "_start_trace", profile._start_trace)  # which is put back in the end
    told: list[None] = []
    watch = OtherProfilerWatch(lambda: told.append(None))
    watch.start()
    ours: Any = profile._start_trace

    def theirs(self: Any) -> Any:
        return ours(self)

    monkeypatch.setattr(profile, "_start_trace", theirs)
    watch.stop()
    _begin_and_end()
    assert profile._start_trace is theirs
    assert told == []
