"""Jobs whose communication can be avoided or hidden: DDP and FSDP on four CPU ranks (gloo) or two GPUs (NCCL)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.labelled_runs.arms import Arm, arms
from benchmarks.labelled_runs.batches import Source
from benchmarks.labelled_runs.cpu_jobs import Layer
from benchmarks.labelled_runs.job import Bench, Change, Job
from benchmarks.labelled_runs.models import Model, language_model, optimizer_of, under_autocast

_NO_SYNC = Change("no_sync", "model.no_sync() in all micro-batches but the last", "no_sync|requires_gradient_sync")
_BUCKETS = Change("buckets", "bucket_cap_mb=25", "bucket_cap_mb")
_LARGE_BUCKETS = Change("buckets", "bucket_cap_mb=100", "bucket_cap_mb")
_USED = Change("used", "find_unused_parameters=False", "find_unused")
_HALF_GRADIENTS = Change("half", "bf16_compress_hook", "compress_hook|reduce_dtype|16 bits")
_UNITS = Change("units", "fully_shard() for each block", "fully_shard|wrap|unit")
_VIEWS = Change("views", "gradient_as_bucket_view=True", "gradient_as_bucket_view")

_BATCH = 8


def _slept(layers: int, width: int, seconds: float, block: int = 1) -> nn.Sequential:
    """Linear layers whose compute is slept, in blocks of so many."""
    torch.manual_seed(0)
    blocks = (nn.Sequential(*(Layer(width, seconds) for _ in range(block))) for _ in range(layers // block))
    return nn.Sequential(*blocks)


def _regression(module: nn.Module, width: int) -> Model:
    return Model(
        module,
        lambda batch: module(batch).square().mean(),
        Source(torch.randn(64, width), _BATCH),
        torch.optim.SGD(module.parameters(), lr=1e-4),
        torch.device("cpu"),
    )


def _ddp(module: Any, bench: Bench, **options: Any) -> DistributedDataParallel:
    devices = None if bench.device.type == "cpu" else [bench.device.index]
    return DistributedDataParallel(module, device_ids=devices, **options)


def _language_model(bench: Bench, kind: str, options: dict[str, Any], **sizes: Any) -> Model:
    """A model of transformers under DDP."""
    model = language_model(bench, kind, **sizes)
    module: Any = _ddp(model.module, bench, **options)

    def loss(ids: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = module(input_ids=ids, labels=ids).loss
        return answer

    return Model(module, loss, model.source, optimizer_of(module), bench.device)


def _accumulating(model: Model, parts: int, *, reduces_once: bool) -> Arm:
    """A step of several micro-batches, whose gradients are reduced each time or once."""
    module = model.module
    assert isinstance(module, DistributedDataParallel)

    def learn(batch: torch.Tensor) -> None:
        for place, part in enumerate(batch.to(model.device, non_blocking=True).chunk(parts)):
            is_local = reduces_once and place < parts - 1
            context: AbstractContextManager[None] = module.no_sync() if is_local else nullcontext()
            with context:
                (model.loss(part) / parts).backward()  # type: ignore[no-untyped-call]
        model.update()

    return Arm(model, learn)


def _ddp_accumulates(bench: Bench, change: str | None) -> Arm:
    width = bench.size(768, 256)
    model = _regression(_ddp(_slept(4, width, 0.004), bench), width)
    return _accumulating(model, 2, reduces_once=change == "no_sync")


def _wide_accumulates(bench: Bench, change: str | None) -> Arm:
    width = bench.size(1024, 256)
    model = _regression(_ddp(_slept(3, width, 0.003), bench), width)
    return _accumulating(model, 4, reduces_once=change == "no_sync")


def _bert_accumulates(bench: Bench, change: str | None) -> Arm:
    model = _language_model(bench, "bert", {}, layers=2, width=256, length=16, batch=6)
    return _accumulating(model, 3, reduces_once=change == "no_sync")


def _accumulates_once(bench: Bench, change: str | None) -> Arm:
    width = bench.size(768, 256)
    options = {"gradient_as_bucket_view": True} if change == "views" else {}
    model = _regression(_ddp(_slept(4, width, 0.004), bench, **options), width)
    return _accumulating(model, 4, reduces_once=True)


def _small_buckets(bench: Bench, change: str | None) -> Arm:
    width, size = bench.size(128, 64), 25 if change == "buckets" else 0.05
    return Arm(_regression(_ddp(_slept(16, width, 0.0003), bench, bucket_cap_mb=size), width))


def _tiny_buckets(bench: Bench, change: str | None) -> Arm:
    size = 25 if change == "buckets" else 0.2
    return Arm(_language_model(bench, "gpt2", {"bucket_cap_mb": size}, layers=6, width=128, length=16, batch=2))


def _searches_unused(bench: Bench, change: str | None) -> Arm:
    options = {"find_unused_parameters": change != "used"}
    return Arm(_language_model(bench, "bert", options, layers=8, width=64, length=16, batch=2))


def _ddp_tuned(bench: Bench, change: str | None) -> Arm:
    width, size = bench.size(512, 128), 100 if change == "buckets" else 25
    options = {"gradient_as_bucket_view": True} if change == "views" else {}
    return Arm(_regression(_ddp(_slept(8, width, 0.004), bench, bucket_cap_mb=size, **options), width))


def _fully_sharded(bench: Bench, module: nn.Module, units: list[nn.Module]) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(bench.device.type, (bench.num_ranks,))
    for unit in units:
        fully_shard(unit, mesh=mesh)
    fully_shard(module, mesh=mesh)
    return module


def _small_units(bench: Bench, change: str | None) -> Arm:
    """Every linear layer is gathered alone, or a block of four at once."""
    width = bench.size(128, 32)
    module = _slept(16, width, 0.001, block=4)
    units: list[nn.Module] = list(module) if change == "units" else [layer for block in module for layer in block]  # type: ignore[attr-defined]
    return Arm(_regression(_fully_sharded(bench, module, units), width))


def _fsdp_tuned(bench: Bench, change: str | None) -> Arm:
    """A unit a block, which another size of units would not make faster."""
    width = bench.size(512, 64)
    module = _slept(6, width, 0.01, block=2)
    units: list[nn.Module] = (
        [nn.Sequential(*list(module)[:1]), nn.Sequential(*list(module)[1:])] if change == "units" else list(module)
    )
    if change == "units":
        module = nn.Sequential(*units)
    return Arm(_regression(_fully_sharded(bench, module, units), width))


def _cpu(
    name: str, what: str, make: Callable[[Bench, str | None], Arm], *changes: Change, is_tuned: bool = False
) -> Job:
    losses = ("communication",)
    return Job(name, what, arms(make), changes=changes, is_tuned=is_tuned, num_ranks=4, losses=losses)


COMMUNICATION_JOBS: tuple[Job, ...] = (
    _cpu("ddp_accumulates", "DDP, two micro-batches a step without no_sync()", _ddp_accumulates, _NO_SYNC),
    _cpu("ddp_small_buckets", "DDP, a bucket for each parameter", _small_buckets, _BUCKETS),
    _cpu("ddp_tuned", "DDP, nothing wrong", _ddp_tuned, _LARGE_BUCKETS, _VIEWS, is_tuned=True),
    _cpu("fsdp_small_units", "fully_shard of every linear layer", _small_units, _UNITS),
    _cpu("wide_accumulates", "DDP, four micro-batches a step without no_sync()", _wide_accumulates, _NO_SYNC),
    _cpu("bert_accumulates", "BERT under DDP, three micro-batches without no_sync()", _bert_accumulates, _NO_SYNC),
    _cpu("gpt2_tiny_buckets", "GPT-2 under DDP, buckets of 0.2 MiB", _tiny_buckets, _BUCKETS),
    _cpu("bert_searches_unused", "BERT under DDP, find_unused_parameters=True", _searches_unused, _USED),
    _cpu("ddp_accumulates_once", "DDP, four micro-batches with no_sync()", _accumulates_once, _VIEWS, is_tuned=True),
    _cpu("fsdp_tuned", "fully_shard of blocks, nothing wrong", _fsdp_tuned, _UNITS, is_tuned=True),
)
"""Four ranks of CPUs and gloo; the most important first."""


# Two GPUs

_WIDE: dict[str, Any] = {"width": 8192, "length": 128, "layers": 1}
"""Many gradients and few launches: the links and not a slow host are the limit."""
_LLAMA: dict[str, Any] = {"width": 4096, "length": 512, "layers": 4, "batch": 12}


def _llama_accumulates(bench: Bench, change: str | None) -> Arm:
    model = _language_model(bench, "llama", {}, **_WIDE, batch=16)
    return _accumulating(model, 8, reduces_once=change == "no_sync")


def _llama_small_buckets(bench: Bench, change: str | None) -> Arm:
    size = 25 if change == "buckets" else 1
    return Arm(_language_model(bench, "bert", {"bucket_cap_mb": size}, layers=12, width=768, length=256, batch=80))


def _llama_full_gradients(bench: Bench, change: str | None) -> Arm:
    """Weights and gradients in float32, compute in bfloat16."""
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook

    model = under_autocast(_language_model(bench, "llama", {}, **_WIDE, batch=4, weights=torch.float32))
    if change == "half":
        model.module.register_comm_hook(None, bf16_compress_hook)  # type: ignore[operator]
    return Arm(model, products="high")


def _gpt2_searches_unused(bench: Bench, change: str | None) -> Arm:
    options = {"find_unused_parameters": change != "used"}
    return Arm(_language_model(bench, "gpt2", options, layers=12, width=768, length=256, batch=4))


def _gpt2_tuned(bench: Bench, change: str | None) -> Arm:
    options = {"gradient_as_bucket_view": True} if change == "views" else {}
    return Arm(
        _language_model(bench, "gpt2", options | {"bucket_cap_mb": 100 if change == "buckets" else 25}, batch=32)
    )


def _sharded(bench: Bench, units: str, **sizes: Any) -> Arm:
    model = language_model(bench, "llama", **sizes)
    layers: list[Any] = list(model.module.model.layers)  # type: ignore[union-attr, arg-type]
    parts = {
        "blocks": layers,
        "whole": [],
        "linear": [part for layer in layers for part in layer.modules() if isinstance(part, nn.Linear)],
    }
    _fully_sharded(bench, model.module, parts[units])
    model.optimizer = optimizer_of(model.module)
    return Arm(model)


def _llama_whole(bench: Bench, change: str | None) -> Arm:
    return _sharded(bench, "blocks" if change == "units" else "whole", **_LLAMA)


def _llama_linear_units(bench: Bench, change: str | None) -> Arm:
    return _sharded(bench, "blocks" if change == "units" else "linear", **_LLAMA)


def _gpu(
    name: str, what: str, make: Callable[[Bench, str | None], Arm], *changes: Change, is_tuned: bool = False
) -> Job:
    losses = ("communication", "host_bound")
    return Job(name, what, arms(make), changes=changes, is_tuned=is_tuned, num_ranks=2, losses=losses)


EXCHANGE_JOBS: tuple[Job, ...] = (
    _gpu("llama_reduces_often", "Llama under DDP, eight micro-batches without no_sync()", _llama_accumulates, _NO_SYNC),
    _gpu("llama_whole_unit", "Llama under fully_shard, one unit", _llama_whole, _UNITS),
    _gpu(
        "llama_full_gradients",
        "Llama under DDP and autocast, gradients in float32",
        _llama_full_gradients,
        _HALF_GRADIENTS,
    ),
    _gpu("bert_small_buckets", "BERT under DDP, buckets of 1 MiB", _llama_small_buckets, _BUCKETS),
    _gpu("gpt2_ddp_tuned", "GPT-2 under DDP, nothing wrong", _gpt2_tuned, _LARGE_BUCKETS, _VIEWS, is_tuned=True),
    _gpu("llama_linear_units", "Llama under fully_shard, a unit for each linear layer", _llama_linear_units, _UNITS),
    _gpu("gpt2_searches_unused", "GPT-2 under DDP, find_unused_parameters=True", _gpt2_searches_unused, _USED),
)
"""Two GPUs and NCCL; the most important first."""
