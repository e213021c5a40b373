"""Verdict on a job by the counters of its GPUs and hosts alone, as the fleet class of its GPUs."""

from __future__ import annotations

from collections.abc import Mapping

from stepscope.analyzer.counters.rank_signals import RankSignals
from stepscope.analyzer.counters.signal import Signal
from stepscope.analyzer.fleet.classification import classify_gpu, classify_job
from stepscope.analyzer.fleet.samples import SAMPLE_FIELDS, VECTOR_METRICS, GpuFacts, GpuSample, HostUse, largest_known
from stepscope.core.documents.analysis import LayerVerdict
from stepscope.core.documents.jobs import FleetClass
from stepscope.core.protocol.counters import GpuCounters
from stepscope.core.vocabulary import HEALTHY_CAUSES, Cause

MAX_RANKS = 64
"""Ranks whose GPUs are classified, evenly spread over the job."""
MAX_SAMPLES = 1_800
"""Newest samples of a GPU that are looked at: half an hour of them."""
MIN_SAMPLES = 8
_LINKS = ("nvlink_transmit_bytes_per_second", "nvlink_receive_bytes_per_second")


def counters_alone(signals: Mapping[int, RankSignals]) -> LayerVerdict | None:
    """What the GPUs of a job spend time on; None where their counters do not tell."""
    with_gpu = [rank for rank in sorted(signals) if signals[rank].has_gpu]
    ranks = with_gpu[:: -(-len(with_gpu) // MAX_RANKS) or 1]
    classes = {rank: found for rank in ranks if (found := _class_of(signals[rank])) is not None}
    if not classes:
        return None
    job = classify_job(list(classes.values()))
    if job.cause is Cause.INSUFFICIENT_EVIDENCE:
        return None
    places = job.evidence[0].ranks if len(classes) > 1 and job.evidence else []
    named = [list(classes)[place] for place in places]
    return LayerVerdict(
        job.cause,
        list(job.reasons),
        job.confidence,
        named if 0 < len(named) < len(classes) else [],
        job.cause not in HEALTHY_CAUSES,
    )


def _class_of(signals: RankSignals) -> FleetClass | None:
    samples = [sample for gpu in signals.gpus for sample in _samples(gpu)][-MAX_SAMPLES:]
    if len(samples) < MIN_SAMPLES:
        return None
    newest = signals.newest_of_gpu
    facts = GpuFacts(
        power_limit_watts=newest("power_limit_watts"),
        clock_max_hertz=newest("sm_clock_max_hertz"),
        memory_total=newest("memory_total_bytes"),
    )
    return classify_gpu(samples, facts, _host_use(signals))


def _host_use(signals: RankSignals) -> HostUse:
    return HostUse(
        cpus=_mean(signals.rate("process_cpu_seconds_total")),
        stopped_cpus=_mean(signals.rate("cgroup_cpu_throttled_seconds_total")),
        io_wait=_mean(signals.rate("cgroup_pressure_io_some_seconds_total", "pressure_io_some_seconds_total")),
        network_bytes=_mean(signals.rate("infiniband_transmit_bytes_total")),
    )


def _mean(rate: Signal | None) -> float | None:
    return float(rate.total[-1] / rate.known[-1]) if rate is not None and len(rate.known) and rate.known[-1] else None


def _samples(gpu: GpuCounters) -> list[GpuSample]:
    """Samples of one message; the process itself and others hold the GPU."""
    samples = []
    for row, time_ns in enumerate(gpu.times_ns):
        values = {name: column[row] for name, column in gpu.values.items()}
        reasons = gpu.throttle_reasons
        samples.append(
            GpuSample(
                time_ns,
                throttle_reasons=None if reasons is None else frozenset(name for name in reasons if reasons[name][row]),
                vector=largest_known(values, VECTOR_METRICS),
                link_bytes=largest_known(values, _LINKS),
                num_processes=1.0 + (gpu.other_processes or 0),
                **{field: values.get(metric) for metric, field in SAMPLE_FIELDS.items()},
            )
        )
    return samples
