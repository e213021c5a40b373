"""Jobs of labelled runs whose host is still the limit without their fault: CPU-bound is a right answer too.

On an empty queue the host was through with a step without faults about when the step was done, and the GPU's kernels
take far less. If that gap is larger than what the fault takes, giving the host less to do may gain more than removing
the fault, though how much was not measured. `python -m benchmarks.labelled_runs.host_limit KEPT` mends the
truths of kept runs by this rule; `keep` applies it to new ones.
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
from pathlib import Path
from typing import Any

from stepscope.core.documents.run_directory import TRACES_FOLDER

TRUTH_FILE = "truth.json"

HOST_IS_NEAR = 0.85
"""Host's part of a step on an empty queue from which on a faster device may leave the host behind."""

LEAST = 0.13
"""Of training time that the host holds up the GPU in a job without a fault, from which on that is a loss of its own."""


def with_host_limit(truth: dict[str, Any], kernels_ms: float | None) -> dict[str, Any]:
    """A truth by which CPU-bound is right too, where the host holds up the GPU for longer than the fault does.

    In a job without a fault, or with one that takes next to nothing, what the host does may also be to wait for values.

    Args:
        kernels_ms: compute kernels of a step; None where unknown.
    """
    blocks, share = truth["blocks_ms"].get("none"), truth.get("share")
    is_settled = "host_bound" in truth["cause"] or "also" in truth or "pair" in truth or truth.get("headroom")
    if kernels_ms is None or not blocks or is_settled or (share is None and truth["bottleneck"] is not False):
        return truth
    is_near = truth["launch_ms"] > HOST_IS_NEAR * min(blocks)  # it is that of the fastest block too
    left = (statistics.median(blocks) - kernels_ms) / truth["bare_ms"]
    if not is_near or left <= (LEAST if share is None else share):
        return truth
    host = (
        f"without a fault the host needs {truth['launch_ms']} ms for a step of {min(blocks)} to {max(blocks)}, whose "
        f"kernels take {kernels_ms:.1f}"
    )
    if share is None:
        more = {"cause": [*truth["cause"], "host_bound", "synchronization"], "bottleneck": None}
        host = f"{host}: what that takes was not measured"
    else:
        more = {"also": ["host_bound"]}
        host = f"{host}: CPU-bound is right too, if it takes more than the fault; what that gains was not measured"
    return truth | more | {"note": "; ".join([*([truth["note"]] if "note" in truth else []), host])}


def kernels_ms_of(run: Path) -> float | None:
    """Compute kernels of a profiled step by a run's full captures, of the rank with least: collectives that wait slow
    those of the others. None without such a capture."""
    ranks = [_kernels_ms(trace) for trace in run.glob(f"{TRACES_FOLDER}/*/*.json.gz")]
    return min((one for one in ranks if one), default=None)


def _kernels_ms(trace: Path) -> float:
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    marks = {event["name"] for event in events if event.get("name", "").startswith("ProfilerStep#")}
    kernels = [event for event in events if event.get("cat") == "kernel" and "nccl" not in event["name"].lower()]
    return sum(float(event["dur"]) for event in kernels) / 1e3 / len(marks) if marks else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kept", type=Path, help="folder of kept runs, as LANE/NAME")
    for path in sorted(parser.parse_args().kept.glob(f"*/*/{TRUTH_FILE}")):
        truth = json.loads(path.read_text())
        mended = with_host_limit(truth, kernels_ms_of(path.parent))
        if mended != truth:
            path.write_text(json.dumps(mended, indent=1) + "\n")
            print(f"{path.parent.parent.name}/{path.parent.name}: {mended['note']}")


if __name__ == "__main__":
    main()
