"""NVML binding: loads the library, maps error codes and sentinels to reasons for missing values, and builds readings.

The binding is `library` for the calls of a poll and the package nvidia-ml-py for the rare ones. Its module is called
pynvml. (The package called pynvml is its abandoned fork; torch warns where that one is installed.)
"""

from __future__ import annotations

import ctypes
import math
from importlib.util import find_spec
from typing import Any

from stepscope.collectors.nvml.library import LIBRARY, NvmlLibrary
from stepscope.collectors.readings_builder import NoValue, ReadingsBuilder, scaled
from stepscope.core.errors import UnreachableError
from stepscope.core.metrics import Unit
from stepscope.core.metrics.gpu import BY_NAME
from stepscope.core.metrics.readings import GPU, Labels, MissingReason

Nvml = Any
"""A `NvmlLibrary`: its calls have no types."""
Handle = Any
"""A nvmlDevice_t."""

UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND = 1, 2, 3, 4, 6
DRIVER_NOT_LOADED, TIMEOUT, LIBRARY_NOT_FOUND, FUNCTION_NOT_FOUND, GPU_IS_LOST = 9, 10, 12, 13, 15
RESET_REQUIRED, LIB_RM_VERSION_MISMATCH, NO_DATA, ARGUMENT_VERSION, DEPRECATED = 16, 18, 21, 25, 26
NOT_READY, GPU_NOT_FOUND = 27, 28

_REASON_OF_CODE: dict[int, NoValue] = {
    UNINITIALIZED: NoValue(MissingReason.FAILED, "NVML is not initialised: the driver was reloaded"),
    NOT_SUPPORTED: NoValue(MissingReason.NOT_SUPPORTED, ""),
    NO_PERMISSION: NoValue(MissingReason.NO_PERMISSION, "the driver refuses it to this user; root may have it"),
    NOT_FOUND: NoValue(MissingReason.GONE, "the driver does not know it any more"),
    DRIVER_NOT_LOADED: NoValue(MissingReason.NOT_INSTALLED, "the NVIDIA driver is not loaded: modprobe nvidia"),
    TIMEOUT: NoValue(MissingReason.TIMED_OUT, "the driver gave up waiting for the GPU"),
    LIBRARY_NOT_FOUND: NoValue(
        MissingReason.NOT_INSTALLED, "libnvidia-ml.so.1 is not here: no NVIDIA driver is installed"
    ),
    FUNCTION_NOT_FOUND: NoValue(MissingReason.NOT_SUPPORTED, "the driver is too old for it"),
    GPU_IS_LOST: NoValue(MissingReason.GONE, "the GPU is lost: it fell off the bus (XID 79)"),
    RESET_REQUIRED: NoValue(MissingReason.FAILED, "the GPU needs a reset: nvidia-smi --gpu-reset"),
    LIB_RM_VERSION_MISMATCH: NoValue(
        MissingReason.VERSION_MISMATCH,
        "the driver's library and kernel module are of different versions: reboot, or reload the module",
    ),
    NO_DATA: NoValue(MissingReason.NOT_YET, ""),
    ARGUMENT_VERSION: NoValue(MissingReason.NOT_SUPPORTED, "the driver is too old for it"),
    DEPRECATED: NoValue(MissingReason.NOT_SUPPORTED, "the driver has removed it"),
    NOT_READY: NoValue(MissingReason.NOT_YET, ""),
    GPU_NOT_FOUND: NoValue(MissingReason.GONE, "the driver does not know the GPU any more"),
}
_OTHER_ERRORS = {
    2: "invalid argument",
    5: "already initialised",
    7: "insufficient size",
    8: "insufficient external power: its power cables are not attached as they should be",
    11: "interrupt request issue",
    14: "corrupted infoROM",
    17: "the operating system has blocked the request: a cgroup, or SELinux",
    19: "in use",
    20: "insufficient memory",
    22: "not available to a vGPU while ECC is on",
    23: "insufficient resources, other than memory",
    24: "frequency not supported",
    29: "invalid state",
    30: "this type of reset is not supported",
    999: "unknown error of the driver",
}
"""Text of the other return codes of nvml.h."""
_ENDS_SESSION = frozenset({UNINITIALIZED, DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND, LIB_RM_VERSION_MISMATCH})
_ENDS_GPU = frozenset({GPU_IS_LOST, GPU_NOT_FOUND, RESET_REQUIRED})


class _UnusableError(UnreachableError):
    """Every further call would fail in the same way."""

    def __init__(self, reason: MissingReason, detail: str) -> None:
        super().__init__(detail or reason)
        self.reason = reason
        self.detail = detail


NO_BINDING = 'nvidia-ml-py is not installed: pip install "stepscope[agent]"'
"""The driver itself may work: it was not asked."""


class DriverUnusableError(_UnusableError):
    """NVML can ask no GPU: no library, no driver, or a reloaded one. A new process may find it working."""


class GpuUnusableError(_UnusableError):
    """A GPU answers NVML nothing more: it is lost, or needs a reset."""


def nvml_library() -> Nvml:
    """The binding of NVML, which loads the library when it is initialised.

    Raises:
        DriverUnusableError: nvidia-ml-py is not installed.
    """
    if find_spec("pynvml") is None:
        raise DriverUnusableError(MissingReason.NOT_INSTALLED, NO_BINDING)
    return NvmlLibrary(_pynvml)


def _pynvml() -> Any:
    import pynvml

    return pynvml


def reason_of_missing_library() -> NoValue:
    """Why NVML's library cannot be loaded: the binding reports a broken one as missing."""
    try:
        ctypes.CDLL(LIBRARY)
    except OSError as error:
        if "No such file" not in str(error):
            return NoValue(MissingReason.FAILED, f"the driver's library cannot be loaded: {error}")
    return _REASON_OF_CODE[LIBRARY_NOT_FOUND]


def nvml_text(value: object) -> str:
    """A text of NVML's binding, which is bytes in older versions."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def nvml_reason_of_code(code: int) -> NoValue:
    """Why there is no value where NVML returns this code."""
    words = f"{_OTHER_ERRORS[code]} (NVML error {code})" if code in _OTHER_ERRORS else f"NVML error {code}"
    return _REASON_OF_CODE.get(code) or NoValue(MissingReason.FAILED, words)


def nvml_reason_of_error(nvml: Nvml, error: Exception) -> NoValue:
    """Why there is no value where NVML's binding raised this error.

    Raises:
        DriverUnusableError, GpuUnusableError: every further call would fail in the same way.
        Exception: `error` itself, where it is not one of the binding's.
    """
    if isinstance(error, AttributeError):  # the binding is older than the call
        detail = "nvidia-ml-py is too old for it: pip install --upgrade nvidia-ml-py"
        return NoValue(MissingReason.NOT_SUPPORTED, detail)
    if not isinstance(error, nvml.NVMLError):
        raise error
    code: int = error.value
    why = nvml_reason_of_code(code)
    if code in _ENDS_SESSION:
        raise DriverUnusableError(*why) from error
    if code in _ENDS_GPU:
        raise GpuUnusableError(*why) from error
    return why


_SENTINELS = frozenset({2**32 - 1, -(2**31), -(2**63)})
"""NVML_VALUE_NOT_AVAILABLE of 32 bits, and the least that a signed number can be."""
_MIN_SENTINEL = 2**63 - 32
"""That of 64 bits, and what comes out of a computation with it: nothing counts so far."""
_LOWEST_PERFORMANCE_STATE = 15
"""NVML_PSTATE_UNKNOWN is 32."""
_PERFORMANCE_STATE = GPU + "performance_state"
_FIRST_DOUBTFUL = 2**31
"""From here on a raw number may be a sentinel, or a negative one that was read as unsigned."""
_BOUNDED_METRICS = frozenset(
    {name for name, metric in BY_NAME.items() if metric.unit in (Unit.RATIO, Unit.CELSIUS)} | {_PERFORMANCE_STATE}
)
"""Metrics with a greatest value below that."""
_METRIC_OF_SHORT_NAME = {name.removeprefix(GPU): name for name in BY_NAME}


def is_nvml_sentinel(raw: float) -> bool:
    """Whether NVML uses this number for "no value"."""
    return raw in _SENTINELS or raw >= _MIN_SENTINEL


def nvml_sentinel_reason(raw: float) -> NoValue:
    """Why a metric has no value whose raw number is a sentinel of NVML."""
    return NoValue(MissingReason.UNREADABLE, f"NVML reports {raw}: it has no value")


_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""Members of nvmlValue_t by nvmlValueType_t."""


def field_value(field: Any) -> float | NoValue:
    """The number in a nvmlFieldValue_t, or why it has none."""
    code: int = field.nvmlReturn
    if code == INVALID_ARGUMENT:  # so drivers call an id or a scope that they do not know
        return NoValue(MissingReason.NOT_SUPPORTED)
    if code:
        return nvml_reason_of_code(code)
    kind: int = field.valueType
    if kind >= len(_MEMBERS):
        return NoValue(MissingReason.UNREADABLE, f"NVML reports a value of the unknown type {kind}")
    number: float = getattr(field.value, _MEMBERS[kind])
    return nvml_sentinel_reason(number) if is_nvml_sentinel(number) or not math.isfinite(number) else number


class GpuReadings(ReadingsBuilder):
    """Readings by NVML of one GPU or MIG instance; metrics are named without the prefix of GPU metrics."""

    def __init__(self, labels: Labels, time_ns: int) -> None:
        super().__init__(time_ns, labels, prefix=GPU)

    def add_raw(self, name: str, raw: float, scale: float = 1.0, /, **further: str | int) -> None:
        """Add a number as NVML reports it; `further` labels come beside the GPU's own."""
        metric = _METRIC_OF_SHORT_NAME.get(name) or GPU + name
        labels = self.with_labels(further) if further else self.labels
        value = raw * scale if scale >= 1.0 else scaled(raw, scale)
        if (0.0 <= value <= 1.0 or (value > 1.0 and metric not in _BOUNDED_METRICS)) and raw < _FIRST_DOUBTFUL:
            self._names.append((metric, labels))  # as nearly all are
            self._values.append(value)
        else:
            self.add_labelled(metric, self._checked_raw(metric, raw, value, labels), labels)

    def _checked_raw(self, metric: str, raw: float, value: float, labels: Labels) -> float | NoValue:
        if is_nvml_sentinel(raw) or not math.isfinite(value):
            return nvml_sentinel_reason(raw)
        if metric == _PERFORMANCE_STATE and value > _LOWEST_PERFORMANCE_STATE:
            return NoValue(MissingReason.UNREADABLE, f"NVML reports {raw:g}, which is not possible")
        return self.checked(metric, value, labels, source="NVML reports", raw=raw)
