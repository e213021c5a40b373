"""The package's table of kernel times, made from a measurement.

`python -m benchmarks.kernel_rates.table RATES.jsonl > stepscope/core/hardware/kernel_times_h200.py`
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

Row = Mapping[str, object]


def table_lines(rows: Iterable[Row]) -> list[str]:
    """Lines of the table: kind, what it is of, sizes, and microseconds; "-" where nothing was measured.

    Lines of one kind are in the order of measurement. Products of one grid of sizes share a line by (m, n).
    """
    grid: dict[tuple[object, ...], dict[object, str]] = defaultdict(dict)
    passes: dict[tuple[str, ...], dict[object, str]] = defaultdict(dict)
    lines = []
    for row in rows:
        us = _us(row)
        kind = row["kind"]
        if kind == "product" and row["batch"] == 1:
            grid[kind, row["dtype"], row["layout"], row["m"], row["n"]][row["k"]] = us
        elif kind == "product":
            lines.append(_line("batched", row, us))
        elif "pass" in row:
            key = tuple(str(value) for name, value in row.items() if name not in {"pass", "us", "error"})
            passes[key][row["pass"]] = us
        elif kind != "machine":
            lines.append(_line(str(kind), row, us))
    products = [
        f"{' '.join(map(str, key))} {' '.join(f'{k}:{us}' for k, us in of_k.items())}" for key, of_k in grid.items()
    ]
    by_pass = [
        f"{' '.join(key)} {' '.join(f'{name}:{us}' for name, us in of_pass.items())}" for key, of_pass in passes.items()
    ]
    return [*products, *by_pass, *lines]


def _us(row: Row) -> str:
    us = row.get("us")
    return f"{float(us):.4g}" if isinstance(us, int | float) else "-"


def _line(kind: str, row: Row, us: str) -> str:
    values = [str(value) for name, value in row.items() if name not in {"kind", "us", "error"}]
    return " ".join([kind, *values, f"us:{us}"])


def main(paths: list[str]) -> int:
    """Print the module."""
    rows = [json.loads(line) for path in paths for line in Path(path).read_text().splitlines()]
    machine = next(row for row in rows if row["kind"] == "machine")
    print(f'"""Measured times of kernels on one {machine["gpu"]}, microseconds.')
    print()
    print(f"torch {machine['torch']}, CUDA {machine['cuda']}, cuDNN {machine['cudnn']}. Made by")
    print("`python -m benchmarks.kernel_rates --out RATES.jsonl` and")
    print("`python -m benchmarks.kernel_rates.table RATES.jsonl`, where each kind of line is explained.")
    print('"""')
    print()
    print(f"GPU = {json.dumps(machine['gpu'])}")
    print('"""The device\'s name by its driver."""')
    print()
    print('ROWS = """\\')
    print("\n".join(table_lines(rows)))
    print('"""')
    print('"""One line a case: kind, what it is of, its sizes, and time by pass or inner size."""')
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
