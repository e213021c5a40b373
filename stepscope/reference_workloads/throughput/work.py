"""Did two benches do the same work? Only then does one say anything of the other.

It is known from a request already: what does not fit is refused before anything is measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stepscope.core.errors import DataError
from stepscope.reference_workloads.throughput.result import Bench, BenchScale

_OF_A_SCALE = "batch_size"
"""A preset's own is that of the smallest scale alone."""


@dataclass(frozen=True, slots=True)
class Work:
    """What was trained, by name, as JSON has it.

    Attributes:
        everywhere: what must be alike at all scales.
        at: what must be alike at one, by its data-parallel size.
    """

    everywhere: Mapping[str, Any]
    at: Mapping[int, Mapping[str, Any]]


def as_work(
    *,
    workload: str,
    scaling: str,
    simulate_ms: float,
    model: Mapping[str, Any],
    recipe: Mapping[str, Any],
    at: Mapping[int, Mapping[str, Any]],
) -> Work:
    """The work of these parts, tuples as the lists that a document has."""
    parts = {"workload": workload, "scaling": scaling, "simulate_ms": simulate_ms} | _as_json(model) | _as_json(recipe)
    del parts[_OF_A_SCALE]
    return Work(parts, {dp: _as_json(told) for dp, told in at.items()})


def work_of(bench: Bench) -> Work:
    """What a bench measured."""
    return as_work(
        workload=bench.workload,
        scaling=bench.scaling,
        simulate_ms=bench.simulate_ms,
        model=bench.model,
        recipe=bench.recipe,
        at={scale.dp: _at(scale, bench) for scale in bench.scales},
    )


def check_same_work(ours: Work, theirs: Work, name: str) -> None:
    """Whether a scale of ours can be held against one of theirs.

    Args:
        name: of the file that theirs is from.

    Raises:
        DataError: it did other work, or shares no scale.
    """
    _refuse_other(ours.everywhere, theirs.everywhere, name)
    shared = ours.at.keys() & theirs.at.keys()
    if not shared:
        raise DataError("shares no scale with this bench", where=name, what_next="measure the same --scales")
    for dp in sorted(shared):
        told = ours.at[dp].keys() & theirs.at[dp].keys()
        here, there = ({key: side.at[dp][key] for key in told} for side in (ours, theirs))
        _refuse_other(here, there, name, at=f" at dp {dp}")


def _at(scale: BenchScale, bench: Bench) -> dict[str, Any]:
    """An older document tells the smallest scale's layout alone, with its own zero."""
    plan = scale.plan or {key: value for key, value in bench.plan.items() if key not in {"dp", "zero"}}
    return {"batch_size": scale.batch_size, "num_items": scale.num_items} | plan


def _refuse_other(ours: Mapping[str, Any], theirs: Mapping[str, Any], name: str, *, at: str = "") -> None:
    differ = sorted(key for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key))
    if differ:
        key = differ[0]
        raise DataError(
            f"measured other work{at}: {key} {theirs.get(key)!r} instead of {ours.get(key)!r}",
            where=name,
            what_next="measure the same model, layout and batch",
        )


def _as_json(parts: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _value_as_json(value) for key, value in parts.items()}


def _value_as_json(value: Any) -> Any:
    if isinstance(value, Mapping):
        return _as_json(value)
    return [_value_as_json(part) for part in value] if isinstance(value, (list, tuple)) else value
