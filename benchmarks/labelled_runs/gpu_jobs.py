"""Jobs of one GPU of the labelled runs: models of public libraries, each with a fault, a pair of faults or none."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Set
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from benchmarks.labelled_runs import neighbours
from benchmarks.labelled_runs.batches import sleeping
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
from benchmarks.labelled_runs.models import (
    Model,
    embedding_model,
    encoder,
    graph_network,
    image_model,
    language_model,
    optimizer_of,
)

Loader = Callable[[int, Set[str]], Iterable[Any]]


def _plain_loader(model: Model) -> Loader:
    return lambda num, _: model.source.loader(num)


def _loop(model: Model, loader: Loader | None = None, **hooks: Callable[[int], None]) -> Loop:
    return Loop(model.learn, loader or _plain_loader(model), hooks)


def _vit(bench: Bench, batch: int = 256) -> Model:
    return image_model(bench, "vit_base_patch16_224", batch, depth=bench.size(6, 1))


def _convnext(bench: Bench, batch: int = 192) -> Model:
    return image_model(bench, "convnext_tiny", batch, depths=(2, 2, 4, 2))


# Data


def _gpt2_slow_worker(bench: Bench) -> Training:
    model = language_model(bench, "gpt2")
    work = sleeping(0.06)
    return _loop(model, lambda num, on: model.source.loader(num, work if "loader" in on else None, 1))


def _vit_no_workers(bench: Bench) -> Training:
    model = _vit(bench)
    return _loop(
        model, lambda num, on: model.source.loader(num, lambda _: slow_python(0.02), 0 if "loader" in on else 6)
    )


def _convnext_collate(bench: Bench) -> Training:
    model = _convnext(bench)

    def collate(batch: torch.Tensor) -> torch.Tensor:
        slow_python(0.16)
        return batch

    return _loop(model, lambda num, on: model.source.loader(num, collate_fn=collate if "loader" in on else None))


def _bert_bursty(bench: Bench) -> Training:
    model = language_model(bench, "bert", length=512, batch=48)
    work = sleeping(0.35, 8)
    return _loop(model, lambda num, on: model.source.loader(num, work if "loader" in on else None, 1))


_BURSTY = Fault("loader", ("data_loading",), ("bursty", "starved"), "data ready", "num_workers|worker|prefetch")


# Copies and blocking calls


def _resnet_pageable(bench: Bench) -> Training:
    model = image_model(bench, "resnet34", 256)
    large = nn.functional.interpolate(model.source.pool.float(), scale_factor=2)
    pageable = large.repeat(4, 1, 1, 1)[: bench.size(256, 2)].contiguous()
    pinned = pageable.pin_memory() if bench.device.type == "cuda" else pageable
    return _loop(model, lambda num, on: [pageable if "pageable" in on else pinned] * num)


def _gpt2_logits_on_cpu(bench: Bench) -> Training:
    model = language_model(bench, "gpt2", layers=5)

    def learn(batch: torch.Tensor, on: Set[str]) -> bool:
        ids = batch.to(model.device, non_blocking=True)
        answer = model.module(input_ids=ids, labels=ids)
        answer.loss.backward()
        model.update()
        if "metric" in on:
            answer.logits.detach().cpu()
        return True

    return Loop(learn, _plain_loader(model))


def _reads_norms(model: Model) -> Callable[[Any, Set[str]], bool]:
    def learn(batch: Any, on: Set[str]) -> bool:
        model.backward(batch)
        if "item" in on:
            for parameter in model.module.parameters():
                assert parameter.grad is not None
                _ = parameter.norm().item(), parameter.grad.abs().max().item()
        model.update()
        return True

    return learn


def _vit_reads_norms(bench: Bench) -> Training:
    model = _vit(bench)
    return Loop(_reads_norms(model), _plain_loader(model))


def _bert_prints_loss(bench: Bench) -> Training:
    model = language_model(bench, "bert", length=512, batch=48)
    log = open(os.devnull, "w")  # noqa: SIM115 - lives as long as the job

    def learn(batch: Any, on: Set[str]) -> bool:
        loss = model.backward(batch)
        model.update()
        if "print" in on:
            print(f"loss {loss.item():.4f}", file=log, flush=True)
        return True

    return Loop(learn, _plain_loader(model))


_READS = Fault("item", ("synchronization",), ("reads_value",), "no .item()", "item")
_COPIES = ("copy", "synchronization")


# Host


def _llama_collects(bench: Bench) -> Training:
    model = language_model(bench, "llama", width=1536, batch=8)
    kept = heap(bench.size(150_000, 100))
    loop = _loop(model, gc=every(2, collect))
    loop.kept = kept
    return loop


def _convnext_empties_cache(bench: Bench) -> Training:
    return _loop(_convnext(bench), empty_cache=lambda _: torch.cuda.empty_cache())


def _encoder_recompiles(bench: Bench) -> Training:
    import torch._dynamo

    torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = 10_000
    model = encoder(bench)
    num_cut = 0

    @torch.compile(dynamic=False, backend="aot_eager")
    def smoothed(scores: torch.Tensor) -> torch.Tensor:
        return (scores.softmax(-1) + 1e-6).log().mean()

    def learn(batch: torch.Tensor, on: Set[str]) -> bool:
        nonlocal num_cut
        ids = batch.to(model.device, non_blocking=True)
        if "lengths" in on:
            num_cut += 1
            ids = ids[:, : ids.shape[1] - num_cut // 3]
        module = model.module
        assert isinstance(module, nn.ModuleDict)
        hidden = module["body"](module["embedding"](ids))
        scores = module["head"](hidden)
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), ids.flatten()) - 0.01 * smoothed(scores)
        loss.backward()  # type: ignore[no-untyped-call]
        model.update()
        return True

    return Loop(learn, _plain_loader(model))


def _graph_slow_python(bench: Bench) -> Training:
    return _loop(graph_network(bench), python=lambda _: slow_python(0.05))


def _narrow_loop_optimizer(bench: Bench) -> Training:
    model = encoder(bench, layers=8, width=256, length=64, batch=8)
    parameters = list(model.module.parameters())
    looped = torch.optim.AdamW(parameters, lr=1e-4, foreach=False)
    fused = model.optimizer

    def learn(batch: torch.Tensor, on: Set[str]) -> bool:
        model.optimizer = looped if "optimizer" in on else fused
        return model.learn(batch)

    return Loop(learn, _plain_loader(model))


# Saving, evaluating, overflow


def _convnext_saves(bench: Bench) -> Training:
    model = _convnext(bench)
    return _loop(model, checkpoint=every(5, save(model.module, bench.folder)))


def _bert_evaluates(bench: Bench) -> Training:
    model = language_model(bench, "bert", length=512, batch=48)
    return _loop(model, evaluation=every(6, evaluation(model.module, model.evaluate_batch, 8)))


class _Scaled:
    """Training in fp16 with a loss scale that grows until gradients overflow, or with one that stays."""

    def __init__(self, bench: Bench) -> None:
        self._model = language_model(bench, "gpt2", layers=3, width=1024, batch=12)
        self._model.module.float()
        self._model.optimizer = torch.optim.AdamW(self._model.module.parameters(), lr=1e-5)
        self._model.optimizer.register_step_post_hook(self._updated)
        self._has_updated = False
        kind = bench.device.type
        self._growing = torch.amp.GradScaler(kind, init_scale=2.0**36, growth_interval=2)
        self._constant = torch.amp.GradScaler(kind, init_scale=2.0**8, growth_interval=10**6)
        for batch in self._model.source.loader(60, num_workers=0):
            if self.learn(batch, {"overflow"}):
                break

    @property
    def model(self) -> Model:
        return self._model

    def learn(self, batch: torch.Tensor, on: Set[str]) -> bool:
        scaler = self._growing if "overflow" in on else self._constant
        ids = batch.to(self._model.device, non_blocking=True)
        with torch.autocast(ids.device.type, torch.float16):
            loss = self._model.module(input_ids=ids, labels=ids).loss
        scaler.scale(loss).backward()
        self._has_updated = False
        scaler.step(self._model.optimizer)
        scaler.update()
        self._model.optimizer.zero_grad()
        return self._has_updated

    def _updated(self, *_: Any) -> None:
        self._has_updated = True


def _gpt2_overflows(bench: Bench) -> Training:
    scaled = _Scaled(bench)
    return Loop(scaled.learn, _plain_loader(scaled.model))


_OVERFLOW = Fault("overflow", ("wasted_steps",), ("overflow",), "a loss scale that stays", "scale")
_PYTHON = Fault("python", ("host_bound",), ("python",), "no Python work between steps")


# Neighbours


def _beside(model: Model, others: neighbours.Neighbours) -> Training:
    batch = model.source.batch().to(model.device)

    def loader(num: int, on: Set[str]) -> Iterable[Any]:
        others.let(work="neighbour" in on)
        return [batch] * num

    return Loop(model.learn, loader)


def _gpt2_shared_core(bench: Bench) -> Training:
    others = neighbours.of_core(3)
    return _beside(language_model(bench, "gpt2", layers=5, length=512), others)


def _vit_shared_gpu(bench: Bench) -> Training:
    return _beside(_vit(bench), neighbours.of_gpu() if bench.device.type == "cuda" else neighbours.of_core(1))


# Nothing wrong


def _llama_accumulates(bench: Bench) -> Training:
    model = language_model(bench, "llama", layers=3, width=1536, batch=4)

    def learn(batch: torch.Tensor, _on: Set[str]) -> bool:
        for part in batch.unflatten(0, (4, -1)):  # type: ignore[no-untyped-call]
            (model.loss(part.to(model.device, non_blocking=True)) / 4).backward()  # type: ignore[no-untyped-call]
        model.update()
        return True

    model.source.batch_size *= 4
    return Loop(learn, _plain_loader(model))


def _resnet_workers(bench: Bench) -> Training:
    model = image_model(bench, "resnet34", 192)
    return _loop(model, lambda num, _: model.source.loader(num, num_workers=5))


def _trainer(bench: Bench, faults: dict[str, dict[str, Any]], **arguments: Any) -> Training:
    model = language_model(bench, "gpt2", layers=4, batch=16)
    return HuggingFaceLoop(bench, model.module, model.source, faults, **arguments)


def _lightning(bench: Bench, faults: dict[str, Callable[[], dict[str, Any]]]) -> Training:
    model = encoder(bench)
    return LightningLoop(bench, model.module, model.loss, model.source, faults)


def _sharded(bench: Bench) -> Training:
    from torch.distributed.fsdp import fully_shard

    backend = "nccl" if bench.device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    model = language_model(bench, "llama", width=1536, batch=8)
    for layer in model.module.model.layers:  # type: ignore[union-attr]
        fully_shard(layer)
    fully_shard(model.module)
    model.optimizer = optimizer_of(model.module)
    return _loop(model)


def _accelerated(bench: Bench) -> Training:
    """Accelerate saves its whole state every eighth step."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=bench.device.type == "cpu")
    model = _vit(bench, 192)
    _, optimizer = accelerator.prepare(model.module, model.optimizer)

    def learn(batch: torch.Tensor, _on: Set[str]) -> bool:
        accelerator.backward(model.loss(batch.to(accelerator.device)))
        optimizer.step()
        optimizer.zero_grad()
        return True

    save_state = lambda: accelerator.save_state(str(bench.folder / "state"), safe_serialization=False)  # noqa: E731
    return Loop(learn, _plain_loader(model), {"checkpoint": every(8, save_state)})


# Pairs


def _vit_loader_item(bench: Bench) -> Training:
    model = _vit(bench)
    work = sleeping(0.3, 6)
    return Loop(
        _reads_norms(model), lambda num, on: model.source.loader(num, work if "loader" in on else None, num_workers=1)
    )


def _gpt2_evaluates_overflows(bench: Bench) -> Training:
    scaled = _Scaled(bench)
    model = scaled.model
    hook = every(6, evaluation(model.module, model.evaluate_batch, 5))
    return Loop(scaled.learn, _plain_loader(model), {"evaluation": hook})


def _convnext_saves_evaluates(bench: Bench) -> Training:
    model = _convnext(bench)
    return _loop(
        model,
        checkpoint=every(4, save(model.module, bench.folder)),
        evaluation=every(6, evaluation(model.module, model.evaluate_batch, 5)),
    )


def _bert_python_saves(bench: Bench) -> Training:
    model = language_model(bench, "bert", length=512, batch=48)
    return _loop(model, python=lambda _: slow_python(0.06), checkpoint=every(5, save(model.module, bench.folder)))


def _llama_collects_loads(bench: Bench) -> Training:
    model = language_model(bench, "llama", width=1536, batch=8)
    kept = heap(bench.size(100_000, 100))
    work = sleeping(0.25, 4)
    loop = _loop(
        model,
        lambda num, on: model.source.loader(num, work if "loader" in on else None, 1),
        gc=every(4, collect),
    )
    loop.kept = kept
    return loop


GPU_JOBS: tuple[Job, ...] = (
    Job("gpt2_slow_worker", "GPT-2, one loader worker that takes 60 ms a batch", _gpt2_slow_worker, (STARVED,)),
    Job(
        "vit_reads_norms",
        "timm ViT, two values of each parameter read with .item() every step",
        _vit_reads_norms,
        (_READS,),
    ),
    Job(
        "llama_accumulates",
        "Llama, four micro-batches a step, nothing wrong",
        _llama_accumulates,
        losses=("host_bound",),
    ),
    Job(
        "convnext_saves",
        "timm ConvNeXt, torch.save of the weights every fifth step",
        _convnext_saves,
        (CHECKPOINT,),
        5,
    ),
    Job("bert_evaluates", "BERT, evaluates eight batches every sixth step", _bert_evaluates, (EVALUATION,), 6),
    Job("gpt2_overflows", "GPT-2 in fp16, the loss scale doubles every second step", _gpt2_overflows, (_OVERFLOW,), 3),
    Job(
        "llama_collects",
        "Llama, gc.collect() every second step beside 300,000 live objects",
        _llama_collects,
        (COLLECTION,),
        2,
    ),
    Job(
        "gpt2_logits_on_cpu",
        "GPT-2, the logits copied to pageable memory every step",
        _gpt2_logits_on_cpu,
        (Fault("metric", _COPIES, ("pageable_memory", "blocking_copy"), "no copy"),),
    ),
    Job(
        "trainer_plain",
        "GPT-2 under the Trainer of transformers, nothing wrong",
        lambda bench: _trainer(bench, {}),
        has_adapter=True,
        losses=("host_bound", "synchronization"),
    ),
    Job(
        "gpt2_shared_core",
        "GPT-2 bound to one core, which three busy processes share",
        _gpt2_shared_core,
        (
            Fault(
                "neighbour", ("contention", "host_bound"), ("cpu_limited",), "the core alone", "affinity|core|process"
            ),
        ),
    ),
    Job(
        "vit_shared_gpu",
        "timm ViT while another process multiplies matrices on the GPU",
        _vit_shared_gpu,
        (Fault("neighbour", ("contention",), ("gpu_shared",), "the GPU alone", "process", max_confidence=0.9),),
    ),
    Job(
        "vit_loader_item",
        "timm ViT, every sixth batch takes the worker 300 ms, and .item() of each parameter",
        _vit_loader_item,
        (_BURSTY, _READS),
        6,
    ),
    Job(
        "vit_no_workers",
        "timm ViT, batches of 20 ms of Python made in the training process",
        _vit_no_workers,
        (Fault("loader", ("data_loading",), ("no_workers", "starved"), "six workers", "num_workers|worker"),),
    ),
    Job("graph_slow_python", "GraphSAGE, 50 ms of Python after each step", _graph_slow_python, (_PYTHON,)),
    Job(
        "encoder_recompiles",
        "torch.nn encoder, a compiled function meets a new length every third step",
        _encoder_recompiles,
        (Fault("lengths", ("host_bound",), ("compile",), "one length", "compil|dynamic|length|shape"),),
        3,
    ),
    Job("resnet_workers", "timm ResNet-34, five workers and pinned memory, nothing wrong", _resnet_workers),
    Job(
        "gpt2_evaluates_overflows",
        "GPT-2 in fp16, evaluates and overflows",
        _gpt2_evaluates_overflows,
        (EVALUATION, _OVERFLOW),
        6,
    ),
    Job(
        "convnext_empties_cache",
        "timm ConvNeXt, torch.cuda.empty_cache() every step",
        _convnext_empties_cache,
        (Fault("empty_cache", ("host_bound", "synchronization"), (), "no empty_cache()", "empty_cache|alloc"),),
    ),
    Job(
        "bert_bursty",
        "BERT, every eighth batch takes one worker 350 ms",
        _bert_bursty,
        (_BURSTY,),
        8,
    ),
    Job(
        "convnext_saves_evaluates",
        "timm ConvNeXt, saves every fourth and evaluates every sixth step",
        _convnext_saves_evaluates,
        (CHECKPOINT, EVALUATION),
        12,
    ),
    Job(
        "resnet_pageable",
        "timm ResNet-34, float32 images from pageable memory",
        _resnet_pageable,
        (Fault("pageable", _COPIES, ("pageable_memory", "blocking_copy"), "pinned memory", "pin"),),
    ),
    Job("sharded_one", "Llama under fully_shard on one GPU, nothing wrong", _sharded, losses=("host_bound",)),
    Job(
        "bert_python_saves",
        "BERT, 60 ms of Python every step and torch.save every fifth",
        _bert_python_saves,
        (_PYTHON, CHECKPOINT),
        5,
    ),
    Job(
        "convnext_collate", "timm ConvNeXt, a collate function of 160 ms in two workers", _convnext_collate, (STARVED,)
    ),
    Job(
        "lightning_plain",
        "torch.nn encoder under Lightning, nothing wrong",
        lambda bench: _lightning(bench, {}),
        has_adapter=True,
    ),
    Job(
        "lightning_validates",
        "torch.nn encoder under Lightning, validates four batches every fourth step",
        lambda bench: _lightning(
            bench,
            {"evaluation": lambda: {"val_check_interval": 4, "limit_val_batches": 4, "check_val_every_n_epoch": None}},
        ),
        (EVALUATION,),
        4,
        has_adapter=True,
    ),
    Job(
        "llama_collects_loads",
        "Llama, gc.collect() and a slow batch every fourth step",
        _llama_collects_loads,
        (COLLECTION, STARVED),
        4,
    ),
    Job(
        "trainer_saves",
        "GPT-2 under the Trainer of transformers, saves every ninth step",
        lambda bench: _trainer(
            bench, {"checkpoint": {"save_strategy": "steps", "save_steps": 9, "save_total_limit": 1}}
        ),
        (CHECKPOINT,),
        9,
        has_adapter=True,
    ),
    Job(
        "bert_prints_loss",
        "BERT, prints the loss every step",
        _bert_prints_loss,
        (Fault("print", ("synchronization",), ("reads_value",), "no print", "item"),),
    ),
    Job(
        "accelerate_saves",
        "timm ViT under Accelerate, saves its state every eighth step",
        _accelerated,
        (CHECKPOINT,),
        8,
    ),
    Job(
        "narrow_loop_optimizer",
        "torch.nn encoder, narrow, AdamW with foreach=False",
        _narrow_loop_optimizer,
        (
            Fault(
                "optimizer",
                ("host_bound",),
                (),
                "a fused optimizer",
                "fused|foreach|compile|graph|batch",
                is_whole=False,
            ),
        ),
    ),
    Job(
        "embedding_plain",
        "three EmbeddingBag tables and a perceptron, nothing wrong",
        lambda bench: _loop(embedding_model(bench)),
    ),
)
"""The most important first: a recording may run out of time."""
