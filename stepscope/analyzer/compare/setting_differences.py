"""Settings that differ between two sides of runs, the most likely cause of what changed first.

A setting is likely where the part of the step that it acts on is the one that changed most, in the same direction as
the step. Nothing here says that it is the cause: two settings may differ at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from stepscope.analyzer.compare.run_record import RunRecord
from stepscope.core.documents.comparison import CauseDifference, Change, RecordedDifference, SettingDifference
from stepscope.core.documents.training_settings import BackwardSettings, TrainingSettings
from stepscope.core.vocabulary import Cause

_WORK = (Cause.COMPUTE_BOUND, Cause.MEMORY_BOUND, Cause.LATENCY_BOUND)
_HOST = (Cause.HOST_BOUND, Cause.SYNCHRONIZATION)

_ACTS_ON: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("loaders", (Cause.DATA_LOADING,)),
    ("iterables", (Cause.DATA_LOADING,)),
    ("trainer.dataloader", (Cause.DATA_LOADING,)),
    ("trainer.num_workers", (Cause.DATA_LOADING,)),
    ("trainer.save", (Cause.CHECKPOINT,)),
    ("trainer.async_save", (Cause.CHECKPOINT,)),
    ("trainer.eval", (Cause.EVALUATION,)),
    ("trainer.val", (Cause.EVALUATION,)),
    ("trainer.limit_val", (Cause.EVALUATION,)),
    ("trainer.check_val", (Cause.EVALUATION,)),
    ("gc_", ("garbage_collection", Cause.HOST_BOUND)),
    ("ddp", (Cause.COMMUNICATION,)),
    ("fsdp", (Cause.COMMUNICATION,)),
    ("trainer.ddp", (Cause.COMMUNICATION,)),
    ("trainer.overlap", (Cause.COMMUNICATION,)),
    ("backward.synchronized_passes", (Cause.COMMUNICATION,)),
    ("NCCL_", (Cause.COMMUNICATION,)),
    ("TORCH_NCCL_", (Cause.COMMUNICATION,)),
    ("TORCH_DISTRIBUTED", (Cause.COMMUNICATION, *_HOST)),
    ("CUDA_LAUNCH_BLOCKING", _HOST),
    ("num_compiled_frames", ("compilation", *_HOST, *_WORK)),
    ("anomaly_mode", _HOST),
    ("optimizers", (*_HOST, *_WORK)),
    ("models.compile", (*_HOST, *_WORK)),
    ("cpu_affinity", (Cause.CONTENTION, *_HOST, *_WORK)),
    ("num_cpus", (Cause.CONTENTION, *_HOST, *_WORK)),
    ("PYTORCH_", (Cause.HOST_BOUND,)),
)
"""Beginnings of names of settings, and the parts of a step that they act on; others act on the work itself."""

_UNLIKELY = frozenset({"gc_frozen", "backward.is_whole", "trainer.version", "backward.has_fixed_shapes"})
"""Settings that differ by chance, or that say how much was seen."""


def compare_settings(
    sides: tuple[Sequence[RunRecord], Sequence[RunRecord]],
    recorded: Sequence[RecordedDifference],
    causes: Sequence[CauseDifference],
    *,
    is_faster: bool = False,
) -> list[SettingDifference]:
    """Settings and environment variables that differ, those that act on what got slower most first.

    Args:
        is_faster: the step got faster: those that act on what got faster most come first.
    """
    flat = [[_flat(run) for run in side] for side in sides]
    names = {name for side in flat for run in side for name in run}
    changed_ms = _changed_ms(recorded, causes, -1.0 if is_faster else 1.0)
    rows = []
    for name in sorted(names - _UNLIKELY):
        a, b = ({_text(run[name]) for run in side if name in run} for side in flat)
        if a != b and ((a and b) or name.isupper()):  # a variable may be unset; a setting may be unknown
            acts_on = _acts_on(name)
            likely = sum(max(changed_ms.get(part, 0.0), 0.0) for part in acts_on)
            rows.append(SettingDifference(name, _joined(a), _joined(b), [str(part) for part in acts_on], likely))
    return sorted(rows, key=lambda row: (-row.explains_ms, _weight(row.name), row.name))


def _changed_ms(
    recorded: Iterable[RecordedDifference], causes: Iterable[CauseDifference], way: float
) -> dict[str, float]:
    """By how many ms each part changed this way, 1 slower or -1 faster; the records of all steps before the traces."""
    opposite = Change.FASTER if way > 0 else Change.SLOWER
    changed = {str(row.cause): way * (row.ms.change or 0.0) for row in causes if row.ms.state is not opposite}
    recorded_ms = {row.name: way * (row.ms.change or 0.0) for row in recorded}
    rest = recorded_ms.pop("rest", None)
    changed |= recorded_ms
    if rest is not None and not any(changed.get(cause, 0.0) > 0 for cause in (*_HOST, *_WORK)):
        changed |= dict.fromkeys((*_HOST, *_WORK), rest / (len(_HOST) + len(_WORK)))
    return changed


def _acts_on(name: str) -> tuple[str, ...]:
    return next((parts for begin, parts in _ACTS_ON if name.startswith(begin)), _WORK)


def _weight(name: str) -> int:
    """Settings of the process before what follows from them (`backward`), the trainer's names for them, variables."""
    later = ("backward.", "trainer.")
    return next((place for place, begin in enumerate(later, 1) if name.startswith(begin)), 3 if name.isupper() else 0)


def _flat(run: RunRecord) -> dict[str, Any]:
    """Settings of a run by name, with a dot into lists and sections; those unknown are left out."""
    manifest = run.manifest
    if manifest is None:
        return {}
    found: dict[str, Any] = dict(manifest.environment)
    found |= {"cpu_affinity": manifest.cpu_affinity or None, "num_cpus": manifest.num_cpus}
    if manifest.settings is not None:
        found |= _of_settings(manifest.settings)
    return {name: value for name, value in found.items() if value is not None}


def _of_settings(settings: TrainingSettings) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for each in fields(settings):
        value = getattr(settings, each.name)
        if each.name == "trainer" and value is not None:
            found["trainer"] = value.name
            found |= {f"trainer.{name}": argument for name, argument in value.arguments.items()}
        elif isinstance(value, list) and value and is_dataclass(value[0]):
            chosen = [one for one in value if getattr(one, "trains", True)]
            for inner in fields(value[0]):
                found[f"{each.name}.{inner.name}"] = [getattr(one, inner.name) for one in chosen]
        elif isinstance(value, BackwardSettings) and not value.is_whole:  # how far a look at a graph went is chance
            found |= {f"backward.{name}": getattr(value, name) for name in ("passes", "synchronized_passes")}
        elif is_dataclass(value):
            found |= {f"{each.name}.{inner.name}": getattr(value, inner.name) for inner in fields(value)}
        else:
            found[each.name] = value
    return found


def _text(value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value))
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_text(of_key)}" for key, of_key in value.items())
    return str(value)


def _joined(values: set[str]) -> str | None:
    return " / ".join(sorted(values)) if values else None
