"""Updates that count as steps, in scripts without stepscope."""

from __future__ import annotations

import json

import pytest

from tests.zero_code.conftest import RunScript

pytest.importorskip("torch")

_COUNTING = """
import gc, json, threading, torch
from stepscope.zero_code.patches import _run
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


_COMPILED_TRAINING = """
import torch
from torch.utils.data import DataLoader
torch.set_num_threads(1)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def step(batch):
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()

step = torch.compile(step, backend="eager")
for batch in BATCHES:
    step(batch)
"""


def test_a_training_step_compiled_whole_ends_at_the_next_batch_of_a_loader(run_script: RunScript) -> None:
    ran = run_script(_COMPILED_TRAINING.replace("BATCHES", "DataLoader(torch.ones(14, 4), batch_size=2)"))
    assert ran.code == 0, ran.stderr
    assert len(ran.steps()) == 7


def test_one_whose_ends_nothing_tells_is_said_to_be_so(run_script: RunScript) -> None:
    ran = run_script(_COMPILED_TRAINING.replace("BATCHES", "[torch.ones(2, 4)] * 7"))
    assert (ran.code, ran.runs) == (0, [])
    assert "updates were made where their ends are not seen" in ran.stderr.splitlines()[-1]


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
