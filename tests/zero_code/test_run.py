"""`stepscope run` measures scripts without stepscope, and leaves everything else unchanged."""

from __future__ import annotations

import gzip
import json
import signal
import sys
from typing import Any

import pytest

from tests.zero_code.conftest import LOOP, Ran, RunScript

pytest.importorskip("torch")

_LOADERS = """
import time, torch
from torch.utils.data import DataLoader, Dataset
torch.set_num_threads(1)

class Slow(Dataset):
    def __init__(self, seconds): self.seconds = seconds
    def __len__(self): return 8
    def __getitem__(self, index):
        list(DataLoader([1, 2], num_workers=0))  # a loader inside a loader
        time.sleep(self.seconds)
        return torch.ones(4)

def main():
    training = DataLoader(Slow(0.01), batch_size=2, num_workers=2)
    validation = DataLoader(Slow(0.02), batch_size=2)
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    for epoch in range(3):
        for batch in training:
            model(batch).sum().backward()
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        for batch in validation:
            model(batch)
        torch.save(model.state_dict(), "model.pt")

if __name__ == "__main__":
    main()
"""


@pytest.fixture(scope="module")
def with_loaders(run_script: RunScript) -> Ran:
    """12 steps in 3 epochs, each with an evaluation and a checkpoint behind it."""
    return run_script(_LOADERS, "--run", "r", "--first", "5", "--active", "2")


def test_settings_of_its_optimizer_and_loaders_are_recorded(with_loaders: Ran) -> None:
    (run,) = with_loaders.runs
    settings = json.loads((run / "run.json").read_text())["settings"]
    assert settings["optimizers"] == [{"name": "AdamW", "fused": None, "foreach": None}]
    assert [loader["num_workers"] for loader in settings["loaders"]] == [2, 0]


def test_every_update_is_a_step(with_loaders: Ran) -> None:
    assert with_loaders.code == 0
    assert [line["index"] for line in with_loaders.steps()] == list(range(12))
    assert [line["index"] for line in with_loaders.steps() if line["captured"]] == [5, 6]
    assert with_loaders.ended() == ["finished"]
    assert [path.name for path in with_loaders.runs] == ["r"]


def test_a_line_tells_where_the_run_is(with_loaders: Ran) -> None:
    *_, last = with_loaders.stderr.splitlines()
    run = with_loaders.folder / "runs" / "r"
    assert last == f"stepscope: 12 steps measured; next: stepscope analyze {run}, stepscope steps {run}"


def test_evaluation_is_a_phase_and_no_wait_for_data(with_loaders: Ran) -> None:
    evaluations = {line["index"]: line["phases"].get("evaluation", 0) / 1e6 for line in with_loaders.steps()}
    assert {index for index, ms in evaluations.items() if ms} == {4, 8}
    assert all(evaluations[index] >= 8 * 20 for index in (4, 8))
    for line in with_loaders.steps():
        assert line["data_wait_ns"] + sum(line["phases"].values()) <= line["end_ns"] - line["start_ns"]


def test_waits_for_training_s_batches_are_counted(with_loaders: Ran) -> None:
    assert sum(line["data_wait_ns"] for line in with_loaders.steps()) > 0


def test_checkpoints_are_a_phase(with_loaders: Ran) -> None:
    assert {line["index"] for line in with_loaders.steps() if "checkpoint" in line["phases"]} == {4, 8}


def test_a_captured_step_holds_its_optimizer_s_mark_whole(with_loaders: Ran) -> None:
    trace = with_loaders.runs[0] / "traces" / "step5" / "rank0.json.gz"
    events = [event for event in json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"] if "dur" in event]
    spans = [_span(events, f"ProfilerStep#{step}") for step in (5, 6)]
    marks = [(e["ts"], e["ts"] + e["dur"]) for e in events if e["name"] == "Optimizer.step#AdamW.step"]
    assert len({(round(start), round(end)) for start, end in marks}) == 2
    assert all(any(begin <= start and end <= last for begin, last in spans) for start, end in marks)


def _span(events: list[dict[str, Any]], name: str) -> tuple[float, float]:
    event = next(event for event in events if event["name"] == name)
    return event["ts"], event["ts"] + event["dur"]


_TWO_RANKS = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
torch.set_num_threads(1)
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(8):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""


def test_every_rank_of_torchrun_writes_into_one_run(run_script: RunScript) -> None:
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2")
    ran = run_script(_TWO_RANKS, before=torchrun)
    assert ran.code == 0, ran.stderr
    assert [len(ran.steps(rank)) for rank in (0, 1)] == [8, 8]
    assert sorted(path.name for path in ran.runs[0].glob("traces/step4/*")) == ["rank0.json.gz", "rank1.json.gz"]
    assert json.loads((ran.runs[0] / "run.json").read_text())["world_size"] == 2
    assert [line for line in ran.stderr.splitlines() if "steps measured" in line] == [
        f"stepscope: 8 steps measured; next: stepscope analyze {ran.runs[0]}, stepscope steps {ran.runs[0]}"
    ]


@pytest.mark.parametrize(
    ("ending", "code", "ended", "words"),
    [
        ("raise ValueError('mine')", 1, "exception", "ValueError: mine"),
        ("raise SystemExit(3)", 3, "finished", ""),
    ],
)
def test_a_script_ends_as_it_would_alone(run_script: RunScript, ending: str, code: int, ended: str, words: str) -> None:
    ran = run_script(f"{LOOP}\ntrain(6)\n{ending}\n")
    assert ran.code == code
    assert words in ran.stderr
    assert ran.ended() == [ended]
    assert len(ran.steps()) == 6


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_script_and_keeps_its_steps(run_script: RunScript, number: signal.Signals) -> None:
    script = f"{LOOP}\nimport time\ntrain(6)\nprint('trained', flush=True)\ntime.sleep(60)\n"
    ran = run_script(script, kill=number)
    assert ran.code == -number
    assert ran.ended() == ["signal"]
    assert len(ran.steps()) == 6


def test_a_script_that_handles_the_signal_goes_on_as_it_likes(run_script: RunScript) -> None:
    script = f"""
{LOOP}
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
train(6)
print("trained", flush=True)
time.sleep(60)
"""
    ran = run_script(script, kill=signal.SIGTERM)
    assert ran.code == 7
    assert len(ran.steps()) == 6


def test_ranks_that_multiprocessing_forks_are_measured_to_their_end(run_script: RunScript) -> None:
    script = f"""
import multiprocessing, os
{LOOP}
def rank(number):
    os.environ.update(RANK=str(number), WORLD_SIZE="2", LOCAL_RANK=str(number))
    train(6)

if __name__ == "__main__":
    ranks = [multiprocessing.get_context("fork").Process(target=rank, args=(number,)) for number in range(2)]
    [process.start() for process in ranks]
    [process.join() for process in ranks]
    raise SystemExit(max(process.exitcode for process in ranks))
"""
    ran = run_script(script, "--run", "r")
    assert ran.code == 0, ran.stderr
    assert [len(ran.steps(rank)) for rank in (0, 1)] == [6, 6]
    assert ran.ended() == ["finished"]
