"""Settings of models, wrappers and optimizers, of this machine's torch."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from stepscope.core.documents.training_settings import DdpSettings, FsdpSettings
from stepscope.training.settings.modules import model_settings, reduces_gradients, wrappers_in

torch = pytest.importorskip("torch")


@pytest.fixture
def one_rank(tmp_path: Any) -> Iterator[None]:
    import torch.distributed as dist

    if dist.is_initialized():
        pytest.skip("another test left its process group")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def _layers() -> Any:
    return torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))


def test_a_model_of_transformers_has_its_attention() -> None:
    model = torch.nn.Linear(2, 2)
    model.config = SimpleNamespace(_attn_implementation="eager")
    assert model_settings(torch.nn.Sequential(model)).attention == "eager"
    assert model_settings(torch.nn.Linear(2, 2)).attention is None


_OF_TORCH = "ignore:.*torch.jit.script.*:DeprecationWarning"
"""Torch's own compiler uses what torch calls deprecated."""


@pytest.mark.filterwarnings(_OF_TORCH)
@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"])
def test_a_compiled_model_has_its_mode(mode: str) -> None:
    settings = model_settings(torch.compile(torch.nn.Linear(2, 2), mode=mode))
    assert (settings.name, settings.compiled, settings.compile_mode) == ("Linear", True, mode)


@pytest.mark.filterwarnings(_OF_TORCH)
def test_a_part_may_be_compiled_and_another_backend_used() -> None:
    model = torch.nn.Sequential(torch.compile(torch.nn.Linear(2, 2), backend="aot_eager"))
    settings = model_settings(model)
    assert (settings.name, settings.compiled, settings.compile_mode) == ("Sequential", True, "aot_eager")
    in_place = torch.nn.Linear(2, 2)
    in_place.compile()
    assert model_settings(in_place).compiled


def test_recomputed_activations() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    assert model_settings(model).checkpoints_activations is None
    model[0].gradient_checkpointing = False
    assert model_settings(model).checkpoints_activations is False
    model[0].gradient_checkpointing = True
    assert model_settings(model).checkpoints_activations is True


@pytest.mark.filterwarnings(_OF_TORCH)
@pytest.mark.usefixtures("one_rank")
def test_options_of_ddp() -> None:
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
    from torch.nn.parallel import DistributedDataParallel

    model = DistributedDataParallel(torch.nn.Linear(2, 2), bucket_cap_mb=10, find_unused_parameters=True)
    assert list(wrappers_in(model)) == [DdpSettings(10.0, True, False, False, True, None)]
    model.register_comm_hook(None, fp16_compress_hook)
    [settings] = wrappers_in(torch.compile(model))
    assert isinstance(settings, DdpSettings)
    assert settings.comm_hook == "fp16_compress_hook"
    assert model_settings(model).name == "Linear"
    assert reduces_gradients(model) is True
    with model.no_sync():
        assert reduces_gradients(model) is False
    assert reduces_gradients(torch.nn.Linear(2, 2)) is None


@pytest.mark.usefixtures("one_rank")
def test_options_of_fully_shard() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh("cpu", (1,))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4))
    model.layers = _layers()
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
    [settings] = wrappers_in(model)
    assert isinstance(settings, FsdpSettings)
    assert (settings.version, settings.num_units, settings.num_layers) == (2, 4, 3)
    assert (settings.param_dtype, settings.reduce_dtype) == ("bfloat16", "float32")
    assert settings.reshards_after_forward is True
    assert (settings.forward_prefetch, settings.offloads_to_cpu) == (False, False)
    model.layers[0].set_modules_to_forward_prefetch([model.layers[1]])
    [settings] = wrappers_in(model)
    assert isinstance(settings, FsdpSettings)
    assert settings.forward_prefetch is True
    assert reduces_gradients(model) is True
    model.set_requires_gradient_sync(False)
    assert reduces_gradients(model) is False
