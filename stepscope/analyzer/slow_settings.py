"""Settings of a training that slow it down whatever else it does, such as those for debugging: what to set instead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from stepscope.analyzer.blame.remedies import MAX_ACTIONS
from stepscope.analyzer.knobs import Options
from stepscope.analyzer.rank_view import RankView
from stepscope.core.documents.analysis import Analysis, KernelTime, Verdict
from stepscope.core.documents.training_settings import TrainingSettings
from stepscope.core.vocabulary import HEALTHY_CAUSES, Cause, Evidence, Notice, Reason

SLOW_SETTING = "slow_setting"
"""Code of the notices."""

_CAUSES = frozenset({Cause.HOST_BOUND, Cause.SYNCHRONIZATION, Cause.INSUFFICIENT_EVIDENCE, Cause.UNEXPLAINED})
"""Verdicts that such a setting may be behind."""
_OTHER_FAULTS = frozenset({Reason.GC, Reason.COMPILE, Reason.STEPS_GET_LONGER})
"""First reasons of verdicts that the records of all steps show to have another fault."""


_ANOMALY_CHECKS = 0.5
"""Least share of checked results of the backward pass for it to run in anomaly mode: operators that give nothing have
none, and checks that a training makes itself, in hooks of parameters, are of operators that accumulate gradients."""


_NCCL_SWITCHES = {
    "NCCL_P2P_DISABLE": "GPUs of a machine exchange data through its memory instead of NVLink or PCIe",
    "NCCL_SHM_DISABLE": "GPUs of a machine without a direct link exchange data over the network",
    "NCCL_IB_DISABLE": "machines exchange data over TCP instead of InfiniBand or RoCE",
}
"""Variables that take a fast way from NCCL, and what is left."""


class SlowSetting(NamedTuple):
    """A setting that slows a job down: what to set, with the present value and its effect.

    Attributes:
        causes: verdicts of which it is the first action.
        on_gpu: it has an effect on jobs with a GPU alone.
        min_ranks: it has an effect on jobs of so many ranks or more.
        evidence: what shows it, where it is not a setting of the run.
        operation: it has an effect on kernels of this operation alone; empty: on others too.
    """

    action: str
    causes: frozenset[Cause] = _CAUSES
    on_gpu: bool = False
    min_ranks: int = 1
    evidence: tuple[Evidence, ...] = ()
    operation: str = ""

    def affects(self, analysis: Analysis) -> bool:
        job = analysis.job
        is_able = job.world_size >= self.min_ranks and (job.device_kind == "gpu" or not self.on_gpu)
        return is_able and _share_of(self.operation, analysis.roofline.kernels) >= _NOTABLE_SHARE


_NOTABLE_SHARE = 0.1
"""Least share of the kernels' time for a setting of one operation to be named: it gains a part of that."""


def _share_of(operation: str, kernels: Sequence[KernelTime]) -> float:
    """Share of an operation in the time of a trace's kernels; 1 where no trace tells it."""
    total = sum(kernel.ms for kernel in kernels if kernel.operation)
    if not operation or total <= 0:
        return 1.0
    return sum(kernel.ms for kernel in kernels if kernel.operation == operation) / total


def slow_settings(settings: TrainingSettings | None, environment: Mapping[str, str]) -> list[SlowSetting]:
    """Settings of a run that slow it down; unknown ones are none."""
    found = []
    blocking = environment.get("CUDA_LAUNCH_BLOCKING", "").strip()
    if blocking not in {"", "0"}:
        action = f"unset CUDA_LAUNCH_BLOCKING (now {blocking}): with it the CPU waits for every kernel that it launches"
        found.append(SlowSetting(action, on_gpu=True))
    if settings is not None and settings.anomaly_mode:
        found.append(SlowSetting(_anomaly_action(Options(settings))))
    if environment.get("TORCH_DISTRIBUTED_DEBUG", "").strip().upper() == "DETAIL":
        action = "TORCH_DISTRIBUTED_DEBUG=OFF (now DETAIL): with DETAIL ranks compare the arguments of each collective"
        found.append(SlowSetting(f"{action} first", _CAUSES | {Cause.COMMUNICATION}, min_ranks=2))
    for name, effect in _NCCL_SWITCHES.items():
        if environment.get(name, "").strip() not in {"", "0"}:
            action = f"unset {name} (now {environment[name]}): {effect}"
            found.append(SlowSetting(action, frozenset({Cause.COMMUNICATION}), on_gpu=True, min_ranks=2))
    if settings is not None and settings.deterministic in {"warn", "error"}:
        action = f"{Options(settings).text('deterministic')}, unless results have to repeat to the last bit"
        found.append(SlowSetting(f"{action}: deterministic kernels are slower"))
    if settings is not None and _searches_no_convolutions(settings):
        action = f"{Options(settings).text('cudnn_benchmark')}: convolutions have the same shapes in every step, so"
        found.append(
            SlowSetting(
                f"{action} a search at the start finds the fastest kernels",
                HEALTHY_CAUSES,
                on_gpu=True,
                operation="convolution",
            )
        )
    return found


def traced_settings(views: Mapping[int, RankView], known: Sequence[SlowSetting]) -> list[SlowSetting]:
    """Settings that a trace shows and the settings of the run do not.

    Anomaly mode checks what each operator of the backward pass gives: `isnan().any().item()` in the engine's span.
    """
    action = _anomaly_action(Options())
    share = max((view.facts.checked_gradients for view in views.values()), default=0.0)
    if share < _ANOMALY_CHECKS or any(_ANOMALY_EFFECT in setting.action for setting in known):
        return []
    return [SlowSetting(action, evidence=(Evidence("gradients_checked_for_nan", share, "ratio", _ANOMALY_CHECKS),))]


_ANOMALY_EFFECT = "it keeps a stack of each operator of the forward pass and checks each gradient for NaN"


def _anomaly_action(options: Options) -> str:
    option = options.text("anomaly_mode", False)
    return f"{option if '(now' in option else f'{option} (now True)'}: {_ANOMALY_EFFECT}"


def _searches_no_convolutions(settings: TrainingSettings) -> bool:
    """Whether cuDNN takes kernels by rules of thumb, though the shapes of the convolutions stay the same."""
    backward = settings.backward
    has_fixed_convolutions = backward is not None and backward.num_convolutions and backward.has_fixed_shapes
    return settings.cudnn_benchmark is False and settings.cudnn_deterministic is False and bool(has_fixed_convolutions)


def with_slow_settings(analysis: Analysis, settings: Sequence[SlowSetting]) -> Analysis:
    """The analysis with a notice of each setting that slows the job, which the verdict's actions begin with."""
    slow = [setting for setting in settings if setting.affects(analysis)]
    notices = [Notice(SLOW_SETTING, setting.action) for setting in slow]
    verdict = _with_actions(analysis.verdict, slow)
    return replace(analysis, verdict=verdict, warnings=[*analysis.warnings, *notices]) if slow else analysis


def _with_actions(verdict: Verdict, slow: Sequence[SlowSetting]) -> Verdict:
    """The verdict with the settings that may be behind it as its first actions, and as that of its fix."""
    behind = [setting for setting in slow if verdict.cause in setting.causes]
    first = [setting.action for setting in behind]
    if not first or _OTHER_FAULTS.intersection(verdict.reasons[:1]):
        return verdict
    fix = None if verdict.fix is None else replace(verdict.fix, action=first[0])
    evidence = [*verdict.evidence, *(item for setting in behind for item in setting.evidence)]
    return replace(verdict, actions=[*first, *verdict.actions][:MAX_ACTIONS], fix=fix, evidence=evidence)
