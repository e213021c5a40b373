"""Settings of the training process that change how fast it is, as far as it can tell them at no cost.

Nothing here imports a module, starts CUDA or raises. Of the environment only variables of the list below are read, so
that no secret gets into a run directory.
"""

from __future__ import annotations

import functools
import gc
import os
import sys
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

from stepscope.core.documents.run_directory import (
    LoaderSettings,
    ModelSettings,
    OptimizerSettings,
    TrainingSettings,
)
from stepscope.training.memory.owners import MemoryOwners

T = TypeVar("T")

_NAMES_BY_PREFIX = {
    "CUBLAS_": "WORKSPACE_CONFIG",
    "CUBLASLT_": "WORKSPACE_SIZE",
    "CUDA_": "CACHE_DISABLE DEVICE_MAX_CONNECTIONS DEVICE_ORDER FORCE_PTX_JIT LAUNCH_BLOCKING MODULE_LOADING"
    " MPS_ACTIVE_THREAD_PERCENTAGE SCALE_LAUNCH_QUEUES VISIBLE_DEVICES",
    "GOMP_": "CPU_AFFINITY SPINCOUNT",
    "HIP_": "LAUNCH_BLOCKING VISIBLE_DEVICES",
    "KMP_": "AFFINITY BLOCKTIME",
    "MKL_": "NUM_THREADS",
    "NCCL_": "ALGO BLOCKING_WAIT ASYNC_ERROR_HANDLING BUFFSIZE CGA_CLUSTER_SIZE COLLNET_ENABLE CROSS_NIC CTA_POLICY"
    " CUMEM_ENABLE CUMEM_HOST_ENABLE DEBUG DEBUG_SUBSYS DMABUF_ENABLE GRAPH_MIXING_SUPPORT GRAPH_REGISTER"
    " IB_ADAPTIVE_ROUTING IB_AR_THRESHOLD IB_DISABLE IB_GID_INDEX IB_HCA IB_MERGE_NICS IB_PCI_RELAXED_ORDERING"
    " IB_QPS_PER_CONNECTION IB_RETRY_CNT IB_SL IB_SPLIT_DATA_ON_QPS IB_TC IB_TIMEOUT IGNORE_CPU_AFFINITY"
    " IGNORE_DISABLED_P2P LAUNCH_MODE LL_THRESHOLD LOCAL_REGISTER MAX_CTAS MAX_NCHANNELS MAX_P2P_NCHANNELS"
    " MIN_CTAS MIN_NCHANNELS MIN_P2P_NCHANNELS MNNVL_ENABLE NCHANNELS_PER_NET_PEER NET NET_DISABLE_INTRA"
    " NET_GDR_C2C NET_GDR_LEVEL NET_GDR_READ NET_PLUGIN NET_SHARED_BUFFERS NSOCKS_PERTHREAD NTHREADS NVB_DISABLE"
    " NVLS_ENABLE NVLS_NCHANNELS P2P_DIRECT_DISABLE P2P_DISABLE P2P_LEVEL P2P_NET_CHUNKSIZE"
    " P2P_NVL_CHUNKSIZE P2P_PCI_CHUNKSIZE PROTO PXN_DISABLE RAS_ENABLE SHM_DISABLE SOCKET_FAMILY SOCKET_IFNAME"
    " SOCKET_NTHREADS TOPO_FILE TUNER_PLUGIN WORK_FIFO_BYTES",
    "NVIDIA_": "TF32_OVERRIDE",
    "OMP_": "DYNAMIC NUM_THREADS PLACES PROC_BIND SCHEDULE WAIT_POLICY",
    "PYTORCH_": "ALLOC_CONF CUDA_ALLOC_CONF HIP_ALLOC_CONF NO_CUDA_MEMORY_CACHING",
    "TORCH_": "ALLOW_TF32_CUBLAS_OVERRIDE BLAS_PREFER_CUBLASLT COMPILE_DEBUG COMPILE_DISABLE CPP_LOG_LEVEL"
    " CUDNN_USE_HEURISTIC_MODE_B CUDNN_V8_API_DEBUG CUDNN_V8_API_DISABLED CUDNN_V8_API_LRU_CACHE_LIMIT"
    " DISTRIBUTED_DEBUG LOGS NCCL_ASYNC_ERROR_HANDLING NCCL_AVOID_RECORD_STREAMS NCCL_BLOCKING_WAIT"
    " NCCL_CUDA_EVENT_CACHE NCCL_DESYNC_DEBUG NCCL_DUMP_ON_TIMEOUT NCCL_ENABLE_MONITORING NCCL_ENABLE_TIMING"
    " NCCL_HEARTBEAT_TIMEOUT_SEC NCCL_HIGH_PRIORITY NCCL_NAN_CHECK NCCL_TRACE_BUFFER_SIZE"
    " NCCL_USE_COMM_NONBLOCKING SHOW_CPP_STACKTRACES",
    "TORCHDYNAMO_": "DISABLE",
}
VARIABLES = frozenset(prefix + name for prefix, names in _NAMES_BY_PREFIX.items() for name in names.split())
"""Environment variables that change how a step runs, by the documentation of CUDA, NCCL, OpenMP and torch."""

_DEVICES = ("cuda", "cpu", "xpu", "hpu", "mps")
_DETERMINISTIC = ("default", "warn", "error")
_MOST_LISTED = 16
"""Loaders, optimizers and models that are listed of each; a job that makes more makes the same ones again."""

_MOST_CHECKED = 64
"""Parameters of a model whose memory format is looked at: it takes some microseconds for each."""


def relevant_environment() -> dict[str, str]:
    """Environment variables that change how a step runs, for the run's manifest; none that could hold a secret."""
    return {name: os.environ[name] for name in sorted(VARIABLES & os.environ.keys())}


class ObservedSettings:
    """Settings of this training process, and of the loaders and optimizers that others have seen at work in it.

    Args:
        owners: know the models that the training code has shown.
    """

    def __init__(self, owners: MemoryOwners) -> None:
        self._owners = owners
        self._loaders: dict[LoaderSettings, None] = {}
        self._optimizers: dict[OptimizerSettings, None] = {}
        self._models: list[ModelSettings] = []
        self._latest_iterator: Callable[[], Any] = lambda: None
        self._latest_learned = False

    def loader_gave(self, iterator: Any, *, learns: bool) -> None:
        """A DataLoader's iterator gave a batch; its settings are looked at when it is another one than before."""
        if self._latest_iterator() is iterator and self._latest_learned == learns:
            return
        with suppress(Exception):  # of another torch
            self._latest_iterator, self._latest_learned = weakref.ref(iterator), learns
            loader = LoaderSettings(
                trains=learns,
                num_workers=int(iterator._num_workers),
                pin_memory=_bool_or_none(getattr(iterator, "_pin_memory", None)),
                persistent_workers=_bool_or_none(getattr(iterator, "_persistent_workers", None)),
                prefetch_factor=getattr(iterator, "_prefetch_factor", None),
            )
            _keep(loader, self._loaders)

    def optimizer_seen(self, optimizer: Any) -> None:
        """An optimizer of the training; one that wraps another stands for that."""
        with suppress(Exception):  # as of one that is not torch's
            inner = getattr(optimizer, "optimizer", optimizer)
            _keep(_optimizer_settings(inner if hasattr(inner, "param_groups") else optimizer), self._optimizers)

    def read(self, *, counts_frozen: bool = True) -> TrainingSettings:
        """What is set now. On the thread that trains: autocast is a thread's own.

        Args:
            counts_frozen: count the objects that the garbage collector never looks at, which takes 0.1 us for each.
        """
        torch: Any = sys.modules.get("torch")
        cudnn: Any = _read(lambda: torch.backends.cudnn)
        settings = TrainingSettings(
            anomaly_mode=_read(lambda: bool(torch.is_anomaly_enabled())),
            deterministic=_read(lambda: _DETERMINISTIC[torch.get_deterministic_debug_mode()]),
            cudnn_benchmark=_read(lambda: bool(cudnn.benchmark)),
            cudnn_deterministic=_read(lambda: bool(cudnn.deterministic)),
            cudnn_allow_tf32=_read(lambda: bool(cudnn.allow_tf32)),
            matmul_allow_tf32=_read(lambda: bool(torch.backends.cuda.matmul.allow_tf32)),
            float32_matmul_precision=_read(lambda: str(torch.get_float32_matmul_precision())),
            autocast=_read(lambda: _autocast_types(torch)) or {},
            num_threads=_read(lambda: int(torch.get_num_threads())),
            num_interop_threads=_read(lambda: int(torch.get_num_interop_threads())),
            gc_enabled=gc.isenabled(),
            gc_thresholds=list(gc.get_threshold()),
            gc_frozen=_read(gc.get_freeze_count) if counts_frozen else None,
        )
        return self.with_seen(settings)

    def with_seen(self, settings: TrainingSettings) -> TrainingSettings:
        """Settings with the loaders, optimizers and models seen by now, also those that are gone."""
        models = [_read(functools.partial(_model_settings, model)) for model in self._owners.modules()[:_MOST_LISTED]]
        self._models = [model for model in models if model is not None] or self._models
        return replace(
            settings, loaders=list(self._loaders), optimizers=list(self._optimizers), models=list(self._models)
        )


def _read(setting: Callable[[], T]) -> T | None:
    """A setting; None where this torch does not have it, or does not tell it."""
    try:
        return setting()
    except Exception:  # AttributeError without torch, RuntimeError of two ways to set TF32 at once
        return None


def _bool_or_none(value: object) -> bool | None:
    return None if value is None else bool(value)


def _autocast_types(torch: Any) -> dict[str, str]:
    on = [device for device in _DEVICES if torch.is_autocast_enabled(device)]
    return {device: _type_name(torch.get_autocast_dtype(device)) for device in on}


def _type_name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _keep(settings: T, known: dict[T, None]) -> None:
    """Keep settings of a loader or an optimizer, equal ones once."""
    if len(known) < _MOST_LISTED:
        known[settings] = None


def _optimizer_settings(optimizer: Any) -> OptimizerSettings:
    group = optimizer.param_groups[0]
    return OptimizerSettings(
        type(optimizer).__name__, _bool_or_none(group.get("fused")), _bool_or_none(group.get("foreach"))
    )


def _model_settings(model: Any) -> ModelSettings:
    parameters = list(model.parameters())
    images = [parameter for parameter in parameters if parameter.dim() == 4][:_MOST_CHECKED]
    last = sys.modules["torch"].channels_last
    is_last = any(not each.is_contiguous() and each.is_contiguous(memory_format=last) for each in images)
    return ModelSettings(
        name=type(model).__name__,
        parameter_types=sorted({_type_name(parameter.dtype) for parameter in parameters}),
        memory_format=("channels_last" if is_last else "contiguous") if images else None,
    )
