"""The driver's library libnvidia-ml.so.1: the calls that a poll makes, by the names that nvidia-ml-py gives them.

The module of nvidia-ml-py takes 4 MB in each process, so it is loaded for the rare calls alone, those of MIG and of
where an NVLink ends.
"""

# ruff: noqa: N802 - the names are NVML's
from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from ctypes import Structure, byref, c_char, c_char_p, c_double, c_int, c_longlong, c_uint, c_ulonglong, c_void_p
from struct import Struct
from typing import Any

LIBRARY = "libnvidia-ml.so.1"
_SUCCESS, _INSUFFICIENT_SIZE, _LIBRARY_NOT_FOUND, _FUNCTION_NOT_FOUND = 0, 7, 12, 13
_TEXT_BYTES = 96


class NvmlError(Exception):
    """An error that NVML returned; `value`: its code."""

    def __init__(self, value: int) -> None:
        super().__init__(f"NVML error {value}")
        self.value = value


class Pointer(c_void_p):
    """A pointer of NVML: nvmlDevice_t, nvmlEventSet_t, nvmlGpmSample_t. A member of this type is not read as an int."""


class Utilization(Structure):
    """nvmlUtilization_t."""

    _fields_ = (("gpu", c_uint), ("memory", c_uint))


class Memory(Structure):
    """nvmlMemory_t."""

    _fields_ = (("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong))


class MemoryV2(Structure):
    """nvmlMemory_v2_t."""

    _fields_ = (("version", c_uint), *((name, c_ulonglong) for name in ("total", "reserved", "free", "used")))


class Bar1Memory(Structure):
    """nvmlBAR1Memory_t."""

    _fields_ = (("bar1Total", c_ulonglong), ("bar1Free", c_ulonglong), ("bar1Used", c_ulonglong))


class PciInfo(Structure):
    """nvmlPciInfo_t."""

    _fields_ = (
        ("busIdLegacy", c_char * 16),
        *((name, c_uint) for name in ("domain", "bus", "device", "pciDeviceId", "pciSubSystemId")),
        ("busId", c_char * 32),
    )


class ProcessInfo(Structure):
    """nvmlProcessInfo_t."""

    _fields_ = (
        *(("pid", c_uint), ("usedGpuMemory", c_ulonglong)),
        *(("gpuInstanceId", c_uint), ("computeInstanceId", c_uint)),
    )


class ProcessUtilization(Structure):
    """nvmlProcessUtilizationSample_t."""

    _fields_ = (
        *(("pid", c_uint), ("timeStamp", c_ulonglong)),
        *((name, c_uint) for name in ("smUtil", "memUtil", "encUtil", "decUtil")),
    )


class EventData(Structure):
    """nvmlEventData_t."""

    _fields_ = (
        *(("device", Pointer), ("eventType", c_ulonglong), ("eventData", c_ulonglong)),
        *(("gpuInstanceId", c_uint), ("computeInstanceId", c_uint)),
    )


class Value(ctypes.Union):
    """nvmlValue_t."""

    _fields_ = (
        *(("dVal", c_double), ("uiVal", c_uint), ("ulVal", ctypes.c_ulong), ("ullVal", c_ulonglong)),
        *(("sllVal", c_longlong), ("siVal", c_int), ("usVal", ctypes.c_ushort)),
    )


class FieldValue(Structure):
    """nvmlFieldValue_t."""

    _fields_ = (
        *(("fieldId", c_uint), ("scopeId", c_uint), ("timestamp", c_longlong), ("latencyUsec", c_longlong)),
        *(("valueType", c_uint), ("nvmlReturn", c_uint), ("value", Value)),
    )


class RowRemapperHistogram(Structure):
    """nvmlRowRemapperHistogramValues_t."""

    _fields_ = tuple((name, c_uint) for name in ("max", "high", "partial", "low", "none"))


class SramErrors(Structure):
    """nvmlEccSramErrorStatus_v1_t."""

    _fields_ = (
        ("version", c_uint),
        *((f"aggregate{kind}", c_ulonglong) for kind in ("UncParity", "UncSecDed", "Cor")),
        *((f"volatile{kind}", c_ulonglong) for kind in ("UncParity", "UncSecDed", "Cor")),
        *((f"aggregateUncBucket{place}", c_ulonglong) for place in ("L2", "Sm", "Pcie", "Mcu", "Other")),
        ("bThresholdExceeded", c_uint),
    )


class FabricInfo(Structure):
    """nvmlGpuFabricInfo_v2_t."""

    _fields_ = (
        *(("version", c_uint), ("clusterUuid", ctypes.c_ubyte * 16), ("status", c_uint), ("cliqueId", c_uint)),
        *(("state", ctypes.c_ubyte), ("healthMask", c_uint)),
    )


class FabricInfoV3(Structure):
    """nvmlGpuFabricInfo_v3_t."""

    _fields_ = (*FabricInfo._fields_, ("healthSummary", ctypes.c_ubyte))


class MarginTemperature(Structure):
    """nvmlMarginTemperature_v1_t."""

    _fields_ = (("version", c_uint), ("marginTemperature", c_int))


class GpmSupport(Structure):
    """nvmlGpmSupport_t."""

    _fields_ = (("version", c_uint), ("isSupportedDevice", c_uint))


class GpmMetric(Structure):
    """nvmlGpmMetric_t."""

    _fields_ = (
        *(("metricId", c_uint), ("nvmlReturn", c_uint), ("value", c_double)),
        *((name, c_char_p) for name in ("shortName", "longName", "unit")),
    )


_CODE_AND_VALUE = Struct("@4xId24x")
"""A `GpmMetric`: a view of each of its members would take most of the time of reading them."""


class GpmMetrics(Structure):
    """nvmlGpmMetricsGet_t, whose library reads and writes no more metrics than it is asked for."""

    _fields_ = (
        *(("version", c_uint), ("numMetrics", c_uint), ("sample1", Pointer), ("sample2", Pointer)),
        ("metrics", GpmMetric * 477),
    )

    def values(self) -> Iterator[tuple[int, float]]:
        """Return code and value of each metric that was asked for."""
        size = ctypes.sizeof(GpmMetric)
        return _CODE_AND_VALUE.iter_unpack(memoryview(self.metrics).cast("B")[: self.numMetrics * size])


_ONE_UINT, _TWO_UINTS, _ONE_LONG = (c_uint,), (c_uint, c_uint), (c_ulonglong,)
NUMBERS: dict[str, tuple[type[Any], ...]] = {
    **dict.fromkeys(
        (
            *("nvmlDeviceGetArchitecture", "nvmlDeviceGetClockInfo", "nvmlDeviceGetCurrPcieLinkGeneration"),
            *("nvmlDeviceGetCurrPcieLinkWidth", "nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetFanSpeed"),
            *("nvmlDeviceGetIndex", "nvmlDeviceGetMaxClockInfo", "nvmlDeviceGetMaxPcieLinkGeneration"),
            *("nvmlDeviceGetMaxPcieLinkWidth", "nvmlDeviceGetMinorNumber", "nvmlDeviceGetNvLinkState"),
            *("nvmlDeviceGetPcieReplayCounter", "nvmlDeviceGetPerformanceState", "nvmlDeviceGetPowerUsage"),
            *("nvmlDeviceGetPowerManagementDefaultLimit", "nvmlDeviceGetRetiredPagesPendingStatus"),
            *("nvmlDeviceGetTemperature", "nvmlDeviceGetTemperatureThreshold"),
        ),
        _ONE_UINT,
    ),
    "nvmlSystemGetCudaDriverVersion_v2": (c_int,),
    "nvmlDeviceGetCount": _ONE_UINT,
    **dict.fromkeys(
        (
            *("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"),
            *("nvmlDeviceGetNvLinkErrorCounter", "nvmlDeviceGetTotalEccErrors"),
            "nvmlDeviceGetTotalEnergyConsumption",
        ),
        _ONE_LONG,
    ),
    "nvmlDeviceGetDecoderUtilization": _TWO_UINTS,
    "nvmlDeviceGetEccMode": _TWO_UINTS,
    "nvmlDeviceGetEncoderUtilization": _TWO_UINTS,
    "nvmlDeviceGetMigMode": _TWO_UINTS,
    "nvmlDeviceGetRemappedRows": (c_uint, c_uint, c_uint, c_uint),
    "nvmlDeviceGetHandleByIndex": (Pointer,),
    "nvmlDeviceGetHandleByPciBusId": (Pointer,),
    "nvmlEventSetCreate": (Pointer,),
    "nvmlGpmSampleAlloc": (Pointer,),
}
"""Calls that take numbers, texts and pointers, and give numbers or a pointer."""
STRUCTURES: dict[str, type[Structure]] = {
    "nvmlDeviceGetBAR1MemoryInfo": Bar1Memory,
    "nvmlDeviceGetPciInfo_v3": PciInfo,
    "nvmlDeviceGetRowRemapperHistogram": RowRemapperHistogram,
    "nvmlDeviceGetSramEccErrorStatus": SramErrors,
    "nvmlDeviceGetUtilizationRates": Utilization,
    "nvmlGpmQueryDeviceSupport": GpmSupport,
}
"""Calls that give a structure; one that has a version is marked with its size."""
TEXTS = frozenset(
    (
        *("nvmlDeviceGetName", "nvmlDeviceGetSerial", "nvmlDeviceGetUUID", "nvmlDeviceGetVbiosVersion"),
        "nvmlSystemGetDriverVersion",
    )
)
PROCESS_LISTS = frozenset(
    (
        *("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v3"),
        "nvmlDeviceGetMPSComputeRunningProcesses_v3",
    )
)
_SYMBOLS = {name: f"{name}_v2" for name in ("nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex",
            "nvmlDeviceGetHandleByPciBusId")}  # fmt: skip
"""Where the library's newest symbol has another name."""
_VERSIONS = {GpmSupport: 1}
"""Of structures that are not marked with their size."""


class NvmlLibrary:
    """The library, loaded by `nvmlInit`; calls that are not bound here are those of nvidia-ml-py, on the same library.

    All calls raise `NvmlError`.

    Args:
        rare: gives the module of nvidia-ml-py.
    """

    NVMLError = NvmlError

    def __init__(self, rare: Callable[[], Any]) -> None:
        self._rare = rare
        self._library: ctypes.CDLL | None = None

    def __getattr__(self, name: str) -> Any:
        """The call of this name, which is kept."""
        symbol = _SYMBOLS.get(name, name)
        if name in NUMBERS:
            call = self._numbers(symbol, NUMBERS[name])
        elif name in STRUCTURES:
            call = self._structure(symbol, STRUCTURES[name])
        elif name in TEXTS:
            call = self._text(symbol)
        elif name in PROCESS_LISTS:
            call = self._processes(symbol)
        else:
            call = self._rare_call(name)
        setattr(self, name, call)
        return call

    def nvmlInit(self) -> None:
        try:
            self._library = ctypes.CDLL(LIBRARY)
        except OSError:
            raise NvmlError(_LIBRARY_NOT_FOUND) from None
        self._call("nvmlInitWithFlags", 0)

    def nvmlShutdown(self) -> None:
        self._call("nvmlShutdown")

    def nvmlDeviceGetMemoryInfo(self, handle: Pointer, version: int = 0) -> Any:
        if not version:
            return self._filled(Memory(), "nvmlDeviceGetMemoryInfo", handle)
        return self._filled(MemoryV2(version=version), "nvmlDeviceGetMemoryInfo_v2", handle)

    def nvmlDeviceGetMarginTemperature(self, handle: Pointer) -> int:
        asked = MarginTemperature(version=_version(MarginTemperature, 1))
        return int(self._filled(asked, "nvmlDeviceGetMarginTemperature", handle).marginTemperature)

    def nvmlDeviceGetGpuFabricInfoV(self, handle: Pointer, version: int) -> Any:
        kind = FabricInfo if version == 2 else FabricInfoV3
        return self._filled(kind(version=_version(kind, version)), "nvmlDeviceGetGpuFabricInfoV", handle)

    def nvmlDeviceGetFieldValues(self, handle: Pointer, fields: ctypes.Array[FieldValue]) -> None:
        """Fill the `fields_to_ask`."""
        self._call("nvmlDeviceGetFieldValues", handle, len(fields), fields)

    def nvmlDeviceGetRetiredPages(self, handle: Pointer, cause: int) -> list[int]:
        """Addresses of the pages."""
        name = "nvmlDeviceGetRetiredPages"
        return list(self._listed(c_ulonglong, name, lambda count, into: (handle, cause, count, into)))

    def nvmlDeviceGetProcessUtilization(self, handle: Pointer, since_us: int) -> Sequence[ProcessUtilization]:
        """Samples of the processes."""
        since, name = c_ulonglong(since_us), "nvmlDeviceGetProcessUtilization"
        return self._listed(ProcessUtilization, name, lambda count, into: (handle, into, count, since))

    def nvmlDeviceRegisterEvents(self, handle: Pointer, events: int, into: Pointer) -> None:
        self._call("nvmlDeviceRegisterEvents", handle, c_ulonglong(events), into)

    def nvmlEventSetWait_v2(self, events: Pointer, timeout_ms: int) -> EventData:
        data = EventData()
        self._call("nvmlEventSetWait_v2", events, byref(data), timeout_ms)
        return data

    def nvmlGpmSampleGet(self, handle: Pointer, sample: Pointer) -> None:
        self._call("nvmlGpmSampleGet", handle, sample)

    def nvmlGpmMetricsGet(self, request: GpmMetrics) -> None:
        self._call("nvmlGpmMetricsGet", byref(request))

    def _function(self, symbol: str) -> Any:
        try:
            return getattr(self._library, symbol)
        except AttributeError:
            raise NvmlError(_FUNCTION_NOT_FOUND) from None

    def _rare_call(self, name: str) -> Callable[..., Any]:
        module = self._rare()
        module.nvmlLib = self._library
        function = getattr(module, name)

        def ask(*arguments: Any) -> Any:
            try:
                return function(*arguments)
            except module.NVMLError as error:
                raise NvmlError(error.value) from None

        return ask

    def _call(self, symbol: str, *arguments: Any, allowed: int = _SUCCESS) -> int:
        code: int = self._function(symbol)(*arguments)
        if code not in (_SUCCESS, allowed):
            raise NvmlError(code)
        return code

    def _filled(self, into: Any, symbol: str, handle: Pointer) -> Any:
        self._call(symbol, handle, byref(into))
        return into

    def _listed(self, kind: type[Any], symbol: str, arguments: Callable[[Any, Any], tuple[Any, ...]]) -> Sequence[Any]:
        """What a call lists. Asked without room it gives the number: the driver with an error, NVIDIA's mock without.

        Args:
            arguments: of the call, by those for the number and the room.
        """
        count = c_uint(0)
        self._call(symbol, *arguments(byref(count), None), allowed=_INSUFFICIENT_SIZE)
        if not count.value:
            return ()
        count.value = 2 * count.value + 5  # there may be more since
        into = (kind * count.value)()
        self._call(symbol, *arguments(byref(count), into))
        found: Sequence[Any] = into[: count.value]
        return found

    def _numbers(self, symbol: str, kinds: tuple[type[Any], ...]) -> Callable[..., Any]:
        function = self._function(symbol)

        def one(*arguments: Any) -> Any:
            found = kinds[0]()
            if code := function(*arguments, byref(found)):
                raise NvmlError(code)
            return found if is_pointer else found.value

        def several(*arguments: Any) -> tuple[Any, ...]:
            found = [kind() for kind in kinds]
            if code := function(*arguments, *map(byref, found)):
                raise NvmlError(code)
            return tuple([one.value for one in found])

        is_pointer = kinds[0] is Pointer
        return one if len(kinds) == 1 else several

    def _structure(self, symbol: str, kind: type[Any]) -> Callable[..., Any]:
        function = self._function(symbol)
        has_version = kind._fields_[0][0] == "version"
        version = _VERSIONS.get(kind) or _version(kind, 1)

        def ask(handle: Pointer) -> Any:
            found = kind(version) if has_version else kind()
            if code := function(handle, byref(found)):
                raise NvmlError(code)
            return found

        return ask

    def _text(self, symbol: str) -> Callable[..., bytes]:
        def ask(*handle: Pointer) -> bytes:
            text = ctypes.create_string_buffer(_TEXT_BYTES)
            self._call(symbol, *handle, text, _TEXT_BYTES)
            return text.value

        return ask

    def _processes(self, symbol: str) -> Callable[..., Sequence[ProcessInfo]]:
        def ask(handle: Pointer) -> Sequence[ProcessInfo]:
            return self._listed(ProcessInfo, symbol, lambda count, into: (handle, count, into))

        return ask


def _version(kind: type[Structure], number: int) -> int:
    return ctypes.sizeof(kind) | number << 24


def fields_to_ask(fields: Sequence[tuple[int, int]]) -> ctypes.Array[FieldValue]:
    """Field values of NVML to be read with one call, by their ids and scopes."""
    return (FieldValue * len(fields))(*[FieldValue(number, scope) for number, scope in fields])


def gpm_request(metrics: Sequence[int]) -> GpmMetrics:
    """GPM metrics of NVML to be computed of two samples, by their ids."""
    request = GpmMetrics(version=1, numMetrics=len(metrics))
    for slot, number in zip(request.metrics, metrics, strict=False):
        slot.metricId = number
    return request
