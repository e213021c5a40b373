"""Step time after a capture over that before it, of models that the host or the GPU bounds.

`python -m benchmarks.after_capture [MODEL...] [--repeat N] [--out FILE]` needs a GPU. Three processes train the same
model and take turns, a block of 50 steps each: one without a capture, one with a capture by `stepscope.profile`, and
one with such a capture after which CUPTI stays attached, torch's default. Each block is compared with the one of the
first process beside it, so that the drift of the machine cancels out. With `--repeat N` the second then takes N more
captures, ten steps apart, and must survive them.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_BLOCK_STEPS = 50
_NUM_ROUNDS = 8
"""Blocks of each process before the capture, and after it."""
_WARMUP_STEPS = 100
_SETTLE_STEPS = 20
"""After the capture; its trace is written within them."""


def _layers() -> Any:
    import torch

    layers = [layer for _ in range(24) for layer in (torch.nn.Linear(256, 256), torch.nn.GELU())]
    return torch.nn.Sequential(*layers).cuda()


def _mlp(compile_mode: str | None = None) -> Callable[[], None]:
    import torch

    model: Any = _layers()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    batch = torch.randn(256, 256, device="cuda")
    run = torch.compile(model, mode=compile_mode) if compile_mode else model

    def step() -> None:
        run(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _graph() -> Callable[[], None]:
    import torch

    model = _layers()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, capturable=True)
    batch = torch.randn(256, 256, device="cuda")

    def update() -> None:
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            update()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        update()
    return graph.replay


def _transformer(kind: str) -> Callable[[], None]:
    import torch
    import transformers

    sizes = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "vocab_size": 8192}
    if kind == "llama":
        config: Any = transformers.LlamaConfig(intermediate_size=2048, **sizes)
    elif kind == "gpt2":
        config = transformers.GPT2Config(n_embd=768, n_layer=12, n_head=12, vocab_size=8192)
    else:
        config = transformers.BertConfig(intermediate_size=3072, is_decoder=True, **sizes)
    model = transformers.AutoModelForCausalLM.from_config(config).cuda().bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    ids = torch.randint(0, 8192, (2, 512), device="cuda")

    def step() -> None:
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _image_model(name: str, batch_size: int) -> Callable[[], None]:
    import timm
    import torch

    model = timm.create_model(name).cuda().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    images = torch.randn(batch_size, 3, 224, 224, device="cuda").to(memory_format=torch.channels_last)
    labels = torch.randint(0, 1000, (batch_size,), device="cuda")

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()

    return step


MODELS: dict[str, Callable[[], Callable[[], None]]] = {
    "mlp": _mlp,
    "compiled_mlp": lambda: _mlp("reduce-overhead"),
    "graph": _graph,
    "llama": lambda: _transformer("llama"),
    "gpt2": lambda: _transformer("gpt2"),
    "bert": lambda: _transformer("bert"),
    "resnet50": lambda: _image_model("resnet50", 64),
    "vit_small": lambda: _image_model("vit_small_patch16_224", 64),
    "convnext": lambda: _image_model("convnext_tiny", 128),
}


def serve(model: str, num_repeats: int) -> None:
    """Train in this process by commands read from stdin, each answered by a line: block, capture, end."""
    import torch

    import stepscope

    step = MODELS[model]()
    for _ in range(_WARMUP_STEPS):
        step()
    torch.cuda.synchronize()
    print("ready", flush=True)
    for command in sys.stdin:
        if command.strip() == "block":
            began = time.perf_counter()
            for _ in range(_BLOCK_STEPS):
                step()
            torch.cuda.synchronize()
            print((time.perf_counter() - began) / _BLOCK_STEPS * 1e3, flush=True)
        else:
            repeats = num_repeats if command.strip() == "repeat" else 1
            with tempfile.TemporaryDirectory() as folder:
                with stepscope.profile("run", folder, schedule=stepscope.every(10, repeat=repeats)) as run:
                    for _ in range(10 * repeats + _SETTLE_STEPS):
                        step()
                        run.step()
                torch.cuda.synchronize()
                traces = [gzip.decompress(path.read_bytes()) for path in Path(folder).rglob("*.json.gz")]
                print(sum(b'"cat": "kernel"' in trace for trace in traces), flush=True)


class TrainingProcess:
    """A process that trains a model by commands."""

    def __init__(self, model: str, num_repeats: int, **environment: str) -> None:
        command = [sys.executable, "-m", "benchmarks.after_capture", model, "--serve", "--repeat", str(num_repeats)]
        self._process = subprocess.Popen(
            command, env=os.environ | environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, command: str) -> str:
        """Send a command, or none, and wait for its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        if command:
            self._process.stdin.write(command + "\n")
            self._process.stdin.flush()
        answer = self._process.stdout.readline().strip()
        if not answer:
            raise RuntimeError(f"{command}: the process exited with status {self._process.wait()}")
        return answer

    def end(self) -> int:
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self._process.wait(timeout=30)


def compare(model: str, num_repeats: int) -> dict[str, Any]:
    """Ratios of one model: step time of each process over that of the one without a capture, after over before.

    The error is the standard error of the ratio, from the spread between rounds.
    """
    processes = {
        "control": TrainingProcess(model, 0),
        "detached": TrainingProcess(model, num_repeats),
        "attached": TrainingProcess(model, 0, TEARDOWN_CUPTI="0"),
    }
    for process in processes.values():
        process.ask("")

    def rounds() -> dict[str, list[float]]:
        blocks = [
            {name: float(process.ask("block")) for name, process in processes.items()} for _ in range(_NUM_ROUNDS)
        ]
        return {name: [block[name] for block in blocks] for name in processes}

    rounds()
    before = rounds()
    for name in ("detached", "attached"):
        assert processes[name].ask("capture") == "1", "a capture without kernels"
    after = rounds()
    result: dict[str, Any] = {"model": model, "control_ms": statistics.mean(before["control"] + after["control"])}
    for name in ("detached", "attached"):
        pairs = [
            [own / other for own, other in zip(part[name], part["control"], strict=True)] for part in (before, after)
        ]
        means = [statistics.median(ratios) for ratios in pairs]
        errors = [
            statistics.stdev(ratios) / len(ratios) ** 0.5 / mean for ratios, mean in zip(pairs, means, strict=True)
        ]
        result[name] = {"ratio": means[1] / means[0], "error": (errors[0] ** 2 + errors[1] ** 2) ** 0.5}
    if num_repeats:
        result["repeats_with_kernels"] = int(processes["detached"].ask("repeat"))
    result["exit_statuses"] = [process.end() for process in processes.values()]
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", help=f"by default all: {', '.join(MODELS)}")
    parser.add_argument("--repeat", type=int, default=0, help="captures to survive afterwards")
    parser.add_argument("--out", type=Path, help="file to append one JSON line a model to")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.models[0], options.repeat)
        return
    for model in options.models or MODELS:
        line = json.dumps(compare(model, options.repeat))
        print(line, flush=True)
        if options.out:
            with options.out.open("a") as file:
                file.write(line + "\n")


if __name__ == "__main__":
    main()
