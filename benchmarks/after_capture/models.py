"""Models whose steps are measured before and after captures: bounded by the host or the GPU, compiled, in graphs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.cuda_graph import graph_replay

Step = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a model trains.

    Attributes:
        is_tiny: sizes that prove that the code runs, on any machine.
    """

    device: str
    is_tiny: bool

    def size(self, full: int, tiny: int) -> int:
        return tiny if self.is_tiny else full


@dataclass(frozen=True, slots=True)
class Model:
    """A model and who bounds its steps.

    Attributes:
        make: builds it; the result trains one step.
    """

    kind: str
    make: Callable[[Place], Step]


def _step_of(module: Any, loss: Callable[[], Any], *, capturable: bool = False) -> Step:
    import torch

    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4, capturable=capturable)

    def step() -> None:
        loss().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=not capturable)

    return step


def _perceptron(place: Place, compile_mode: str | None = None) -> Step:
    import torch

    width = place.size(256, 16)
    layers = [layer for _ in range(24) for layer in (torch.nn.Linear(width, width), torch.nn.GELU())]
    module: Any = torch.nn.Sequential(*layers).to(place.device)
    batch = torch.randn(256, width, device=place.device)
    run = module if compile_mode is None else torch.compile(module, mode=compile_mode)
    return _step_of(module, lambda: run(batch).square().mean())


def _wide_perceptron(place: Place) -> Step:
    import torch

    width = place.size(8192, 16)
    layers = [layer for _ in range(3) for layer in (torch.nn.Linear(width, width), torch.nn.GELU())]
    module = torch.nn.Sequential(*layers).to(place.device, torch.bfloat16)
    batch = torch.randn(place.size(4096, 8), width, device=place.device, dtype=torch.bfloat16)
    return _step_of(module, lambda: module(batch).square().mean())


def _graph(place: Place) -> Step:
    """The narrow perceptron, its whole step one CUDA graph; without a GPU the step itself."""
    import torch

    width = place.size(256, 16)
    layers = [layer for _ in range(24) for layer in (torch.nn.Linear(width, width), torch.nn.GELU())]
    module = torch.nn.Sequential(*layers).to(place.device)
    batch = torch.randn(256, width, device=place.device)
    update = _step_of(module, lambda: module(batch).square().mean(), capturable=place.device == "cuda")
    if place.device != "cuda":
        return update
    return graph_replay(update)


def _transformer(place: Place, kind: str, layers: int, compile_mode: str | None = None) -> Step:
    """A language model of transformers, small enough that the host bounds it."""
    import torch
    import transformers

    width, vocabulary, layers = place.size(768, 64), 8192, place.size(layers, 2)
    sizes = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": width // 64}
    if kind == "llama":
        config: Any = transformers.LlamaConfig(intermediate_size=2 * width, vocab_size=vocabulary, **sizes)
    elif kind == "gpt2":
        config = transformers.GPT2Config(
            n_embd=width,
            n_layer=layers,
            n_head=width // 64,
            vocab_size=vocabulary,
            bos_token_id=0,
            eos_token_id=0,
        )
    else:
        config = transformers.BertConfig(intermediate_size=4 * width, vocab_size=vocabulary, is_decoder=True, **sizes)
    module: Any = transformers.AutoModelForCausalLM.from_config(config).to(place.device, torch.bfloat16)
    run = module if compile_mode is None else torch.compile(module, mode=compile_mode)
    ids = torch.randint(0, vocabulary, (4, place.size(256, 16)), device=place.device)
    return _step_of(module, lambda: run(input_ids=ids, labels=ids).loss)


def _graph_network(place: Place) -> Step:
    """GraphSAGE of torch-geometric over a small graph."""
    import torch
    from torch_geometric.nn import GraphSAGE

    nodes, edges = place.size(5_000, 100), place.size(50_000, 500)
    features = torch.randn(nodes, 128, device=place.device)
    links = torch.randint(0, nodes, (2, edges), device=place.device)
    labels = torch.randint(0, 32, (nodes,), device=place.device)
    module = GraphSAGE(128, 128, num_layers=4, out_channels=32).to(place.device)
    return _step_of(module, lambda: torch.nn.functional.cross_entropy(module(features, links), labels))


def _image_model(place: Place, name: str, batch_size: int, **sizes: Any) -> Step:
    """A classifier of timm in bfloat16, channels last."""
    import timm
    import torch

    side, batch_size = place.size(224, 64), place.size(batch_size, 2)
    if name.startswith("vit"):
        sizes["img_size"] = side
    module: Any = timm.create_model(name, **sizes).to(place.device, memory_format=torch.channels_last)
    images = torch.randn(batch_size, 3, side, side, device=place.device).to(memory_format=torch.channels_last)
    labels = torch.randint(0, 1000, (batch_size,), device=place.device)

    def loss() -> Any:
        with torch.autocast(place.device, torch.bfloat16):
            return torch.nn.functional.cross_entropy(module(images), labels)

    return _step_of(module, loss)


MODELS: dict[str, Model] = {
    "perceptron": Model("host", _perceptron),
    "perceptron_compiled": Model("host, compiled", lambda place: _perceptron(place, "default")),
    "perceptron_compiled_graph": Model("host, compiled, graph", lambda place: _perceptron(place, "reduce-overhead")),
    "perceptron_graph": Model("graph", _graph),
    "llama": Model("host", lambda place: _transformer(place, "llama", 6)),
    "gpt2_compiled": Model("host, compiled", lambda place: _transformer(place, "gpt2", 6, "default")),
    "sage": Model("host", _graph_network),
    "convnext": Model("host", lambda place: _image_model(place, "convnext_tiny", 64)),
    "bert": Model("host", lambda place: _transformer(place, "bert", 6)),
    "vit": Model("host", lambda place: _image_model(place, "vit_small_patch16_224", 96, depth=8)),
    "resnet": Model("GPU", lambda place: _image_model(place, "resnet34", 512)),
    "convnext_large_batch": Model("GPU", lambda place: _image_model(place, "convnext_tiny", 256)),
    "wide_perceptron": Model("GPU", _wide_perceptron),
}
"""The most telling first: a measurement may run out of time."""
