"""Hang by the reports of steps that did not end, where no flight recorder tells more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from stepscope.analyzer.dumps.records import Ending, JobRecords
from stepscope.core.text.numbers import form, ranks_words
from stepscope.core.vocabulary import Cause, Evidence, Reason

_PERHAPS, _UNKNOWN = 0.6, 0.3
LOOK_AT_STACKS = "look at flight/rank<r>.stacks.txt of the run: what each thread does"
_WAIT_FOR_DATA = "the wait for data"


class StuckStep(NamedTuple):
    """Step of a rank that did not end.

    Attributes:
        where: the innermost collective, phase or function that has a name.
        is_still: False where the rank makes progress.
        is_in_collective: a collective of the rank is unfinished.
    """

    rank: int
    step: int
    began_ns: int
    where: str
    is_still: bool
    is_in_collective: bool


def stuck_ending(stuck: Sequence[StuckStep], records: JobRecords) -> Ending | None:
    """The hang by stuck steps; None where ranks make progress, trained on, or are not this job's."""
    now = [one for one in stuck if not records.is_of_earlier_attempt(one.began_ns)]
    went_on = any(records.went_on_ns(one.rank, one.began_ns) is not None for one in now)
    is_foreign = any(one.rank >= records.world_size for one in now)
    if not now or went_on or is_foreign or not all(one.is_still for one in now):
        return None
    if records.may_have_gone_on([one.rank for one in now]):
        return None
    apart = [one for one in now if not one.is_in_collective]
    are_named = bool(apart) and (len(apart) < len(now) or records.world_size == 1)
    shown = apart if are_named else now
    ranks = [one.rank for one in shown]
    beside = ", outside of the collective that the others wait in" if are_named and len(apart) < len(now) else ""
    stand = form(len(ranks), "stands", "stand")
    return Ending(
        Cause.HANG,
        [Reason.HOST] if are_named and all(one.where == _WAIT_FOR_DATA for one in apart) else [],
        ranks if are_named else [],
        _PERHAPS if are_named else _UNKNOWN,
        f"{ranks_words(ranks)} {stand} still in step {shown[0].step}, in {shown[0].where}{beside}",
        [Evidence("stuck_steps", len(now), "stuck steps", ranks=[one.rank for one in now])],
        [LOOK_AT_STACKS],
    )
