"""Polling: a source is asked again and again, and reports what is wrong when it hangs or fails."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from stepscope.agent.polling import ScheduledSource, SharedThread, reason_of_no_values
from stepscope.core.metrics.readings import Collection, Finding, Missing, MissingReason, Reading, labels_of

_READING = Reading("stepscope_host_cpus", 2.0, (), 1)


class _Collector:
    """Gives what it is told to, or hangs until it is let go."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.go_on.set()
        self.fault: Exception | None = None
        self.num_calls = 0
        self.answer = Collection((_READING,))

    def collect(self) -> Collection:
        self.num_calls += 1
        self.go_on.wait(30)
        if self.fault is not None:
            raise self.fault
        return self.answer


def _until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.005)


@pytest.fixture
def collector() -> Iterator[_Collector]:
    made = _Collector()
    yield made
    made.go_on.set()


def test_it_collects_again_and_again(collector: _Collector) -> None:
    source = ScheduledSource("host", collector, interval=0.01)
    assert source.state().reason is MissingReason.NOT_YET
    with source:
        _until(lambda: source.state().num_collections >= 3)
        state = source.state()
    assert state.reason is None
    assert state.collection.readings == (_READING,)
    assert state.collected_ns is not None
    assert state.num_errors == 0
    after = collector.num_calls
    time.sleep(0.05)
    assert collector.num_calls == after


def test_sources_of_one_thread_run_in_order_and_each_at_its_interval() -> None:
    calls: list[str] = []

    class Named:
        def __init__(self, name: str) -> None:
            self.name = name

        def collect(self) -> Collection:
            calls.append(self.name)
            if self.name == "fails":
                raise ValueError("no")
            return Collection((_READING,))

    names = {"first": 0.05, "fails": 0.05, "rare": 60.0}
    sources = [ScheduledSource(name, Named(name), interval=interval) for name, interval in names.items()]

    def after_round() -> None:
        rounds.append(calls[-1])
        raise ValueError("a fault of what follows costs no source anything")

    rounds: list[str] = []
    with SharedThread(sources, after_round=after_round):
        _until(lambda: calls.count("first") >= 4)
    assert rounds[:2] == ["rare", "fails"]
    assert calls[:5] == ["first", "fails", "rare", "first", "fails"]
    assert calls.count("rare") == 1
    assert [source.state().reason for source in sources] == [None, MissingReason.FAILED, None]
    after = len(calls)
    time.sleep(0.1)
    assert len(calls) == after


def test_the_age_of_what_it_said_is_no_matter_of_the_clock(collector: _Collector) -> None:
    source = ScheduledSource("host", collector, interval=30, wall_clock_ns=lambda: 10**9)
    assert source.state().age_seconds is None
    with source:
        _until(lambda: source.state().num_collections == 1)
        first = source.state().age_seconds
        time.sleep(0.05)
        second = source.state().age_seconds
    assert first is not None
    assert second is not None
    assert 0 <= first <= second - 0.05 < 20


def test_a_failure_makes_what_was_said_before_no_younger(collector: _Collector) -> None:
    with ScheduledSource("host", collector, interval=0.02) as source:
        _until(lambda: source.state().num_collections >= 1)
        collector.fault = ValueError("no")
        _until(lambda: source.state().num_errors >= 5)
        assert (source.state().age_seconds or 0.0) > 0.05


def test_one_that_hangs_keeps_its_last_values_and_is_not_asked_twice(collector: _Collector) -> None:
    with ScheduledSource("host", collector, interval=0.01, deadline=0.1) as source:
        _until(lambda: source.state().num_collections >= 1)
        collector.go_on.clear()
        _until(lambda: source.state().reason is MissingReason.TIMED_OUT)
        state, calls = source.state(), collector.num_calls
        assert state.collection.readings == (_READING,)
        num_errors = state.num_errors  # one, but that on a busy machine another collection was late
        assert num_errors >= 1
        time.sleep(0.05)
        assert collector.num_calls == calls
        collector.go_on.set()
        _until(lambda: source.state().reason is None)
        assert source.state().num_errors == num_errors


def test_one_that_only_answers_not_yet_is_given_up_and_may_come_later(collector: _Collector) -> None:
    not_yet = Collection(missing=(Missing("", (), MissingReason.NOT_YET, "an empty page"),))
    collector.answer = not_yet
    with ScheduledSource("page", collector, interval=0.01, patience=0.2) as source:
        _until(lambda: source.state().num_collections >= 1)
        _until(lambda: source.state().reason is MissingReason.TIMED_OUT)
        assert source.state().detail == "an empty page; given up after 0 s"
        assert source.state().collection == not_yet
        assert source.state().num_errors == 0
        collector.answer = Collection((_READING,))
        _until(lambda: source.state().reason is None)
        collector.answer = not_yet  # it waits anew: the exporter reloads its settings
        _until(lambda: source.state().reason is MissingReason.NOT_YET)
        _until(lambda: source.state().reason is MissingReason.TIMED_OUT)


def test_several_that_hang_are_waited_for_at_once(collector: _Collector) -> None:
    collector.go_on.clear()
    sources = [ScheduledSource(str(number), collector, interval=0.01) for number in range(5)]
    with ExitStack() as opened:
        for source in sources:
            opened.enter_context(source)
        _until(lambda: collector.num_calls == 5)
        begin = time.monotonic()
        for source in sources:
            source.end()
    assert time.monotonic() - begin < 3


def test_one_that_hangs_for_ever_does_not_keep_the_agent(collector: _Collector) -> None:
    collector.go_on.clear()
    with ScheduledSource("host", collector, interval=0.01):
        _until(lambda: collector.num_calls == 1)
        begin = time.monotonic()
    assert time.monotonic() - begin < 5


def test_a_fault_of_a_collector_is_counted_and_said_and_gets_over(collector: _Collector) -> None:
    collector.fault = ValueError("not a number")
    with ScheduledSource("host", collector, interval=0.01) as source:
        _until(lambda: source.state().num_errors >= 2)
        state = source.state()
        assert state.reason is MissingReason.FAILED
        assert state.detail == "ValueError: not a number"
        collector.fault = None
        _until(lambda: source.state().reason is None)


def test_why_nothing_is_seen() -> None:
    no_log = Missing("stepscope_gpu_xid_errors_total", (), MissingReason.NO_PERMISSION, "root only")
    no_driver = Missing("", (), MissingReason.NOT_INSTALLED, "no driver")
    one_gpu = Missing("", labels_of(gpu=1), MissingReason.GONE)
    assert reason_of_no_values(Collection()) == (None, "")
    assert reason_of_no_values(Collection(missing=(no_log,))) == (MissingReason.NO_PERMISSION, "root only")
    assert reason_of_no_values(Collection((_READING,), (no_log,))) == (None, "")
    assert reason_of_no_values(Collection((), (no_log,), (Finding("sxid", "", (), 1),))) == (None, "")
    assert reason_of_no_values(Collection((_READING,), (no_driver,))) == (MissingReason.NOT_INSTALLED, "no driver")
    assert reason_of_no_values(Collection((_READING,), (one_gpu,))) == (None, "")
