"""What kind of event is a profiler's category name? From the newest torch back to 2021, for every vendor."""

from __future__ import annotations

from stepscope.trace.columns import Category

LEGACY_OPERATOR = "Operator"
"""2021: operators and user annotations alike."""

LEGACY_NAMES = frozenset({LEGACY_OPERATOR, "Runtime", "Kernel", "Memcpy", "Memset"})

LEGACY_ANNOTATIONS = ("ProfilerStep#", "enumerate(DataLoader)#", "Optimizer.step#", "Optimizer.zero_grad#")
"""How torch's own annotations begin; before user_annotation existed they were operators."""

PYTHON_FUNCTION = "python_function"
MODULE_FRAME = "nn.Module: "
"""How the names of python_function events begin that are calls of a module."""
TRACE_SPAN = "Trace"
"""The profiler's own life span, with words for ids and, in some versions, an overflowed duration."""

CATEGORIES: dict[str | None, Category] = {
    "cpu_op": Category.CPU_OP,
    LEGACY_OPERATOR: Category.CPU_OP,
    "user_annotation": Category.USER_ANNOTATION,
    "cuda_runtime": Category.RUNTIME,  # HIP calls come under this name too
    "cuda_driver": Category.RUNTIME,
    "Runtime": Category.RUNTIME,
    "hip_runtime": Category.RUNTIME,
    "xpu_runtime": Category.RUNTIME,
    "xpu_driver": Category.RUNTIME,
    "mtia_runtime": Category.RUNTIME,
    "glow_runtime": Category.RUNTIME,
    "privateuse1_runtime": Category.RUNTIME,
    "privateuse1_driver": Category.RUNTIME,
    "kernel": Category.KERNEL,
    "Kernel": Category.KERNEL,
    "hpu_op": Category.KERNEL,
    "gpu_memcpy": Category.MEMCPY,
    "Memcpy": Category.MEMCPY,
    "gpu_memset": Category.MEMSET,
    "Memset": Category.MEMSET,
    "gpu_user_annotation": Category.GPU_USER_ANNOTATION,
    "cuda_sync": Category.SYNC_RECORD,
    "cuda_event": Category.SYNC_RECORD,
    "xpu_sync": Category.SYNC_RECORD,
    "overhead": Category.OVERHEAD,
    PYTHON_FUNCTION: Category.PYTHON_FUNCTION,
}
"""Names not listed are Category.OTHER."""

ON_DEVICE = frozenset(
    {Category.KERNEL, Category.MEMCPY, Category.MEMSET, Category.GPU_USER_ANNOTATION, Category.SYNC_RECORD}
)
"""Rows whose process and thread are a device and a stream."""


def category_of(name: str | None) -> Category:
    """The kind behind a category name; OTHER for names that are not known."""
    return CATEGORIES.get(name, Category.OTHER)


_FURTHER_NAMES = frozenset(
    {
        "external_correlation",
        "cpu_instant_event",
        "mtia_ccp_events",
        "mtia_insight",
        "mtia_counters",
        "cuda_profiler_range",
        "collective_comm",
        "xpu_scope_profiler",
        "hardware_counters",
        "user_annotations",
        "async_cpu_to_gpu",
        TRACE_SPAN,
    }
)
"""What Kineto writes besides; none of it is booked."""


KNOWN_NAMES = tuple(sorted({name for name in CATEGORIES if name} | _FURTHER_NAMES))
"""All that PyTorch's profiler writes."""


def is_pytorchs(name: str | None) -> bool:
    """Whether PyTorch's profiler, of any age, writes events of this kind."""
    return name is not None and name in KNOWN_NAMES
