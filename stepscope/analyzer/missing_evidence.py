"""Missing evidence: what the traces of a job lack, how much of its time that leaves unknown, and how to record it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from stepscope.analyzer.ledger.unrecorded_work import Missing
from stepscope.analyzer.rank_view import RankView
from stepscope.core.text.numbers import counted, ranks_words
from stepscope.core.vocabulary import Notice

NOTABLE_SHARE = 0.02
"""Least share of all ranks' windows left unknown from which missing evidence is reported."""


class MissingEvidence(NamedTuple):
    """One kind of missing evidence.

    Attributes:
        what: what is missing, as a sentence without its full stop.
        remedy: how to record it.
        share: part of all ranks' windows together that it leaves unknown.
    """

    kind: Missing
    what: str
    remedy: str
    share: float

    @property
    def is_of_launches(self) -> bool:
        """Whether it is what launches should have left."""
        return self.kind in (Missing.DEVICE, Missing.GRAPH_REPLAYS, Missing.LAUNCHES)

    @property
    def unknown(self) -> str:
        """What is not known, as a sentence without its full stop."""
        question = "why the GPU idled" if self.kind is Missing.LINKS else "what the GPU did"
        return f"{question} in {self.share:.1%} of the time is not known"

    @property
    def notice(self) -> Notice:
        """All of it in one line."""
        return Notice(f"missing_{self.kind}", f"{self.what}: {self.unknown}; {self.remedy}")


def missing_evidence(analysed: Mapping[int, RankView], unrecorded: Iterable[RankView]) -> list[MissingEvidence]:
    """All kinds, the one that leaves most unknown first.

    Args:
        analysed: views by rank.
        unrecorded: views of ranks without device activities, though those of others have some.
    """
    views = {**analysed, **{view.rank: view for view in unrecorded}}
    facts = [view.facts for view in views.values()]
    total = sum(view.window_ns for view in views.values())
    unknown = {kind: sum(of_rank.unknown_ns.get(kind, 0) for of_rank in facts) for kind in Missing}
    found = [
        MissingEvidence(kind, *_words(kind, views), share=nanoseconds / total)
        for kind, nanoseconds in unknown.items()
        if nanoseconds
    ]
    return sorted(found, key=lambda one: -one.share)


def _device_words(views: Mapping[int, RankView]) -> tuple[str, str]:
    """The same of the ranks without device activities."""
    silent = [rank for rank, view in views.items() if Missing.DEVICE in view.facts.unknown_ns]
    where = f" of {ranks_words(silent)}" if len(silent) < len(views) else ""
    launches = sum(views[rank].facts.num_launches for rank in silent)
    if launches:
        what = f"{counted(launches, 'kernel launch')}{where} left no kernel, copy or memset in the trace"
        return what, "record again without another profiler on the GPU; KINETO_LOG_LEVEL=0 shows what was dropped"
    what = f"the machine has GPUs, and the trace{where} holds no GPU activity"
    return what, "profile with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]"


def _words(kind: Missing, views: Mapping[int, RankView]) -> tuple[str, str]:
    """What is missing, and how to record it."""
    facts = [view.facts for view in views.values()]
    launches, lost = sum(f.num_launches for f in facts), sum(f.num_lost for f in facts)
    match kind:
        case Missing.DEVICE:
            return _device_words(views)
        case Missing.GRAPH_REPLAYS:
            replays, empty = sum(f.num_graph_launches for f in facts), sum(f.num_lost_graphs for f in facts)
            what = f"{empty:,} of {counted(replays, 'graph replay')} left no kernels in the trace"
            return what, "profile fewer steps, so that activity buffers do not overflow, or profile without CUDA graphs"
        case Missing.LAUNCHES:
            what = f"{lost:,} of {counted(launches, 'kernel launch')} left no kernel in the trace"
            return what, "profile fewer steps, without another profiler on the GPU"
        case Missing.WAITS:
            what = "synchronizations last 1 ms and more after the last recorded GPU activity"
            return what, "profile fewer steps, and look for other processes on the GPU"
        case Missing.EARLIER_WORK:
            what = "the first kernels wait behind work that was launched before the trace began"
            return what, "call torch.cuda.synchronize() before recording, or use a schedule with warmup steps"
        case Missing.LINKS if launches:
            unlinked, activities = sum(f.num_unlinked for f in facts), sum(f.num_activities for f in facts)
            what = f"{unlinked:,} of {counted(activities, 'GPU activity')} are not linked to a launch"
            return what, "profile with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], and keep all events"
        case Missing.LINKS:
            what = "no kernel launches are recorded"
            return what, "profile with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]"
