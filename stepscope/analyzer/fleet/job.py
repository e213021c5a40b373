"""What does a job spend its time on? From the classes of its GPUs: whoever does not wait is waited for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from stepscope.analyzer.fleet.limits import LIMITS
from stepscope.core.analysis import Evidence
from stepscope.core.causes import HEALTHY_CAUSES, Cause, Reason
from stepscope.core.counting import counted
from stepscope.core.fleet_class import Counters, FleetClass, TimeShares
from stepscope.core.words import cause_phrase

_FAR_LESS = 1 / 3
"""Of the longest wait: whoever waits for less than this share of it is not waiting for the same."""
_WAITED_FOR = {Cause.IDLE: Cause.HOST_BOUND} | dict.fromkeys(HEALTHY_CAUSES, Cause.STRAGGLER)
"""What is wrong with a GPU that others wait for, where by itself it would be well."""
_OFTEN = 0.5
_STILL = (Cause.HANG, Cause.IDLE, Cause.INSUFFICIENT_EVIDENCE)
_WORST_FIRST = (Counters.NONE, Counters.POWER, Counters.PIPES, Counters.SM)


def class_of_job(classes: Sequence[FleetClass]) -> FleetClass:
    """The class of a job from those of its GPUs, in the order of the job's GPUs; evidence names them by that order.

    GPUs in a collective wait for the last to come. So where some wait and others hardly do, the job's cause is that of
    the others, and `straggler` where they compute. Where all wait, it is the communication itself, or a GPU of another
    node. A hang is the job's when no GPU of it works: one that saves its state for minutes is only waited for.

    Raises:
        ValueError: there is no GPU.
    """
    if not classes:
        raise ValueError("a job without GPUs has no class")
    hanging = [at for at, one in enumerate(classes) if one.cause is Cause.HANG]
    working = [at for at, one in enumerate(classes) if one.cause not in _STILL]
    if hanging and not working:
        return _joined(classes, Cause.HANG, hanging, ())
    waits = [one.shares.waiting for one in classes if one.shares is not None and one.shares.waiting is not None]
    if len(waits) == len(classes) and max(waits) >= LIMITS.named_loss:
        last = [at for at, wait in enumerate(waits) if wait <= _FAR_LESS * max(waits)]
        longest = Evidence("waiting_ratio", max(waits), "ratio", LIMITS.named_loss, [waits.index(max(waits))])
        if not last:
            return _joined(classes, Cause.COMMUNICATION, range(len(classes)), (longest,))
        cause = _most([classes[at].cause for at in last])
        return _joined(classes, _WAITED_FOR.get(cause, cause), last, (longest,))
    cause = _most([one.cause for one in classes])
    return _joined(classes, cause, [at for at, one in enumerate(classes) if one.cause is cause], ())


def _most(causes: Sequence[Cause]) -> Cause:
    return Counter(causes).most_common(1)[0][0]


def _joined(
    classes: Sequence[FleetClass], cause: Cause, which: Sequence[int], evidence: tuple[Evidence, ...]
) -> FleetClass:
    """The class that some of the GPUs stand for."""
    standing = [classes[at] for at in which]
    agreeing = [one for one in standing if one.cause is cause] or standing
    reasons: tuple[Reason, ...] = tuple(dict.fromkeys(reason for one in agreeing for reason in one.reasons))
    shares = _shares(classes)
    where = (
        f"GPU {', '.join(map(str, which))} of {len(classes)}"
        if len(which) < len(classes)
        else counted(len(classes), "GPU")
    )
    return FleetClass(
        cause,
        () if cause is Cause.STRAGGLER else reasons,
        round(_mean([one.confidence for one in agreeing]) * (1.0 if len(standing) > _OFTEN * len(classes) else 0.8), 2),
        f"{cause_phrase(cause)}: {where}",
        (Evidence("gpus", len(which), "", None, list(which)), *evidence, *agreeing[0].evidence),
        shares,
        min((one.counters for one in classes), key=_WORST_FIRST.index),
        min(one.begin_ns for one in classes),
        max(one.end_ns for one in classes),
        sum(one.num_samples for one in classes),
    )


def _shares(classes: Sequence[FleetClass]) -> TimeShares | None:
    """Averages; None where one GPU's are not known."""
    known = [one.shares for one in classes if one.shares is not None]
    if len(known) < len(classes):
        return None
    computing = [share.computing for share in known if share.computing is not None]
    waiting = [share.waiting for share in known if share.waiting is not None]
    whole = len(computing) == len(waiting) == len(classes)
    return TimeShares(
        _mean(computing) if whole else None,
        _mean(waiting) if whole else None,
        _mean([share.copying for share in known]),
        _mean([share.empty for share in known]),
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
