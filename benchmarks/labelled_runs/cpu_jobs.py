"""Jobs of four to eight ranks of the labelled runs, on CPUs and gloo: one rank is at fault, or ranks by turns, or none.

Most compute is an operator that sleeps, so that ranks do not compete for cores.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Set
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.labelled_runs.batches import Source, sleeping
from benchmarks.labelled_runs.frameworks import HuggingFaceLoop, LightningLoop
from benchmarks.labelled_runs.job import (
    CHECKPOINT,
    COLLECTION,
    EVALUATION,
    STARVED,
    Bench,
    Fault,
    Job,
    Loop,
    Training,
    collect,
    evaluation,
    every,
    heap,
    save,
    slow_python,
)
from benchmarks.labelled_runs.models import Model, language_model

_WIDTH = 256


@torch.library.custom_op("labelled::compute", mutates_args=())
def _compute(inputs: torch.Tensor, seconds: float) -> torch.Tensor:
    time.sleep(seconds)
    return inputs.clone()


def _keep_seconds(ctx: Any, inputs: tuple[torch.Tensor, float], output: torch.Tensor) -> None:  # noqa: ARG001
    ctx.seconds = inputs[1]


_compute.register_autograd(
    lambda ctx, gradient: (_compute(gradient, 2 * ctx.seconds), None), setup_context=_keep_seconds
)


class Layer(nn.Module):
    """A linear layer whose compute is slept: `seconds` forwards, twice that backwards."""

    def __init__(self, width: int, seconds: float) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.seconds = seconds

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = _compute(self.linear(inputs).relu(), self.seconds)
        return outputs


def _layers(num: int, seconds: float, width: int = _WIDTH) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(Layer(width, seconds) for _ in range(num)))


def _model(module: nn.Module, width: int = _WIDTH) -> Model:
    return Model(
        module,
        lambda batch: module(batch).square().mean(),
        Source(torch.randn(64, width), 8),
        torch.optim.SGD(module.parameters(), lr=1e-4),
        torch.device("cpu"),
    )


def _ddp(num: int = 4, seconds: float = 0.005, width: int = _WIDTH) -> Model:
    return _model(DistributedDataParallel(_layers(num, seconds, width)), width)


def _fsdp(bench: Bench, num: int = 4, seconds: float = 0.006) -> Model:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (bench.num_ranks,))
    module = _layers(num, seconds)
    for layer in module:
        fully_shard(layer, mesh=mesh)
    fully_shard(module, mesh=mesh)
    return _model(module)


def _loader(model: Model, bench: Bench, rank: int, work: Callable[[int], None]) -> Callable[[int, Set[str]], Any]:
    """One worker a rank; that of one rank does this work besides."""
    return lambda num, on: model.source.loader(
        num, work if "loader" in on and bench.rank == rank else None, num_workers=1
    )


def _on(bench: Bench, rank: int, hook: Callable[[int], None]) -> Callable[[int], None]:
    return hook if bench.rank == rank else lambda _: None


def _loop(model: Model, loader: Callable[[int, Set[str]], Any] | None = None, **hooks: Callable[[int], None]) -> Loop:
    return Loop(model.learn, loader or (lambda num, _: model.source.loader(num, num_workers=1)), hooks)


def _collecting(loop: Loop, num_objects: int) -> Loop:
    loop.kept = heap(num_objects)
    return loop


# Nothing wrong


def _trainer(bench: Bench, faults: dict[str, dict[str, Any]], seconds: float) -> Training:
    model = language_model(bench, "bert", layers=2, width=128, length=32, batch=4)
    module = _Slept(model.module, seconds)
    return HuggingFaceLoop(bench, module, model.source, faults, ddp_backend="gloo", ddp_find_unused_parameters=False)


class _Slept(nn.Module):
    """A model of transformers that takes longer."""

    def __init__(self, model: nn.Module, seconds: float) -> None:
        super().__init__()
        self.model, self.seconds = model, seconds

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        answer = self.model(input_ids=input_ids, labels=labels)
        return {"loss": _compute(answer.loss[None], self.seconds)[0], "logits": answer.logits}


# One rank


def _ddp_loader_rank2(bench: Bench) -> Training:
    model = _ddp()
    return _loop(model, _loader(model, bench, 2, sleeping(0.11)))


def _ddp_bursty_rank1(bench: Bench) -> Training:
    model = _ddp()
    return _loop(model, _loader(model, bench, 1, sleeping(0.45, 6)))


def _fsdp_collects_rank1(bench: Bench) -> Training:
    return _collecting(_loop(_fsdp(bench), gc=_on(bench, 1, lambda _: collect())), 250_000 if bench.rank == 1 else 0)


def _ddp_python_rank3(bench: Bench) -> Training:
    return _loop(_ddp(), python=_on(bench, 3, lambda _: slow_python(0.045)))


def _ddp_evaluates_rank1(bench: Bench) -> Training:
    model = _ddp()
    inner = model.module.module
    assert isinstance(inner, nn.Module)
    batch = model.source.pool[:8]
    hook = every(6, evaluation(inner, lambda: inner(batch).mean(), 10))
    return _loop(model, evaluation=_on(bench, 1, hook))


def _accelerate_saves(bench: Bench) -> Training:
    """Rank 0 saves while the others go on to the next all-reduce."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = _model(_layers(4, 0.006))
    module, optimizer = accelerator.prepare(model.module, model.optimizer)
    state = {"weights": torch.zeros(40_000_000)}
    path = str(bench.folder / "state.pt")

    def learn(batch: torch.Tensor, _on: Set[str]) -> bool:
        accelerator.backward(module(batch).square().mean())
        optimizer.step()
        optimizer.zero_grad()
        return True

    hook = every(3, lambda: accelerator.save(state, path))
    return Loop(learn, lambda num, _: model.source.loader(num, num_workers=1), {"checkpoint": hook})


# Every rank


def _ddp_collects_by_turns(bench: Bench) -> Training:
    def hook(index: int) -> None:
        if index % bench.num_ranks == bench.rank:
            collect()

    return _collecting(_loop(_ddp(), gc=hook), 200_000)


def _ddp_uneven(bench: Bench) -> Training:
    """Batches differ in length, and with them the compute of each rank from step to step."""
    model = _ddp()
    inner = model.module.module
    assert isinstance(inner, nn.Sequential)
    num_done = 0

    def learn(batch: torch.Tensor, on: Set[str]) -> bool:
        nonlocal num_done
        num_done += 1
        factor = (0.6, 1.0, 1.4, 2.0)[(num_done * 3 + bench.rank) % 4] if "lengths" in on else 1.25
        for layer in inner:
            layer.seconds = 0.005 * factor  # type: ignore[assignment]
        return model.learn(batch)

    return Loop(learn, lambda num, _: model.source.loader(num, num_workers=1))


def _ddp_reduces_often(bench: Bench) -> Training:
    """Four micro-batches a step, whose gradients are reduced each time."""
    width = bench.size(1536, 256)
    model = _ddp(num=4, seconds=0.004, width=width)
    module = model.module
    assert isinstance(module, DistributedDataParallel)

    def learn(batch: torch.Tensor, on: Set[str]) -> bool:
        for part in range(4):
            is_local = part < 3 and "reduces" not in on
            context: AbstractContextManager[None] = module.no_sync() if is_local else nullcontext()
            with context:
                (model.loss(batch) / 4).backward()  # type: ignore[no-untyped-call]
        model.update()
        return True

    return Loop(learn, lambda num, _: model.source.loader(num, num_workers=1))


def _fsdp_saves(bench: Bench) -> Training:
    """All ranks write a distributed checkpoint."""
    import torch.distributed.checkpoint as checkpoints

    model = _fsdp(bench)
    big = torch.zeros(15_000_000)

    def write() -> None:
        state = {"model": model.module.state_dict(), f"buffer{bench.rank}": big}
        checkpoints.save(state, checkpoint_id=bench.folder / "distributed")  # type: ignore[attr-defined]

    return _loop(model, checkpoint=every(5, write))


def _lightning_saves(bench: Bench) -> Training:
    def callbacks() -> dict[str, Any]:
        import lightning.pytorch as lightning
        from lightning.pytorch.callbacks import ModelCheckpoint

        class Averages(lightning.Callback):  # type: ignore[misc]
            def on_save_checkpoint(self, _trainer: Any, _module: Any, checkpoint: dict[str, Any]) -> None:
                checkpoint["averages"] = torch.zeros(30_000_000)

        saver = ModelCheckpoint(dirpath=bench.folder / "lightning", every_n_train_steps=4, save_top_k=1)
        return {"enable_checkpointing": True, "callbacks": [saver, Averages()]}

    module = _layers(4, 0.006)
    source = Source(torch.randn(64, _WIDTH), 8)
    return LightningLoop(
        bench, module, lambda batch: module(batch).square().mean(), source, {"checkpoint": callbacks}, strategy="ddp"
    )


# Pipelines


class _Pipeline:
    """A pipeline of one stage a rank, by the schedule 1F1B."""

    def __init__(self, bench: Bench, num_layers: int, seconds: float, rows: int) -> None:
        self._bench, self._rows = bench, rows
        self._stage_module = _layers(num_layers, seconds)
        self._optimizer = torch.optim.SGD(self._stage_module.parameters(), lr=1e-4)
        self._seconds = seconds
        self._schedules: dict[int, Any] = {}

    def learn(self, batch: torch.Tensor, num_parts: int, of_parts: int) -> bool:
        """A step in so many micro-batches; `seconds` belong to one of `of_parts`."""
        for layer in self._stage_module:
            layer.seconds = self._seconds * of_parts / num_parts  # type: ignore[assignment]
        schedule = self._schedule(num_parts)
        if self._bench.rank == 0:
            schedule.step(batch)
        elif self._bench.rank == self._bench.num_ranks - 1:
            schedule.step(target=batch)
        else:
            schedule.step()
        self._optimizer.step()
        self._optimizer.zero_grad()
        return True

    def _schedule(self, num_parts: int) -> Any:
        from torch.distributed.pipelining import PipelineStage, Schedule1F1B

        if num_parts not in self._schedules:
            bench = self._bench
            example = torch.zeros(self._rows // num_parts, _WIDTH, requires_grad=True)
            stage = PipelineStage(
                self._stage_module, bench.rank, bench.num_ranks, bench.device, input_args=example, output_args=example
            )
            self._schedules[num_parts] = Schedule1F1B(
                stage, num_parts, loss_fn=lambda output, target: (output - target).square().mean()
            )
        return self._schedules[num_parts]


def _pipeline_few(bench: Bench) -> Training:
    pipeline = _Pipeline(bench, 1, 0.012, 16)
    source = Source(torch.randn(64, _WIDTH), 16)
    return Loop(
        lambda batch, on: pipeline.learn(batch, 4 if "few" in on else 16, 4),
        lambda num, _: source.loader(num, num_workers=1),
    )


def _pipeline_loader_rank0(bench: Bench) -> Training:
    pipeline = _Pipeline(bench, 1, 0.004, 16)
    source = Source(torch.randn(64, _WIDTH), 16)

    def loader(num: int, on: Set[str]) -> Iterable[Any]:
        work = sleeping(0.3) if "loader" in on and bench.rank == 0 else None
        return source.loader(num, work, num_workers=1)

    return Loop(lambda batch, _: pipeline.learn(batch, 8, 8), loader)


# Pairs


def _ddp_loader_saves(bench: Bench) -> Training:
    model = _ddp()
    big = nn.Linear(5000, 5000) if bench.rank == 0 else nn.Linear(1, 1)
    return _loop(
        model,
        _loader(model, bench, 1, sleeping(0.1)),
        checkpoint=_on(bench, 0, every(4, save(big, bench.folder))),
    )


def _fsdp_collects_evaluates(bench: Bench) -> Training:
    model = _fsdp(bench)
    loop = _loop(
        model,
        gc=_on(bench, 2, lambda _: collect()),
        evaluation=every(6, evaluation(model.module, model.evaluate_batch, 8)),
    )
    return _collecting(loop, 150_000 if bench.rank == 2 else 0)


def _ddp_loader_collects(bench: Bench) -> Training:
    model = _ddp()
    loop = _loop(model, _loader(model, bench, 3, sleeping(0.13)), gc=_on(bench, 1, lambda _: collect()))
    return _collecting(loop, 150_000 if bench.rank == 1 else 0)


def _ddp_evaluates_saves(bench: Bench) -> Training:
    model = _ddp()
    big = nn.Linear(6000, 6000) if bench.rank == 0 else nn.Linear(1, 1)
    return _loop(
        model,
        checkpoint=_on(bench, 0, every(4, save(big, bench.folder))),
        evaluation=every(6, evaluation(model.module, model.evaluate_batch, 10)),
    )


def _ddp_python_saves(bench: Bench) -> Training:
    big = nn.Linear(5000, 5000) if bench.rank == 0 else nn.Linear(1, 1)
    return _loop(
        _ddp(),
        python=_on(bench, 1, lambda _: slow_python(0.04)),
        checkpoint=_on(bench, 0, every(3, save(big, bench.folder))),
    )


def _on_rank(fault: Fault, rank: int) -> Fault:
    return replace(fault, ranks=(rank,))


def _python(rank: int) -> Fault:
    return Fault("python", ("host_bound", "straggler"), (), "no Python work", None, (rank,))


CPU_JOBS: tuple[Job, ...] = (
    Job("ddp_plain", "DDP, nothing wrong", lambda _: _loop(_ddp()), num_ranks=4),
    Job(
        "ddp_loader_rank2",
        "DDP, rank 2's worker takes 110 ms a batch",
        _ddp_loader_rank2,
        (_on_rank(STARVED, 2),),
        num_ranks=6,
    ),
    Job(
        "fsdp_collects_rank1",
        "fully_shard, rank 1 calls gc.collect() every step beside 500,000 live objects",
        _fsdp_collects_rank1,
        (_on_rank(COLLECTION, 1),),
        num_ranks=4,
    ),
    Job(
        "trainer_evaluates",
        "BERT under the Trainer of transformers, evaluates every sixth step",
        lambda bench: _trainer(bench, {"evaluation": {"eval_strategy": "steps", "eval_steps": 6}}, 0.02),
        (EVALUATION,),
        6,
        4,
        has_adapter=True,
    ),
    Job(
        "lightning_saves",
        "Lightning, ModelCheckpoint saves every fourth step",
        _lightning_saves,
        (CHECKPOINT,),
        4,
        4,
        has_adapter=True,
    ),
    Job(
        "accelerate_saves",
        "Accelerate, rank 0 saves 160 MB every third step",
        _accelerate_saves,
        (_on_rank(CHECKPOINT, 0),),
        3,
        4,
    ),
    Job(
        "fsdp_plain",
        "fully_shard, nothing wrong",
        lambda bench: _loop(_fsdp(bench)),
        num_ranks=5,
        losses=("communication",),
    ),
    Job(
        "pipeline_few",
        "four stages under 1F1B, four micro-batches",
        _pipeline_few,
        (
            Fault(
                "few", ("pipeline_bubble",), ("few_micro_batches",), "16 micro-batches", "micro-batch", is_whole=False
            ),
        ),
        num_ranks=4,
        share=3 / 7,
    ),
    Job(
        "ddp_python_rank3",
        "DDP, rank 3 works 45 ms in Python every step",
        _ddp_python_rank3,
        (_python(3),),
        num_ranks=8,
    ),
    Job(
        "ddp_collects_by_turns",
        "DDP, each step another rank calls gc.collect() beside 400,000 live objects",
        _ddp_collects_by_turns,
        (COLLECTION,),
        4,
        4,
    ),
    Job(
        "ddp_reduces_often",
        "DDP, four micro-batches a step without no_sync()",
        _ddp_reduces_often,
        (Fault("reduces", ("communication",), (), "no_sync()", "no_sync", is_whole=False),),
        num_ranks=4,
    ),
    Job(
        "ddp_bursty_rank1",
        "DDP, every sixth batch takes rank 1's worker 450 ms",
        _ddp_bursty_rank1,
        (_on_rank(replace(STARVED, reasons=()), 1),),
        6,
        4,
    ),
    Job(
        "pipeline_loader_rank0",
        "four stages under 1F1B, the first one's worker takes 300 ms a batch",
        _pipeline_loader_rank0,
        (_on_rank(STARVED, 0),),
        num_ranks=4,
    ),
    Job(
        "ddp_loader_collects",
        "DDP, rank 3 has a slow worker, rank 1 collects garbage",
        _ddp_loader_collects,
        (_on_rank(STARVED, 3), _on_rank(COLLECTION, 1)),
        num_ranks=4,
    ),
    Job(
        "trainer_plain_ranks",
        "BERT under the Trainer of transformers, nothing wrong",
        lambda bench: _trainer(bench, {}, 0.03),
        num_ranks=4,
        has_adapter=True,
    ),
    Job(
        "fsdp_saves",
        "fully_shard, a distributed checkpoint every fifth step",
        _fsdp_saves,
        (CHECKPOINT,),
        5,
        4,
    ),
    Job(
        "ddp_loader_saves",
        "DDP, rank 1 has a slow worker, rank 0 saves every fourth step",
        _ddp_loader_saves,
        (_on_rank(STARVED, 1), _on_rank(CHECKPOINT, 0)),
        4,
        4,
    ),
    Job(
        "ddp_evaluates_rank1",
        "DDP, rank 1 alone evaluates every sixth step",
        _ddp_evaluates_rank1,
        (_on_rank(EVALUATION, 1),),
        6,
        4,
    ),
    Job(
        "fsdp_collects_evaluates",
        "fully_shard, rank 2 collects garbage, all evaluate every sixth step",
        _fsdp_collects_evaluates,
        (_on_rank(COLLECTION, 2), EVALUATION),
        6,
        4,
        losses=("communication",),
    ),
    Job(
        "ddp_uneven",
        "DDP, the compute of each rank changes from step to step",
        _ddp_uneven,
        (Fault("lengths", ("imbalance", "straggler"), (), "even batches"),),
        4,
        4,
    ),
    Job(
        "ddp_evaluates_saves",
        "DDP, all evaluate every sixth step, rank 0 saves every fourth",
        _ddp_evaluates_saves,
        (EVALUATION, _on_rank(CHECKPOINT, 0)),
        12,
        4,
    ),
    Job(
        "ddp_python_saves",
        "DDP, rank 1 works in Python, rank 0 saves every third step",
        _ddp_python_saves,
        (_python(1), _on_rank(CHECKPOINT, 0)),
        3,
        4,
    ),
)
"""The most important first: a recording may run out of time."""
