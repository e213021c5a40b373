"""Times of kernels on the GPU of this machine, for the models of headroom.

`python -m benchmarks.kernel_rates --out FILE` writes one line of JSON a case as soon as it is measured, after a line on
the GPU and the versions; about three minutes on an H200. `--sections product,attention` measures some of them.
`python -m benchmarks.kernel_rates.table FILE...` makes the package's table from it.

A case is queued behind a pause of the GPU, so that the host's time for its launches does not count. What is measured
is what torch runs by its own choice, without cuDNN's search for the fastest algorithm.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import sys
import time
from pathlib import Path
from typing import TextIO

from benchmarks.kernel_rates.cases import SECTIONS, Case, torch_module

_MEASURED_SECONDS = 0.004
_MOST_RUNS, _FEWEST_RUNS = 16, 3
_CYCLES_A_SECOND = 2.0e9
_ROUNDS = 2


def measured_us(case: Case, device: str) -> float:
    """Microseconds of one run of a case on the device: the shorter of some rounds."""
    torch, run = torch_module(), case.prepare()
    for _ in range(case.warm_up):
        run()
    if device == "cpu":
        began = time.perf_counter()
        run()
        return (time.perf_counter() - began) * 1e6

    def round_us(runs: int) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(int(runs * case.host_us / 1e6 * _CYCLES_A_SECOND))
        begin.record()
        for _ in range(runs):
            run()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) * 1e3 / runs

    torch.cuda.synchronize()
    once_us = round_us(1)
    runs = min(max(math.ceil(_MEASURED_SECONDS * 1e6 / max(once_us, 1.0)), _FEWEST_RUNS), _MOST_RUNS)
    return min(round_us(runs) for _ in range(_ROUNDS))


def _measure(case: Case, device: str, out: TextIO) -> None:
    torch = torch_module()

    allows = case.row.get("dtype") == "tfloat32"
    torch.set_float32_matmul_precision("high" if allows else "highest")
    torch.backends.cudnn.allow_tf32 = allows
    try:
        row = case.row | {"us": round(measured_us(case, device), 2)}
    except (RuntimeError, NotImplementedError) as error:  # no kernel for it, or no memory
        row = case.row | {"error": str(error).splitlines()[0][:120]}
        torch.cuda.empty_cache() if device != "cpu" else None
    out.write(json.dumps(row) + "\n")
    out.flush()


def _machine(device: str) -> dict[str, object]:
    torch = torch_module()

    facts: dict[str, object] = {"torch": torch.__version__, "python": platform.python_version()}
    if device != "cpu":
        facts |= {
            "gpu": torch.cuda.get_device_name(),
            "capability": list(torch.cuda.get_device_capability()),
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
        }
    return facts


def main(arguments: list[str] | None = None) -> int:
    """Measure the chosen sections until the time is up."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sections", default=",".join(SECTIONS))
    parser.add_argument("--seconds", type=float, default=230.0, help="stop after that (default 230)")
    parser.add_argument("--device", default="cuda")
    given = parser.parse_args(arguments)
    began = time.monotonic()
    with given.out.open("w") as out:
        command = f"python -m benchmarks.kernel_rates --out FILE --sections {given.sections}"
        out.write(json.dumps({"kind": "machine", "command": command, **_machine(given.device)}) + "\n")
        for name in given.sections.split(","):
            num_cases, section_began = 0, time.monotonic()
            for case in SECTIONS[name](given.device):
                if time.monotonic() - began > given.seconds:
                    print(f"stopped in {name} after {num_cases} cases: time is up", file=sys.stderr)
                    return 1
                _measure(case, given.device, out)
                num_cases += 1
            print(f"{name}: {num_cases} cases in {time.monotonic() - section_began:.1f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
