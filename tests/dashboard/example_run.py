"""Realistic run: eight ranks, TP 2 x PP 2 x DP 2, that lose most of their time to the pipeline bubble.

A 1F1B schedule of few micro-batches is laid out slice by slice; ledger, causes and verdict are then computed from the
slices, so that every number on a page can be checked against another.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import msgspec

from stepscope.core.documents.analysis import (
    AnalysedJob,
    Analysis,
    Collective,
    CopyTime,
    DimensionCost,
    EvidenceLayer,
    Goodput,
    JobTime,
    KernelFinding,
    KernelTime,
    Ledger,
    MeshSizes,
    NextCause,
    Pipeline,
    PredictedFix,
    RankArrivals,
    RankLedger,
    Roofline,
    RooflineCoverage,
    RootCause,
    SecondaryCause,
    StepLedger,
    TraceQuality,
    Verdict,
    WhatIf,
)
from stepscope.core.documents.run_directory import RUN_FILE, Attempt, RankTimeline, RunManifest
from stepscope.core.vocabulary import CATEGORY_ORDER, Cause, Evidence, Notice, Reason, TimeCategory
from stepscope.store.runs import save_analysis, save_timelines

ORIGIN_NS = 1_785_938_592_123_456_789
NUM_RANKS = 8
NUM_STEPS = 5
NUM_MICRO_BATCHES = 4
FORWARD_US = 7_000
BACKWARD_US = 13_500

Slice = tuple[TimeCategory, int]
"""Heading and duration in ns."""


def make_timelines(*, seed: int = 7) -> list[RankTimeline]:
    """Every rank's slices over NUM_STEPS steps, deterministic for a seed; steps end together, as ranks wait there."""
    chances = [random.Random(seed * 100 + rank) for rank in range(NUM_RANKS)]
    slices: list[list[Slice]] = [[] for _ in range(NUM_RANKS)]
    step_starts: list[list[int]] = [[] for _ in range(NUM_RANKS)]
    for _ in range(NUM_STEPS):
        steps = [_step(stage=rank // 4, chance=chances[rank]) for rank in range(NUM_RANKS)]
        longest = max(_length_ns(step) for step in steps)
        for rank, step in enumerate(steps):
            step_starts[rank].append(_start_ns(rank) + _length_ns(slices[rank]))
            slices[rank] += _padded(step, longest)
    return [_make_timeline(rank, slices[rank], step_starts[rank]) for rank in range(NUM_RANKS)]


def make_analysis(timelines: list[RankTimeline]) -> Analysis:
    """The analysis that belongs to these time lines."""
    ranks = [_rank_ledger(timeline) for timeline in timelines]
    windows = sum(rank.window_ms for rank in ranks)
    ledger: Ledger = {
        heading: sum(rank.ledger[heading] * rank.window_ms for rank in ranks) / windows for heading in CATEGORY_ORDER
    }
    step_ms = sorted(rank.step_ms or 0.0 for rank in ranks)[len(ranks) // 2]
    rows = _root_causes(ledger, step_ms)
    job = AnalysedJob(
        world_size=NUM_RANKS,
        ranks=list(range(NUM_RANKS)),
        missing_ranks=[],
        mesh=MeshSizes(tp=2, pp=2, dp=2),
        gpu="NVIDIA H100 80GB HBM3",
        num_steps=NUM_STEPS,
        step_ms=step_ms,
        unprofiled_step_ms=step_ms * 0.962,
        mfu=0.271,
        hfu=0.271,
    )
    return Analysis(
        job=job,
        trace_quality=TraceQuality(
            collective_args=1.0,
            unmatched_collectives=0.0,
            steps_complete=NUM_STEPS,
            clock_residual_us=11.8,
            profiler_distortion=0.0395,
        ),
        ledger=ledger,
        ranks=ranks,
        root_causes=rows,
        verdict=_verdict(rows, step_ms),
        what_if=_what_if(step_ms),
        collectives=_collectives(),
        communication_by_dimension=[
            DimensionCost("pp", 320, 0.092, 0.002, 0.0, 0.0, 0.0, 0.0),
            DimensionCost("tp", 3840, 0.011, 0.031, 0.0, 0.0, 0.002, 0.0),
            DimensionCost(None, 40, 0.001, 0.0, 0.0, 0.0, 0.0, 0.0),
        ],
        arrivals=[RankArrivals(5, 525, 201, 1.31), RankArrivals(1, 525, 40, 0.2), RankArrivals(0, 525, 0, 0.0)],
        pipeline=Pipeline("1f1b", 2, NUM_MICRO_BATCHES, 1, step_ms, 0.292, 0.201, 0.063, 0.028, 0.2),
        roofline=_roofline(ranks),
        warnings=[
            Notice("no_unprofiled_baseline_rank", "rank 6 recorded no step before the capture; the others' is used.")
        ],
    )


def with_job_time(analysis: Analysis) -> Analysis:
    """The analysis with the training time of 40 steps, most of which goes to data loading on rank 3."""
    step_ms, num_steps = 190.1, 40
    breakdown = {"data_loading": 0.784, "memory_bound": 0.1, "compute_bound": 0.08, "host_bound": 0.036}
    goodput = Goodput(1070.0, num_steps * step_ms, 0.0, 0.0, 0.0, 326.0)
    layers = [EvidenceLayer("telemetry", True, None, ""), EvidenceLayer("counters", True, True, "")]
    job_time = JobTime(
        num_steps=num_steps,
        training_ms=num_steps * step_ms,
        mean_step_ms=step_ms,
        median_step_ms=51.0,
        wall_ms=9000.0,
        basis="telemetry+trace+counters",
        breakdown=breakdown,
        goodput=goodput,
        layers=layers,
        num_settled=34,
    )
    action = "num_workers=10 (now 2)"
    verdict = Verdict(
        cause=Cause.DATA_LOADING,
        reasons=[Reason.STARVED],
        confidence=0.93,
        summary="Data loading: 78.4% of training time",
        ranks=[3],
        evidence=[
            Evidence("share_of_training_time", 0.784, "ratio", 0.1, [3]),
            Evidence("period_of_waits", 2, "batches", ranks=[3]),
            Evidence("waiting_steps", 0.5, "ratio", ranks=[3]),
        ],
        actions=[action, "raise num_workers and prefetch_factor"],
        secondary=[],
        bottleneck=True,
        share=0.784,
        fix=PredictedFix(action, 41.05, 4.63, 0.15, "telemetry"),
        next=NextCause(Cause.HOST_BOUND, 0.036, [Reason.DISPATCH, Reason.PYTHON]),
    )
    return replace(analysis, job_time=job_time, verdict=verdict)


def make_doubtful(timelines: list[RankTimeline]) -> Analysis:
    """The same run from bad traces: two ranks missing, a killed writer, a profiler that slows the step."""
    analysis = make_analysis(timelines)
    return replace(
        analysis,
        job=replace(analysis.job, missing_ranks=[6, 7]),
        trace_quality=replace(
            analysis.trace_quality, truncated_files=1, dropped=3, unmatched_collectives=0.25, profiler_distortion=0.31
        ),
        verdict=replace(analysis.verdict, confidence=0.42),
    )


def write_run(root: Path, name: str = "h100-2x2x2-pp-few", *, started_ns: int = ORIGIN_NS) -> Analysis:
    """Write run.json, analysis.json and timeline.json of the example into root/name; the analysis written."""
    directory = root / name
    directory.mkdir(parents=True)
    write_manifest(directory, name, started_ns=started_ns)
    timelines = make_timelines()
    analysis = make_analysis(timelines)
    save_analysis(directory, analysis)
    save_timelines(directory, timelines)
    return analysis


def write_manifest(directory: Path, name: str, *, started_ns: int = ORIGIN_NS) -> None:
    """Write run.json of a 2x2x2 run into the directory."""
    manifest = RunManifest(
        run=name,
        host="node-a17",
        world_size=NUM_RANKS,
        mesh={"tp": 2, "pp": 2, "dp": 2},
        num_cpus=96,
        versions={"torch": "2.13.0", "stepscope": "0.1.0"},
        environment={},
        attempts=[Attempt(started_ns, started_ns + 90_000_000_000, "finished", NUM_RANKS)],
    )
    (directory / RUN_FILE).write_bytes(msgspec.json.encode(manifest))


def _make_timeline(rank: int, slices: list[Slice], step_starts_ns: list[int]) -> RankTimeline:
    edges = list(accumulate((duration for _, duration in slices), initial=_start_ns(rank)))
    codes = [CATEGORY_ORDER.index(heading) for heading, _ in slices]
    return RankTimeline(rank, edges[:-1], edges[-1], codes, step_starts_ns, list(range(20, 20 + NUM_STEPS)))


def _start_ns(rank: int) -> int:
    return ORIGIN_NS + rank * 37_000


def _length_ns(slices: list[Slice]) -> int:
    return sum(duration for _, duration in slices)


def _padded(step: list[Slice], length_ns: int) -> list[Slice]:
    """The step with its wait for the last rank made longer."""
    missing = length_ns - _length_ns(step)
    return [(heading, duration + missing if heading is TimeCategory.WAIT else duration) for heading, duration in step]


def _step(*, stage: int, chance: random.Random) -> list[Slice]:
    """One step of 1F1B: stage 0 waits for the first backward, stage 1 for the first forward and at the end."""
    slices: list[Slice] = []
    whole = (FORWARD_US + BACKWARD_US) * 1000
    if stage == 0:
        slices += _work(FORWARD_US, chance) + _work(FORWARD_US, chance)
        slices.append((TimeCategory.BUBBLE, whole + chance.randint(0, 400_000)))
    else:
        slices.append((TimeCategory.BUBBLE, FORWARD_US * 1000 + chance.randint(0, 300_000)))
    for micro_batch in range(NUM_MICRO_BATCHES):
        slices += _work(FORWARD_US, chance) if stage == 1 or micro_batch < NUM_MICRO_BATCHES - 2 else []
        slices.append((TimeCategory.COMMUNICATION, chance.randint(180_000, 320_000)))
        slices += _work(BACKWARD_US, chance)
        if micro_batch < NUM_MICRO_BATCHES - 1 and stage == 0:
            slices.append((TimeCategory.BUBBLE, chance.randint(300_000, 900_000)))
    if stage == 1:
        slices.append((TimeCategory.BUBBLE, BACKWARD_US * 1000 + chance.randint(0, 400_000)))
    slices.append((TimeCategory.WAIT, chance.randint(300_000, 2_400_000)))
    slices.append((TimeCategory.COMMUNICATION, chance.randint(2_500_000, 2_900_000)))
    slices.append((TimeCategory.MEMORY_BOUND, chance.randint(3_100_000, 3_300_000)))
    slices.append((TimeCategory.HOST_BOUND, chance.randint(700_000, 1_500_000)))
    return slices


def _work(duration_us: int, chance: random.Random) -> list[Slice]:
    """Kernels of one forward or backward, with a tensor-parallel all-reduce after each block."""
    slices: list[Slice] = []
    for _ in range(6):
        block = duration_us * 1000 // 6
        parts = [
            (TimeCategory.COMPUTE_BOUND, 0.56),
            (TimeCategory.DEVICE_GAP, 0.004),
            (TimeCategory.MEMORY_BOUND, 0.21),
            (TimeCategory.LATENCY_BOUND, 0.02),
            (TimeCategory.COMMUNICATION, 0.12),
            (TimeCategory.COMPUTE_OTHER, 0.05),
            (TimeCategory.HOST_BOUND, 0.036),
        ]
        slices += [(heading, int(block * share * chance.uniform(0.93, 1.07))) for heading, share in parts]
    return slices


def _rank_ledger(timeline: RankTimeline) -> RankLedger:
    ends = [*timeline.step_starts_ns[1:], timeline.end_ns]
    steps = [
        StepLedger(index, (end - start) / 1e6, _ledger_between(timeline, start, end))
        for index, start, end in zip(timeline.step_indices, timeline.step_starts_ns, ends, strict=True)
    ]
    window = timeline.end_ns - timeline.start_ns[0]
    return RankLedger(
        rank=timeline.rank,
        window_ms=window / 1e6,
        step_ms=sorted(step.ms for step in steps)[len(steps) // 2],
        ledger=_ledger_between(timeline, timeline.start_ns[0], timeline.end_ns),
        hidden_communication=0.071 + timeline.rank / 1000,
        steps=steps,
    )


def _ledger_between(timeline: RankTimeline, start: int, end: int) -> Ledger:
    times: Counter[TimeCategory] = Counter()
    edges = [*timeline.start_ns, timeline.end_ns]
    for first, last, code in zip(edges, edges[1:], timeline.categories, strict=False):
        times[CATEGORY_ORDER[code]] += max(0, min(last, end) - max(first, start))
    return {heading: times[heading] / (end - start) for heading in CATEGORY_ORDER}


def _root_causes(ledger: Ledger, step_ms: float) -> list[RootCause]:
    straggler = ledger[TimeCategory.WAIT] * 0.7
    fractions = {
        Cause.PIPELINE_BUBBLE: ledger[TimeCategory.BUBBLE] * 0.78,
        Cause.IMBALANCE: ledger[TimeCategory.BUBBLE] * 0.22,
        Cause.COMPUTE_BOUND: ledger[TimeCategory.COMPUTE_BOUND],
        Cause.MEMORY_BOUND: ledger[TimeCategory.MEMORY_BOUND],
        Cause.LATENCY_BOUND: ledger[TimeCategory.LATENCY_BOUND],
        Cause.COMMUNICATION: ledger[TimeCategory.COMMUNICATION],
        Cause.HOST_BOUND: ledger[TimeCategory.HOST_BOUND],
        Cause.DEVICE_GAP: ledger[TimeCategory.DEVICE_GAP],
        Cause.STRAGGLER: straggler,
        Cause.UNEXPLAINED: ledger[TimeCategory.WAIT] - straggler + ledger[TimeCategory.COMPUTE_OTHER],
    }
    everyone = list(range(NUM_RANKS))
    rows = [
        RootCause(
            cause=cause,
            reasons=[Reason.FEW_MICRO_BATCHES] if cause is Cause.PIPELINE_BUBBLE else [],
            fraction=fraction,
            ms_per_step=fraction * step_ms,
            interval=(fraction * 0.94, fraction * 1.05),
            ranks=[5] if cause is Cause.STRAGGLER else everyone,
            evidence=[],
        )
        for cause, fraction in fractions.items()
    ]
    return sorted(rows, key=lambda row: -row.fraction)


def _verdict(rows: list[RootCause], step_ms: float) -> Verdict:
    row = next(row for row in rows if row.cause is Cause.PIPELINE_BUBBLE)
    return Verdict(
        cause=Cause.PIPELINE_BUBBLE,
        reasons=[Reason.FEW_MICRO_BATCHES],
        confidence=0.97,
        summary=(
            f"The pipeline's schedule leaves every GPU idle for {row.fraction * 100:.1f} % of the step: 2 stages share "
            f"only {NUM_MICRO_BATCHES} micro-batches."
        ),
        ranks=list(range(NUM_RANKS)),
        evidence=[
            Evidence("structural_bubble", 0.201, "fraction", 0.1, list(range(NUM_RANKS))),
            Evidence("micro_batches", NUM_MICRO_BATCHES, "count", 8, []),
            Evidence("bubble_ms_per_step", row.fraction * step_ms, "ms", None, list(range(NUM_RANKS))),
            Evidence("textbook_bubble", 0.2, "fraction", None, []),
        ],
        actions=[
            "Raise the number of micro-batches from 4 to 8 or more at the same global batch size.",
            "If memory does not allow it, use an interleaved schedule with 2 chunks a stage.",
            "Move one transformer layer from stage 1 to stage 0: its backward is the slower one.",
        ],
        secondary=[
            SecondaryCause(
                Cause.COMMUNICATION, rows[3].fraction, "tensor-parallel all-reduces run alone after each block"
            ),
            SecondaryCause(Cause.IMBALANCE, 0.063, "stage 1 carries the output head and is 9 % slower than stage 0"),
        ],
    )


def _what_if(step_ms: float) -> list[WhatIf]:
    return [
        WhatIf(
            Cause.PIPELINE_BUBBLE,
            step_ms * 0.868,
            1 / 0.868,
            calibrated_step_ms=step_ms * 0.833,
            binds_next=Cause.COMPUTE_BOUND,
            replay_error=0.011,
        ),
        WhatIf(
            Cause.COMMUNICATION,
            step_ms * 0.921,
            1 / 0.921,
            calibrated_step_ms=None,
            binds_next=Cause.PIPELINE_BUBBLE,
            replay_error=0.011,
        ),
        WhatIf(
            Cause.IMBALANCE,
            step_ms * 0.957,
            1 / 0.957,
            calibrated_step_ms=None,
            binds_next=Cause.PIPELINE_BUBBLE,
            replay_error=0.011,
        ),
        WhatIf(
            Cause.HOST_BOUND, step_ms * 0.982, 1 / 0.982, calibrated_step_ms=None, binds_next=None, replay_error=0.011
        ),
    ]


def _collectives() -> list[Collective]:
    rows = [
        Collective("0,1", "tp", "all_reduce", 33_554_432, 480, 142.0, 142.0, 210.0, 113.4, 10.2, 0.0, 0.011, 1, 300),
        Collective("0,2", "dp", "reduce_scatter", 268_435_456, 20, 96.4, 48.2, 180.0, 55.7, 26.3, 0.62, 0.94, 5, 19),
        Collective("0,2", "dp", "all_gather", 268_435_456, 20, 103.0, 51.5, 180.0, 52.1, 1.61, 0.71, 0.05, None),
        Collective("0,4", "pp", "p2p", 16_777_216, 40, 61.9, 61.9, None, 10.8, 804.0, 0.0, 20.0, 4, 31),
        Collective("0,1,2,3,4,5,6,7", None, "all_reduce", 4, 5, None, 0.001, 0.002, 0.06, 1.7, 0.0, 0.33, 5, 5),
    ]
    return [
        replace(row, hidden_transfer=row.hidden, hidden_wait=row.hidden / 2, latency_bound=(row.bytes or 0) < 1_000_000)
        for row in rows
    ]


def _roofline(ranks: list[RankLedger]) -> Roofline:
    total = sum(rank.window_ms for rank in ranks)
    gemm, flash = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x256x64_warpgroupsize2x1x1", "flash::flash_bwd_"
    shares = [
        (f"{gemm}_execute", 5760, 0.19, "compute_bound", "model", "aten::mm", "Linear_3"),
        (f"{flash}dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<128, 64, 128>>", 960, 0.08,
         "compute_bound", "model", "aten::_flash_attention_backward", "backward"),
        ("void at::native::vectorized_layer_norm_kernel<c10::BFloat16, float>", 1920, 0.05,
         "memory_bound", "model", "aten::native_layer_norm", "LayerNorm_1"),
        ("void at::native::vectorized_elementwise_kernel<8, GeluCUDAKernelImpl>", 960, 0.04,
         "memory_bound", "model", "aten::gelu", "GELU_0"),
        ("multi_tensor_apply_kernel<FusedAdamMathFunctor>", 40, 0.02,
         "memory_bound", "by_name", "aten::_fused_adamw_", "Optimizer.step#AdamW.step"),
        ("void at::native::reduce_kernel<512, 1, ReduceOp<float>>", 2400, 0.01, "latency_bound", "by_name", None, None),
    ]  # fmt: skip
    kernels = [
        KernelTime(name, calls, share * total, TimeCategory(limit), by, operator=operator, module=module,
                   mean_us=share * total / calls * 1e3)
        for name, calls, share, limit, by, operator, module in shares
    ]  # fmt: skip
    kernels[0] = replace(
        kernels[0],
        roof_share=0.71,
        occupancy=0.1875,
        limiter="registers",
        grid=[2, 64, 1],
        block=[384, 1, 1],
        registers_per_thread=168,
        shared_memory_bytes=213188,
    )
    kernels[3] = replace(kernels[3], roof_share=0.88, occupancy=1.0, limiter="threads", findings=["unfused"])
    kernels[5] = replace(kernels[5], limiter="grid", findings=["small_grid", "tiny_kernels"])
    unfused = "8 % of kernel time is in element-wise kernels, 3 or more in a row, each reading and writing memory anew"
    return Roofline(
        RooflineCoverage(0.83, 0.11, 0.06),
        kernels,
        by_operator=[replace(kernel, name=kernel.operator or "(not known)") for kernel in kernels],
        by_module=[replace(kernel, name=kernel.module or "(not known)") for kernel in kernels],
        by_call=[replace(kernel, name=f"{kernel.operator} [[4096, 1024]]") for kernel in kernels if kernel.operator],
        copies=[
            CopyTime("HtoD (Pageable -> Device)", 40, 88.0, 640_000_000, 7.3, 63.0),
            CopyTime("DtoD (Device -> Device)", 800, 12.0, 9_600_000_000, 800.0, None),
        ],
        findings=[KernelFinding("unfused", 0.04, 0.04 * total, unfused, "torch.compile for chains in the model")],
        tiny_kernels=0.2,
    )
