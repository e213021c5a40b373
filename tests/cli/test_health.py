"""`stepscope health`: what agents keep is listed, and operators' notes reach the agent that they are for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepscope.agent.health.health_source import HealthSource
from stepscope.agent.polling import SourceState
from stepscope.agent.web.health_routes import health_routes
from stepscope.agent.web.routes import Access
from stepscope.agent.web.server import AgentServer, ListenAddress
from stepscope.cli import main
from stepscope.core.metrics.readings import GPU, Collection, Missing, MissingReason, Reading, labels_of, with_labels
from tests.agent.health.machines import SECOND

_TOKEN = "0123456789abcdef0123"
_NOBODY = "http://127.0.0.1:9"
_NOW = 1_786_000_000 * SECOND


class _Agent:
    """A machine of two GPUs with XID 119 and 94, and its agent's health API."""

    def __init__(self) -> None:
        self.now_ns = _NOW
        self.lost: set[int] = set()
        self.conditions: dict[str, float] = {}
        self.xids = {(0, 119): 1.0, (1, 94): 1.0}
        self.source = HealthSource(self._states, "nvml", wall_clock_ns=lambda: self.now_ns)
        self.look()

    def look(self) -> None:
        self.now_ns += 5 * SECOND
        self.source.collect()

    def _states(self) -> tuple[SourceState, ...]:
        labels = [labels_of(gpu=index, uuid=f"GPU-{index}") for index in range(2)]
        readings = [
            Reading(GPU + "up", float(gpu not in self.lost), one, self.now_ns) for gpu, one in enumerate(labels)
        ]
        missing = [Missing("", labels[gpu], MissingReason.GONE, "") for gpu in self.lost]
        readings += [
            Reading(GPU + "xid_errors_total", count, with_labels(labels[gpu], xid=xid), self.now_ns)
            for (gpu, xid), count in self.xids.items()
        ]
        readings += [Reading(GPU + name, value, labels[0], self.now_ns) for name, value in self.conditions.items()]
        return (SourceState("nvml", Collection(tuple(readings), tuple(missing)), self.now_ns, age_seconds=0.0),)


@pytest.fixture
def agent() -> _Agent:
    return _Agent()


@pytest.fixture
def url(agent: _Agent) -> Iterator[str]:
    routes = health_routes(agent.source, host="n1")
    with AgentServer(ListenAddress("127.0.0.1", 0), routes, Access(_TOKEN)) as server:
        yield server.url


@pytest.fixture
def token(tmp_path: Path) -> str:
    file = tmp_path / "token"
    file.write_text(f"{_TOKEN}\n")
    file.chmod(0o600)
    return str(file)


def _run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[object, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["health", *arguments])
    told = capsys.readouterr()
    return ended.value.code or 0, told.out, told.err


def _ids(capsys: pytest.CaptureFixture[str], url: str, *options: str) -> list[str]:
    code, out, _ = _run(capsys, "list", "--agent", url, *options)
    assert code == 0
    return [line.split()[0] for line in out.splitlines()[1:]]


def test_open_events_with_their_ids_and_what_to_do(agent: _Agent, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = _run(capsys, "list", "--agent", url, "--agent", _NOBODY)
    assert code == 0
    ids = [event.id for event in agent.source.report().open_events]
    head, first, second = out.splitlines()
    assert head == "1 machine, 2 open events, 1 GPU failed"
    assert first.startswith(f"{ids[0]}  critical: n1 GPU 0 (GPU-0): XID 119: ")
    assert "; since 2026-08-06 07:06 UTC, seen 1 time; take the work off the GPU, " in first
    assert second.startswith(f"{ids[1]}  warning: n1 GPU 1 (GPU-1): XID 94: ")
    assert err.startswith(f"warning: {_NOBODY}: the agent cannot be reached (")


def test_an_acknowledged_event_stays_and_says_by_whom(
    agent: _Agent, url: str, token: str, capsys: pytest.CaptureFixture[str]
) -> None:
    first, _ = _ids(capsys, url)
    note = ("--agent", url, "--token-file", token, "--by", "ann", "--why", "ticket 7")
    code, out, err = _run(capsys, "ack", first, *note)
    assert (code, out) == (0, f"n1: {first} is acknowledged by ann: ticket 7\n")
    assert err.startswith("stepscope: the agent could not keep this; ")  # it has no memory here
    _, out, _ = _run(capsys, "list", "--agent", url)
    assert "; acknowledged by ann: ticket 7" in out
    assert agent.source.report().open_events[0].acknowledged is not None
    code, _, err = _run(capsys, "ack", "xid_119-0", *note)
    assert code == 3
    assert err == f"stepscope: {url}: no open event here is called xid_119-0\n"


def test_a_gpu_that_is_set_healthy_is_so_until_there_is_new_evidence(
    agent: _Agent, url: str, token: str, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = _ids(capsys, url)
    note = ("--agent", url, "--token-file", token, "--by", "bob", "--why", "reset by hand")
    code, out, _ = _run(capsys, "set-healthy", "0", *note)
    assert (code, out) == (0, "n1: 0 is set healthy by bob: reset by hand\n")
    agent.look()
    assert _ids(capsys, url) == [second]
    assert _ids(capsys, url, "--all") == [second, first]
    _, out, _ = _run(capsys, "list", "--agent", url, "--all")
    assert out.splitlines()[2].endswith("; set healthy by bob: reset by hand")
    agent.xids[0, 119] += 1.0
    agent.look()
    again, _ = _ids(capsys, url)
    assert again != first
    assert _run(capsys, "set-healthy", "n1", *note)[0] == 0
    assert _ids(capsys, url) == []
    code, _, err = _run(capsys, "set-healthy", "7", *note)
    assert code == 3
    assert "no GPU here is called 7" in err


def test_a_gpu_that_is_still_lost_is_not_set_healthy(
    agent: _Agent, url: str, token: str, capsys: pytest.CaptureFixture[str]
) -> None:
    note = ("--agent", url, "--token-file", token, "--by", "bob", "--why", "reset by hand")
    agent.lost.add(0)
    agent.look()
    before = _ids(capsys, url)
    (lost,) = (one for one in before if one.startswith("gpu_lost"))
    code, out, err = _run(capsys, "set-healthy", "0", *note)
    assert (code, out) == (3, "")
    assert f"GPU 0 cannot be set healthy while gpu_lost stands: the GPU is lost; acknowledge {lost}" in err
    assert _ids(capsys, url) == before
    code, _, err = _run(capsys, "set-healthy", "node", *note)
    assert code == 0
    assert f"stepscope: stays open, as its condition stands: {lost}  critical: n1 GPU 0" in err
    assert sorted(_ids(capsys, url)) == sorted(one for one in before if not one.startswith("xid_94"))
    agent.lost.clear()
    agent.look()
    assert _run(capsys, "set-healthy", "0", *note)[0] == 0
    assert _ids(capsys, url) == []


@pytest.mark.parametrize(
    ("metric", "code"),
    [
        ("row_remap_failed", "row_remap_failed"),
        ("row_remap_pending", "row_remap_pending"),
        ("sram_threshold_exceeded", "sram_threshold"),
    ],
)
def test_a_gpu_that_answers_is_not_set_healthy_while_a_condition_stands(
    metric: str, code: str, agent: _Agent, url: str, token: str, capsys: pytest.CaptureFixture[str]
) -> None:
    note = ("--agent", url, "--token-file", token, "--by", "bob", "--why", "looks fine")
    agent.conditions = {metric: 1.0}
    agent.look()
    before = _ids(capsys, url)
    exit_code, out, err = _run(capsys, "set-healthy", "0", *note)
    assert (exit_code, out) == (3, "")
    assert f"GPU 0 cannot be set healthy while {code} stands: " in err
    assert _ids(capsys, url) == before
    _, _, err = _run(capsys, "set-healthy", "node", *note)
    assert f"stepscope: stays open, as its condition stands: {code}-" in err
    agent.conditions = {metric: 0.0}
    agent.look()
    assert _run(capsys, "set-healthy", "0", *note)[0] == 0
    assert _ids(capsys, url) == []


def test_as_json(url: str, token: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = _run(capsys, "list", "--agent", url, "--agent", _NOBODY, "--json")
    document = json.loads(out)
    assert document["schema"] == "stepscope.health-list/1"
    known, silent = document["nodes"]
    assert [event["code"] for event in known["health"]["events"]] == ["xid_119", "xid_94"]
    assert (silent["health"], document["warnings"][0]["code"]) == (None, "agent_silent")
    note = ("--agent", url, "--token-file", token, "--by", "ann", "--why", "known", "--json")
    _, out, _ = _run(capsys, "set-healthy", "node", *note)
    document = json.loads(out)
    assert document["schema"] == "stepscope.health/1"
    assert {event["set_healthy"]["by"] for event in document["events"]} == {"ann"}


def test_who_may_and_who_may_not(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("another-token-of-an-agent\n")
    wrong.chmod(0o600)
    note = ("--by", "eve", "--why", "none")
    code, _, err = _run(capsys, "set-healthy", "node", "--agent", url, "--token-file", str(wrong), *note)
    assert code == 2
    assert "--token-file" in err
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path / "nowhere"))
    assert _run(capsys, "ack", "x", "--agent", url, *note)[0] == 2
    assert len(_ids(capsys, url)) == 2


@pytest.mark.parametrize("why", ["a\nb", " ", "w" * 1001, "w" * 1_000_000])
def test_a_note_that_no_agent_takes_is_wrong_usage(
    why: str, url: str, token: str, capsys: pytest.CaptureFixture[str]
) -> None:
    note = ("--by", "ann", "--why", why, "--agent", url, "--token-file", token)
    for subject in (("ack", "x"), ("set-healthy", "0")):
        code, _, err = _run(capsys, *subject, *note)
        assert (code, err) == (2, 'stepscope: "why" must be 1 to 1000 printable characters\n')


@pytest.mark.parametrize(
    "arguments",
    [
        ("ack", "x", "--by", "ann"),
        ("ack", "x", "--why", "known"),
        ("set-healthy", "0"),
        ("set-healthy", "0", "--by", "a", "--why", "b", "--agent", "n1", "--agent", "n2"),
    ],
)
def test_what_is_missing_is_wrong_usage(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(capsys, *arguments)[0] == 2


def test_no_agent_answers(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(capsys, "list", "--agent", _NOBODY)[0] == 4
