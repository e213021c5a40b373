"""Mean step after a capture over the mean step before it, of models that the host or the GPU bounds.

`python -m benchmarks.after_capture [MODEL...] [--attached] [--repeat N] [--out FILE]` needs a GPU. Each model runs in
two processes, one with a capture by `stepscope.profile` between its blocks of 50 steps and one without, so that the
drift of the machine is seen beside the effect. `--attached` leaves CUPTI attached, as torch does by default. With
`--repeat N` the process then takes N captures, ten steps apart, and must survive them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

_BLOCK_STEPS = 50
_NUM_BLOCKS = 4
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


def _blocks(step: Callable[[], None], end_step: Callable[[], object]) -> Iterator[float]:
    """Mean step of one block after another, in milliseconds."""
    import torch

    while True:
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(_BLOCK_STEPS):
            step()
            end_step()
        torch.cuda.synchronize()
        yield (time.perf_counter() - began) / _BLOCK_STEPS * 1e3


def measure(model: str, *, capture: bool, num_repeats: int) -> dict[str, Any]:
    """Run one model in this process; step times in milliseconds."""
    import stepscope

    step = MODELS[model]()
    for _ in range(_WARMUP_STEPS):
        step()
    first = _BLOCK_STEPS * _NUM_BLOCKS + 2
    last = first + 3 + _SETTLE_STEPS
    schedule = stepscope.once(wait=first - 1) if capture else stepscope.once(wait=10**9)
    with tempfile.TemporaryDirectory() as folder:
        with stepscope.profile(folder, schedule=schedule) as run:
            blocks = _blocks(step, run.step)
            before = [next(blocks) for _ in range(_NUM_BLOCKS)]
            for _ in range(last - _BLOCK_STEPS * _NUM_BLOCKS):
                step()
                run.step()
            after = [next(blocks) for _ in range(_NUM_BLOCKS)]
        num_traces = len(list(Path(folder).rglob("*.json.gz")))
        if capture and num_repeats:
            with stepscope.profile(folder + "/repeated", schedule=stepscope.every(10, repeat=num_repeats)) as run:
                for _ in range(10 * num_repeats + 10):
                    step()
                    run.step()
            num_traces += len(list(Path(folder, "repeated").rglob("*.json.gz")))
    ratio = statistics.mean(after) / statistics.mean(before)
    return {"model": model, "capture": capture, "traces": num_traces, "ratio": ratio, "before": before, "after": after}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", choices=[*MODELS, []], help="by default all")
    parser.add_argument("--attached", action="store_true", help="leave CUPTI attached after the capture")
    parser.add_argument("--repeat", type=int, default=0, help="captures to survive afterwards")
    parser.add_argument("--out", type=Path, help="file to append one JSON line a process to")
    parser.add_argument("--child", choices=["capture", "control"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        (model,) = options.models
        print(json.dumps(measure(model, capture=options.child == "capture", num_repeats=options.repeat)))
        return
    environment = os.environ | ({"TEARDOWN_CUPTI": "0"} if options.attached else {})
    for model in options.models or MODELS:
        for child in ("control", "capture"):
            command = [sys.executable, "-m", "benchmarks.after_capture", model, "--child", child]
            command += ["--repeat", str(options.repeat)]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            line = done.stdout.strip().rpartition("\n")[2] or json.dumps(
                {"model": model, "child": child, "exit_status": done.returncode, "stderr": done.stderr[-500:]}
            )
            print(line, flush=True)
            if options.out:
                with options.out.open("a") as file:
                    file.write(line + "\n")


if __name__ == "__main__":
    main()
