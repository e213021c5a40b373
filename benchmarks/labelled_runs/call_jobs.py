"""Jobs of one GPU whose faults are runtime calls: what waits for the device, allocates, copies or launches too much.

Without its fault each does the same training work, so that the bare pair tells what the fault costs. Most are small
enough that launching takes the host about half as long as the GPU's work, as of much training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from typing import Any

import torch
from torch import nn

from benchmarks.cuda_graph import graph_replay
from benchmarks.labelled_runs.batches import Source, tokens
from benchmarks.labelled_runs.job import Bench, Fault, Job, Loop, Training
from benchmarks.labelled_runs.models import (
    VOCABULARY,
    Model,
    embedding_model,
    encoder,
    graph_network,
    image_model,
    language_model,
)

_SYNCHRONIZES = ("synchronization",)
_COPIES = ("copy", "synchronization")
_ALLOCATES = ("host_bound", "synchronization")
_LAUNCHES = ("host_bound",)


def _batches(model: Model) -> Callable[[int, Set[str]], Iterable[Any]]:
    """The same batch on the device each step: nothing of the loader's is in the step."""
    batch = model.source.batch().to(model.device)
    return lambda num, _: [batch] * num


def _loop(model: Model, learn: Callable[[Any, Set[str]], bool] | None = None) -> Loop:
    return Loop(learn or model.learn, _batches(model))


def _leaves(module: nn.Module) -> list[nn.Module]:
    return [each for each in module.modules() if not list(each.children())]


def _watched(model: Model, name: str, act: Callable[[torch.Tensor], object]) -> Loop:
    """A loop whose fault acts on the output of every layer, as logging hooks do."""
    is_on = False

    def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
        if is_on and isinstance(output, torch.Tensor):
            act(output.detach())

    for leaf in _leaves(model.module):
        leaf.register_forward_hook(hook)

    def learn(batch: Any, on: Set[str]) -> bool:
        nonlocal is_on
        is_on = name in on
        return model.learn(batch)

    return _loop(model, learn)


def _after_backward(model: Model, name: str, act: Callable[[], object]) -> Loop:
    """A loop whose fault acts between backward and update."""

    def learn(batch: Any, on: Set[str]) -> bool:
        model.backward(batch)
        if name in on:
            act()
        model.update()
        return True

    return _loop(model, learn)


def _gradients(model: Model) -> list[torch.Tensor]:
    return [parameter.grad for parameter in model.module.parameters() if parameter.grad is not None]


def _graph_of(bench: Bench, nodes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Features and links of a random graph."""
    links = torch.randint(0, nodes, (2, bench.size(1_500_000, 500)), device=bench.device)
    return torch.randn(nodes, bench.size(256, 256), device=bench.device), links


# Waiting


def _convnext_synchronizes(bench: Bench) -> Training:
    model = image_model(bench, "convnext_tiny", 64, depths=(2, 2, 4, 2))
    is_cuda = bench.device.type == "cuda"
    return _watched(model, "synchronize", lambda _: torch.cuda.synchronize() if is_cuda else None)


def _bert_clips_by_value(bench: Bench) -> Training:
    model = language_model(bench, "bert", length=512, batch=24)

    def learn(batch: Any, on: Set[str]) -> bool:
        model.backward(batch)
        if "item" in on:
            total = sum(gradient.norm().item() ** 2 for gradient in _gradients(model)) ** 0.5
            if total > 1e6:
                torch._foreach_mul_(_gradients(model), 1e6 / total)
        else:
            nn.utils.clip_grad_norm_(model.module.parameters(), 1e6, foreach=True)
        model.update()
        return True

    return _loop(model, learn)


def _encoder_counts_outliers(bench: Bench) -> Training:
    model = encoder(bench, layers=6, length=512, batch=12)

    def count(output: torch.Tensor) -> int:
        some = output.flatten()[:4096]
        return some[some.abs() > 3].numel() + some[some < 0].numel()

    return _watched(model, "mask", count)


def _encoder_histograms(bench: Bench) -> Training:
    model = encoder(bench, layers=6, length=512, batch=20)

    def log() -> list[Any]:
        return [torch.histc(grad.flatten()[:65536].float(), 64, -1, 1).tolist() for grad in _gradients(model)]

    return _after_backward(model, "histogram", log)


def _vit_checks_gradients(bench: Bench) -> Training:
    model = image_model(bench, "vit_base_patch16_224", 96, depth=bench.size(6, 1))

    def is_finite() -> bool:
        return all(bool(torch.isfinite(gradient.flatten()[0])) for gradient in _gradients(model))

    return _after_backward(model, "check", is_finite)


def _sage_masks(bench: Bench) -> Training:
    """Two boolean masks a step, as of every graph training: they wait, and cost next to nothing."""
    model = graph_network(bench)
    network, nodes = model.module, model.source.pool.shape[1]
    chosen = torch.rand(nodes, device=bench.device) < 0.9
    numbers = chosen.nonzero()[:, 0]
    features, links = _graph_of(bench, nodes)

    def learn(batch: torch.Tensor, on: Set[str]) -> bool:
        which = chosen if "mask" in on else numbers
        scores = network(features, links)
        nn.functional.cross_entropy(scores[which], batch[0][which]).backward()  # type: ignore[no-untyped-call]
        model.update()
        return True

    return _loop(model, learn)


# Copies


def _gpt2_states_on_cpu(bench: Bench) -> Training:
    model = language_model(bench, "gpt2", batch=8)
    kept: dict[tuple[int, ...], torch.Tensor] = {}

    def keep(output: torch.Tensor) -> None:
        if output.dim() == 3 and output.shape[-1] == bench.size(1024, 64):
            kept[tuple(output.shape)] = output[:1, : output.shape[1] // 2].cpu()

    return _watched(model, "states", keep)


def _sage_pageable_features(bench: Bench) -> Training:
    model = graph_network(bench)
    network, nodes = model.module, model.source.pool.shape[1]
    features, links = _graph_of(bench, nodes)
    pageable = features.cpu()
    pinned = pageable.pin_memory() if bench.device.type == "cuda" else pageable

    def learn(batch: torch.Tensor, on: Set[str]) -> bool:
        copied = (pageable if "pageable" in on else pinned).to(bench.device, non_blocking=True)
        nn.functional.cross_entropy(network(copied, links), batch[0]).backward()  # type: ignore[no-untyped-call]
        model.update()
        return True

    return _loop(model, learn)


def _resnet_scalar_tensors(bench: Bench) -> Training:
    model = image_model(bench, "resnet34", 96)
    rates = torch.zeros(1, device=bench.device)
    return _watched(model, "scalars", lambda _: rates.copy_(torch.tensor([0.1], device=bench.device)))


def _llama_python_lists(bench: Bench) -> Training:
    """Ids, labels and masks come as lists of Python, as of a collate function that makes none into tensors."""
    length, size = bench.size(1024, 16), bench.size(16, 2)
    model = language_model(bench, "llama", layers=3, width=768, length=length, batch=size)
    lists = model.source.batch().tolist()
    ready = torch.tensor(lists, device=bench.device)

    def learn(_batch: torch.Tensor, on: Set[str]) -> bool:
        made = [torch.tensor(lists, device=bench.device) for _ in range(6)] if "lists" in on else [ready]
        model.module(input_ids=made[0], labels=made[-1]).loss.backward()
        model.update()
        return True

    return _loop(model, learn)


def _embedding_reads_counts(bench: Bench) -> Training:
    """Numbers of distinct ids, counted by the device and copied to the host one by one."""
    model = embedding_model(bench, rows=300_000)
    counted = torch.randint(0, 100, (64, 32), device=bench.device)

    def learn(batch: torch.Tensor, on: Set[str]) -> bool:
        loss = model.loss(batch)
        if "counts" in on:
            for row in counted:
                row.sum().cpu()
        loss.backward()  # type: ignore[no-untyped-call]
        model.update()
        return True

    return _loop(model, learn)


# Allocations


def _gpt2_growing_buffer(bench: Bench) -> Training:
    """A buffer that is a little longer each step, where memory is short: no cached block fits."""
    model = language_model(bench, "gpt2", batch=8)
    step, num_bytes = 0, bench.size(2**30, 2**20)
    if bench.device.type == "cuda":
        for batch in [model.source.batch()] * 2:
            model.learn(batch)
        total = torch.cuda.get_device_properties(bench.device).total_memory
        allowed = torch.cuda.memory_reserved() + num_bytes * 3 // 2
        torch.cuda.set_per_process_memory_fraction(min(allowed / total, 1.0))

    def learn(batch: torch.Tensor, on: Set[str]) -> bool:
        nonlocal step
        step += 1
        longer = 2**21 * (step % 200) if "growing" in on else 0
        buffer = torch.empty(num_bytes + longer, dtype=torch.uint8, device=bench.device)
        model.learn(batch)
        buffer[:1].zero_()
        return True

    return _loop(model, learn)


def _resnet_empties_cache(bench: Bench) -> Training:
    model = image_model(bench, "resnet34", 128)
    is_cuda = bench.device.type == "cuda"
    return _after_backward(model, "empty_cache", lambda: torch.cuda.empty_cache() if is_cuda else None)


# Launches


def _in_graph(bench: Bench, module: nn.Module, loss: Callable[[], torch.Tensor]) -> Training:
    """A loop whose whole step is one CUDA graph, and with the fault launched kernel by kernel."""
    is_cuda = bench.device.type == "cuda"
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4, capturable=is_cuda)

    def update() -> None:
        loss().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    replay = graph_replay(update) if is_cuda else update

    def learn(_batch: Any, on: Set[str]) -> bool:
        (update if "launches" in on else replay)()
        return True

    return Loop(learn, lambda num, _: [None] * num)


def _perceptron_no_graph(bench: Bench) -> Training:
    width = bench.size(512, 16)
    layers = [layer for _ in range(32) for layer in (nn.Linear(width, width), nn.GELU())]
    module = nn.Sequential(*layers).to(bench.device)
    batch = torch.randn(bench.size(512, 8), width, device=bench.device)
    return _in_graph(bench, module, lambda: module(batch).square().mean())


def _encoder_no_graph(bench: Bench) -> Training:
    model = encoder(bench, layers=8, width=384, length=128, batch=8)
    ids = model.source.batch().to(bench.device)
    return _in_graph(bench, model.module, lambda: model.loss(ids))


# Nothing wrong


def _convnext_plain(bench: Bench) -> Training:
    return _loop(image_model(bench, "convnext_tiny", 128, depths=(2, 2, 4, 2)))


def _llama_reads_loss(bench: Bench) -> Training:
    """Reads the loss of the step before the last, on the stream that has a backward pass to do first."""
    length = bench.size(1024, 16)
    model = language_model(bench, "llama", length=length, batch=8)
    model.source = Source(tokens(length, VOCABULARY), bench.size(8, 2))
    batch = model.source.batch().to(bench.device)
    before: list[torch.Tensor] = []

    def learn(_batch: Any, _on: Set[str]) -> bool:
        before.append(model.backward(batch).detach())
        if len(before) > 2:
            before.pop(0).item()
        model.update()
        return True

    return _loop(model, learn)


_IMPORTS = {
    "bert": ("transformers:BertForMaskedLM",),
    "convnext": ("timm",),
    "gpt2": ("transformers:GPT2LMHeadModel",),
    "llama": ("transformers:LlamaForCausalLM",),
    "resnet": ("timm",),
    "sage": ("torch_geometric.nn",),
    "vit": ("timm",),
}
"""By a job's first word."""


def _job(
    name: str,
    what: str,
    make: Callable[[Bench], Training],
    fault: Fault | None = None,
    losses: tuple[str, ...] = (),
) -> Job:  # fmt: skip
    faults, imports = () if fault is None else (fault,), _IMPORTS.get(name.split("_")[0], ())
    return Job(name, what, make, faults, num_rounds=4, num_rounds_after=2, imports=imports, losses=losses)


CALL_JOBS: tuple[Job, ...] = (
    _job(
        "convnext_synchronizes",
        "timm ConvNeXt, torch.cuda.synchronize() after every layer",
        _convnext_synchronizes,
        Fault("synchronize", _SYNCHRONIZES, (), "no synchronize()"),
    ),
    _job(
        "bert_clips_by_value",
        "BERT, gradients clipped by norms that are read with .item() one by one",
        _bert_clips_by_value,
        Fault("item", _SYNCHRONIZES, (), "clip_grad_norm_"),
    ),
    _job(
        "gpt2_growing_buffer",
        "GPT-2, a buffer that grows each step where memory is short",
        _gpt2_growing_buffer,
        Fault("growing", _ALLOCATES, (), "a buffer of one size"),
    ),
    _job(
        "sage_pageable_features",
        "GraphSAGE, 100 MB of features from pageable memory every step",
        _sage_pageable_features,
        Fault("pageable", _COPIES, (), "pinned memory", "pin"),
    ),
    _job(
        "perceptron_no_graph",
        "32 narrow layers, launched kernel by kernel",
        _perceptron_no_graph,
        Fault("launches", _LAUNCHES, (), "a CUDA graph", "graph|compile"),
    ),
    _job(
        "resnet_scalar_tensors",
        "timm ResNet-34, a tensor of one Python number for every layer",
        _resnet_scalar_tensors,
        Fault("scalars", _COPIES, (), "no tensor"),
    ),
    _job("convnext_plain", "timm ConvNeXt, nothing wrong", _convnext_plain),
    _job(
        "encoder_counts_outliers",
        "torch.nn encoder, boolean masks of every layer's output",
        _encoder_counts_outliers,
        Fault("mask", _SYNCHRONIZES, (), "no mask"),
    ),
    _job(
        "vit_checks_gradients",
        "timm ViT, a value of each gradient tested by the host",
        _vit_checks_gradients,
        Fault("check", _SYNCHRONIZES, (), "no test"),
    ),
    _job(
        "gpt2_states_on_cpu",
        "GPT-2, 1 MB of each layer's states copied to pageable memory",
        _gpt2_states_on_cpu,
        Fault("states", _COPIES, (), "no copy"),
    ),
    _job(
        "llama_python_lists",
        "Llama, six tensors made of Python lists every step",
        _llama_python_lists,
        Fault("lists", (*_COPIES, "host_bound"), (), "tensors"),
    ),
    _job(
        "resnet_empties_cache",
        "timm ResNet-34, torch.cuda.empty_cache() between backward and update",
        _resnet_empties_cache,
        Fault("empty_cache", _ALLOCATES, (), "no empty_cache()", "empty_cache|alloc"),
    ),
    _job(
        "encoder_histograms",
        "torch.nn encoder, a histogram of each gradient read every step",
        _encoder_histograms,
        Fault("histogram", _SYNCHRONIZES, (), "no histogram"),
    ),
    _job(
        "encoder_no_graph",
        "torch.nn encoder, narrow, launched kernel by kernel",
        _encoder_no_graph,
        Fault("launches", _LAUNCHES, (), "a CUDA graph", "graph|compile"),
    ),
    _job(
        "llama_reads_loss",
        "Llama, reads the loss of the step before the last, which waits for the step",
        _llama_reads_loss,
        losses=("host_bound", "synchronization"),
    ),
    _job(
        "embedding_reads_counts",
        "three EmbeddingBag tables and a perceptron, 64 sums copied one by one",
        _embedding_reads_counts,
        Fault("counts", _SYNCHRONIZES + _COPIES, (), "no copy"),
    ),
    _job(
        "sage_masks",
        "GraphSAGE, two boolean masks a step",
        _sage_masks,
        Fault("mask", _SYNCHRONIZES, (), "indices"),
    ),
)
"""The most important first: a recording may run out of time."""
