"""Jobs of two GPUs of the labelled runs: one rank or both at fault, or nothing wrong; DDP and FSDP on NCCL."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.labelled_runs.job import Bench, Fault, Job, Loop, Training, slow_python
from benchmarks.labelled_runs.models import Model, language_model, optimizer_of

_NUM_RANKS = 2


def _ddp(bench: Bench, kind: str, **sizes: Any) -> Model:
    model = language_model(bench, kind, **sizes)
    module: Any = DistributedDataParallel(
        model.module, device_ids=None if bench.device.type == "cpu" else [bench.device.index]
    )

    def loss(ids: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = module(input_ids=ids, labels=ids).loss
        return answer

    return Model(module, loss, model.source, optimizer_of(module), bench.device)


def _batches(model: Model) -> Callable[[int, Set[str]], Iterable[Any]]:
    batch = model.source.batch().to(model.device)
    return lambda num, _: [batch] * num


def _after_backward(bench: Bench, model: Model, name: str, ranks: tuple[int, ...], act: Callable[[], object]) -> Loop:
    """A loop in which some ranks act between backward and update."""

    def learn(batch: Any, on: Set[str]) -> bool:
        model.backward(batch)
        if name in on and bench.rank in ranks:
            act()
        model.update()
        return True

    return Loop(learn, _batches(model))


def _read_norms(module: nn.Module) -> list[float]:
    gradients = [parameter.grad for parameter in module.parameters() if parameter.grad is not None]
    return [read for gradient in gradients for read in (gradient.norm().item(), gradient.abs().max().item())]


def _reads(bench: Bench, ranks: tuple[int, ...]) -> Training:
    model = _ddp(bench, "bert", length=512, batch=24)
    return _after_backward(bench, model, "item", ranks, lambda: _read_norms(model.module))


def _synchronizes(bench: Bench) -> Training:
    """Rank 1 waits for its GPU after every layer, forwards."""
    model = _ddp(bench, "gpt2", layers=6, batch=6)
    is_on = False

    def hook(*_: Any) -> None:
        if is_on and bench.rank == 1 and bench.device.type == "cuda":
            torch.cuda.synchronize()

    for each in model.module.modules():
        if not list(each.children()):
            each.register_forward_hook(hook)

    def learn(batch: Any, on: Set[str]) -> bool:
        nonlocal is_on
        is_on = "synchronize" in on
        return model.learn(batch)

    return Loop(learn, _batches(model))


def _slow_rank(bench: Bench) -> Training:
    model = _ddp(bench, "llama", layers=3, width=1024, batch=8)
    return _after_backward(bench, model, "python", (0,), lambda: slow_python(0.02))


def _copies(bench: Bench) -> Training:
    """Both ranks copy a part of their gradients to pageable memory."""
    model = _ddp(bench, "bert", length=512, batch=24)

    def copy() -> None:
        for parameter in list(model.module.parameters())[:24]:
            if parameter.grad is not None:
                parameter.grad.cpu()

    return _after_backward(bench, model, "copies", (0, 1), copy)


def _accumulates(bench: Bench) -> Training:
    """Gradients of four micro-batches, reduced each time or once a step."""
    model = _ddp(bench, "llama", layers=1, width=6144, length=128, batch=16)
    module = model.module
    assert isinstance(module, DistributedDataParallel)

    def learn(batch: torch.Tensor, on: Set[str]) -> bool:
        parts = batch.chunk(4)
        for place, part in enumerate(parts):
            module.require_backward_grad_sync = "reduces" in on or place == len(parts) - 1
            model.loss(part).backward()  # type: ignore[no-untyped-call]
        model.update()
        return True

    return Loop(learn, _batches(model))


def _sharded_reads(bench: Bench) -> Training:
    """FSDP, in which both ranks test a value of each gradient."""
    from torch.distributed.fsdp import fully_shard

    model = language_model(bench, "llama", width=1024, batch=8)
    for layer in model.module.model.layers:  # type: ignore[union-attr]
        fully_shard(layer)
    fully_shard(model.module)
    model.optimizer = optimizer_of(model.module)

    def check() -> bool:
        gradients: list[Any] = [each.grad for each in model.module.parameters() if each.grad is not None]
        return all(bool(torch.isfinite(gradient.to_local().flatten()[:1]).all()) for gradient in gradients)

    return _after_backward(bench, model, "check", (0, 1), check)


def _plain(bench: Bench) -> Training:
    model = _ddp(bench, "gpt2", batch=12)
    return Loop(model.learn, _batches(model))


def _job(name: str, what: str, make: Callable[[Bench], Training], fault: Fault | None = None) -> Job:
    faults = () if fault is None else (fault,)
    return Job(name, what, make, faults, num_ranks=_NUM_RANKS, num_rounds=3, num_rounds_after=2)


RANK_JOBS: tuple[Job, ...] = (
    _job(
        "ddp_one_reads",
        "BERT under DDP, rank 1 reads two values of each gradient",
        lambda bench: _reads(bench, (1,)),
        Fault("item", ("synchronization", "straggler"), (), "no .item()", ranks=(1,)),
    ),
    _job(
        "ddp_all_read",
        "BERT under DDP, both ranks read two values of each gradient",
        lambda bench: _reads(bench, (0, 1)),
        Fault("item", ("synchronization",), (), "no .item()"),
    ),
    _job("ddp_plain_gpus", "GPT-2 under DDP, nothing wrong", _plain),
    _job(
        "ddp_one_synchronizes",
        "GPT-2 under DDP, rank 1 waits for its GPU after every layer",
        _synchronizes,
        Fault("synchronize", ("synchronization", "straggler"), (), "no synchronize()", ranks=(1,)),
    ),
    _job(
        "ddp_one_python",
        "Llama under DDP, 20 ms of Python on rank 0 between backward and update",
        _slow_rank,
        Fault("python", ("host_bound", "straggler"), (), "no Python", ranks=(0,)),
    ),
    _job(
        "ddp_accumulates",
        "Llama under DDP, four micro-batches without no_sync()",
        _accumulates,
        Fault("reduces", ("communication",), (), "no_sync()", "no_sync"),
    ),
    _job(
        "fsdp_checks",
        "Llama under fully_shard, both ranks test a value of each gradient",
        _sharded_reads,
        Fault("check", ("synchronization",), (), "no test"),
    ),
    _job(
        "ddp_all_copy",
        "BERT under DDP, both ranks copy gradients to pageable memory",
        _copies,
        Fault("copies", ("copy", "synchronization"), (), "no copy"),
    ),
)
"""The most important first: a recording may run out of time."""
