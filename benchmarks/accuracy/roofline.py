"""Coverage of the roofline: the share of kernel time whose cost is known, and whether FLOPs are right.

Prints the figures of docs/explanation/accuracy.md.

    PYTHONPATH=. python benchmarks/accuracy/roofline.py TRACES

TRACES holds h100x2/<case>/<case>.rank<n>.json.gz, public/tracelens/h100_*.json.gz and public/kineto/resnet50_*.gz.
The GPT step is compared with a closed form in its configuration, ResNet-50's with torch's FlopCounterMode on this
architecture without data (meta tensors), which needs torch.
"""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path

from stepscope.analyzer.rank import view_rank
from stepscope.trace.reading import read_ranks

GOAL = 0.90


def main() -> None:
    """Print coverage of every H100 trace and both FLOP checks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", type=Path)
    folder = parser.parse_args().traces
    paths = sorted((folder / "h100x2").glob("*/*.json.gz")) + sorted((folder / "public/tracelens").glob("h100_*.gz"))
    print("| trace | shapes | borrowed | parameters | total | by name | unknown |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    worst = 1.0
    for path in paths:
        found = view_rank(read_ranks(path)[0], 0).coverage
        worst = min(worst, found.costed)
        shares = (found.model, found.borrowed, found.parameters, found.costed, found.by_name, found.none)
        print(f"| {path.name.split('.json')[0]} | " + " | ".join(f"{share:.1%}" for share in shares) + " |")
    print(f"\n{len(paths)} traces, least share with known cost {worst:.1%} (goal {GOAL:.0%})\n")
    step = view_rank(read_ranks(folder / "h100x2/ddp/ddp.rank0.json.gz")[0], 0).step_flops or 0.0
    print(f"GPT step: {step:.5e} FLOPs, closed form {gpt_flops():.5e}, {step / gpt_flops() - 1:+.3%}")
    if importlib.util.find_spec("torch"):
        step = (
            view_rank(read_ranks(folder / "public/kineto/resnet50_num_workers_0.pt.trace.json.gz")[0], 0).step_flops
            or 0.0
        )
        reference = resnet50_flops()
        print(f"ResNet-50 step: {step:.5e} FLOPs, counted {reference:.5e}, {step / reference - 1:+.3%}")


def gpt_flops() -> float:
    """FLOPs of a step: 6 per matrix parameter and token, plus causal attention (half the square, three times)."""
    layers, width, vocabulary, batch, sequence = 12, 2048, 32000, 4, 2048
    weights = layers * 12 * width**2 + vocabulary * width
    attention = (
        layers * batch * sequence**2 * width * 4 / 2
    )  # two products of 2 FLOPs a multiply-add, half of them masked
    return 6.0 * weights * batch * sequence + 3.0 * attention


def resnet50_flops() -> float:
    """FLOPs of forward and backward of 32 images of 224 x 224, counted by torch."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from tests.analyzer.roofline.resnet import resnet50

    with torch.device("meta"):
        network, images = resnet50(), torch.empty(32, 3, 224, 224)
    with FlopCounterMode(display=False) as counter:
        torch.autograd.backward(network(images).sum())
    return float(counter.get_total_flops())


if __name__ == "__main__":
    main()
