"""Checkpoints: weights, running statistics and optimizer state, written and read by any layout.

torch's own `get_state_dict` wants one model per optimizer and knows neither ZeroRedundancyOptimizer nor the bare shards
that DDP trains under tensor parallelism. Here each tensor goes under its parameter's name in the uncut model, a cut one
as a DTensor, so that another layout can read what this one wrote.

torch reads a checkpoint's index with a plain unpickler, which obeys whatever a file says, and takes entries that are no
tensors through another one. So `read_index` reads it before, with one that finds nothing but what torch writes for
tensors. A file that changes afterwards is not checked again.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save, save
from torch.distributed.tensor import DTensor

from stepscope.core.documents.run_directory import CHECKPOINT_INDEX
from stepscope.core.errors import DataError, from_os_error
from stepscope.reference_workloads.models.mixed_precision import LossScale
from stepscope.reference_workloads.models.resnet import ResNet
from stepscope.reference_workloads.models.transformer import Stage
from stepscope.reference_workloads.parallelism.gradients import layout_of, named_parameters, uncut_name
from stepscope.reference_workloads.plan import Preset

MODEL_PREFIX = "model."
"""Before the names of the model's own tensors."""

_PROGRESS = "progress"  # steps done, loss scale, steps since it changed


def _model_tensors(modules: Iterable[nn.Module]) -> dict[str, torch.Tensor]:
    """Parameters, and buffers that are part of the model's state (a norm's running statistics), by uncut name."""
    modules = list(modules)
    return {**named_parameters(modules), **_kept_buffers(modules)}


def _kept_buffers(modules: Iterable[nn.Module]) -> dict[str, torch.Tensor]:
    return {
        uncut_name(f"{prefix}.{name}"): buffer
        for module in modules
        for prefix, part in module.named_modules()
        for name, buffer in part.named_buffers(recurse=False)
        if name not in part._non_persistent_buffers_set
    }


class Checkpointer:
    """Writes checkpoints of a training rank's part, one at a time, and reads one.

    Made before the first forward pass (DDP takes tensor-parallel parameters out of their modules then).
    """

    def __init__(
        self, modules: list[nn.Module], optimizer: torch.optim.Optimizer, loss_scale: LossScale, folder: Path
    ) -> None:
        self._parameters = named_parameters(modules)
        self._buffers = _kept_buffers(modules)
        self._optimizer = optimizer
        self._loss_scale = loss_scale
        self._folder = folder
        # Collectives of a checkpoint that is written beside training must not mix with those of training.
        self._group = dist.new_group(backend="gloo")
        self._pending: Any = None  # a future

    def save(self, num_steps_done: int, *, asynchronously: bool) -> None:
        """Write step{n}; all ranks must. Asynchronously it returns when all is copied to host memory.

        Raises:
            DataError: this one, or the one that was being written, cannot be.
        """
        self.wait()
        options: dict[str, Any] = {
            "checkpoint_id": self._folder / f"step{num_steps_done}",
            "process_group": self._group,
        }
        state = self._state(num_steps_done)
        with self._writing():
            self._write(state, options, asynchronously=asynchronously)

    def _write(self, state: dict[str, Any], options: dict[str, Any], *, asynchronously: bool) -> None:
        if dist.get_rank(self._group) == 0:
            # Ranks have statistics of their own parts of the batch until DDP's next forward pass takes the first one's.
            state |= self._buffer_state()
            # Of a checkpoint that is written anew: a kill in between leaves none instead of a mixed one.
            Path(options["checkpoint_id"], CHECKPOINT_INDEX).unlink(missing_ok=True)
        if asynchronously:
            self._pending = async_save(state, **options)
        else:
            save(state, **options)

    def wait(self) -> None:
        """Until nothing is being written any more.

        Raises:
            DataError: what was being written cannot be.
        """
        if self._pending is not None:
            with self._writing():
                self._pending.result()
            self._pending = None

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except (CheckpointException, OSError) as error:
            raise DataError(
                f"a checkpoint cannot be written: {_reason(error)}",
                where=str(self._folder),
                what_next="free some space, or choose another --out",
            ) from error

    def load(self, path: Path) -> int:
        """Take weights, running statistics, optimizer state and loss scale over; all ranks must.

        Returns the number of steps done.

        Raises:
            DataError: there is no complete checkpoint of this model.
        """
        self._make_optimizer_state()
        state = self._state(0) | self._buffer_state()
        try:
            load(state, checkpoint_id=path, process_group=self._group)
        except CheckpointException as error:
            raise DataError(
                f"cannot be taken over: {_reason(error)}", where=str(path), what_next="give one of its step folders"
            ) from error
        num_steps_done, self._loss_scale.value, num_good_steps = state[_PROGRESS].tolist()
        self._loss_scale.num_good_steps = int(num_good_steps)
        return int(num_steps_done)

    def _state(self, num_steps_done: int) -> dict[str, Any]:
        """Tensors that share their storage with the run's, by name."""
        scale = self._loss_scale
        state: dict[str, Any] = {
            _PROGRESS: torch.tensor([num_steps_done, scale.value, scale.num_good_steps], dtype=torch.float64)
        }
        # A ZeroRedundancyOptimizer has one inside that owns this rank's share of the parameters.
        owner = getattr(self._optimizer, "optim", self._optimizer)
        for name, parameter in self._parameters.items():
            state[f"{MODEL_PREFIX}{name}"] = _as_cut(parameter.detach(), parameter)
            for kind, tensor in owner.state.get(parameter, {}).items():
                is_cut = tensor.shape == parameter.shape
                state[f"optimizer.{name}.{kind}"] = _as_cut(tensor, parameter) if is_cut else tensor
        return state

    def _buffer_state(self) -> dict[str, Any]:
        return {f"{MODEL_PREFIX}{name}": buffer for name, buffer in self._buffers.items()}

    def _make_optimizer_state(self) -> None:
        """A step that changes nothing, so that there are tensors to read into."""
        rates = [group["lr"] for group in self._optimizer.param_groups]
        for group in self._optimizer.param_groups:
            group["lr"] = 0.0
        for parameter in self._parameters.values():
            parameter.grad = torch.zeros_like(parameter)
        self._optimizer.step()
        self._optimizer.zero_grad()
        for group, rate in zip(self._optimizer.param_groups, rates, strict=True):
            group["lr"] = rate


def _reason(error: BaseException) -> str:
    """The first rank's, in few words; the file system's where it is at fault."""
    first: BaseException = error
    if isinstance(error, CheckpointException) and error.failures:
        first = error.failures[min(error.failures)][0]
    chain: list[BaseException] = [first]
    while (before := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(before)
    for one in chain:
        if isinstance(one, OSError) and one.strerror:
            return f"{one.strerror}: {one.filename}" if one.filename else one.strerror
    return f"{type(first).__name__}: {' '.join(str(first).split())[:200]}".removesuffix(": ")


def _as_cut(tensor: torch.Tensor, parameter: nn.Parameter) -> torch.Tensor:
    """The tensor with its parameter's layout, where that is cut."""
    layout = layout_of(parameter)
    if layout is None or isinstance(tensor, DTensor):
        return tensor
    whole: torch.Tensor = DTensor.from_local(
        tensor, layout.mesh, layout.placements, run_check=False, shape=layout.shape, stride=layout.stride
    )
    return whole


_METADATA = "torch.distributed.checkpoint.metadata"
_FOUND = {
    *((_METADATA, name) for name in ("Metadata", "MetadataIndex", "StorageMeta", "TensorProperties")),
    *((_METADATA, name) for name in ("TensorStorageMetadata", "ChunkStorageMetadata", "_MEM_FORMAT_ENCODING")),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
    *(("pathlib", name) for name in ("PosixPath", "WindowsPath")),
    *(("pathlib._local", name) for name in ("PosixPath", "WindowsPath")),
    ("collections", "OrderedDict"),
}
"""Module and name of all that an index of tensors asks for, besides torch's element types."""

_BROKEN = (
    EOFError,
    pickle.UnpicklingError,
    AttributeError,
    ImportError,
    LookupError,
    MemoryError,
    OverflowError,
    TypeError,
    ValueError,
)
"""What unpickling raises for bytes that are not an index."""

WHAT_NEXT = "give another one of the run's checkpoints/step{n} folders"


@dataclass(frozen=True, slots=True)
class _CheckpointIndex:
    """What a checkpoint holds.

    Attributes:
        shapes: of each tensor, by name.
        least_bytes: that each file of the folder must have for its tensors to be whole, by name.
    """

    shapes: dict[str, tuple[int, ...]]
    least_bytes: dict[str, int]


def _read_index(folder: Path) -> _CheckpointIndex:
    """Read a checkpoint's index.

    Raises:
        DataError: it cannot be read, is damaged, or would do more than list tensors.
    """
    where = str(folder)
    try:
        with (folder / CHECKPOINT_INDEX).open("rb") as file:
            metadata = _IndexUnpickler(file, where).load()
        least_bytes: dict[str, int] = {}
        for part in metadata.storage_data.values():
            name, end = str(part.relative_path), part.offset + part.length
            least_bytes[name] = max(end, least_bytes.get(name, 0))
        shapes = {str(name): tuple(tensor.size) for name, tensor in metadata.state_dict_metadata.items()}
        return _CheckpointIndex(shapes, least_bytes)
    except OSError as error:
        raise from_os_error(error, f"has a {CHECKPOINT_INDEX} that cannot be read", where=where) from error
    except _BROKEN as error:
        raise DataError(
            f"has a damaged {CHECKPOINT_INDEX} ({type(error).__name__})", where=where, what_next=WHAT_NEXT
        ) from error


class _IndexUnpickler(pickle.Unpickler):
    def __init__(self, file: Any, where: str) -> None:
        super().__init__(file)
        self._where = where

    def find_class(self, module_name: str, global_name: str) -> Any:
        """What an index of tensors is made of, and nothing else."""
        if (module_name, global_name) in _FOUND:
            return super().find_class(module_name, global_name)
        if (module_name, global_name) == ("builtins", "getattr"):  # how Python 3.11.0 to 3.11.3 pickle enum members
            return _enum_member
        element_type = getattr(torch, global_name, None) if module_name == "torch" else None
        if isinstance(element_type, torch.dtype):
            return element_type
        raise DataError(
            f"has a {CHECKPOINT_INDEX} that asks for {module_name}.{global_name}, which no tensor needs; nothing of it"
            " was run",
            where=self._where,
            what_next="give a checkpoint that a workload wrote",
        )


def _enum_member(kind: Any, name: Any) -> Any:
    """The member of an enum; nothing of anything else."""
    if isinstance(kind, type) and issubclass(kind, Enum) and name in kind.__members__:
        return kind[name]
    raise pickle.UnpicklingError(f"{name!r} is no member of an enum")


_Shapes = dict[str, tuple[int, ...]]


def check_checkpoint(folder: Path, preset: Preset) -> None:
    """Reference workload: compare its checkpoint's index with the model's preset and with the files that are there.

    Raises:
        DataError: there is no complete checkpoint, or it is of another model.
    """
    if not (folder / CHECKPOINT_INDEX).is_file():
        raise DataError(
            f"is not a checkpoint: it has no {CHECKPOINT_INDEX}",
            where=str(folder),
            what_next="give one of a run's checkpoints/step{n} folders",
        )
    index = _read_index(folder)
    saved = {
        name.removeprefix(MODEL_PREFIX): shape for name, shape in index.shapes.items() if name.startswith(MODEL_PREFIX)
    }
    with torch.device("meta"):
        model: nn.Module = Stage(preset, range(preset.num_layers)) if preset.image is None else ResNet(preset)
    why = _difference(saved, {name: tuple(tensor.shape) for name, tensor in _model_tensors([model]).items()})
    if why is not None:
        raise DataError(
            f"is a checkpoint of another model: {why}",
            where=str(folder),
            what_next="give the workload, preset and layers that wrote it",
        )
    _check_files(folder, index.least_bytes)


def _check_files(folder: Path, least_bytes: Mapping[str, int]) -> None:
    """Raises DataError when a file that the index names is not there, or ends too early."""
    for name, least in sorted(least_bytes.items()):
        try:
            size = (folder / name).stat().st_size
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise DataError(
                f"is not a complete checkpoint: {name} cannot be read ({why})",
                where=str(folder),
                what_next=WHAT_NEXT,
            ) from error
        if size < least:
            raise DataError(
                f"is not a complete checkpoint: {name} has {size:,} bytes of {least:,}",
                where=str(folder),
                what_next=WHAT_NEXT,
            )


def _difference(saved: _Shapes, model: _Shapes) -> str | None:
    """The first one in words; None when all are alike."""
    for name in [*model, *(name for name in saved if name not in model)]:
        if name not in saved:
            return f"it has no {name}"
        if name not in model:
            return f"it has {name}, which the model has not"
        if saved[name] != model[name]:
            there, here = (" x ".join(map(str, shapes[name])) for shapes in (saved, model))
            return f"{name} is {there} there and {here} here"
    return None
