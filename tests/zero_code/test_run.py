"""Does `stepscope run` measure scripts that know nothing of it, and leave everything else alone?"""

from __future__ import annotations

import gzip
import json
import os
import signal
import sys
from pathlib import Path
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


def test_every_update_is_a_step(with_loaders: Ran) -> None:
    assert with_loaders.code == 0
    assert [line["index"] for line in with_loaders.steps()] == list(range(12))
    assert [line["index"] for line in with_loaders.steps() if line["captured"]] == [5, 6]
    assert with_loaders.ended() == ["finished"]
    assert [path.name for path in with_loaders.runs] == ["r"]


def test_a_line_tells_where_the_run_is(with_loaders: Ran) -> None:
    *_, last = with_loaders.stderr.splitlines()
    assert last == f"stepscope: 12 steps measured; next: stepscope analyze {with_loaders.folder / 'runs' / 'r'}"


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


_COUNTING = """
import gc, json, threading, torch
from stepscope.zero_code.watch import _run
torch.set_num_threads(1)
counts = {}

def counted(scenario):
    before = _run._num_steps
    scenario()
    gc.collect()
    counts[scenario.__name__] = _run._num_steps - before

def parameters():
    parameter = torch.nn.Parameter(torch.ones(4))
    parameter.grad = torch.ones(4)
    return [parameter]

def accumulation():
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.Adam(model.parameters())
    for i in range(12):
        model(torch.ones(2, 4)).sum().backward()
        if i % 4 == 3:
            optimizer.step()

def two_optimizers():
    critic, generator = torch.optim.SGD(parameters(), 0.1), torch.optim.SGD(parameters(), 0.1)
    for _ in range(5):
        critic.step()
        generator.step()

def scaler_that_skips():
    (parameter,) = parameters()
    optimizer, scaler = torch.optim.SGD([parameter], 0.1), torch.amp.GradScaler("cpu")
    for i in range(6):
        parameter.grad = None
        scaler.scale(parameter.sum() * (float("inf") if i % 2 else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()

def scaler_without_update():
    optimizer, scaler = torch.optim.SGD(parameters(), 0.1), torch.amp.GradScaler("cpu", enabled=False)
    for _ in range(3):
        scaler.step(optimizer)
    scaler.update()

class Wrapping(torch.optim.Optimizer):
    def __init__(self):
        self.inner = [torch.optim.SGD(parameters(), 0.1), torch.optim.SGD(parameters(), 0.1)]
        super().__init__(parameters(), {})
    def step(self, closure=None):
        for optimizer in self.inner:
            optimizer.step()

def wrapping():
    optimizer = Wrapping()
    for _ in range(4):
        optimizer.step()

class Derived(torch.optim.SGD):
    def step(self, closure=None):
        return super().step(closure)

def derived():
    optimizer = Derived(parameters(), 0.1)
    for _ in range(4):
        optimizer.step()

def closures():
    optimizer = torch.optim.LBFGS(parameters(), max_iter=3)
    def closure():
        optimizer.zero_grad()
        loss = sum(p.square().sum() for group in optimizer.param_groups for p in group["params"])
        loss.backward()
        return loss
    for _ in range(2):
        optimizer.step(closure)

def failing():
    optimizer = torch.optim.SGD(parameters(), 0.1)
    def closure():
        raise KeyError("mine")
    for _ in range(3):
        try:
            optimizer.step(closure)
        except KeyError:
            pass
        optimizer.step()

def another_thread():
    optimizer = torch.optim.SGD(parameters(), 0.1)
    thread = threading.Thread(target=optimizer.step)
    thread.start()
    thread.join()
    optimizer.step()

def loading_a_checkpoint():
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters())
    get_optimizer_state_dict(model, optimizer)
    for _ in range(2):
        optimizer.step()

def averaged_and_scheduled():
    model = torch.nn.Linear(2, 2)
    averaged = torch.optim.swa_utils.AveragedModel(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    for _ in range(3):
        optimizer.step()
        averaged.update_parameters(model)
        scheduler.step()

for scenario in (accumulation, two_optimizers, scaler_that_skips, scaler_without_update, wrapping, derived, closures,
                 failing, another_thread, loading_a_checkpoint, averaged_and_scheduled):
    counted(scenario)
print(json.dumps(counts))
"""


def test_what_is_a_step_of_training(run_script: RunScript) -> None:
    ran = run_script(_COUNTING)
    assert ran.code == 0, ran.stderr
    assert json.loads(ran.stdout) == {
        "accumulation": 3,
        "two_optimizers": 5,
        "scaler_that_skips": 6,
        "scaler_without_update": 3,
        "wrapping": 4,
        "derived": 4,
        "closures": 2,
        "failing": 3,
        "another_thread": 1,
        "loading_a_checkpoint": 2,
        "averaged_and_scheduled": 3,
    }
    assert any("overflow" in line for line in ran.steps())


_COMPILED_WHOLE = """
import torch
from torch.utils.data import DataLoader
torch.set_num_threads(1)

class Plain(torch.optim.Optimizer):
    def __init__(self, parameters): super().__init__(parameters, {})
    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(parameter.grad, alpha=0.1)

model = torch.nn.Linear(4, 4)
optimizer = Plain(model.parameters())
update = torch.compile(lambda: optimizer.step(), backend="eager", fullgraph=True)
for batch in DataLoader(torch.ones(14, 4), batch_size=2):
    model(batch).sum().backward()
    update()
    optimizer.zero_grad(set_to_none=False)
from torch._dynamo.utils import counters
print(counters["stats"]["unique_graphs"])
"""


def test_an_update_compiled_away_ends_its_step_at_the_next_batch(run_script: RunScript) -> None:
    ran = run_script(_COMPILED_WHOLE)
    assert ran.code == 0, ran.stderr
    assert ran.stdout.strip() == "1"
    assert len(ran.steps()) == 7


_COMPILED_STEP = """
import torch
torch.set_num_threads(1)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
update = torch.compile(optimizer.step, backend="eager")
for _ in range(7):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    update()
optimizer.zero_grad()
"""


def test_a_compiled_step_ends_when_gradients_are_cleared(run_script: RunScript) -> None:
    ran = run_script(_COMPILED_STEP)
    assert ran.code == 0, ran.stderr
    assert len(ran.steps()) == 7


_ON_A_THREAD_OF_NO_PYTHON_S = """
import _thread, torch
parameter = torch.nn.Parameter(torch.ones(4))
parameter.grad = torch.ones(4)
optimizer = torch.optim.SGD([parameter], lr=0.1)
done = _thread.allocate_lock()

def update():
    optimizer.step()
    done.release()

for _ in range(7):
    done.acquire()
    _thread.start_new_thread(update, ())  # as autograd does: threading knows nothing of it
    with done:
        optimizer.zero_grad(set_to_none=False)
"""


def test_an_update_on_one_of_autograd_s_threads_is_a_step(run_script: RunScript) -> None:
    ran = run_script(_ON_A_THREAD_OF_NO_PYTHON_S)
    assert ran.code == 0, ran.stderr
    assert len(ran.steps()) == 7


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
        f"stepscope: 8 steps measured; next: stepscope analyze {ran.runs[0]}"
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


_EVALUATES = """
import sys, torch
from torch.utils.data import DataLoader
with torch.no_grad():
    for batch in DataLoader(torch.ones(8, 4), batch_size=2):
        torch.nn.Linear(4, 4)(batch)
torch.save({}, "empty.pt")
print(sorted(name for name in sys.modules if name.startswith("stepscope.")))
"""


def test_a_script_that_never_trains_leaves_nothing_and_says_nothing(run_script: RunScript) -> None:
    ran = run_script(_EVALUATES)
    assert (ran.code, ran.stderr, ran.runs) == (0, "", [])
    assert "stepscope.training" not in ran.stdout


def test_an_optimizer_that_nobody_saw_updating_is_told_of(run_script: RunScript) -> None:
    ran = run_script("import torch\ntorch.optim.SGD([torch.ones(1)])\n")
    assert (ran.code, ran.runs) == (0, [])
    assert ran.stderr.startswith("stepscope: an optimizer was made")


@pytest.mark.parametrize("flag", ["-I", "-S"])
def test_an_isolated_python_is_not_measured(run_script: RunScript, flag: str) -> None:
    ran = run_script("import sys\nprint('sitecustomize' in sys.modules)\n", before=(sys.executable, flag))
    assert (ran.code, ran.stdout, ran.stderr) == (0, "False\n", "")


def test_another_sitecustomize_still_runs_and_ours_leaves_no_trace(run_script: RunScript, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("MINE = 1\nimport sys\nsys.mine = 'here'\n")
    script = "import sitecustomize, sys\nprint(sitecustomize.MINE, sys.mine, any('zero_code' in p for p in sys.path))\n"
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    ran = run_script(script, environment={"PYTHONPATH": path})
    assert (ran.code, ran.stdout, ran.stderr) == (0, "1 here False\n", "")


def test_a_sitecustomize_that_fails_says_so_as_it_would_alone(run_script: RunScript, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import a_module_that_is_nowhere\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    ran = run_script("print('runs')\n", environment={"PYTHONPATH": path})
    assert (ran.code, ran.stdout) == (0, "runs\n")
    assert "a_module_that_is_nowhere" in ran.stderr


def test_what_a_training_starts_is_not_measured_with_it(run_script: RunScript) -> None:
    script = f"""
{LOOP}
import subprocess, sys
train(3)
if len(sys.argv) == 1:
    subprocess.run([sys.executable, __file__, "child"], check=True)
    subprocess.run([sys.executable, "-c", "print('compiler')"], check=True)
train(3)
"""
    ran = run_script(script)
    assert ran.code == 0, ran.stderr
    assert len(ran.steps()) == 6
    assert ran.stderr.count("steps measured") == 1


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


@pytest.mark.parametrize("before", [0, 3])
def test_the_user_s_own_profile_wins(run_script: RunScript, before: int) -> None:
    script = f"""
{LOOP}
import stepscope
train({before})
with stepscope.profile("mine", "manual") as prof:
    train(5, lambda step: prof.step())
train(4)
"""
    ran = run_script(script, "--run", "automatic")
    assert ran.code == 0, ran.stderr
    mine = (ran.folder / "manual" / "mine" / "steps" / "rank0.jsonl").read_text().splitlines()
    assert len(mine) == 5
    assert [path.name for path in ran.runs] == (["automatic"] if before else [])
    assert not before or len(ran.steps()) == before


def test_switched_off_nothing_is_measured(run_script: RunScript) -> None:
    ran = run_script(f"{LOOP}\ntrain(3)\n", environment={"STEPSCOPE_DISABLE": "1"})
    assert (ran.code, ran.stderr, ran.runs) == (0, "", [])
