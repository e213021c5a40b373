"""Files that are not profiler traces: what they are, by their first bytes, keys and names, and what reads them."""

from __future__ import annotations

import re
from typing import NamedTuple

_LOOKED_AT_BYTES = 512 * 1024
_LONGEST_LINE_BYTES = 4096

RECORD = "record with torch.profiler (stepscope run -- COMMAND does), and give its JSON"
_NCCL = "run: stepscope nccl FILE"
_NSIGHT = "run: nsys export --type sqlite REPORT.nsys-rep, and give what it writes"
_ROCPROF = f"read it with rocprof's own tools; for stepscope {RECORD}"
ANALYZE = "run: stepscope analyze FILE"
"""What to do with a file that the analysis reads: not where it was refused."""
_UNPACK = "unpack it, and give what is in it"


class Kind(NamedTuple):
    """A kind of file.

    Attributes:
        what: a noun phrase.
        what_next: which command or tool reads it, or leads to a trace; FILE stands for its path.
    """

    what: str
    what_next: str = RECORD


_SNAPSHOT = Kind("a memory snapshot", "run: stepscope memory FILE")
_RECORDER = Kind("a flight-recorder dump", "run: stepscope hang FILE")
_EXECUTION_TRACE = Kind(
    "an execution trace (of PyTorch's ExecutionTraceObserver, or Chakra), which holds no times of the GPU",
    "give the trace that torch.profiler exported in the same run (export_chrome_trace)",
)
_CHAKRA = Kind(
    "an execution trace of Chakra, which holds no times of the GPU",
    "give the trace that torch.profiler exported in the same run (export_chrome_trace)",
)
_TOPOLOGY = Kind("a topology dump of NCCL", _NCCL)
_XPLANE = Kind("a profile of JAX, TensorFlow or torch_xla (xplane)", "open it with XProf or TensorBoard")
_BY_ENDING = (
    ((".nsys-rep", ".qdrep", ".qdstrm"), Kind("a report of Nsight Systems", _NSIGHT)),
    ((".ncu-rep",), Kind("a report of Nsight Compute", f"read it with ncu --import; for stepscope {RECORD}")),
    ((".nvvp", ".nvprof"), Kind("a profile of nvprof", RECORD)),
    ((".xplane.pb",), _XPLANE),
    ((".pftrace", ".perfetto-trace", ".proto"), Kind("a Perfetto trace", f"open it in ui.perfetto.dev; {RECORD}")),
    ((".et",), _CHAKRA),
    ((".hltv",), Kind("a profile of Intel Gaudi", "open it with Gaudi's own trace viewer")),
    ((".pprof", ".pb.gz"), Kind("a pprof profile", RECORD)),
)
"""Of binary files whose content does not identify them, by the ends of their names."""
_BY_CONTENT: tuple[tuple[bytes, tuple[bytes, ...], Kind], ...] = (
    (b"\x80", (b"device_traces", b"segments"), _SNAPSHOT),
    (b"\x80", (b"pg_config", b"pg_status", b"entries"), _RECORDER),
    (
        b"\x80",
        (),
        Kind(
            "a Python pickle",
            "run: stepscope hang FILE if it is a flight recorder, stepscope memory FILE if a snapshot",
        ),
    ),
    (b"SQLite format 3\0", (b"rocpd_",), Kind("a database of ROCm's profiler (rocpd)", _ROCPROF)),
    (
        b"SQLite format 3\0",
        (b"CUPTI_ACTIVITY_KIND", b"TARGET_INFO", b"NVTX_EVENTS"),
        Kind("an SQLite export of Nsight Systems", ANALYZE),
    ),
    (b"SQLite format 3\0", (), Kind("an SQLite database")),
    (b"PAR1", (), Kind("a Parquet table", "run: stepscope whatif FILE, if it is an operation table")),
    (b"PK\x03\x04", (), Kind("a zip archive", _UNPACK)),
    (b"\x28\xb5\x2f\xfd", (), Kind("compressed with zstd", _UNPACK)),
    (b"BZh", (), Kind("compressed with bzip2", _UNPACK)),
    (b"\xfd7zXZ", (), Kind("compressed with xz", _UNPACK)),
    (b"7z\xbc\xaf", (), Kind("a 7-Zip archive", _UNPACK)),
    (b"NVR\0", (), Kind("a report of Nsight Compute", f"read it with ncu --import; for stepscope {RECORD}")),
    (b"PERFILE2", (), Kind("a profile of Linux perf")),
    (b"\x0a", (b"/host:", b"/device:"), _XPLANE),
    (b"# HELP ", (), Kind("a page of Prometheus metrics")),
    (b"<?xml", (b"<system ",), _TOPOLOGY),
    (b"<system ", (), _TOPOLOGY),
    (b"<", (), Kind("an HTML or XML page", "download the file itself, not the page that shows it")),
    (b"", (b"NCCL INFO", b"NCCL WARN", b"Watchdog caught collective"), Kind("a log with NCCL's lines", _NCCL)),
    (b"", (b"elapsed time per iteration",), Kind("a training log", "run: stepscope steps FILE")),
    (b"", (b"brain.Event:",), Kind("a log of TensorBoard (events)")),
)
"""First bytes, words of which the beginning holds one (none: any), and the kind."""
_BY_FIRST_LINE = (
    (
        re.compile(
            rb'"?(?:Kind|Index|Dispatch_Id|Name|KernelName)"?,.*(?:Agent|Kernel|gpu-id|TotalDurationNs)', re.IGNORECASE
        ),
        Kind("a table of rocprof", _ROCPROF),
    ),
    (re.compile(rb"\S[^{]*;[^{]* \d+$"), Kind("a list of collapsed stacks (py-spy, perf)")),
    (re.compile(rb"[^{\[\0]+,[^\0]*,"), Kind("a table of comma-separated values")),
)
_BY_KEY = (
    (rb"rocprofiler-sdk-tool", Kind("an output of rocprofv3", _ROCPROF)),
    (rb"pg_status", _RECORDER),
    (rb"device_traces", _SNAPSHOT),
    (rb"segments", _SNAPSHOT),
    (rb"entries", _RECORDER),
    (rb"resourceSpans", Kind("an OpenTelemetry export")),
    (rb"inspector_output_format_version", Kind("an output of NCCL's inspector", _NCCL)),
    (rb"(?:CudaEvent|NvtxEvent|TraceProcessEvent)", Kind("a JSON export of Nsight Systems", _NSIGHT)),
    (rb"timeDeltas", Kind("a CPU profile of V8")),
    (rb"workload_graph", _CHAKRA),
    (rb"nodes", _EXECUTION_TRACE),
    (rb"shared", Kind("a speedscope profile")),
)
_SCHEMA = re.compile(rb'"schema"\s*:\s*"(stepscope\.[\w./-]{1,40})"')
_SPEEDSCOPE = re.compile(rb'"\$schema"\s*:\s*"[^"]*speedscope')
_MEMORY_TIMELINE = re.compile(rb"\[\s*\[\s*-?\d")


def kind_of_file(text: bytes, path: str) -> Kind | None:
    """Kind of a file that is not JSON, by its beginning (inflated), else by the end of its name."""
    beginning = text[:_LOOKED_AT_BYTES]
    for magic, words, kind in _BY_CONTENT:
        if beginning.startswith(magic) and (not words or any(word in beginning for word in words)):
            return kind
    by_name = next((kind for endings, kind in _BY_ENDING if path.lower().endswith(endings)), None)
    first_line = beginning.partition(b"\n")[0][:_LONGEST_LINE_BYTES].rstrip()
    return by_name or next((kind for pattern, kind in _BY_FIRST_LINE if pattern.match(first_line)), None)


def kind_of_object(text: bytes) -> Kind | None:
    """Kind of a JSON object that is not a trace, by its keys; None for unknown keys."""
    beginning = text[:_LOOKED_AT_BYTES]
    if schema := _SCHEMA.search(beginning):
        return Kind(f"a document of stepscope ({schema[1].decode()})", "give the run directory, or the traces in it")
    if _SPEEDSCOPE.search(beginning):
        return Kind("a speedscope profile")
    return next((kind for key, kind in _BY_KEY if re.search(rb'"%s"\s*:' % key, beginning)), None)


def is_memory_timeline(text: bytes) -> bool:
    """Whether a bare list was written by export_memory_timeline: lists of numbers, not events."""
    return _MEMORY_TIMELINE.match(text) is not None
