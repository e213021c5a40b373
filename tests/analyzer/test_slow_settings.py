"""Settings that are a fault by themselves are named in every analysis, and first where they may be what is slow."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stepscope.analyzer.slow_settings import SLOW_SETTING, slow_settings, with_slow_settings
from stepscope.analyzer.summaries import JobContext
from stepscope.core.documents.analysis import Analysis, KernelTime, PredictedFix
from stepscope.core.documents.training_settings import BackwardSettings, TrainingSettings
from stepscope.core.vocabulary import Cause, Reason, TimeCategory
from tests.analyzer.build import TraceBuilder
from tests.analyzer.readings import analyse

_BLOCKING, _DETAIL = {"CUDA_LAUNCH_BLOCKING": "1"}, {"TORCH_DISTRIBUTED_DEBUG": "detail"}
_ANOMALY, _DETERMINISTIC = TrainingSettings(anomaly_mode=True), TrainingSettings(deterministic="warn")


def _starts(found: list[str]) -> list[str]:
    return [text.partition(" (now ")[0] for text in found]


@pytest.mark.parametrize(
    ("settings", "environment", "actions"),
    [
        (None, {}, []),
        (TrainingSettings(), {"CUDA_LAUNCH_BLOCKING": "0", "TORCH_DISTRIBUTED_DEBUG": "INFO"}, []),
        (TrainingSettings(anomaly_mode=False, deterministic="default"), {"CUDA_LAUNCH_BLOCKING": ""}, []),
        (None, _BLOCKING, ["unset CUDA_LAUNCH_BLOCKING"]),
        (None, _DETAIL, ["TORCH_DISTRIBUTED_DEBUG=OFF"]),
        (_ANOMALY, {}, ["torch.autograd.set_detect_anomaly(False)"]),
        (_DETERMINISTIC, {}, ["torch.use_deterministic_algorithms(False)"]),
        (_ANOMALY, _BLOCKING, ["unset CUDA_LAUNCH_BLOCKING", "torch.autograd.set_detect_anomaly(False)"]),
    ],
)
def test_which_settings_are_slow(
    settings: TrainingSettings | None, environment: dict[str, str], actions: list[str]
) -> None:
    assert _starts([one.action for one in slow_settings(settings, environment)]) == actions


def _of_gpu() -> Analysis:
    trace = TraceBuilder()
    for place in range(3):
        begin = 1_000 + place * 80_000
        trace.step(4 + place, begin, begin + 80_000)
        trace.kernel(begin + 10, begin + 40_010, launch=begin + 1)
    return analyse(trace)


def _analysis(cause: Cause, reasons: list[Reason], **job: Any) -> Analysis:
    analysis = _of_gpu()
    verdict = replace(
        analysis.verdict,
        cause=cause,
        reasons=reasons,
        actions=["own"],
        fix=PredictedFix("own", 40.0, 2.0, 0.1, "model"),
    )
    return replace(analysis, verdict=verdict, job=replace(analysis.job, **job))


@pytest.mark.parametrize(
    ("cause", "reasons", "is_first"),
    [
        (Cause.HOST_BOUND, [], True),
        (Cause.HOST_BOUND, [Reason.DISPATCH], True),
        (Cause.SYNCHRONIZATION, [Reason.READS_VALUE], True),
        (Cause.INSUFFICIENT_EVIDENCE, [], True),
        (Cause.HOST_BOUND, [Reason.GC], False),
        (Cause.UNEXPLAINED, [Reason.STEPS_GET_LONGER], False),
        (Cause.DATA_LOADING, [], False),
        (Cause.COMPUTE_BOUND, [], False),
    ],
)
def test_the_first_action_is_the_setting_where_it_may_be_what_is_slow(
    cause: Cause, reasons: list[Reason], is_first: bool
) -> None:
    analysis = with_slow_settings(_analysis(cause, reasons), slow_settings(_ANOMALY, {}))
    text = slow_settings(_ANOMALY, {})[0].action
    assert analysis.verdict.fix is not None
    assert analysis.verdict.actions == ([text, "own"] if is_first else ["own"])
    assert analysis.verdict.fix.action == analysis.verdict.actions[0]
    assert [notice.message for notice in analysis.warnings if notice.code == SLOW_SETTING] == [text]


def test_a_setting_without_effect_on_the_job_is_not_named() -> None:
    blocking, detail = slow_settings(None, _BLOCKING | _DETAIL)
    on_cpu = _analysis(Cause.HOST_BOUND, [], device_kind="cpu")
    assert with_slow_settings(on_cpu, [blocking, detail]) == on_cpu
    two_ranks = _analysis(Cause.COMMUNICATION, [], world_size=2)
    assert with_slow_settings(two_ranks, [blocking, detail]).verdict.actions == [detail.action, "own"]


def test_the_analysis_of_a_trace_has_them() -> None:
    trace = TraceBuilder()
    trace.step(4, 1_000, 81_000)
    trace.kernel(1_010, 41_010, launch=1_001)
    settings = slow_settings(None, _BLOCKING)
    analysis = analyse(trace, context=JobContext(slow_settings=settings))
    assert settings[0].action in [notice.message for notice in analysis.warnings]


def test_a_search_for_convolutions_needs_fixed_shapes_and_is_no_fault_without_convolutions() -> None:
    fixed = BackwardSettings(1, num_convolutions=3, has_fixed_shapes=True)
    off = TrainingSettings(cudnn_benchmark=False, cudnn_deterministic=False, backward=fixed)
    [setting] = slow_settings(off, {})
    assert setting.action.startswith("torch.backends.cudnn.benchmark = True (now False)")
    assert setting.on_gpu
    for others in (
        replace(off, cudnn_benchmark=True),
        replace(off, cudnn_deterministic=True),
        replace(off, backward=replace(fixed, has_fixed_shapes=None)),
        replace(off, backward=replace(fixed, num_convolutions=0)),
        replace(off, backward=None),
    ):
        assert slow_settings(others, {}) == []


@pytest.mark.parametrize(("convolution_ms", "is_named"), [(1.0, False), (20.0, True)])
def test_a_search_for_convolutions_is_not_named_where_they_take_next_to_nothing(
    convolution_ms: float, is_named: bool
) -> None:
    fixed = BackwardSettings(1, num_convolutions=1, has_fixed_shapes=True)
    settings = slow_settings(TrainingSettings(cudnn_benchmark=False, cudnn_deterministic=False, backward=fixed), {})
    analysis = _analysis(Cause.COMPUTE_BOUND, [])
    analysis = replace(analysis, roofline=replace(analysis.roofline, kernels=[]))
    assert with_slow_settings(analysis, settings).verdict.actions[0] == settings[0].action, "no kernels are known"
    kernels = [
        KernelTime("gemm", 1, 80.0, TimeCategory.COMPUTE_BOUND, "name", operation="matmul"),
        KernelTime("conv", 1, convolution_ms, TimeCategory.COMPUTE_BOUND, "name", operation="convolution"),
    ]
    analysis = replace(analysis, roofline=replace(analysis.roofline, kernels=kernels))
    judged = with_slow_settings(analysis, settings)
    assert (judged.verdict.actions[0] == settings[0].action) == is_named
    assert bool(judged.warnings) == is_named
