"""Recording over real connections: one bad agent hurts no other, gaps have reasons, targets come and go."""

from __future__ import annotations

import gzip
import json
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from itertools import pairwise
from pathlib import Path

import bcrypt
import pytest

from benchmarks.agent.real_agent import started_agent
from stepscope.agent.web.routes import Access, Reply, Route
from stepscope.agent.web.server import AgentServer, ListenAddress
from stepscope.agent.web.web_config import WebConfigReloader
from stepscope.core.errors import DataError, UsageError
from stepscope.store.history.questions import HistoryEventKind
from stepscope.workflow.history import service
from stepscope.workflow.history.own_page import recording_page
from stepscope.workflow.history.pages import PageLimits, PageReader
from stepscope.workflow.history.service import Recording, RecordingPlan, status_line
from stepscope.workflow.nodes.targets import AgentSources
from tests.agent.web.certificates import self_signed
from tests.collectors.fake_nvml import profiles
from tests.collectors.fake_nvml.library import FakeNvml, build_fake_nvml
from tests.workflow.history.sinks import MemoryStore, PageServer, answer, closed_port, drip, hang

_PLAN = RecordingPlan(interval=0.4, timeout=0.25, targets_interval=0.2)


@contextmanager
def _recording(
    store: MemoryStore, *urls: str, sources: tuple[str, ...] = (), plan: RecordingPlan = _PLAN
) -> Iterator[Recording]:
    """A recording in the background, which is stopped and written at the end."""
    recorder = Recording(store, AgentSources(urls, sources), plan)
    stop = threading.Event()
    thread = threading.Thread(target=recorder.run, args=(stop,))
    thread.start()
    try:
        yield recorder
    finally:
        stop.set()
        thread.join(20)
        assert not thread.is_alive()


def _until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


def _counting() -> Callable[[BaseHTTPRequestHandler], None]:
    """A page whose value is the number of the request."""
    numbers = iter(range(1, 1_000_000))

    def behave(handler: BaseHTTPRequestHandler) -> None:
        answer(b"a %d\n" % next(numbers))(handler)

    return behave


def test_samples_have_the_time_of_their_scrape_and_are_never_repeated() -> None:
    store = MemoryStore()
    with PageServer(_counting()) as server:
        with _recording(store, server.address) as recorder:
            _until(lambda: recorder.status().counts.scrapes >= 4)
        (values,) = store.values("a").values()
    assert [value for _, value in values] == [float(number) for number in range(1, len(values) + 1)]
    times = [time_ns for time_ns, _ in values]
    assert all(0.2e9 < later - earlier < 2e9 for earlier, later in pairwise(times))
    assert abs(times[-1] - time.time_ns()) < 10e9
    assert all(time_ns % 1_000_000 == 0 for time_ns in times)


def test_bad_agents_are_gaps_with_reasons_and_hurt_no_other(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="stepscope.workflow.history")
    store = MemoryStore()
    bad = {
        "timed_out": hang,
        "http_status": answer(b"broken\n", 500),
        "no_permission": answer(b"this needs a user\n", 401),
        "not_a_page": answer(b"<html>It works</html>\n"),
    }
    with ExitStack() as stack:
        good = stack.enter_context(PageServer(_counting()))
        reasons = {stack.enter_context(PageServer(behave)).address: reason for reason, behave in bad.items()}
        reasons[stack.enter_context(PageServer(drip)).address] = "timed_out"
        reasons[stack.enter_context(closed_port())] = "refused"
        reasons["nowhere.invalid:9455"] = "no_such_host"
        with _recording(store, good.address, *reasons) as recorder:
            _until(lambda: recorder.status().counts.scrapes >= 40)
            status = recorder.status()
    assert len(store.values("a")[good.address]) >= 4
    assert store.codes() == {address: [reason] for address, reason in reasons.items()}
    assert all(event.end_ns is None for event in store.events.values())
    assert {value for address in reasons for _, value in store.values("up")[address]} == {0.0}
    assert (status.num_up, status.num_down) == (1, len(reasons))
    for address in reasons:
        assert sum(address in record.getMessage() for record in caplog.records) <= 1
    assert sum("no page" in record.getMessage() for record in caplog.records) == len(reasons)


def test_a_slow_agent_has_one_open_request() -> None:
    store = MemoryStore()
    with PageServer(hang) as server, _recording(store, server.address) as recorder:
        _until(lambda: recorder.status().counts.failures["timed_out"] >= 3)
    # the server does not see that a request was given up: it counts all of them
    assert server.num_requests <= recorder.status().counts.scrapes + 1


def test_a_gap_ends_with_the_next_page(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="stepscope.workflow.history")
    store = MemoryStore()
    with PageServer(answer(b"a 1\n")) as server, _recording(store, server.address) as recorder:
        _until(lambda: recorder.status().num_up == 1)
        server.behave = answer(b"", 503)
        _until(lambda: recorder.status().num_down == 1)
        server.behave = answer(b"a 1\n")
        _until(lambda: recorder.status().num_up == 1)
    (event,) = store.events.values()
    assert (event.kind, event.code, event.text) == (HistoryEventKind.GAP, "http_status", "answers with HTTP status 503")
    assert event.end_ns is not None
    assert event.end_ns > event.start_ns
    values = [value for _, value in store.values("up")[server.address]]
    assert values[0] == values[-1] == 1.0
    assert 0.0 in values
    assert any("answers again after" in record.getMessage() for record in caplog.records)


def test_targets_are_read_again_and_one_that_vanishes_is_no_gap(tmp_path: Path) -> None:
    store, file = MemoryStore(), tmp_path / "targets.json"
    with PageServer(_counting()) as first, PageServer(_counting()) as second:
        group = '[{{"targets": ["{}"], "labels": {{"rack": "r1", "__meta_x": "y"}}}}]'
        file.write_text(group.format(first.address))
        with _recording(store, sources=(str(file),)) as recorder:
            _until(lambda: recorder.status().num_up == 1)
            file.write_text(group.format(second.address))
            _until(lambda: second.num_requests >= 2)
            _until(lambda: recorder.status().num_targets == 1)
            file.write_text("not a list")
            before = second.num_requests
            _until(lambda: second.num_requests >= before + 2)
    assert store.values("a").keys() == {first.address, second.address}
    assert store.events == {}
    labels = {labels for block in store.blocks for labels in block.entities}
    assert {dict(one).get("rack") for one in labels} == {"r1"}
    assert not any(name.startswith("__") for one in labels for name, _ in one)


def test_an_agent_that_is_named_twice_is_scraped_once(tmp_path: Path) -> None:
    store, file = MemoryStore(), tmp_path / "targets.json"
    with PageServer(_counting()) as server:
        file.write_text(f'[{{"targets": ["{server.address}"], "labels": {{"rack": "r1"}}}}]')
        with _recording(store, server.address, server.address, sources=(str(file),)) as recorder:
            _until(lambda: recorder.status().counts.scrapes >= 4)
            assert recorder.status().num_targets == 1
    assert store.blocks
    assert {dict(labels).get("rack") for labels in store.blocks[-1].entities} == {"r1"}


def test_targets_that_have_the_same_labels_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    targets = tmp_path / "targets.json"
    with PageServer(_counting()) as first, PageServer(_counting()) as second:
        found = [{"targets": [server.address], "labels": {"instance": "n0"}} for server in (first, second)]
        targets.write_text(json.dumps(found))
        with _recording(store, sources=(str(targets),)) as recorder:
            _until(lambda: recorder.status().counts.scrapes >= 2)
    assert store.values("a").keys() == {"n0"}
    assert "1 target left out: their labels are those of another one" in caplog.text


def test_pages_may_be_packed_and_bombs_are_too_large() -> None:
    def packed(content: bytes) -> Callable[[BaseHTTPRequestHandler], None]:
        def behave(handler: BaseHTTPRequestHandler) -> None:
            assert handler.headers["Accept-Encoding"] == "gzip"
            body = gzip.compress(content)
            handler.send_response(200)
            handler.send_header("Content-Encoding", "gzip")
            handler.send_header("Content-Length", str(len(body)))
            handler.end_headers()
            handler.wfile.write(body)

        return behave

    store = MemoryStore()
    with (
        PageServer(packed(b"a 7\n")) as good,
        PageServer(packed(b"\n" * (9 << 20))) as bomb,
        _recording(store, good.address, bomb.address) as recorder,
    ):
        _until(lambda: (recorder.status().num_up, recorder.status().num_down) == (1, 1))
    assert {value for _, value in store.values("a")[good.address]} == {7.0}
    assert store.codes() == {bomb.address: ["too_large"]}


def test_labels_of_the_recorder_are_on_all_series() -> None:
    store = MemoryStore()
    plan = RecordingPlan(0.3, 0.2, {"cluster": "east"})
    with (
        PageServer(answer(b'a{cluster="x"} 1\n')) as server,
        _recording(store, server.address, plan=plan) as recorder,
    ):
        _until(lambda: recorder.status().num_up == 1)
    labels = {labels for block in store.blocks for labels in block.entities}
    assert {dict(one)["cluster"] for one in labels} == {"east"}
    assert "x" in {dict(one).get("exported_cluster") for one in labels}


def test_one_line_says_what_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    plan = RecordingPlan(0.3, 0.2, limits=PageLimits(metrics=1))
    with PageServer(answer(b"a 1\na 2\nb 1\n")) as server, _recording(store, server.address, plan=plan) as recorder:
        _until(lambda: recorder.status().counts.scrapes >= 3)
        counts = recorder.status().counts
    assert counts.left_out["limit"] >= 3
    assert counts.left_out["duplicate"] >= 3
    lines = [record.getMessage() for record in caplog.records if server.address in record.getMessage()]
    assert lines == [
        f"{server.address}: 1 series came twice on its page; the first counts",
        f"{server.address}: 1 series are beyond the limits of a target, and left out",
    ]


def test_a_store_that_was_taken_ends_the_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "FLUSH_SECONDS", 0.1)

    class Taken(MemoryStore):
        def flush(self) -> bool:
            raise DataError("another recorder has it", where="history")

    with pytest.raises(DataError, match="another recorder"):
        Recording(Taken(), AgentSources(("127.0.0.1:9",)), _PLAN).run(threading.Event())


def test_one_answer_that_breaks_the_reader_stops_no_other(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    read = PageReader.read

    def broken(self: PageReader, content: bytes, *, seconds: float, now: float) -> object:
        if content == b"a 2\n":
            raise RuntimeError("a bug")
        return read(self, content, seconds=seconds, now=now)

    monkeypatch.setattr(PageReader, "read", broken)
    store = MemoryStore()
    with PageServer(_counting()) as server, _recording(store, server.address) as recorder:
        _until(lambda: recorder.status().counts.samples >= 3)
    (values,) = store.values("a").values()
    assert [value for _, value in values][:2] == [1.0, 3.0]
    assert "an answer could not be recorded" in caplog.text


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError, match="is not the address of an agent"):
        Recording(MemoryStore(), AgentSources(("http://n1/metrics",)), _PLAN)


def test_its_own_page_counts_all() -> None:
    store = MemoryStore()
    with PageServer(answer(b"a 1\n")) as server, closed_port() as closed:
        with _recording(store, server.address, closed) as recorder:
            _until(lambda: (recorder.status().num_up, recorder.status().num_down) == (1, 1))
            page = recording_page(recorder.status())
        status = recorder.status()
    groups = PageReader((("instance", "recorder"),)).read(page.encode(), seconds=0.0, now=0.0).groups
    values = {metric for group in groups for metric in group.metrics}
    assert "stepscope_history_flush_age_seconds" in values
    assert 'stepscope_history_targets{state="up"} 1\nstepscope_history_targets{state="down"} 1\n' in page
    assert 'stepscope_history_scrape_failures_total{reason="refused"} ' in page
    assert 'stepscope_history_open_events{kind="gap"} 1\n' in page
    assert status_line(status).startswith("1 of 2 targets up; ")
    assert status.counts.flushes == store.num_flushes >= 1


@contextmanager
def _guarded_agent(folder: Path) -> Iterator[tuple[AgentServer, Path]]:
    """An agent's server with TLS and one user, and its certificate."""
    cert, key = self_signed(folder, "agent")
    hashed = bcrypt.hashpw(b"right", bcrypt.gensalt(4)).decode()
    config = folder / "web.yml"
    config.write_text(
        f"tls_server_config: {{cert_file: {cert}, key_file: {key}}}\nbasic_auth_users: {{ann: {hashed}}}\n"
    )
    guard = WebConfigReloader(config)
    route = Route("GET", "/metrics", lambda _: Reply(HTTPStatus.OK, b"a 1\n"))
    with AgentServer(ListenAddress("127.0.0.1", 0), [route], Access(None, guard), guard) as server:
        yield server, cert


@pytest.mark.parametrize(
    ("user", "trusts", "reason"),
    [
        ("ann:right@", True, None),
        ("ann:wrong@", True, "no_permission"),
        ("", True, "no_permission"),
        ("ann:right@", False, "tls"),
    ],
)
def test_users_and_certificates(user: str, trusts: bool, reason: str | None, tmp_path: Path) -> None:
    store = MemoryStore()
    with _guarded_agent(tmp_path) as (server, cert):
        address = server.url.removeprefix("https://")
        agents = AgentSources((f"https://{user}{address}",), (), {"ca_file": str(cert) if trusts else ""})
        recorder = Recording(store, agents, RecordingPlan(1.0, 0.9))
        stop = threading.Event()
        thread = threading.Thread(target=recorder.run, args=(stop,))
        thread.start()
        _until(lambda: recorder.status().counts.scrapes >= 1)
        stop.set()
        thread.join(20)
    assert store.codes() == ({} if reason is None else {address: [reason]})
    assert {value for _, value in store.values("up")[address]} == {float(reason is None)}


def test_a_real_agent_on_a_made_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = FakeNvml(build_fake_nvml(tmp_path / "library"), tmp_path / "nvml.conf")
    machine.add(profiles.h100(0))
    machine.write()
    environment = machine.environment() | {"STEPSCOPE_AGENT__KINETO__ENABLED": "false"}
    store = MemoryStore()
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # it has one to end with its parent
    with started_agent(tmp_path, environment=environment) as agent:
        address = f"127.0.0.1:{agent.port}"
        with _recording(store, address, plan=RecordingPlan(1.0, 0.9)) as recorder:
            _until(lambda: bool(recorder.status().counts.samples > 100))
    values = [value for _, value in store.values("stepscope_gpu_power_watts")[address]]
    assert set(values) == {71.722}
    assert store.codes() == {}
    assert recorder.status().counts.left_out.total() == 0


def test_a_clock_that_is_set_is_one_line_and_stops_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ahead, real, real_ns = [0.0], time.time, time.time_ns
    monkeypatch.setattr(time, "time", lambda: real() + ahead[0])
    monkeypatch.setattr(time, "time_ns", lambda: real_ns() + int(ahead[0] * 1e9))
    store = MemoryStore()
    with PageServer(_counting()) as server:
        with _recording(store, server.address) as recorder:
            _until(lambda: recorder.status().counts.scrapes >= 2)
            ahead[0] = -3600.0
            before = recorder.status().counts.scrapes
            _until(lambda: recorder.status().counts.scrapes >= before + 3)
        (values,) = store.values("a").values()
    assert sorted(value for _, value in values) == [float(number) for number in range(1, len(values) + 1)]
    assert sum("the clock was set by -3600 s" in record.getMessage() for record in caplog.records) == 1
    assert store.events == {}
