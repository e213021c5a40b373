"""Is this a whole checkpoint of this very model? Asked before any rank starts."""

from __future__ import annotations

import pickle
from pathlib import Path

import torch
from torch import nn
from torch.distributed.checkpoint.filesystem import FileSystemReader

from stepscope.core.errors import DataError
from stepscope.core.run_layout import CHECKPOINT_INDEX
from stepscope.reference_workloads.checkpoint import MODEL_PREFIX, model_tensors
from stepscope.reference_workloads.model_resnet import ResNet
from stepscope.reference_workloads.presets import Preset
from stepscope.reference_workloads.stage import Stage

_Shapes = dict[str, tuple[int, ...]]
_BROKEN = (OSError, EOFError, pickle.UnpicklingError, AttributeError, ImportError, LookupError, TypeError, ValueError)
"""What unpickling raises for bytes that are no index."""


def check_checkpoint(folder: Path, preset: Preset) -> None:
    """Compare the names and shapes in a checkpoint's index with the model's.

    Raises:
        DataError: there is no whole checkpoint, or it is of another model.
    """
    if not (folder / CHECKPOINT_INDEX).is_file():
        raise DataError(
            f"is no checkpoint: it has no {CHECKPOINT_INDEX}",
            where=str(folder),
            what_next="give one of a run's checkpoints/step{n} folders",
        )
    why = _difference(_saved_shapes(folder), _model_shapes(preset))
    if why is not None:
        raise DataError(
            f"is a checkpoint of another model: {why}",
            where=str(folder),
            what_next="give the workload, preset and layers that wrote it",
        )


def _saved_shapes(folder: Path) -> _Shapes:
    try:
        saved = FileSystemReader(folder).read_metadata().state_dict_metadata
        return {
            name.removeprefix(MODEL_PREFIX): tuple(getattr(tensor, "size", ()))
            for name, tensor in saved.items()
            if name.startswith(MODEL_PREFIX)
        }
    except _BROKEN as error:
        raise DataError(
            f"has a damaged {CHECKPOINT_INDEX} ({type(error).__name__})",
            where=str(folder),
            what_next="give another one of the run's checkpoints/step{n} folders",
        ) from error


def _model_shapes(preset: Preset) -> _Shapes:
    with torch.device("meta"):
        model: nn.Module = Stage(preset, range(preset.num_layers)) if preset.image is None else ResNet(preset)
    return {name: tuple(tensor.shape) for name, tensor in model_tensors([model]).items()}


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
