"""Settings inside of steps: what the backward passes of the first step and of those before captures show."""

from __future__ import annotations

import gc
import json
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import stepscope
from stepscope.core.documents.training_settings import TrainingSettings
from stepscope.training.memory.owners import MemoryOwners
from stepscope.training.settings.backward import ObservedBackward, summarize_graph
from stepscope.training.settings.observed import ObservedSettings

torch = pytest.importorskip("torch")
_LONG_NS = 10**10
_Step: Any = None


class _Images(torch.nn.Module):  # type: ignore[misc, name-defined]
    """A convolution and causal attention."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = torch.nn.Conv2d(3, 8, 3)
        self.product = torch.nn.Linear(8, 64)

    def forward(self, images: Any) -> Any:
        tokens = self.product(self.convolution(images).flatten(2).transpose(1, 2))
        heads = tokens.view(len(images), -1, 4, 16).transpose(1, 2)
        return torch.nn.functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True).sum()


@pytest.fixture
def observed() -> ObservedSettings:
    return ObservedSettings(MemoryOwners())


@pytest.fixture
def watch(observed: ObservedSettings) -> Iterator[ObservedBackward]:
    watch = ObservedBackward(observed, lambda step: step >= 5)
    yield watch
    watch.close()


def test_the_graph_shows_attention_convolutions_and_types() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        loss = _Images()(torch.randn(2, 3, 8, 8))
    summary = summarize_graph(loss, _LONG_NS)
    assert dict(summary.attention) == {"flash": 1}
    assert summary.masks == {True}
    assert (summary.num_convolutions, summary.num_softmax, summary.types) == (1, 0, {"bfloat16"})
    assert summary.is_whole
    assert summarize_graph([torch.ones(1)], _LONG_NS).shapes == ()


def test_softmax_outside_of_fused_attention_is_counted() -> None:
    scores = torch.randn(2, 4, 4, requires_grad=True)
    summary = summarize_graph((torch.bmm(scores.softmax(-1), scores)).log_softmax(-1).sum(), _LONG_NS)
    assert (summary.num_softmax, dict(summary.attention)) == (1, {})


def test_a_look_at_a_large_graph_ends_in_time() -> None:
    value = torch.ones(1, requires_grad=True)
    for _ in range(200_000):
        value = value * 1.0
    began = time.thread_time()
    summary = summarize_graph(value, 1_000_000)
    assert time.thread_time() - began < 0.05  # of the CPU, whatever else runs; all of it takes ten times as much
    assert not summary.is_whole


def _step(watch: ObservedBackward, index: int, images: Any, model: Any, passes: int = 1) -> None:
    watch.step_began(index)
    for _ in range(passes):
        model(images).backward()
    watch.steps_ended([_Step])


def test_passes_are_counted_and_shapes_compared(observed: ObservedSettings, watch: ObservedBackward) -> None:
    model = _Images()
    _step(watch, 0, torch.randn(2, 3, 8, 8), model, passes=3)
    first = observed.read().backward
    assert first is not None
    assert (first.passes, first.synchronized_passes, first.has_fixed_shapes) == (3, None, None)
    _step(watch, 1, torch.randn(2, 3, 9, 9), model, passes=2)  # neither the first nor before a capture
    assert observed.read().backward == first
    _step(watch, 5, torch.randn(2, 3, 8, 8), model, passes=2)
    fixed = observed.read().backward
    assert fixed is not None
    assert (fixed.passes, fixed.has_fixed_shapes) == (2, True)
    _step(watch, 6, torch.randn(2, 3, 9, 9), model)
    varying = observed.read().backward
    assert varying is not None
    assert varying.has_fixed_shapes is False


def test_models_and_optimizers_are_found_in_variables(observed: ObservedSettings, watch: ObservedBackward) -> None:
    class Loop:
        def __init__(self) -> None:
            self.student = _Images()
            self.optimizer = torch.optim.SGD(self.student.parameters(), lr=0.1)

        def run(self) -> None:
            part, teacher = self.student.product, torch.nn.Linear(2, 2).requires_grad_(False)
            assert part is not teacher
            _step(watch, 0, torch.randn(2, 3, 8, 8), self.student)

    Loop().run()
    settings = observed.read()
    assert "SGD" in {optimizer.name for optimizer in settings.optimizers}


def test_variables_do_not_live_longer_than_their_frames(watch: ObservedBackward) -> None:
    def step() -> weakref.ref[Any]:
        activations = torch.ones(3)
        _step(watch, 0, torch.randn(2, 3, 8, 8), model)
        reference = weakref.ref(activations)
        del activations
        gc.collect()
        return reference

    model = _Images()
    reference = step()
    assert reference() is None


def test_a_copy_of_variables_that_the_user_keeps_is_left_alone(watch: ObservedBackward) -> None:
    def step() -> dict[str, Any]:
        setting = 3
        kept = locals()
        _step(watch, 0, torch.randn(2, 3, 8, 8), _Images())
        assert setting
        return kept

    assert step()["setting"] == 3


def test_modes_entered_inside_of_a_step_are_seen(observed: ObservedSettings, watch: ObservedBackward) -> None:
    watch.step_began(0)
    with torch.autocast("cpu", torch.bfloat16), torch.autocast("cpu", enabled=False):
        pass
    with torch.autograd.set_detect_anomaly(True):
        torch.ones(1, requires_grad=True).sum().backward()
    watch.steps_ended([_Step])
    settings = observed.read()
    assert settings.anomaly_mode is True
    assert settings.autocast == {"cpu": "bfloat16"}


def test_torch_is_as_it_was_outside_of_watched_steps(watch: ObservedBackward) -> None:
    backward, enter = torch.autograd._engine_run_backward, torch.autocast.__enter__
    watch.step_began(0)
    assert torch.autograd._engine_run_backward is not backward
    torch.ones(1, requires_grad=True).sum().backward()
    watch.steps_ended([_Step])
    watch.step_began(2)
    assert torch.autograd._engine_run_backward is backward
    assert torch.autocast.__enter__ is enter


def _profiled(tmp_path: Path, **options: Any) -> TrainingSettings:
    model = _Images()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with stepscope.profile(run="r", out=tmp_path, **options) as prof:
        for _ in range(12):
            model(torch.randn(2, 3, 8, 8)).backward()
            optimizer.step()
            prof.step()
    found: dict[str, Any] = json.loads((tmp_path / "r" / "run.json").read_bytes())["settings"]
    return found  # type: ignore[return-value]


def test_a_patch_that_others_have_wrapped_counts_no_pass_twice(
    observed: ObservedSettings, watch: ObservedBackward
) -> None:
    model, images = _Images(), torch.randn(2, 3, 8, 8)
    before = torch.autograd._engine_run_backward
    watch.step_began(0)
    ours = torch.autograd._engine_run_backward
    torch.autograd._engine_run_backward = lambda *args, **kwargs: ours(*args, **kwargs)
    try:
        model(images).backward()
        watch.steps_ended([_Step])
        _step(watch, 5, images, model)
    finally:
        watch.close()
        torch.autograd._engine_run_backward = before
    backward = observed.read().backward
    assert backward is not None
    assert backward.passes == 1


def test_compiled_code_is_not_compiled_again(observed: ObservedSettings, watch: ObservedBackward) -> None:
    from torch._dynamo.testing import CompileCounter

    counter = CompileCounter()
    model = _Images()

    def forward(images: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return model(images)

    compiled = torch.compile(forward, backend=counter)
    for index in range(4):
        _step(watch, index, torch.randn(2, 3, 8, 8), compiled)
    assert counter.frame_count == 1
    assert observed.read().num_compiled_frames


def test_the_manifest_has_what_was_seen_in_steps(tmp_path: Path) -> None:
    settings: Any = _profiled(tmp_path)
    assert settings["backward"]["num_convolutions"] == 1
    assert settings["backward"]["has_fixed_shapes"] is True
    assert "_Images" in [model["name"] for model in settings["models"]]
    assert "SGD" in [optimizer["name"] for optimizer in settings["optimizers"]]
