"""`stepscope run` leaves alone what is not to be measured, and what others have arranged."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.zero_code.conftest import LOOP, RunScript

pytest.importorskip("torch")

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


_BY_HAND = """
import torch
weight = torch.ones(4, requires_grad=True)
watched = torch.autograd._engine_run_backward

def train(num_steps, after=lambda: None):
    for _ in range(num_steps):
        (weight * 2).sum().backward()
        with torch.no_grad():
            weight.sub_(0.1 * weight.grad)
        weight.grad = None
        after()
"""


@pytest.mark.parametrize(("ending", "code"), [("", 0), ("raise SystemExit(3)", 3)])
def test_updates_that_are_not_an_optimizer_s_are_told_of_once(run_script: RunScript, ending: str, code: int) -> None:
    ran = run_script(f"{_BY_HAND}\ntrain(3)\nprint(torch.autograd._engine_run_backward is watched)\n{ending}\n")
    assert (ran.code, ran.stdout, ran.runs) == (code, "False\n", [])
    (line,) = ran.stderr.splitlines()
    assert line.startswith("stepscope: gradients were computed, but no update")
    assert "prof.step()" in line


def test_gradients_of_autograd_grad_are_told_of_as_well(run_script: RunScript) -> None:
    ran = run_script("""
import torch
weight = torch.ones(4, requires_grad=True)
for _ in range(3):
    (gradient,) = torch.autograd.grad((weight * 2).sum(), weight)
    with torch.no_grad():
        weight.sub_(0.1 * gradient)
""")
    assert (ran.code, ran.stdout, ran.runs) == (0, "", [])
    (line,) = ran.stderr.splitlines()
    assert line.startswith("stepscope: gradients were computed, but no update")


def test_updates_by_hand_under_the_user_s_own_profile_are_measured(run_script: RunScript) -> None:
    profiled = "import stepscope\nwith stepscope.profile('own') as prof:\n    train(3, prof.step)\n"
    ran = run_script(f"{_BY_HAND}\ntrain(1)\n{profiled}")
    assert (ran.code, len(ran.steps())) == (0, 3), ran.stderr
    assert "nothing was measured" not in ran.stderr


@pytest.mark.parametrize("flag", ["-I", "-S"])
def test_an_isolated_python_is_not_measured(run_script: RunScript, flag: str) -> None:
    own = "import sys\nprint('zero_code' in str(getattr(sys.modules.get('sitecustomize'), '__file__', '')))\n"
    ran = run_script(own, before=(sys.executable, flag))  # Debian's Python has a sitecustomize of its own
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
    said = [line for line in ran.stderr.splitlines() if "measured" in line]
    run = ran.folder / "runs" / "automatic"
    assert said == (
        [f"stepscope: {before} steps measured; next: stepscope analyze {run}, stepscope steps {run}"] if before else []
    )


def test_switched_off_nothing_is_measured(run_script: RunScript) -> None:
    ran = run_script(f"{LOOP}\ntrain(3)\n", environment={"STEPSCOPE_DISABLE": "1"})
    assert (ran.code, ran.stderr, ran.runs) == (0, "", [])


_SLOTTED = f"""
{LOOP}
class Slotted:
    __slots__ = ("inner", "param_groups")

    def __init__(self, inner):
        self.inner, self.param_groups = inner, inner.param_groups

    def step(self):
        return self.inner.step()

parameter = torch.nn.Parameter(torch.ones(4))
optimizer, scaler = Slotted(torch.optim.SGD([parameter], lr=0.1)), torch.amp.GradScaler("cpu")
for _ in range(5):
    parameter.grad = None
    scaler.scale(parameter.sum()).backward()
    scaler.step(optimizer)
    scaler.update()
"""


def test_an_optimizer_of_slots_is_measured_like_any_other(run_script: RunScript) -> None:
    ran = run_script(_SLOTTED)
    assert ran.code == 0, ran.stderr
    assert len(ran.steps()) == 5


_FAILING = """
from stepscope.core.loader_waits import LoaderWaits
from stepscope.zero_code import step_detection

def failing(*_, **__):
    raise LookupError("ours")

if WHERE == "an update":
    step_detection.StepCycle.counts = step_detection.StepCycle.ends_with = failing
else:
    LoaderWaits.began = LoaderWaits.gave = LoaderWaits.ran_out = failing
loader = torch.utils.data.DataLoader(torch.ones(8, 4), batch_size=2)
train(3)
print(len(list(loader)))
train(3)
torch.save({}, "empty.pt")
print(len(list(loader)))
"""


@pytest.mark.parametrize("where", ["an update", "a wait"])
def test_a_fault_of_ours_is_said_once_and_training_goes_on(run_script: RunScript, where: str) -> None:
    ran = run_script(f"WHERE = {where!r}\n{LOOP}{_FAILING}")
    assert (ran.code, ran.stdout) == (0, "4\n4\n"), ran.stderr
    said = [line for line in ran.stderr.splitlines() if "stepscope" in line]
    assert said == ["stepscope stops measuring this run, training goes on: LookupError: ours"]
    assert len(ran.steps()) == (0 if where == "an update" else 3)
    assert ran.ended() == ["measuring stopped"]


def test_a_call_without_its_arguments_fails_by_the_script_s_own_fault(run_script: RunScript) -> None:
    ran = run_script("import torch\ntorch.amp.GradScaler('cpu').step()\n")
    assert ran.code == 1
    assert "GradScaler.step() missing 1 required positional argument: 'optimizer'" in ran.stderr


def test_of_a_scheduler_s_tasks_the_first_alone_says_where_the_run_is(run_script: RunScript) -> None:
    task = {"SLURM_PROCID": "1", "SLURM_LOCALID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS": "2"}
    ran = run_script(f"{LOOP}\ntrain(3)\n", environment=task)
    assert (ran.code, "measured" in ran.stderr) == (0, False)
    assert len(ran.steps(rank=1)) == 3
    ran = run_script("import torch\ntorch.optim.SGD([torch.ones(1)])\n", environment=task)
    assert (ran.code, ran.stderr) == (0, "")
