"""Recorded pages of small clusters, and questions about them, as hypothesis makes them up."""

from __future__ import annotations

from hypothesis import strategies as st

from benchmarks.history.servers import RecordedPage, Series
from stepscope.store.history.questions import GroupBy, Labels, Question, Statistic

POWER, ENERGY = "stepscope_gpu_power_watts", "stepscope_gpu_energy_joules_total"


def labels(**values: str) -> Labels:
    """Labels, sorted."""
    return tuple(sorted(values.items()))


def job_info(gpu: Labels, job: str, share: str = "exclusive") -> Series:
    """The series of a GPU's job."""
    return "stepscope_gpu_job_info", labels(**dict(gpu), job_kind="slurm", job_id=job, share=share, source="process")


@st.composite
def recorded_pages(draw: st.DrawFn, cluster: str, begin_ms: int) -> list[RecordedPage]:
    """Pages of some minutes of a cluster: gaps, counters that restart, jobs that change, GPUs that jobs share."""
    pages = []
    for node in range(draw(st.integers(1, 3))):
        target = labels(instance=f"n{node}:9455", rack=f"r{node % 2}", cluster=cluster)
        time_ms = begin_ms + draw(st.integers(-5_000, 5_000))
        totals = [0.0, 1e6]
        for _ in range(draw(st.integers(1, 20))):
            if draw(st.integers(0, 5)) == 0:
                pages.append(RecordedPage(target, time_ms, None))
            else:
                values: dict[Series, float] = {}
                for number, gpu in enumerate((labels(gpu="0", uuid=f"A{node}"), labels(gpu="1", uuid=f"B{node}"))):
                    if draw(st.integers(0, 7)) == 0:
                        continue
                    values[POWER, gpu] = draw(st.floats(1.0, 1000.0))
                    totals[number] += draw(st.floats(0.0, 1e4))
                    if draw(st.integers(0, 9)) == 0:
                        totals[number] = draw(st.floats(0.0, 10.0))  # the driver was loaded again
                    values[ENERGY, gpu] = totals[number]
                    jobs = draw(st.sampled_from(["", "1", "1", "2", "1 2"])).split()
                    share = (
                        draw(st.sampled_from(["exclusive", "exclusive", "mps"])) if len(jobs) == 1 else "time_sliced"
                    )
                    for job in jobs:
                        values[job_info(gpu, job, share)] = 1.0
                for job, facts in (("1", {"user": "ann", "team": "vision"}), ("2", {"user": "bob"})):
                    values["stepscope_job_info", labels(job_kind="slurm", job_id=job, **facts)] = 1.0
                pages.append(RecordedPage(target, time_ms, values))
            time_ms += draw(st.sampled_from([5_000, 10_000, 10_000, 9_997, 10_001, 10_003, 25_000]))
    return pages


questions = st.builds(
    Question,
    metric=st.sampled_from([POWER, POWER, ENERGY]),
    by=st.lists(st.sampled_from([group for group in GroupBy if group is not GroupBy.RANK]), unique=True).map(tuple),
    statistic=st.sampled_from(Statistic),
    where=st.dictionaries(
        st.sampled_from(["rack", "job_id", "user", "uuid", "gpu_instance"]),
        st.sampled_from(["r0", ("r0", "r1"), "1", ("1", "2"), "ann", "A0", (), ""]),
        max_size=1,
    ),
)
