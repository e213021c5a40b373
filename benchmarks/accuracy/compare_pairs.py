"""Pairs of real training runs for `stepscope compare`, recorded and scored: the same code, or one known change.

    python benchmarks/accuracy/compare_pairs.py --out DIR [--same 20] [--known 13] [--steps 120] [--only NAME ...]

Each run is a process of its own: a small model of torch on the CPU, or on the GPU where there is one (`--device cuda`).
The two runs of a pair follow each other, so that they share the machine's mood; side a is the job as it is. A pair of
the same code is right if no regression is called: neither the median nor the mean step is slower. A pair with a change
is found if the median or the mean step changed, or what the change is about did (a recorded part, an operator's time);
its setting is listed if a line of `settings` has its name, or where the code alone changed, a recorded part or the
phase does. Existing runs in DIR are scored again without being recorded.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Variant:
    """A known change of the job.

    Attributes:
        setting: beginning of the name of the setting that differs; empty where the code alone does.
        part: recorded part that changes; empty without one.
    """

    setting: str = ""
    part: str = ""


@dataclass(frozen=True)
class Sizes:
    """Sizes of the model: a step of some 30 ms on a CPU core, of some 15 ms on a GPU, which is then the limit."""

    width: int
    heads: int
    layers: int
    length: int


SIZES = {"cpu": Sizes(width=64, heads=4, layers=2, length=96), "cuda": Sizes(width=768, heads=12, layers=4, length=512)}

VARIANTS = {
    "workers": Variant("loaders.num_workers", "data_loading"),
    "anomaly": Variant("anomaly_mode"),
    "float64": Variant("models.parameter_types"),
    "fused": Variant("optimizers.fused"),
    "loop": Variant("optimizers.foreach"),
    "checkpoint": Variant(part="checkpoint"),
    "checkpoint_rare": Variant(part="checkpoint"),
    "kernel": Variant(),
    "attention": Variant("backward.attention"),
    "accumulate": Variant("backward.passes"),
    "collects": Variant(part="garbage_collection"),
    "autocast": Variant("autocast"),
    "batch": Variant("loaders.batch_size"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--same", type=int, default=20)
    parser.add_argument("--known", type=int, default=len(VARIANTS))
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--train", nargs=2, metavar=("NAME", "VARIANT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        train(options.out, *options.train, steps=options.steps, device=options.device)
        return
    same = {f"same{number}": "plain" for number in range(options.same)}
    variants = [name for name in VARIANTS if name != "loop" or options.device != "cpu"]  # a CPU's optimizer is a loop
    known = {name: name for name in variants[: options.known]}
    pairs = {name: one for name, one in (same | known).items() if not options.only or name in options.only}
    rows = []
    for name, variant in pairs.items():
        for side, of_side in (("a", "plain"), ("b", variant)):
            record(options, f"{name}-{side}", of_side)
        rows.append(score(options.out, name, variant))
        print(json.dumps(rows[-1]), flush=True)
    of_same = [row for row in rows if row["variant"] == "plain"]
    of_known = [row for row in rows if row["variant"] != "plain"]
    print(f"same code: {sum(row['right'] for row in of_same)} of {len(of_same)} without a regression called")
    print(f"known change: {sum(row['found'] for row in of_known)} of {len(of_known)} found", end=", ")
    print(f"{sum(row['right'] for row in of_known)} with its setting or part listed")


def record(options: argparse.Namespace, name: str, variant: str) -> None:
    """Record one run in a process of its own, unless it is there."""
    if (options.out / name / "run.json").exists():
        return
    arguments = ["--out", str(options.out), "--steps", str(options.steps), "--device", options.device]
    command = [sys.executable, __file__, *arguments, "--train", name, variant]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def score(out: Path, name: str, variant: str) -> dict[str, Any]:
    """What `stepscope compare` says of a pair."""
    from stepscope.workflow.compare import compare

    found = compare(str(out / f"{name}-a"), str(out / f"{name}-b"))
    slower = [row for row in (found.step_time, found.step_time_mean) if row.state in ("slower", "faster")]
    parts = [row.name for row in found.recorded if row.ms.state in ("slower", "faster")]
    settings = [row.name for row in found.settings]
    row: dict[str, Any] = {
        "pair": name,
        "variant": variant,
        "median": [found.step_time.a, found.step_time.b, found.step_time.state],
        "mean": [found.step_time_mean.a, found.step_time_mean.b, found.step_time_mean.state],
        "parts": parts,
        "settings": settings[:4],
        "summary": found.summary,
    }
    if variant == "plain":
        return row | {"right": not any(each.state == "slower" for each in slower), "found": None}
    known = VARIANTS[variant]
    is_found = bool(slower) or known.part in parts
    is_listed = any(each.startswith(known.setting) for each in settings) if known.setting else True
    is_listed = is_listed and (not known.part or bool(known.setting) or known.part in parts)
    return row | {"found": is_found, "right": is_found and is_listed}


def train(out: Path, name: str, variant: str, *, steps: int, device: str) -> None:
    """The job, with one change."""
    import gc

    import torch

    import stepscope

    torch.manual_seed(0)
    torch.set_num_threads(1)
    dtype = torch.float64 if variant == "float64" else torch.float32
    sizes = SIZES["cuda" if device.startswith("cuda") else "cpu"]
    model = _model(torch, variant, sizes).to(device, dtype)
    fused, foreach = True if variant == "fused" else None, False if variant == "loop" else None
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=fused, foreach=foreach)
    loader = _loader(torch, variant, steps, sizes)
    keep: list[Any] = []
    with stepscope.profile(run=name, out=out) as prof:
        for number, (batch,) in enumerate(prof.data(loader)):
            _step(torch, model, batch.to(device, dtype), variant, device)
            optimizer.step()
            optimizer.zero_grad()
            if variant in ("checkpoint", "checkpoint_rare") and number % (10 if variant == "checkpoint" else 40) == 5:
                _save(torch, model, out / name, slow=variant == "checkpoint_rare")
            if variant == "collects" and number % 3 == 0:
                gc.collect()
            keep = [[object() for _ in range(20)] for _ in range(200)]
            prof.step()
    del keep


def _model(torch: Any, variant: str, sizes: Sizes) -> Any:
    nn = torch.nn

    class Block(torch.nn.Module):  # type: ignore[misc]
        def __init__(self, width: int, heads: int) -> None:
            super().__init__()
            self.norm, self.heads = nn.LayerNorm(width), heads
            self.inputs, self.outputs = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: Any) -> Any:
            batch, length, width = x.shape
            q, k, v = self.inputs(self.norm(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            if variant == "attention":
                scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
                mask = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
                mixed = scores.masked_fill(~mask, float("-inf")).softmax(-1) @ v
            else:
                mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.outputs(mixed.transpose(1, 2).reshape(batch, length, width))
            hidden = self.wide(x)
            activated = _own_gelu(torch, hidden) if variant == "kernel" else nn.functional.gelu(hidden)
            return x + self.narrow(activated)

    class Scale(torch.nn.Module):  # type: ignore[misc]
        """Many small parameters, as norms and biases of a large model are."""

        def __init__(self, width: int) -> None:
            super().__init__()
            self.factors = nn.ParameterList(torch.ones(width) for _ in range(100))

        def forward(self, x: Any) -> Any:
            return x * torch.stack(tuple(self.factors)).mean(0)

    width = sizes.width
    return nn.Sequential(*(Block(width, sizes.heads) for _ in range(sizes.layers)), Scale(width))


def _own_gelu(torch: Any, x: Any) -> Any:
    """The same function by several kernels, in 64 bits."""
    wide = x.double()
    return (0.5 * wide * (1.0 + torch.erf(wide * 2.0**-0.5))).to(x.dtype)


def _loader(torch: Any, variant: str, steps: int, sizes: Sizes) -> Any:
    class Samples(torch.utils.data.Dataset):  # type: ignore[misc]
        def __len__(self) -> int:
            return 8 * (2 if variant == "batch" else 1) * steps

        def __getitem__(self, index: int) -> Any:
            time.sleep(0.0015)
            return (torch.full((sizes.length, sizes.width), index % 7 / 7.0),)

    workers = 0 if variant == "workers" else 2
    return torch.utils.data.DataLoader(Samples(), batch_size=16 if variant == "batch" else 8, num_workers=workers)


def _step(torch: Any, model: Any, batch: Any, variant: str, device: str) -> None:
    for _ in range(2 if variant == "accumulate" else 1):
        with torch.autocast(device, torch.bfloat16, enabled=variant == "autocast"):
            loss = model(batch).square().mean()
        if variant == "anomaly":
            with torch.autograd.set_detect_anomaly(True):
                model(batch).square().mean().backward()
        else:
            loss.backward()


def _save(torch: Any, model: Any, folder: Path, *, slow: bool) -> None:
    """Write a checkpoint, some hundred MB of it where it is to be slow."""
    state = {"model": model.state_dict()} | ({"state": torch.zeros(40_000_000)} if slow else {})
    torch.save(state, folder / "model.pt")


if __name__ == "__main__":
    main()
