"""Recording of other people's trainers on 2, 4 or 8 GPUs, and of their hangs.

`python -m benchmarks.several_gpus --out DIR --gpus 2 [--minutes 9] [--only NAME...] [--have FILE...]`, then once more
for the cases that are missing; `--hangs` and, with 8 GPUs, `--workloads` are calls of their own. `--device cpu --tiny`
proves that the code runs.
"""

from __future__ import annotations

import os

# Before torch is imported, and for all that is started.
os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
os.environ["OMP_NUM_THREADS"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all ranks are on this host, whose name may not resolve
os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
os.environ.setdefault("NCCL_NVLS_ENABLE", "0")  # NVLink multicast can put GPUs that others share out of service
os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
os.environ.setdefault("NVSHMEM_DISABLE_NVLS", "1")

import argparse
import logging
import sys
from pathlib import Path

from benchmarks.several_gpus.cases import JOBS
from benchmarks.several_gpus.recording import Plan, Recording

_TABLE = "benchmarks.several_gpus.cases:JOBS"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of results; what is recorded there stays")
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=9.0, help="of the whole call")
    parser.add_argument("--only", nargs="*", default=[], help="names of cases or of hangs")
    parser.add_argument("--have", nargs="*", type=Path, default=[], help="cases.jsonl of earlier calls")
    parser.add_argument("--again", nargs="*", default=[], help="cases to record though --have has them")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small sizes, to try the code")
    parser.add_argument("--case-seconds", type=float, default=60.0, help="that a case may take")
    parser.add_argument("--no-agent", action="store_true")
    parser.add_argument("--hangs", action="store_true", help="hang jobs instead of recording cases")
    parser.add_argument("--workloads", action="store_true", help="own workload on 8 GPUs instead of cases")
    parser.add_argument("--list", action="store_true", help="print the cases and end")
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    if unknown := set(options.only) - set(JOBS) if not (options.hangs or options.workloads) else set():
        parser.error(f"no such cases: {', '.join(sorted(unknown))}")
    jobs = [job for job in JOBS.values() if not options.only or job.name in options.only]
    if options.list:
        for job in jobs:
            print(f"{job.name}: {job.what}")
        return
    if options.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if options.hangs:
        from benchmarks.several_gpus.hangs import record_hangs

        sys.exit(record_hangs(options.out, options.gpus, options.only, is_cpu=options.device == "cpu"))
    if options.workloads:
        from benchmarks.several_gpus.workloads import record_workloads

        sys.exit(record_workloads(options.out, options.only, options.minutes * 60, options.device))
    plan = Plan(
        jobs,
        _TABLE,
        options.out,
        options.gpus,
        options.device,
        options.minutes * 60,
        options.case_seconds,
        options.tiny,
        not options.no_agent,
        options.have,
        options.again,
    )
    sys.exit(1 if Recording(plan).record() else 0)


if __name__ == "__main__":
    main()
