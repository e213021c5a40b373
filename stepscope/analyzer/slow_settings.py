"""Settings of a training that slow it down whatever else it does, such as those for debugging: what to set instead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from stepscope.analyzer.blame.remedies import MAX_ACTIONS
from stepscope.core.documents.analysis import AnalysedJob, Analysis, Verdict
from stepscope.core.documents.training_settings import TrainingSettings
from stepscope.core.vocabulary import HEALTHY_CAUSES, Cause, Notice, Reason

SLOW_SETTING = "slow_setting"
"""Code of the notices."""

_CAUSES = frozenset({Cause.HOST_BOUND, Cause.SYNCHRONIZATION, Cause.INSUFFICIENT_EVIDENCE, Cause.UNEXPLAINED})
"""Verdicts that such a setting may be behind."""
_OTHER_FAULTS = frozenset({Reason.GC, Reason.COMPILE, Reason.STEPS_GET_LONGER})
"""First reasons of verdicts that the records of all steps show to have another fault."""


class SlowSetting(NamedTuple):
    """A setting that slows a job down: what to set, with the present value and its effect.

    Attributes:
        causes: verdicts of which it is the first action.
        on_gpu: it has an effect on jobs with a GPU alone.
        min_ranks: it has an effect on jobs of so many ranks or more.
    """

    action: str
    causes: frozenset[Cause] = _CAUSES
    on_gpu: bool = False
    min_ranks: int = 1

    def affects(self, job: AnalysedJob) -> bool:
        return job.world_size >= self.min_ranks and (job.device_kind == "gpu" or not self.on_gpu)


def slow_settings(settings: TrainingSettings | None, environment: Mapping[str, str]) -> list[SlowSetting]:
    """Settings of a run that slow it down; unknown ones are none."""
    found = []
    blocking = environment.get("CUDA_LAUNCH_BLOCKING", "").strip()
    if blocking not in {"", "0"}:
        action = f"unset CUDA_LAUNCH_BLOCKING (now {blocking}): with it the CPU waits for every kernel that it launches"
        found.append(SlowSetting(action, on_gpu=True))
    if settings is not None and settings.anomaly_mode:
        action = "torch.autograd.set_detect_anomaly(False) (now True): it keeps a stack of each operator of the forward"
        found.append(SlowSetting(f"{action} pass and checks each gradient for NaN"))
    if environment.get("TORCH_DISTRIBUTED_DEBUG", "").strip().upper() == "DETAIL":
        action = "TORCH_DISTRIBUTED_DEBUG=OFF (now DETAIL): with DETAIL ranks compare the arguments of each collective"
        found.append(SlowSetting(f"{action} first", _CAUSES | {Cause.COMMUNICATION}, min_ranks=2))
    if settings is not None and settings.deterministic in {"warn", "error"}:
        action = "torch.use_deterministic_algorithms(False) (now True), unless results have to repeat to the last bit"
        found.append(SlowSetting(f"{action}: deterministic kernels are slower"))
    if settings is not None and _searches_no_convolutions(settings):
        action = (
            "torch.backends.cudnn.benchmark = True (now False): convolutions have the same shapes in every step, so"
        )
        found.append(SlowSetting(f"{action} a search at the start finds the fastest kernels", HEALTHY_CAUSES, True))
    return found


def _searches_no_convolutions(settings: TrainingSettings) -> bool:
    """Whether cuDNN takes kernels by rules of thumb, though the shapes of the convolutions stay the same."""
    backward = settings.backward
    has_fixed_convolutions = backward is not None and backward.num_convolutions and backward.has_fixed_shapes
    return settings.cudnn_benchmark is False and settings.cudnn_deterministic is False and bool(has_fixed_convolutions)


def with_slow_settings(analysis: Analysis, settings: Sequence[SlowSetting]) -> Analysis:
    """The analysis with a notice of each setting that slows the job, which the verdict's actions begin with."""
    slow = [setting for setting in settings if setting.affects(analysis.job)]
    notices = [Notice(SLOW_SETTING, setting.action) for setting in slow]
    verdict = _with_actions(analysis.verdict, slow)
    return replace(analysis, verdict=verdict, warnings=[*analysis.warnings, *notices]) if slow else analysis


def _with_actions(verdict: Verdict, slow: Sequence[SlowSetting]) -> Verdict:
    """The verdict with the settings that may be behind it as its first actions, and as that of its fix."""
    first = [setting.action for setting in slow if verdict.cause in setting.causes]
    if not first or _OTHER_FAULTS.intersection(verdict.reasons[:1]):
        return verdict
    fix = None if verdict.fix is None else replace(verdict.fix, action=first[0])
    return replace(verdict, actions=[*first, *verdict.actions][:MAX_ACTIONS], fix=fix)
