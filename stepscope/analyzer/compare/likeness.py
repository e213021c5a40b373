"""Is the comparison like with like? What else differs between the two sides, and how good their traces are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from stepscope.analyzer.compare.run_record import RunRecord
from stepscope.core.analysis import MeshSizes, Notice

_VERSIONS_OF_INTEREST = ("torch", "cuda", "hip", "nccl", "python")
_MOST_VARIABLES_NAMED = 6
DISTORTION_APART = 0.05
"""Capturing that slows one side by so much more than the other shifts every captured figure."""


def unlikeness(a: Sequence[RunRecord], b: Sequence[RunRecord]) -> list[Notice]:
    """One notice for each kind of difference that is no result of the change under test."""
    notices = [
        _differs("gpu_differs", "GPU", a, b, lambda run: run.analysis.job.gpu),
        _differs("device_differs", "kind of device", a, b, lambda run: run.analysis.job.device_kind),
        _differs("world_size_differs", "number of ranks", a, b, lambda run: run.analysis.job.world_size),
        _differs("mesh_differs", "mesh", a, b, lambda run: _mesh(run.analysis.job.mesh)),
        _differs(
            "simulated_differs", "simulated compute", a, b, lambda run: run.analysis.job.simulated_compute or None
        ),
        _differs("host_differs", "host", a, b, lambda run: run.manifest.host if run.manifest else None),
        _differs("tokens_differ", "tokens a step", a, b, lambda run: run.tokens),
    ]
    notices += [_version(a, b, name) for name in _VERSIONS_OF_INTEREST]
    notices += [_environment(a, b), _without_manifest(a, b), *_quality(a, "a"), *_quality(b, "b"), _distortion(a, b)]
    return [notice for notice in notices if notice is not None]


def _differs(
    code: str, what: str, a: Sequence[RunRecord], b: Sequence[RunRecord], value: Callable[[RunRecord], object]
) -> Notice | None:
    """Said only where both sides tell."""
    sides = [sorted({str(found) for run in side if (found := value(run)) is not None}) for side in (a, b)]
    if not all(sides) or sides[0] == sides[1]:
        return None
    return Notice(code, f"not like with like: {what} is {_list(sides[0])} in a and {_list(sides[1])} in b")


def _version(a: Sequence[RunRecord], b: Sequence[RunRecord], name: str) -> Notice | None:
    def version(run: RunRecord) -> str | None:
        return run.manifest.versions.get(name) if run.manifest else None

    return _differs("version_differs", f"{name} version", a, b, version)


def _mesh(mesh: MeshSizes) -> str | None:
    named = [f"{name}={size}" for name in MeshSizes.__slots__ if (size := getattr(mesh, name)) is not None]
    return " ".join(named) or None


def _environment(a: Sequence[RunRecord], b: Sequence[RunRecord]) -> Notice | None:
    sides = [[run.manifest.environment for run in side if run.manifest] for side in (a, b)]
    if not all(sides):
        return None
    names = sorted({name for side in sides for run in side for name in run})
    apart = [n for n in names if {run.get(n) for run in sides[0]} != {run.get(n) for run in sides[1]}]
    if not apart:
        return None
    shown = ", ".join(f"{n} ({_values(sides[0], n)} | {_values(sides[1], n)})" for n in apart[:_MOST_VARIABLES_NAMED])
    more = f" and {len(apart) - _MOST_VARIABLES_NAMED} more" if len(apart) > _MOST_VARIABLES_NAMED else ""
    return Notice("environment_differs", f"environment variables differ (a | b): {shown}{more}")


def _values(side: Iterable[dict[str, str]], name: str) -> str:
    return "/".join(sorted({run.get(name, "unset") for run in side}))


def _without_manifest(a: Sequence[RunRecord], b: Sequence[RunRecord]) -> Notice | None:
    without = [run.name for run in (*a, *b) if run.manifest is None]
    if not without:
        return None
    return Notice("no_manifest", f"no run.json beside {_list(without)}: versions and environment cannot be compared")


def _quality(side: Sequence[RunRecord], name: str) -> list[Notice]:
    notices = []
    for run in side:
        job, quality = run.analysis.job, run.analysis.trace_quality
        doubts = [
            f"{number} {what}"
            for number, what in (
                (len(job.missing_ranks), "ranks without a trace"),
                (quality.truncated_files, "truncated files"),
                (quality.dropped, "events dropped"),
            )
            if number
        ]
        if doubts:
            notices.append(Notice("trace_quality", f"{name}: {run.name} has {', '.join(doubts)}"))
    return notices


def _distortion(a: Sequence[RunRecord], b: Sequence[RunRecord]) -> Notice | None:
    sides = [
        [d for run in side if (d := run.analysis.trace_quality.profiler_distortion) is not None] for side in (a, b)
    ]
    if not all(sides):
        return None
    first, second = (sum(side) / len(side) for side in sides)
    if abs(second - first) < DISTORTION_APART:
        return None
    slowed = f"capturing slowed the step by {first:.0%} in a and {second:.0%} in b: captured parts differ by that alone"
    return Notice("distortion_differs", slowed)


def _list(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
