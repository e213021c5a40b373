"""What does a checkpoint's index list, read such that nothing in it can run?

torch reads the index with a plain unpickler, which obeys whatever a file says, and takes entries that are no tensors
through another one. So it is read here before, by one that finds nothing but what torch writes for tensors. A file that
changes afterwards is not checked again.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from stepscope.core.errors import DataError, from_os_error
from stepscope.core.run_layout import CHECKPOINT_INDEX

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
"""What unpickling raises for bytes that are no index."""

WHAT_NEXT = "give another one of the run's checkpoints/step{n} folders"


@dataclass(frozen=True, slots=True)
class CheckpointIndex:
    """What a checkpoint holds.

    Attributes:
        shapes: of each tensor, by name.
        least_bytes: that each file of the folder must have for its tensors to be whole, by name.
    """

    shapes: dict[str, tuple[int, ...]]
    least_bytes: dict[str, int]


def read_index(folder: Path) -> CheckpointIndex:
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
        return CheckpointIndex(shapes, least_bytes)
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
        element_type = getattr(torch, global_name, None) if module_name == "torch" else None
        if isinstance(element_type, torch.dtype):
            return element_type
        raise DataError(
            f"has a {CHECKPOINT_INDEX} that asks for {module_name}.{global_name}, which no tensor needs; nothing of it"
            " was run",
            where=self._where,
            what_next="give a checkpoint that a workload wrote",
        )
