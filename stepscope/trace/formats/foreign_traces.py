"""Chrome traces of other tools than torch.profiler, and of other devices than NVIDIA's and AMD's: whose they are."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable

from stepscope.core.errors import NotATraceError
from stepscope.core.text.numbers import listed
from stepscope.trace.formats.foreign_files import RECORD
from stepscope.trace.formats.kineto.fields import is_pytorch_category

_SHOWN_CATEGORIES = 3

_ASCEND = "an Ascend NPU"
_GAUDI = "an Intel Gaudi (HPU)"
_SPYRE = "an IBM Spyre (AIU)"
_XPU = "an Intel GPU (XPU)"
_BY_SIGN = (
    (b'"Ascend Hardware"', _ASCEND),
    (b"async_npu", _ASCEND),
    (b"__xpu_profiler__", _XPU),
    (b"__aiu_profiler__", _SPYRE),
)
"""Words in the text of a trace -> the device."""
_BY_CATEGORY = (("xpu_", _XPU), ("mtia_", "a Meta MTIA"), ("hpu_", _GAUDI))
_BY_CALL = (
    (re.compile(r"ur[A-Z]|ze[A-Z]"), _XPU),
    (re.compile(r"aiu[A-Z]"), _SPYRE),
    (re.compile(r"musa[A-Z]"), "a Moore Threads GPU (MUSA)"),
    (re.compile(r"cn(?:rt)?[A-Z]"), "a Cambricon MLU"),
    (re.compile(r"acl[a-z]"), _ASCEND),
)
"""Runtime calls -> the device."""
_BY_NAME = (("AscendCL@", _ASCEND), ("npu::", _ASCEND), ("aclnn", _ASCEND), ("hpu::", _GAUDI))
"""Beginnings of names of events -> the device."""


_TOOLS = {
    _ASCEND: "read it with MindStudio Insight or msprof-analyze",
    _GAUDI: "read it with Gaudi's own profiling tools",
    _SPYRE: "read it with IBM's AIU Trace Analyzer",
    _XPU: "read it with Intel's unitrace or VTune",
}


def tools_for(accelerator: str) -> str:
    """What to do with the trace of an accelerator that is not analyzed."""
    tools = _TOOLS.get(accelerator, "read it with its vendor's tools")
    return f"{tools}; stepscope trace info shows what it holds"


def sign_of_accelerator(holds: Callable[[bytes], bool]) -> str | None:
    """The accelerator that a part of a trace's text names, or None; `holds` searches that part for a word."""
    return next((device for sign, device in _BY_SIGN if holds(sign)), None)


def accelerator_of(categories: Iterable[str | None], calls: Iterable[str], names: Iterable[str]) -> str | None:
    """The recorded accelerator, if its calls are not those of CUDA or HIP; None for NVIDIA, AMD and CPU.

    Args:
        calls: names of the runtime calls.
        names: of all events.
    """
    kinds = [kind for kind in categories if kind]
    devices = (
        *(device for beginning, device in _BY_CATEGORY if any(kind.startswith(beginning) for kind in kinds)),
        *(device for call in calls for pattern, device in _BY_CALL if pattern.match(call)),
        *(["a device of another backend (PrivateUse1)"] if any(k.startswith("privateuse1_") for k in kinds) else ()),
        *(device for beginning, device in _BY_NAME if any(name.startswith(beginning) for name in names)),
    )
    return next(iter(devices), None)


_BY_CATEGORIES = (
    ({"OperatorInner", "CudaRuntime", "ProfileStep", "PythonUserDefined"}, "PaddlePaddle's profiler"),
    ({"Session", "Node"}, "ONNX Runtime"),
    ({"FEE"}, "VizTracer"),
    ({"gpu_op"}, "unitrace (Intel PTI)"),
    ({"Op"}, "TensorFlow"),
)
"""Kinds of events of which one suffices -> the tool."""
_BY_TEXT = (
    (re.compile(rb'"/(?:device:[A-Z]|host:)'), "JAX or TensorFlow (XProf)"),
    (re.compile(rb'"BeginNs"'), "rocprof"),
    (re.compile(rb'"name":\s*"(?:Hip \d+|GPU\d+)"'), "rpd (ROCm)"),
    (re.compile(rb'"(?:CPU|CUDA) functions"'), "torch.autograd.profiler"),
    (re.compile(rb"NEGOTIATE_"), "Horovod's timeline"),
    (re.compile(rb'"cat":\s*"(?:COLL|PROXY|GROUP)"'), "NCCL's profiler plugin"),
)
"""What the text of events holds -> the tool."""
_PAIRS = re.compile(rb'"ph"\s*:\s*"[BbEe]"')


def check_is_pytorchs(categories: Collection[str | None], beginning: bytes, *, path: str) -> None:
    """Check that torch.profiler wrote a Chrome trace, by its kinds of complete events and the beginning of its text.

    Raises:
        NotATraceError: another tool did; says which, if it is known.
    """
    tool = next((tool for kinds, tool in _BY_CATEGORIES if kinds & set(categories)), None)
    if tool is None and any(map(is_pytorch_category, categories)):
        return
    tool = tool or next((tool for pattern, tool in _BY_TEXT if pattern.search(beginning)), None)
    shown = listed((f'"{kind}"' for kind in categories if kind is not None), _SHOWN_CATEGORIES)
    if categories:
        found = f"its events are of the kinds {shown}" if shown else "its events have no kind"
    elif _PAIRS.search(beginning):
        found = 'it holds no complete event ("ph": "X"), but pairs of begin and end (B and E)'
    elif tool is None:
        return
    else:
        found = "it holds no complete event"
    of_tool = f" of {tool}," if tool else ","
    raise NotATraceError(f"is a Chrome trace{of_tool} but not one of PyTorch: {found}", where=path, what_next=RECORD)
