"""Open spans: named in the trace as given, and free of effect without a profiler."""

from __future__ import annotations

from typing import Any

import pytest

from stepscope.training.steps.spans import OpenSpans

torch = pytest.importorskip("torch")


def _spans() -> OpenSpans:
    spans = OpenSpans(lambda error: pytest.fail(str(error)))
    spans.begin()
    return spans


def test_under_a_profiler_they_are_annotations() -> None:
    spans = _spans()
    before = spans.open("before")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        spans.close(before)
        within = spans.open("within")
        assert spans.names() == ["within"]
        spans.close(within)
    events: list[Any] = [event for event in profiler.events() if event.name in {"before", "within"}]
    assert [(event.name, event.is_user_annotation) for event in events] == [("within", True)]


@pytest.mark.parametrize(("daemon", "is_made"), [("", False), ("1", True)])
def test_while_nobody_can_record_them_torch_makes_none(
    monkeypatch: pytest.MonkeyPatch, daemon: str, is_made: bool
) -> None:
    monkeypatch.setenv("KINETO_USE_DAEMON", daemon)
    spans = _spans()
    opened = spans.open("step")
    assert isinstance(opened.span, torch.profiler.record_function) is is_made
    assert spans.names() == ["step"]
    spans.close_all()
    spans.close(opened)  # a second time is nothing
    assert spans.names() == []


def test_off_opens_nothing() -> None:
    spans = OpenSpans(lambda _: None)
    spans.begin()
    spans.end()
    assert spans.open("step") is None
    spans.close(None)
