"""Ranks of a real training, asked over the agent's socket, trace the same steps while it continues."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from stepscope.core.protocol.captures import Alignment, CaptureRequest, CaptureState, EarlyStop
from stepscope.core.protocol.messages import Answer, Bye, Cancel, Heartbeat, Hello
from tests.training.gloo_ranks import steps_in, training
from tests.training.stand_in_agent import StandInAgent

pytest.importorskip("torch")


def test_two_ranks_trace_the_very_same_steps_however_they_are_asked(tmp_path: Path, socket_file: Path) -> None:
    with StandInAgent(socket_file) as agent, training(tmp_path, socket_file, 2):
        agent.wait_until(lambda: all(any(step.index for step in agent.of(Heartbeat, rank)) for rank in (0, 1)))
        hellos = [agent.of(Hello, rank)[0] for rank in (0, 1)]
        assert [(hello.rank, hello.world_size, hello.run) for hello in hellos] == [(0, 2, "r"), (1, 2, "r")]
        assert Path(hellos[0].run_directory) == tmp_path / "runs" / "r"

        agent.say(CaptureRequest("soon", 3), 0)
        time.sleep(0.3)  # the request reaches the other node later
        agent.say(CaptureRequest("soon", 3), 1)
        soon = agent.wait_final("soon", 0, 1)
        assert [answer.state for answer in soon] == [CaptureState.DONE] * 2
        assert steps_in(soon[0].path) == steps_in(soon[1].path)
        assert len(steps_in(soon[0].path)) == 3
        for rank, answer in enumerate(soon):
            # accepted once more where its first step was not fixed at once
            assert list(dict.fromkeys(agent.states("soon", rank))) == ["accepted", "started", "done"]
            told = [answer.progress for answer in agent.of(Answer, rank) if answer.id == "soon"]
            accepted = [answer for answer in told if answer.state is CaptureState.ACCEPTED][-1]
            assert accepted.aligned_by is Alignment.STORE
            assert answer.path is not None
            assert answer.bytes == Path(answer.path).stat().st_size
            assert answer.path.endswith(f"traces/step{answer.start_step}/rank{rank}.json.gz")
            assert answer.overhead is not None

        at_ns = time.time_ns() + 1_000_000_000
        agent.say(CaptureRequest("then", 2, start_unix_ns=at_ns))
        then = agent.wait_final("then", 0, 1)
        assert steps_in(then[0].path) == steps_in(then[1].path)
        lines = (tmp_path / "runs" / "r" / "steps" / "rank0.jsonl").read_text().splitlines()
        starts = {line["index"]: line["start_ns"] for line in map(json.loads, lines)}
        assert then[0].start_step is not None
        if then[0].start_step in starts:  # the last second may not be on disk yet
            assert starts[then[0].start_step] > at_ns - 1_000_000_000

        start = (agent.of(Heartbeat, 0)[-1].index or 0) + 400  # at 200 a second, told once a second
        agent.say(CaptureRequest("at", 2, start_step=start))
        at = agent.wait_final("at", 0, 1)
        assert [steps_in(answer.path) for answer in at] == [[start, start + 1]] * 2

        agent.say(CaptureRequest("one", 1, ranks=(1,)))
        one = agent.wait_final("one", 0, 1)
        assert [answer.state for answer in one] == [CaptureState.REFUSED, CaptureState.DONE]
        assert one[0].reason == "rank 0 is not among those requested"

        agent.say(CaptureRequest("large", 40, max_bytes=30_000))
        for answer in agent.wait_final("large", 0, 1):
            assert answer.stopped_by is EarlyStop.MAX_BYTES
            assert answer.bytes is not None
            assert answer.bytes < 45_000  # a forecast, within half
            assert len(steps_in(answer.path)) == answer.steps

        agent.say(CaptureRequest("off", 300))
        agent.wait_until(lambda: all("started" in agent.states("off", rank) for rank in (0, 1)))
        agent.say(Cancel("off"))
        off = agent.wait_final("off", 0, 1)
        assert [answer.state for answer in off] == [CaptureState.CANCELLED] * 2
        folder = tmp_path / "runs" / "r" / "traces" / f"step{off[0].start_step}"
        agent.say(CaptureRequest("late", 1, start_step=3))
        assert "too late" in str(agent.wait_final("late", 0, 1)[0].reason)
        assert not folder.exists()
    agent.wait_until(lambda: True)
    assert len(agent.of(Bye)) == 2


def test_an_agent_that_dies_during_a_capture_gets_the_answer_when_it_is_back(tmp_path: Path, socket_file: Path) -> None:
    with training(tmp_path, socket_file, 2):
        with StandInAgent(socket_file) as agent:
            agent.wait_until(lambda: all(any(step.index for step in agent.of(Heartbeat, rank)) for rank in (0, 1)))
            agent.say(CaptureRequest("a", 3))
            agent.wait_until(lambda: all(agent.states("a", rank) for rank in (0, 1)))
        with StandInAgent(socket_file) as agent:
            done = agent.wait_final("a", 0, 1)
            assert steps_in(done[0].path) == steps_in(done[1].path)
            agent.say(CaptureRequest("a", 3))  # asked once more, it is answered with what became of it
            agent.wait_until(lambda: all(agent.states("a", rank).count("done") == 2 for rank in (0, 1)))


def test_slow_steps_are_captured_on_all_ranks_at_once_without_an_agent(tmp_path: Path, socket_file: Path) -> None:
    with training(tmp_path, socket_file, 3, "slow_step"):
        traces = tmp_path / "runs" / "r" / "traces"
        deadline = time.monotonic() + 90
        while not list(traces.glob("step2/rank0.json.gz")):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        time.sleep(2.0)
        (tmp_path / "slow").touch()
        while len(list(traces.glob("step*/rank?.json.gz"))) < 6:
            assert time.monotonic() < deadline, list(traces.glob("*/*"))
            time.sleep(0.05)
    (folder,) = (folder for folder in traces.iterdir() if folder.name != "step2")
    steps = [steps_in(str(folder / f"rank{rank}.json.gz")) for rank in range(3)]
    assert steps == [steps[0]] * 3
    assert len(steps[0]) == 2
    lines = (tmp_path / "runs" / "r" / "steps" / "rank0.jsonl").read_text().splitlines()
    durations = {line["index"]: line["end_ns"] - line["start_ns"] for line in map(json.loads, lines)}
    assert all(durations[step] > 300_000_000 for step in steps[0])
