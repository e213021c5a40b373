"""Chrome traces of other tools and other devices are named, never taken for a trace of a GPU or of a CPU job."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from stepscope.core.errors import DataError, NotATraceError
from stepscope.trace.columns import TraceColumns
from stepscope.trace.reading import read_ranks_stream
from stepscope.workflow.trace_info import describe_trace
from tests.trace.one_rank import read_trace_stream

Event = dict[str, Any]


def event(name: str, category: str | None, ts: float, duration: float, *, pid: int = 10, **arguments: Any) -> Event:
    told = {} if category is None else {"cat": category}
    return {"ph": "X", "name": name, "pid": pid, "tid": 1, "ts": ts, "dur": duration, "args": arguments, **told}


def process(pid: int, name: str) -> Event:
    return {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}}


STEP = event("ProfilerStep#1", "user_annotation", 0, 900)
MATMUL = event("aten::mm", "cpu_op", 5, 20)
KERNEL = event("gemm", "kernel", 100, 500, pid=0, correlation=1)


def ascend(*, times: type = float, host_only: bool = False) -> list[Event]:
    """A trace as torch_npu writes it: a list, device rows without a category, steps as operators."""
    rows = [
        process(10, "Python"),
        event("ProfilerStep#1", "cpu_op", 0, 900),
        MATMUL,
        {"ph": "s", "cat": "async_npu", "name": "torch_to_npu", "id": 1, "pid": 10, "tid": 1, "ts": 6},
        process(2, "CANN"),
        event("AscendCL@aclnnMatmul", None, 15, 20, pid=2),
        process(3, "Ascend Hardware"),
        event("MatMulV2", None, 100, 700, pid=3, **{"Task Type": "AI_CORE", "Stream Id": 7}),
    ]
    rows = [row for row in rows if row.get("pid") == 10] if host_only else rows
    return [row | {"ts": times(row["ts"])} if "ts" in row else row for row in rows]


def runtime(name: str, category: str = "cuda_runtime") -> Event:
    return event(name, category, 8, 5, correlation=1)


SPAN = {
    "ph": "X",
    "cat": "Trace",
    "ts": 0,
    "dur": 9,
    "pid": "Spans",
    "tid": "__xpu_profiler__",
    "name": "PyTorch Profiler",
}
ACCELERATORS: dict[str, tuple[list[Event], str]] = {
    "Ascend": (ascend(), "an Ascend NPU"),
    "Ascend, host only": (ascend(host_only=True), "an Ascend NPU"),
    "Ascend, custom operators alone": ([STEP, event("npu::npu_rms_norm", "cpu_op", 5, 9)], "an Ascend NPU"),
    "XPU": ([STEP, MATMUL, runtime("urEnqueueKernelLaunch", "xpu_runtime"), KERNEL], "an Intel GPU (XPU)"),
    "XPU without activities": ([STEP, MATMUL, SPAN], "an Intel GPU (XPU)"),
    "Spyre": ([STEP, MATMUL, runtime("aiuLaunchControlBlocks", "privateuse1_runtime"), KERNEL], "an IBM Spyre (AIU)"),
    "another backend": ([STEP, runtime("fooLaunch", "privateuse1_runtime"), KERNEL], "another backend (PrivateUse1)"),
    "Gaudi": ([STEP, MATMUL, event("matmul_fwd", "hpu_op", 100, 500, pid=0)], "an Intel Gaudi (HPU)"),
    "Gaudi, host only": ([STEP, event("hpu::cast", "cpu_op", 5, 9)], "an Intel Gaudi (HPU)"),
    "MTIA": ([STEP, MATMUL, runtime("runFunction", "mtia_runtime")], "a Meta MTIA"),
    "MUSA": ([STEP, MATMUL, runtime("musaLaunchKernel"), KERNEL], "a Moore Threads GPU (MUSA)"),
    "MLU": ([STEP, MATMUL, runtime("cnInvokeKernel"), KERNEL], "a Cambricon MLU"),
}


def read(events: list[Event], *, as_list: bool = False) -> TraceColumns:
    text = json.dumps(events if as_list else {"traceEvents": events}).encode()
    return read_trace_stream(io.BytesIO(text), path="trace.json", file_bytes=len(text))


@pytest.mark.parametrize("name", ACCELERATORS)
@pytest.mark.parametrize("as_list", [False, True])
def test_other_accelerators_are_known(name: str, as_list: bool) -> None:
    events, device = ACCELERATORS[name]
    found = read(events, as_list=as_list).header.accelerator
    assert found is not None
    assert device in found


def test_an_ascend_trace_whose_times_are_texts_is_named() -> None:
    assert read(ascend(times=str), as_list=True).header.accelerator == "an Ascend NPU"


def test_a_name_at_the_end_of_a_long_trace_is_seen() -> None:
    filler = [event("aten::add", "cpu_op", step, 0.5) for step in range(40_000)]
    assert read([STEP, *filler, SPAN]).header.accelerator == "an Intel GPU (XPU)"
    middle = filler[: len(filler) // 2]
    assert read([*middle, process(3, "Ascend Hardware"), *middle], as_list=True).header.accelerator == "an Ascend NPU"


@pytest.mark.parametrize(
    "call", ["cudaLaunchKernel", "cuLaunchKernelEx", "hipLaunchKernel", "hipExtModuleLaunchKernel"]
)
def test_nvidia_amd_and_cpu_have_no_other_accelerator(call: str) -> None:
    assert read([STEP, MATMUL, runtime(call), KERNEL]).header.accelerator is None
    assert read([STEP, MATMUL]).header.accelerator is None


PAIR = [{"ph": "B", "name": "f", "cat": "x", "pid": 1, "ts": 1}, {"ph": "E", "name": "f", "pid": 1, "ts": 9}]
TOOLS: dict[str, tuple[Any, str]] = {
    "pairs": ({"traceEvents": PAIR}, "holds no complete event .*, but pairs of begin and end"),
    "Horovod": ([PAIR[0] | {"name": "NEGOTIATE_ALLREDUCE"}, PAIR[1]], "of Horovod's timeline"),
    "NCCL": ([event("AllReduce", "COLL", 1, 2) | {"ph": "b"}], "of NCCL's profiler plugin"),
    "JAX": ({"traceEvents": [process(3, "/device:TPU:0"), event("fusion.1", None, 1, 2)]}, r"of JAX or TensorFlow"),
    "rpd": (
        '{"traceEvents": [ {}\n,' + json.dumps(process(2, "GPU2")) + "\n," + json.dumps(event("k", None, 1, 2)) + "]}",
        r"of rpd",
    ),
    "rocprof": ({"traceEvents": [event("hipMalloc", None, 1, 2, BeginNs="1", EndNs="2")]}, "of rocprof"),
    "autograd": ([event("mm", None, 1, 2) | {"pid": "CPU functions"}], "of torch.autograd.profiler"),
    "PaddlePaddle": (
        [event("mm[1 ms]", "Operator", 1, 9), event("launch", "CudaRuntime", 2, 1), event("gemm", "Kernel", 3, 5)],
        "of PaddlePaddle's profiler",
    ),
    "ONNX Runtime": ([event("run", "Session", 1, 9), event("gemm", "Kernel", 2, 3)], "of ONNX Runtime"),
    "unitrace": ([event("zeLaunch", "cpu_op", 1, 9), event("gemm", "gpu_op", 2, 3)], "of unitrace"),
}


@pytest.mark.parametrize("tool", TOOLS)
def test_traces_of_other_tools_are_named(tool: str) -> None:
    document, says = TOOLS[tool]
    text = (document if isinstance(document, str) else json.dumps(document)).encode()
    with pytest.raises(NotATraceError, match=r"is a Chrome trace.*not one of PyTorch") as refused:
        read_ranks_stream(io.BytesIO(text), path="a.json", file_bytes=len(text))
    assert refused.match(says)
    assert "record with torch.profiler" in refused.value.what_next


def test_steps_count_whatever_their_category() -> None:
    for category in ("cpu_op", "user_annotations", "my_own"):
        marks = [event(f"ProfilerStep#{step}", category, 100 * step, 90) for step in (3, 4)]
        assert describe_trace(read([MATMUL, *marks])).steps == [3, 4]
    doubled = [STEP, event("ProfilerStep#2", "cpu_op", 950, 9), MATMUL]
    assert describe_trace(read(doubled)).steps == [1]


def test_a_trace_without_any_event_is_still_one_line() -> None:
    with pytest.raises(DataError, match="holds no complete event"):
        read([process(1, "python")])
