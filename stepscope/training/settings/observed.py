"""Settings of the training process that change how fast it is, as far as it can tell them at no cost.

Nothing here imports a module, starts CUDA or raises.
"""

from __future__ import annotations

import functools
import gc
import sys
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

from stepscope.core.documents.training_settings import (
    BackwardSettings,
    DdpSettings,
    FsdpSettings,
    LoaderSettings,
    ModelSettings,
    OptimizerSettings,
    TrainerSettings,
    TrainingSettings,
)
from stepscope.training.memory.owners import MemoryOwners
from stepscope.training.settings.modules import (
    bool_or_none,
    model_settings,
    optimizer_settings,
    read,
    reduces_gradients,
    type_name,
    wrappers_in,
)
from stepscope.training.settings.trainers import trainer_settings

T = TypeVar("T")

_DEVICES = ("cuda", "cpu", "xpu", "hpu", "mps")
_DETERMINISTIC = ("default", "warn", "error")
_MOST_LISTED = 16
"""Loaders, optimizers and models that are listed of each; a job that makes more makes the same ones again."""
_KINDS = ("map", "iterable")
_IN_MEMORY = frozenset({"TensorDataset", "list", "tuple", "Tensor", "ndarray", "range"})
"""Classes of datasets that are containers in memory."""


class ObservedSettings:
    """Settings of this training process, and of the loaders and optimizers that others have seen at work in it.

    Args:
        owners: know the models that the training code has shown.

    Attributes:
        was_given_iterable: `prof.data` was used.
    """

    def __init__(self, owners: MemoryOwners) -> None:
        self.was_given_iterable = False
        self._owners = owners
        self._loaders: dict[LoaderSettings, None] = {}
        self._iterables: dict[str, None] = {}
        self._optimizers: dict[OptimizerSettings, None] = {}
        self._seen_models: list[weakref.ref[Any]] = []
        self._models: list[ModelSettings] = []
        self._wrappers: list[DdpSettings | FsdpSettings] = []
        self._trainer: TrainerSettings | None = None
        self._backward: BackwardSettings | None = None
        self._autocast: dict[str, str] = {}
        self._has_anomaly_mode = False
        self._latest_iterator: Callable[[], Any] = lambda: None
        self._latest_learned = False

    def loader_gave(self, iterator: Any, *, learns: bool) -> None:
        """A DataLoader's iterator gave a batch; its settings are looked at when it is another one than before."""
        if self._latest_iterator() is iterator and self._latest_learned == learns:
            return
        with suppress(Exception):  # of another torch
            self._latest_iterator, self._latest_learned = weakref.ref(iterator), learns
            dataset = read(lambda: type(iterator._dataset).__name__)
            loader = LoaderSettings(
                trains=learns,
                num_workers=int(iterator._num_workers),
                pin_memory=bool_or_none(getattr(iterator, "_pin_memory", None)),
                persistent_workers=bool_or_none(getattr(iterator, "_persistent_workers", None)),
                prefetch_factor=getattr(iterator, "_prefetch_factor", None),
                kind=read(lambda: _KINDS[iterator._dataset_kind]),
                dataset=dataset,
                in_memory=True if dataset in _IN_MEMORY else None,
                batch_size=read(lambda: int(iterator._index_sampler.batch_size)),
            )
            _keep(loader, self._loaders)

    def iterable_given(self, iterable: Any) -> None:
        """What `prof.data` was given; a DataLoader tells of itself when it gives a batch."""
        self.was_given_iterable = True
        if not read(lambda: hasattr(iterable, "num_workers")):
            _keep(type(iterable).__name__, self._iterables)

    def optimizer_seen(self, optimizer: Any) -> None:
        """An optimizer of the training; one that wraps another stands for that."""
        with suppress(Exception):  # as of one that is not torch's
            _keep(optimizer_settings(optimizer), self._optimizers)

    def model_seen(self, model: Any) -> None:
        """A model, or a part of one, that the training loop has in a variable."""
        with suppress(TypeError):  # something that cannot be referred to weakly
            self._seen_models.append(weakref.ref(model))

    def models_seen(self) -> None:
        """Drop from the models seen those that are parts of others, and those that do not learn."""
        models = [model for reference in self._seen_models if (model := reference()) is not None]
        parts = _parts_inside(models)
        own = [model for model in models if id(model) not in parts and read(functools.partial(_learns, model))]
        self._seen_models = [weakref.ref(model) for model in own[:_MOST_LISTED]]

    def trainers_seen(self, candidates: Sequence[Any]) -> None:
        """Objects that may be the trainer of a library."""
        self._trainer = read(lambda: trainer_settings(list(candidates))) or self._trainer

    def backward_seen(self, settings: BackwardSettings) -> None:
        """What the backward passes looked at so far show."""
        self._backward = settings

    def anomaly_mode_seen(self) -> None:
        """A backward pass ran in anomaly mode."""
        self._has_anomaly_mode = True

    def autocast_seen(self, device: str, dtype: Any) -> None:
        """Autocast was entered in a step."""
        self._autocast[device] = type_name(dtype)

    def reduces_gradients(self) -> bool | None:
        """Whether a backward pass that begins now reduces gradients of all ranks; None without a wrapper that does."""
        answers = [read(functools.partial(reduces_gradients, model)) for model in self._known_models()]
        known = [answer for answer in answers if answer is not None]
        return any(known) if known else None

    def read(self, *, counts_frozen: bool = True) -> TrainingSettings:
        """What is set now. On the thread that trains: autocast is a thread's own.

        Args:
            counts_frozen: count the objects that the garbage collector never looks at, which takes 0.1 us for each.
        """
        torch: Any = sys.modules.get("torch")
        cudnn: Any = read(lambda: torch.backends.cudnn)
        settings = TrainingSettings(
            anomaly_mode=read(lambda: bool(torch.is_anomaly_enabled())),
            deterministic=read(lambda: _DETERMINISTIC[torch.get_deterministic_debug_mode()]),
            cudnn_benchmark=read(lambda: bool(cudnn.benchmark)),
            cudnn_deterministic=read(lambda: bool(cudnn.deterministic)),
            cudnn_allow_tf32=read(lambda: bool(cudnn.allow_tf32)),
            matmul_allow_tf32=read(lambda: bool(torch.backends.cuda.matmul.allow_tf32)),
            float32_matmul_precision=read(lambda: str(torch.get_float32_matmul_precision())),
            autocast=read(lambda: _autocast_types(torch)) or {},
            num_threads=read(lambda: int(torch.get_num_threads())),
            num_interop_threads=read(lambda: int(torch.get_num_interop_threads())),
            gc_enabled=gc.isenabled(),
            gc_thresholds=list(gc.get_threshold()),
            gc_frozen=read(gc.get_freeze_count) if counts_frozen else None,
        )
        return self.with_seen(settings)

    def with_seen(self, settings: TrainingSettings) -> TrainingSettings:
        """Settings with what was seen of the training by now, also of loaders and models that are gone."""
        if models := self._known_models():
            found = [read(functools.partial(model_settings, model)) for model in models]
            self._models = [
                one for i, one in enumerate(found) if one is not None and one not in found[:i]
            ] or self._models
            wrappers = [read(lambda model=model: list(wrappers_in(model))) or [] for model in models]  # type: ignore[misc]
            self._wrappers = [wrapper for few in wrappers for wrapper in few]
        return replace(
            settings,
            anomaly_mode=True if self._has_anomaly_mode else settings.anomaly_mode,
            autocast=settings.autocast | self._autocast,
            num_compiled_frames=read(lambda: int(sys.modules["torch._dynamo.utils"].counters["frames"]["ok"])),
            loaders=list(self._loaders),
            iterables=list(self._iterables),
            optimizers=list(self._optimizers),
            models=list(self._models),
            ddp=[each for each in self._wrappers if isinstance(each, DdpSettings)],
            fsdp=[each for each in self._wrappers if isinstance(each, FsdpSettings)],
            backward=self._backward,
            trainer=self._trainer,
        )

    def _known_models(self) -> list[Any]:
        """Models that the training code has shown, or has in variables, and that are still there."""
        seen = [model for reference in self._seen_models if (model := reference()) is not None]
        inner = _parts_inside(seen)
        shown = [
            model
            for model in self._owners.modules()
            if id(model) not in inner and not any(model is other for other in seen)
        ]
        return [*shown, *seen][:_MOST_LISTED]


def _parts_inside(models: Sequence[Any]) -> set[int]:
    """Identities of the modules inside of models, as far as these tell them."""
    return {id(part) for model in models for part in (read(lambda model=model: list(model.modules())) or [])[1:]}  # type: ignore[misc]


def _learns(model: Any) -> bool:
    return any(parameter.requires_grad for parameter in model.parameters())


def _autocast_types(torch: Any) -> dict[str, str]:
    on = [device for device in _DEVICES if torch.is_autocast_enabled(device)]
    return {device: type_name(torch.get_autocast_dtype(device)) for device in on}


def _keep(settings: T, known: dict[T, None]) -> None:
    """Keep settings of a loader or an optimizer, equal ones once."""
    if len(known) < _MOST_LISTED:
        known[settings] = None
