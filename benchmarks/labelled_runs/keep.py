"""Keeping of labelled runs: recorded run directories made small enough for a repository, and judged the same.

`python -m benchmarks.labelled_runs.keep RECORDED KEPT`: RECORDED is where the tar files of a recording were unpacked.
Every run is trimmed alike, without a look at its verdict: telemetry, steps and ranks stay whole, and traces lose the
events and arguments that no reader reads.
"""

from __future__ import annotations

import argparse
import gzip
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.labelled_runs.host_limit import TRUTH_FILE, kernels_ms_of, with_host_limit
from stepscope.core.documents.run_directory import LIGHT_FOLDER, RUN_FILE, STEPS_FOLDER, TRACES_FOLDER
from stepscope.store.runs import load_manifest

_UNREAD_HEADER = ("traceName", "trace_id", "ERROR")
_UNREAD = frozenset(
    {
        "External id",
        "Record function id",
        "Ev Idx",
        "Sequence number",
        "Fwd thread id",
        "Input Strides",
        "cbid",
        "context",
        "queued",
        "memory bandwidth (GB/s)",
        "est. achieved occupancy %",
        "blocks per SM",
        "warps per SM",
    }
)


def keep(recorded: Path, kept: Path) -> None:
    """Keep the runs of each lane as `kept`/LANE/NAME with its truth."""
    for path in sorted(recorded.glob("*/*.truth.json")):
        name = path.name.removesuffix(".truth.json")
        run, target = path.with_name(name), kept / path.parent.name / name
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(run / STEPS_FOLDER, target / STEPS_FOLDER)
        manifest = replace(load_manifest(run), host="", versions={}, environment={})
        (target / RUN_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=1))
        truth = with_host_limit(json.loads(path.read_text())[name], kernels_ms_of(run))
        (target / TRUTH_FILE).write_text(json.dumps(truth, indent=1) + "\n")
        for folder in (LIGHT_FOLDER, TRACES_FOLDER):
            for trace in run.glob(f"{folder}/*/*.json.gz"):
                smaller = target / trace.relative_to(run)
                smaller.parent.mkdir(parents=True, exist_ok=True)
                smaller.write_bytes(trimmed(trace.read_bytes()))


def trimmed(content: bytes) -> bytes:
    """A gzipped trace with what is read of it: like events are neighbours, so that gzip finds them."""
    document = json.loads(gzip.decompress(content))
    events = [_slim(event) for event in document.pop("traceEvents") if _is_read(event)]
    header = {key: value for key, value in document.items() if key not in _UNREAD_HEADER}
    header["traceEvents"] = sorted(events, key=_likeness)
    return gzip.compress(json.dumps(header, separators=(",", ":")).encode(), 9, mtime=0)


def _is_read(event: dict[str, Any]) -> bool:
    return event.get("ph") == "X" and event.get("cat") != "Trace"


def _slim(event: dict[str, Any]) -> dict[str, Any]:
    arguments = {name: value for name, value in event.get("args", {}).items() if name not in _UNREAD}
    return {key: value for key, value in event.items() if key != "args"} | ({"args": arguments} if arguments else {})


def _likeness(event: dict[str, Any]) -> tuple[str, str, str, str, float]:
    return str(event["pid"]), str(event["tid"]), event["cat"], event["name"], float(event["ts"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recorded", type=Path)
    parser.add_argument("kept", type=Path)
    options = parser.parse_args()
    keep(options.recorded, options.kept)


if __name__ == "__main__":
    main()
