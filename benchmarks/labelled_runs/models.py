"""Models of public libraries that the labelled runs train, with random weights and synthetic batches."""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from benchmarks.labelled_runs.batches import Source, images, tokens
from benchmarks.labelled_runs.job import Bench

VOCABULARY = 8192


@dataclass(slots=True)
class Model:
    """A model in training.

    Attributes:
        loss: of a batch that is on the device.
        source: its batches.
    """

    module: nn.Module
    loss: Callable[[torch.Tensor], torch.Tensor]
    source: Source
    optimizer: torch.optim.Optimizer
    device: torch.device

    def learn(self, batch: torch.Tensor, _on: Set[str] = frozenset()) -> bool:
        """One step: forward, backward, update."""
        self.backward(batch)
        self.update()
        return True

    def backward(self, batch: torch.Tensor) -> torch.Tensor:
        loss = self.loss(batch.to(self.device, non_blocking=True))
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    def update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()

    def evaluate_batch(self) -> torch.Tensor:
        return self.loss(self.source.batch().to(self.device))


def optimizer_of(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(module.parameters(), lr=1e-4, fused=True)


def precision(bench: Bench) -> torch.dtype:
    return torch.bfloat16 if bench.device.type == "cuda" else torch.float32


def under_autocast(model: Model) -> Model:
    """The same model, its loss under autocast to bfloat16."""
    loss = model.loss

    def cast(batch: torch.Tensor) -> torch.Tensor:
        with torch.autocast(model.device.type, torch.bfloat16):
            return loss(batch)

    model.loss = cast
    return model


def language_model(
    bench: Bench,
    kind: str,
    layers: int = 4,
    width: int = 1024,
    length: int = 1024,
    batch: int = 16,
    *,
    weights: torch.dtype | None = None,
    is_compiled: bool = False,
    **config: Any,
) -> Model:
    """Llama, GPT-2 or BERT of transformers, with these entries of its config."""
    with bench.device:
        module = transformer(bench, kind, layers, width, length, **config).to(weights or precision(bench))
    if is_compiled:
        module = torch.compile(module)  # type: ignore[assignment]

    def loss(ids: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = module(input_ids=ids, labels=ids).loss
        return answer

    source = Source(tokens(bench.size(length, 16), VOCABULARY), bench.size(batch, 2))
    return Model(module, loss, source, optimizer_of(module), bench.device)


def transformer(bench: Bench, kind: str, layers: int, width: int, length: int, **entries: Any) -> nn.Module:
    """A model of transformers that is given token ids and answers with its loss."""
    import transformers

    layers, width = bench.size(layers, 2), bench.size(width, 64)
    heads = width // 64
    entries.setdefault("vocab_size", VOCABULARY)
    if kind == "gpt2":
        config: Any = transformers.GPT2Config(
            n_embd=width,
            n_layer=layers,
            n_head=heads,
            n_positions=length,
            bos_token_id=0,
            eos_token_id=0,
            **entries,
        )
        module: nn.Module = transformers.GPT2LMHeadModel(config)
    elif kind == "llama":
        entries.setdefault("intermediate_size", width * 11 // 4)
        config = transformers.LlamaConfig(
            hidden_size=width,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            max_position_embeddings=length,
            **entries,
        )
        module = transformers.LlamaForCausalLM(config)
    else:
        config = transformers.BertConfig(
            hidden_size=width,
            intermediate_size=4 * width,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            max_position_embeddings=length,
            **entries,
        )
        module = transformers.BertForMaskedLM(config)
    return module


def image_model(
    bench: Bench,
    name: str,
    batch: int,
    *,
    weights: torch.dtype | None = None,
    layout: torch.memory_format = torch.channels_last,
    is_compiled: bool = False,
    prepare: Callable[[Any], None] | None = None,
    **sizes: Any,
) -> Model:
    """A classifier of timm; its batches are small images of bytes, made into large ones on the device.

    Args:
        prepare: what is set on the module before it is compiled.
    """
    import timm

    side = bench.size(224, 224 if name.startswith("swin") else 32)
    if name.startswith("vit"):
        sizes["img_size"] = side
    if bench.is_tiny and name.startswith("convnext"):
        sizes["dims"] = (8, 16, 32, 64)
    weights = weights or precision(bench)
    module: nn.Module = timm.create_model(name, **sizes)
    module = module.to(bench.device, weights).to(memory_format=layout)  # type: ignore[call-overload]
    if prepare is not None:
        prepare(module)
    if is_compiled:
        module = torch.compile(module)  # type: ignore[assignment]
    labels = torch.arange(bench.size(batch, 2), device=bench.device)

    def loss(pixels: torch.Tensor) -> torch.Tensor:
        inputs = pixels.to(weights, memory_format=layout).div(255)
        if inputs.shape[-1] != side:
            inputs = nn.functional.interpolate(inputs, size=(side, side))
        return nn.functional.cross_entropy(module(inputs).float(), labels)

    source = Source(images(side // 2), bench.size(batch, 2))
    return Model(module, loss, source, optimizer_of(module), bench.device)


def encoder(bench: Bench, layers: int = 4, width: int = 1024, length: int = 512, batch: int = 32) -> Model:
    """An encoder of torch.nn with a linear head."""
    width = bench.size(width, 64)
    layer = nn.TransformerEncoderLayer(width, width // 64, 4 * width, dropout=0.0, batch_first=True)
    body = nn.TransformerEncoder(layer, bench.size(layers, 2), enable_nested_tensor=False)
    module = nn.ModuleDict(
        {"embedding": nn.Embedding(VOCABULARY, width), "body": body, "head": nn.Linear(width, VOCABULARY)}
    ).to(bench.device, precision(bench))

    def loss(ids: torch.Tensor) -> torch.Tensor:
        scores = module["head"](module["body"](module["embedding"](ids)))
        return nn.functional.cross_entropy(scores.flatten(0, 1), ids.flatten())

    source = Source(tokens(bench.size(length, 64), VOCABULARY), bench.size(batch, 2))
    return Model(module, loss, source, optimizer_of(module), bench.device)


def graph_network(bench: Bench, nodes: int = 100_000, edges: int = 1_500_000, width: int = 256) -> Model:
    """GraphSAGE of torch-geometric over a whole graph; a batch holds the labels of its nodes."""
    from torch_geometric.nn import GraphSAGE

    nodes, edges = bench.size(nodes, 100), bench.size(edges, 500)
    features = torch.randn(nodes, width, device=bench.device)
    links = torch.randint(0, nodes, (2, edges), device=bench.device)
    module: nn.Module = GraphSAGE(width, width, num_layers=3, out_channels=32).to(bench.device)

    def loss(labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(module(features, links), labels[0])

    source = Source(torch.randint(0, 32, (4, nodes)), 1)
    return Model(module, loss, source, optimizer_of(module), bench.device)


def embedding_model(bench: Bench, rows: int = 2_000_000, width: int = 128, bag: int = 64) -> Model:
    """Three EmbeddingBag tables and a small multilayer perceptron, as of recommendation; SGD."""
    rows = bench.size(rows, 1000)
    tables = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(3))
    top = nn.Sequential(nn.Linear(3 * width, 512), nn.ReLU(), nn.Linear(512, 1))
    module = nn.ModuleDict({"tables": tables, "top": top}).to(bench.device)

    def loss(ids: torch.Tensor) -> torch.Tensor:
        sums = [table(part) for table, part in zip(tables, ids.chunk(3, dim=1), strict=True)]
        answer: torch.Tensor = module["top"](torch.cat(sums, dim=1)).square().mean()
        return answer

    source = Source(torch.randint(0, rows, (64, 3 * bag)), bench.size(16_384, 4))
    return Model(module, loss, source, torch.optim.SGD(module.parameters(), lr=0.01), bench.device)
