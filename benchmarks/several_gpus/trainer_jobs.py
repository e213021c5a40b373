"""Jobs of several GPUs whose loop belongs to a trainer: Hugging Face, Accelerate, Lightning, DeepSpeed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from benchmarks.labelled_runs.arms import Arm, arms
from benchmarks.labelled_runs.batches import batch_of, sleeping
from benchmarks.labelled_runs.frameworks import HuggingFaceLoop, LightningLoop
from benchmarks.labelled_runs.job import Bench, Change, Fault, Job, Loop, Training, evaluation, every, slow_python
from benchmarks.labelled_runs.models import Model, language_model

SIZES: dict[str, Any] = {"layers": 4, "width": 2560, "batch": 16}
"""A step of about 80 ms on a large GPU, which a slow host launches in half of that: few layers, each of much work."""
SMALL: dict[str, Any] = {"layers": 4, "width": 1024, "batch": 16}
"""Weights that are soon saved."""

PYTHON_SECONDS = 0.15
"""On one rank: longer than a step, so that the host cannot hide it."""
_SAVE_PERIOD, _EVALUATION_PERIOD = 8, 6

_TRAINER = ("transformers:Trainer", "transformers:GPT2LMHeadModel", "transformers:LlamaForCausalLM")
_LIGHTNING = ("lightning.pytorch", *_TRAINER[1:])
_ACCELERATE = ("accelerate", *_TRAINER[1:])


def on_rank(bench: Bench, rank: int, hook: Callable[[int], None]) -> Callable[[int], None]:
    """The hook, on one rank."""
    return hook if bench.rank == rank else lambda _: None


def _python(bench: Bench, rank: int) -> Callable[[int], None]:
    return on_rank(bench, rank, lambda _: slow_python(PYTHON_SECONDS))


# Hugging Face


def _hf(
    bench: Bench, kind: str, sizes: dict[str, Any], faults: dict[str, dict[str, Any]] | None = None, **options: Any
) -> Training:
    """Trainer and DDP."""
    model = language_model(bench, kind, **sizes)
    settings = {"ddp_find_unused_parameters": False} | options
    if bench.device.type == "cpu":
        settings["ddp_backend"] = "gloo"
    return HuggingFaceLoop(bench, model.module, model.source, faults or {}, **settings)


def _hf_slow_loader(bench: Bench) -> Training:
    """Two workers of rank 1, each of which needs four steps' time for a batch."""
    num_rows = bench.size(SIZES["batch"], 2)
    work = sleeping(0.32 / num_rows)
    return _hf(bench, "gpt2", SIZES, work={"loader": on_rank(bench, 1, work)})


def _hf_saves(bench: Bench) -> Training:
    faults = {"saves": {"save_strategy": "steps", "save_steps": _SAVE_PERIOD, "save_only_model": True}}
    return _hf(bench, "llama", SMALL, faults)


def _hf_python(bench: Bench) -> Training:
    return _hf(bench, "gpt2", SIZES, hooks={"python": _python(bench, 0)})


def _hf_evaluates(bench: Bench) -> Training:
    """Every rank evaluates its part of the data, more often than it trains."""
    faults = {"evaluation": {"eval_strategy": "steps", "eval_steps": _EVALUATION_PERIOD}}
    return _hf(bench, "gpt2", SMALL, faults)


def _hf_sharded(bench: Bench, *, changes: dict[str, dict[str, Any]] | None = None, **hooks: Any) -> Training:
    """Trainer and FSDP2: `fully_shard` changes the model, which is made anew for each block."""

    def make() -> torch.nn.Module:
        torch.manual_seed(0)
        return language_model(bench, "llama", **SIZES).module

    source = language_model(bench, "llama", **SMALL | {"layers": 1, "width": 64, "batch": SIZES["batch"]}).source
    config = {"version": 2, "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"], "reshard_after_forward": True}
    settings: dict[str, Any] = {"fsdp": True, "fsdp_config": config}
    if bench.device.type == "cpu":
        settings["ddp_backend"] = "gloo"
    made = {name: {"fsdp_config": config | entries} for name, entries in (changes or {}).items()}
    return HuggingFaceLoop(bench, make, source, made, hooks=hooks, **settings)


def _hf_full_shard(bench: Bench) -> Training:
    return _hf_sharded(bench, changes={"zero2": {"reshard_after_forward": False}})


# Accelerate


class _Accelerated:
    """A model, its optimizer and its own loader under Accelerate."""

    def __init__(self, bench: Bench, kind: str, sizes: dict[str, Any]) -> None:
        from accelerate import Accelerator

        self.bench = bench
        self.accelerator = Accelerator(cpu=bench.device.type == "cpu")
        self.model: Model = language_model(bench, kind, **sizes)
        prepared: Any = self.accelerator.prepare(self.model.module, self.model.optimizer)
        self.module, self.optimizer = prepared

    def loss(self, ids: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self.module(input_ids=ids, labels=ids).loss
        return answer

    def learn(self, batch: torch.Tensor, _on: Set[str] = frozenset()) -> bool:
        self.accelerator.backward(self.loss(batch.to(self.bench.device, non_blocking=True)))
        self.update()
        return True

    def update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()

    def loader(self, num_batches: int, _on: Set[str] = frozenset()) -> Iterable[torch.Tensor]:
        return self.model.source.loader(num_batches)


def _accelerate_plain(bench: Bench) -> Training:
    trained = _Accelerated(bench, "llama", SIZES)
    return Loop(trained.learn, trained.loader, kept=trained)


def _accelerate_uneven(bench: Bench) -> Training:
    """Rank 1 has half as much again as the others; without the fault all share the same samples evenly."""
    trained = _Accelerated(bench, "gpt2", SIZES)
    small = bench.size(SIZES["batch"], 4)
    large = small * 3 // 2
    even = round((small * (bench.num_ranks - 1) + large) / bench.num_ranks)
    source = trained.model.source

    def loader(num_batches: int, on: Set[str]) -> Iterable[torch.Tensor]:
        size = (large if bench.rank == 1 else small) if "uneven" in on else even
        batch = batch_of(source.pool, 0, size)
        return (batch.pin_memory() if bench.device.type == "cuda" else batch for _ in range(num_batches))

    return Loop(trained.learn, loader, kept=trained)


def _accelerate_reads(bench: Bench) -> Training:
    """Rank 1 reads a value of each gradient, and the loss."""
    trained = _Accelerated(bench, "llama", SIZES)

    def learn(batch: torch.Tensor, on: Set[str]) -> bool:
        loss = trained.loss(batch.to(bench.device, non_blocking=True))
        trained.accelerator.backward(loss)
        if "item" in on and bench.rank == 1:
            loss.item()
            gradients = [each.grad for each in trained.module.parameters() if each.grad is not None]
            for _ in range(3):
                [gradient.norm().item() for gradient in gradients]
        trained.update()
        return True

    return Loop(learn, trained.loader, kept=trained)


def _accelerate_reduces(bench: Bench) -> Training:
    """Four micro-batches a step, whose gradients are reduced each time."""
    trained = _Accelerated(bench, "llama", {"layers": 1, "width": 8192, "length": 128, "batch": 16})

    def learn(batch: torch.Tensor, on: Set[str]) -> bool:
        parts = batch.to(bench.device, non_blocking=True).chunk(4)
        for place, part in enumerate(parts):
            is_local = "reduces" not in on and place < len(parts) - 1
            context: AbstractContextManager[None] = (
                trained.accelerator.no_sync(trained.module) if is_local else nullcontext()
            )
            with context:
                trained.accelerator.backward(trained.loss(part) / len(parts))
        trained.update()
        return True

    return Loop(learn, trained.loader, kept=trained)


# Lightning


def _lightning(
    bench: Bench,
    kind: str,
    sizes: dict[str, Any],
    make: Callable[[Model], dict[str, Any]] = lambda _: {},
    **options: Any,
) -> Training:
    """Args: make: hooks and work, given the model."""
    model = language_model(bench, kind, **sizes)
    settings: dict[str, Any] = {"strategy": "ddp", "use_distributed_sampler": False} | options
    faults = settings.pop("faults", {})
    return LightningLoop(bench, model.module, model.loss, model.source, faults, **make(model), **settings)


def _lightning_evaluates(bench: Bench) -> Training:
    """Rank 0 evaluates the bare module; the others wait in the next step's all-reduce."""

    def make(model: Model) -> dict[str, Any]:
        hook = every(_EVALUATION_PERIOD, evaluation(model.module, model.evaluate_batch, 8))
        return {"hooks": {"evaluation": on_rank(bench, 0, hook)}}

    return _lightning(bench, "llama", SIZES, make)


def _lightning_loader(bench: Bench) -> Training:
    """The workers of rank 1 need about two steps' time for a batch."""
    return _lightning(bench, "llama", SIZES, lambda _: {"work": {"loader": on_rank(bench, 1, sleeping(0.32))}})


def _lightning_unused(bench: Bench) -> Training:
    strategies = {"used": lambda: {"strategy": "ddp"}}
    sizes = {"layers": 12, "width": 768, "length": 256, "batch": 8}
    return _lightning(bench, "gpt2", sizes, strategy="ddp_find_unused_parameters_true", faults=strategies)


# DeepSpeed


def _deepspeed(bench: Bench, stage: int) -> Arm:
    import deepspeed

    if bench.device.type == "cpu":
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # it would be compiled first
    model = language_model(bench, "llama", **SIZES)
    rows = model.source.batch_size
    config = {
        "train_micro_batch_size_per_gpu": rows,
        "train_batch_size": rows * bench.num_ranks,
        "zero_optimization": {"stage": stage, "overlap_comm": True},
        "bf16": {"enabled": bench.device.type == "cuda"},
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 10**9,
    }
    fused = bench.device.type == "cuda"
    optimizer = torch.optim.AdamW(model.module.parameters(), lr=1e-4, fused=fused)
    engine, *_ = deepspeed.initialize(model=model.module, optimizer=optimizer, config=config, dist_init_required=False)

    def learn(batch: torch.Tensor) -> None:
        ids = batch.to(bench.device, non_blocking=True)
        engine.backward(engine(input_ids=ids, labels=ids).loss)
        engine.step()

    model.module = engine
    return Arm(model, learn)


def _of(name: str, what: str, make: Callable[[Bench], Training], fault: Fault | None = None, **options: Any) -> Job:
    faults = () if fault is None else (fault,)
    return Job(name, what, make, faults, num_ranks=2, **options)


def _changed(name: str, what: str, make: Callable[[Bench], Training], *changes: Change, **options: Any) -> Job:
    return Job(name, what, make, changes=changes, num_ranks=2, losses=("communication", "host_bound"), **options)


_PYTHON = Fault("python", ("host_bound", "straggler"), (), "no Python", ranks=(0,))
_LOADER = Fault("loader", ("data_loading",), ("starved",), "data ready", "num_workers|worker", ranks=(1,))
_ZERO_2 = Change("zero2", "reshard_after_forward=False", r"reshard_after_forward|ZeRO.?2|stage\W+2")

TRAINER_JOBS: dict[str, Job] = {
    job.name: job
    for job in (
        _of("hf_ddp_plain", "GPT-2, Trainer and DDP, nothing wrong", lambda bench: _hf(bench, "gpt2", SIZES),
            has_adapter=True, imports=_TRAINER),
        _of("hf_ddp_loader", "GPT-2, Trainer and DDP, the loader of rank 1 is slow", _hf_slow_loader, _LOADER,
            has_adapter=True, imports=_TRAINER),
        _of("hf_ddp_saves", "Llama, Trainer and DDP, rank 0 saves every 8 steps", _hf_saves,
            Fault("saves", ("checkpoint",), (), "no checkpoint", "async|save|checkpoint", ranks=(0,)),
            period=_SAVE_PERIOD, has_adapter=True, imports=_TRAINER),
        _of("hf_fsdp_plain", "Llama, Trainer and FSDP2, nothing wrong", _hf_sharded, has_adapter=True,
            losses=("communication",), imports=_TRAINER),
        _of("hf_fsdp_python", "Llama, Trainer and FSDP2, 150 ms of Python a step on rank 0",
            lambda bench: _hf_sharded(bench, python=_python(bench, 0)), _PYTHON, has_adapter=True, imports=_TRAINER),
        _of("hf_ddp_evaluates", "GPT-2, Trainer and DDP, evaluation every 6 steps", _hf_evaluates,
            Fault("evaluation", ("evaluation",), (), "no evaluation", "evaluat|validat"),
            period=_EVALUATION_PERIOD, has_adapter=True, imports=_TRAINER),
        _changed("hf_fsdp_full_shard", "Llama, Trainer and FSDP2, weights dropped after the forward pass",
                 _hf_full_shard, _ZERO_2, has_adapter=True, imports=_TRAINER),
        _of("run_hf_python", "GPT-2, Trainer and DDP under `stepscope run`, 150 ms of Python a step on rank 0",
            _hf_python, _PYTHON, has_adapter=True, is_launched=True, imports=_TRAINER),
        _of("accelerate_plain", "Llama, Accelerate, nothing wrong", _accelerate_plain, imports=_ACCELERATE),
        _of("accelerate_uneven", "GPT-2, Accelerate, batches of rank 1 are half as large again", _accelerate_uneven,
            Fault("uneven", ("imbalance", "straggler"), (), "even batches", ranks=(1,)), imports=_ACCELERATE),
        _of("accelerate_reads", "Llama, Accelerate, rank 1 reads values of its gradients", _accelerate_reads,
            Fault("item", ("synchronization", "straggler"), (), "no .item()", ranks=(1,)), imports=_ACCELERATE),
        _of("accelerate_reduces", "Llama, Accelerate, four micro-batches without no_sync()", _accelerate_reduces,
            Fault("reduces", ("communication",), (), "no_sync()", "no_sync|accumulat"), imports=_ACCELERATE),
        _of("lightning_plain", "Llama, Lightning and DDP, nothing wrong",
            lambda bench: _lightning(bench, "llama", SIZES), has_adapter=True, imports=_LIGHTNING),
        _of("lightning_evaluates", "Llama, Lightning and DDP, rank 0 evaluates every 6 steps", _lightning_evaluates,
            Fault("evaluation", ("evaluation",), (), "no evaluation", ranks=(0,)),
            period=_EVALUATION_PERIOD, has_adapter=True, imports=_LIGHTNING),
        _of("lightning_loader", "Llama, Lightning and DDP, the loader of rank 1 is slow", _lightning_loader, _LOADER,
            has_adapter=True, imports=_LIGHTNING),
        _changed("lightning_unused", "GPT-2, Lightning, find_unused_parameters=True", _lightning_unused,
                 Change("used", "find_unused_parameters=False", "find_unused"), has_adapter=True,
                 imports=_LIGHTNING),
        _of("deepspeed_zero2", "Llama, DeepSpeed ZeRO 2, nothing wrong", arms(lambda bench, _: _deepspeed(bench, 2)),
            losses=("communication",), imports=_TRAINER[1:]),
        _changed("deepspeed_zero3", "Llama, DeepSpeed ZeRO 3, where ZeRO 2 fits",
                 arms(lambda bench, change: _deepspeed(bench, 2 if change else 3)), _ZERO_2,
                 imports=_TRAINER[1:]),
    )
}  # fmt: skip
