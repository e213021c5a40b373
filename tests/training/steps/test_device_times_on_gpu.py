"""On a real GPU, device times say what waits and phases cost, and never break training or a CUDA graph's capture."""

from __future__ import annotations

import json
import statistics
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import stepscope
from stepscope.analyzer.what_if.light_capture import LightCapture
from stepscope.analyzer.what_if.light_replay import LightReplay
from stepscope.trace.reading import read_ranks
from stepscope.training import once

pytestmark = pytest.mark.gpu

_WAIT_SECONDS = 0.02
_NEVER = 10**9


class _Gpu:
    """Work of a known length on the GPU."""

    def __init__(self) -> None:
        torch = pytest.importorskip("torch")
        if not torch.cuda.is_available():
            pytest.skip("needs a CUDA GPU")
        self.torch = torch
        for _ in range(10):  # until the clock has risen
            self._seconds(100_000_000)
        self._cycles_per_second = 100_000_000 / min(self._seconds(100_000_000) for _ in range(3))

    def _seconds(self, cycles: int) -> float:
        self.torch.cuda.synchronize()
        began = time.perf_counter()
        self.torch.cuda._sleep(cycles)
        self.torch.cuda.synchronize()
        return time.perf_counter() - began

    def work(self, seconds: float) -> None:
        """Queue work; the host goes on at once."""
        self.torch.cuda._sleep(int(seconds * self._cycles_per_second))


@pytest.fixture
def gpu() -> _Gpu:
    return _Gpu()


def _slow_batches(num: int) -> Iterator[int]:
    for number in range(num):
        time.sleep(_WAIT_SECONDS)
        yield number


def _steps(out: Path, *, settled: int = 3) -> list[dict[str, Any]]:
    (file,) = out.rglob("steps/rank0.jsonl")
    return [json.loads(line) for line in file.read_text().splitlines()][settled:]


def test_a_wait_costs_what_the_gpu_has_no_work_for(gpu: _Gpu, tmp_path: Path) -> None:
    with stepscope.profile("idle", tmp_path / "idle", once(wait=_NEVER)) as prof:
        for _ in prof.data(_slow_batches(12)):
            gpu.work(0.005)
            gpu.torch.cuda.synchronize()
            prof.step()
    with stepscope.profile("busy", tmp_path / "busy", once(wait=_NEVER)) as prof:
        gpu.work(1.0)  # a full launch queue hides every wait
        for _ in prof.data(_slow_batches(12)):
            gpu.work(0.005)
            prof.step()
    for step in _steps(tmp_path / "idle"):
        assert step["exposed_data_wait_ns"] == pytest.approx(step["data_wait_ns"], rel=0.1)
        assert step["device_ns"] == pytest.approx(25e6, rel=0.25)
    busy = _steps(tmp_path / "busy")
    assert sum(step["data_wait_ns"] for step in busy) > 9 * 18e6
    assert sum(step["exposed_data_wait_ns"] for step in busy) < 9 * 1e6
    assert sum(step["device_ns"] for step in busy) == pytest.approx(9 * 5e6, rel=0.25)


def test_a_phase_costs_its_own_work_and_the_gpus_idling_in_it(gpu: _Gpu, tmp_path: Path) -> None:
    with stepscope.profile("phase", tmp_path, once(wait=_NEVER)) as prof:
        for _ in range(10):
            gpu.work(0.005)
            with prof.phase("evaluation"):
                gpu.work(0.010)
                gpu.torch.cuda.synchronize()
                time.sleep(0.01)
            prof.step()
    for step in _steps(tmp_path):
        assert step["exposed_phases"]["evaluation"] == pytest.approx(20e6, rel=0.25)


@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
def test_a_cuda_graph_can_be_captured_anywhere_in_a_profiled_run(gpu: _Gpu, tmp_path: Path, mode: str) -> None:
    torch = gpu.torch
    value = torch.zeros(1024, device="cuda")
    with stepscope.profile("graph", tmp_path, once(wait=_NEVER)) as prof:
        for number, _ in enumerate(prof.data(_slow_batches(16))):
            if number in (4, 8):
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, capture_error_mode=mode), prof.phase("forward"):
                    value += 1
                    if number == 8:
                        prof.step()
            if number >= 4:
                graph.replay()
            prof.step()
    assert value[0].item() == 12
    steps = _steps(tmp_path, settled=0)
    assert len(steps) == 17
    assert all(step["device_ns"] is not None for step in steps[11:])


def test_captures_go_on_after_a_graph_was_captured(gpu: _Gpu, tmp_path: Path) -> None:
    torch = gpu.torch
    value = torch.zeros(1024, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with stepscope.profile("graph", tmp_path, once(wait=3, warmup=1, active=3)) as prof:
        with torch.cuda.graph(graph):
            value += 1
        for _ in range(16):
            graph.replay()
            gpu.work(0.002)
            prof.step()
    assert value[0].item() == 16
    steps = _steps(tmp_path)
    assert [step["captured"] for step in steps].count(True) == 3
    assert all(step["device_ns"] == pytest.approx(2e6, rel=0.5) for step in steps[-4:])


def test_a_compiled_model_with_graphs_trains_in_a_profiled_run(gpu: _Gpu, tmp_path: Path) -> None:
    torch = gpu.torch
    model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256)).cuda()
    warnings.simplefilter("ignore")  # those of torch's compiler, on a machine that this project does not choose
    try:
        compiled = torch.compile(model, mode="reduce-overhead")
        compiled(torch.randn(64, 256, device="cuda")).sum().backward()
        model.zero_grad()  # they lie in memory of the graph, which writes it again
    except Exception as error:  # no compiler on this machine
        pytest.skip(f"torch.compile does not work here: {error}")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with stepscope.profile("compiled", tmp_path, once(wait=6, warmup=1, active=3)) as prof:
        for _ in range(24):
            with prof.phase("forward"):
                loss = compiled(torch.randn(64, 256, device="cuda")).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            prof.step(loss=loss)
    steps = _steps(tmp_path)
    assert all(step["device_ns"] is not None for step in steps[-4:])
    assert torch.isfinite(loss).item()


def test_a_light_capture_holds_the_steps_that_its_name_says(gpu: _Gpu, tmp_path: Path) -> None:
    x = gpu.torch.randn(512, 512, device="cuda")
    with stepscope.profile("light", tmp_path, once(wait=20, light=5)) as prof:
        for _ in range(26):
            for _ in range(50):
                x = (x @ x).clamp(-1, 1)
            x.sum().item()
            prof.step()
    steps = _steps(tmp_path, settled=0)
    assert [step["index"] for step in steps if step["state"] == "active"] == [9, 10, 11, 12, 13, 21, 22, 23]
    (trace,) = read_ranks(tmp_path / "light" / "light" / "step9" / "rank0.json.gz")
    ends = [step["end_ns"] for step in steps[8:14]]
    capture = LightReplay([LightCapture(trace, ends)])
    fit = capture.calibrated(statistics.median(step["end_ns"] - step["start_ns"] for step in steps[3:8]) / 1e6)
    assert abs(fit.captured_error) < 0.1
