"""Entry points for training code: `profile(...)` around a training loop and the `@profiled(...)` decorator."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from stepscope.training.captures.schedule import Schedule, SlowStep
from stepscope.training.profiling_session import Profile
from stepscope.training.run.context import ProfileSettings


def profile(
    run: str | None = None,
    out: str | os.PathLike[str] = "runs",
    schedule: Schedule | None = None,
    ranks: str | Iterable[int] = "auto",
    mesh: Any = None,
    *,
    enabled: bool = True,
    record_shapes: bool = True,
    with_stack: bool = False,
    profile_memory: bool = False,
    capture_when: SlowStep | None = None,
    labels: dict[str, str] | None = None,
    simulated_compute: bool = False,
    stuck_after: float | str | None = None,
    memory: str | int | None = None,
    export: str | Iterable[str] | None = None,
    first_step: int | None = None,
    live_verdict: float | str | None = None,
    reduce: str | None = None,
    keep_traces: str | None = None,
    spool: str | os.PathLike[str] | None = None,
) -> Profile:
    """Measure a training loop: `with stepscope.profile(...) as prof:` and `prof.step()` after each optimizer step.

    Every rank calls it with the same arguments. It never raises into training: what goes wrong is logged once, and
    measuring stops. Off (enabled=False, or STEPSCOPE_DISABLE=1) it is the same object and does nothing.

    Args:
        run: the run's name, a folder inside `out`; by default from STEPSCOPE_RUN, Slurm, torchrun or the time.
        out: folder of all runs, reachable by all ranks; or a URL (s3://bucket/runs, any that fsspec writes): ranks
            write into a folder of their node, which a process of lowest priority uploads.
        schedule: which steps to capture (`stepscope.every`); by default steps 4 to 6, on a GPU steps 24 to 26 and a
            light capture of steps 12 to 16, which shows how much the other slowed training.
        ranks: which ranks write traces: "auto" (the first 64), "all", or rank numbers. All write step telemetry.
        mesh: torch DeviceMesh with named dimensions, sizes by name ({"tp": 2, "pp": 2, "dp": 2}), Megatron's
            parallel_state or DeepSpeed's grid; by default what the process knows of these, or STEPSCOPE_MESH.
        enabled: False turns everything off.
        record_shapes: record operator shapes, which say what limits a kernel.
        with_stack: record Python stacks; costs far more than the rest.
        profile_memory: record allocations.
        capture_when: also capture when a rule says so: `stepscope.slow_step()`; by default from
            STEPSCOPE_CAPTURE_WHEN.
        labels: free words to find the run by.
        simulated_compute: the run's layers sleep instead of computing; every report says so.
        stuck_after: seconds after which a step that does not move on is looked into; "auto" goes by the steps before it
            and by the timeout of torch's process groups, "off" never looks; by default from STEPSCOPE_STUCK_AFTER,
            else "auto".
        memory: when to write a snapshot of the GPU's memory: "oom" when it runs out, a number of steps also at each so
            many, "off" never. "oom+history" or "500+history" have torch remember the allocations before, 2 us each; by
            default from STEPSCOPE_MEMORY, else "oom".
        export: libraries that step metrics are handed to (otel, wandb, mlflow), into what the training code has opened
            with them; by default from STEPSCOPE_EXPORT.
        first_step: number of the first step, where the job goes on from a checkpoint; by default a run that is
            continued numbers on from its last step. Schedules count from the first step of each start.
        live_verdict: seconds from one verdict on the running job to the next, "on" (60) or "off": a process of lowest
            priority beside rank 0 works it out, and the nodes' agents show it; by default from
            STEPSCOPE_LIVE_VERDICT, else "off".
        reduce: "view" has a process of lowest priority beside each rank make the view of each trace, some hundred
            kilobytes that `stepscope analyze` takes instead; "off"; by default from STEPSCOPE_REDUCE, else "off".
        keep_traces: with reduce="view" which traces stay once all views of a capture are there: "outliers" (slow ranks,
            those that differ, a median one), "all" or "none"; by default from STEPSCOPE_KEEP_TRACES, else "outliers".
            Traces of requested captures and light ones stay.
        spool: where `out` is a URL, the folder of the node for files until they are uploaded; by default from
            STEPSCOPE_SPOOL, else in the node's temporary directory.
    """
    arguments = dict(locals())
    is_on = arguments.pop("enabled") and not is_disabled(os.environ)
    return Profile(ProfileSettings(**arguments), enabled=is_on)


def is_disabled(environment: Mapping[str, str]) -> bool:
    """Whether STEPSCOPE_DISABLE turns `profile()` off."""
    return environment.get("STEPSCOPE_DISABLE", "").lower() not in {"", "0", "false", "no"}


R = TypeVar("R")

_PARAMETER = "prof"


def profiled(**options: Any) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Decorator that measures a training loop or the steps of one; options as of `stepscope.profile`.

    A function with a parameter `prof` is a training loop: it is given the profile, which begins and ends with the call.
    Any other function is a step of one: each call that returns ends a step, and measuring goes on until the process
    ends.
    """

    def decorate(function: Callable[..., R]) -> Callable[..., R]:
        is_loop = _PARAMETER in inspect.signature(function).parameters
        return _loop(function, options) if is_loop else _step(function, options)

    return decorate


def _loop(function: Callable[..., R], options: dict[str, Any]) -> Callable[..., R]:
    @functools.wraps(function)
    def measured(*args: Any, **kwargs: Any) -> R:
        with profile(**options) as prof:
            return function(*args, **{_PARAMETER: prof} | kwargs)

    return measured


def _step(function: Callable[..., R], options: dict[str, Any]) -> Callable[..., R]:
    begun: list[Profile] = []

    @functools.wraps(function)
    def measured(*args: Any, **kwargs: Any) -> R:
        if not begun:
            begun.append(profile(**options))
            begun[0].__enter__()
        result = function(*args, **kwargs)
        begun[0].step()
        return result

    return measured
