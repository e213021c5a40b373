"""Small analysed runs for comparisons, made from step times, a time breakdown and optional parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from stepscope.analyzer.compare.run_record import RunRecord
from stepscope.core.documents.analysis import (
    AnalysedJob,
    Analysis,
    Collective,
    KernelTime,
    MeshSizes,
    Pipeline,
    RankLedger,
    Roofline,
    RooflineCoverage,
    RootCause,
    StepLedger,
    TraceQuality,
    Verdict,
)
from stepscope.core.documents.run_directory import RunManifest
from stepscope.core.vocabulary import Cause, TimeCategory


def make_run(
    *step_ms: float,
    name: str = "run",
    ledger: Mapping[TimeCategory, float] | None = None,
    causes: Mapping[Cause, float] | None = None,
    kernels: Sequence[KernelTime] = (),
    collectives: Sequence[Collective] = (),
    unprofiled_ms: Sequence[float] = (),
    mfu: float | None = None,
    manifest: RunManifest | None = None,
) -> RunRecord:
    """A run of one rank whose captured steps took `step_ms`; one more, cut short, follows them as in a trace."""
    shares = {TimeCategory.COMPUTE_BOUND: 1.0} if ledger is None else dict(ledger)
    steps = [*step_ms, step_ms[-1]]
    rank = RankLedger(
        rank=0,
        window_ms=sum(steps),
        step_ms=sum(step_ms) / len(step_ms),
        ledger=shares,
        hidden_communication=0.0,
        steps=[StepLedger(index, ms, shares) for index, ms in enumerate(steps)],
    )
    rows = [_cause(c, share, rank.step_ms or 0.0) for c, share in (causes or {}).items()]
    analysis = Analysis(
        job=AnalysedJob(1, [0], [], MeshSizes(), "NVIDIA H100", len(steps), rank.step_ms, None, mfu, device_kind="gpu"),
        trace_quality=TraceQuality(),
        ledger=shares,
        ranks=[rank],
        root_causes=rows,
        verdict=Verdict(Cause.COMPUTE_BOUND, [], 1.0, "", [], [], [], []),
        what_if=[],
        collectives=list(collectives),
        pipeline=None,
        roofline=Roofline(RooflineCoverage(1.0, 0.0, 0.0), list(kernels)),
        warnings=[],
    )
    return RunRecord(name, analysis, manifest, unprofiled_ms)


def _cause(cause: Cause, share: float, step_ms: float) -> RootCause:
    """A cause with the same share of every step."""
    ms = share * step_ms
    return RootCause(cause, [], share, ms, (share, share), [0], [], (ms, ms))


def with_pipeline(run: RunRecord, *, micro_batches: int, stages: int = 2) -> RunRecord:
    """The run as a pipeline."""
    pipeline = Pipeline("1f1b", stages, micro_batches, 1, 100.0, 0.3, 0.3, 0.0, 0.0, 0.3)
    return replace(run, analysis=replace(run.analysis, pipeline=pipeline))
