"""Is this a whole checkpoint of this very model? Asked before any rank starts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn

from stepscope.core.errors import DataError
from stepscope.core.run_layout import CHECKPOINT_INDEX
from stepscope.reference_workloads.checkpoint import MODEL_PREFIX, model_tensors
from stepscope.reference_workloads.checkpoint_index import WHAT_NEXT, read_index
from stepscope.reference_workloads.model_resnet import ResNet
from stepscope.reference_workloads.presets import Preset
from stepscope.reference_workloads.stage import Stage

_Shapes = dict[str, tuple[int, ...]]


def check_checkpoint(folder: Path, preset: Preset) -> None:
    """Compare a checkpoint's index with the model and with the files that are there.

    Raises:
        DataError: there is no whole checkpoint, or it is of another model.
    """
    if not (folder / CHECKPOINT_INDEX).is_file():
        raise DataError(
            f"is no checkpoint: it has no {CHECKPOINT_INDEX}",
            where=str(folder),
            what_next="give one of a run's checkpoints/step{n} folders",
        )
    index = read_index(folder)
    saved = {
        name.removeprefix(MODEL_PREFIX): shape for name, shape in index.shapes.items() if name.startswith(MODEL_PREFIX)
    }
    why = _difference(saved, _model_shapes(preset))
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
                f"is no whole checkpoint: {name} cannot be read ({why})",
                where=str(folder),
                what_next=WHAT_NEXT,
            ) from error
        if size < least:
            raise DataError(
                f"is no whole checkpoint: {name} has {size:,} bytes of {least:,}",
                where=str(folder),
                what_next=WHAT_NEXT,
            )


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
