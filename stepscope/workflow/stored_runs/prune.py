"""Deletion of stored runs by age, size and name: never one that is still written, and no half of one."""

from __future__ import annotations

import time
from dataclasses import dataclass
from fnmatch import fnmatchcase

from stepscope.core.documents.stored_runs import PrunedRun, PruneReport, RunBytes, RunList, StoredRun
from stepscope.core.errors import StepscopeError, UsageError
from stepscope.core.text.numbers import counted, listed
from stepscope.core.vocabulary import Notice
from stepscope.workflow.inputs.object_stores import store_errors
from stepscope.workflow.stored_runs.places import FoundRun, RunsPlace, open_place
from stepscope.workflow.stored_runs.states import state_of


@dataclass(frozen=True, slots=True)
class PruneRules:
    """Which runs to delete: those that fit all the rules that are set.

    Attributes:
        names: patterns of names, as of a shell; empty for all runs.
        older_than_seconds: since the run was last written.
        larger_than_bytes: the run, or with `traces_only` its traces.
        keep_total_bytes: delete, the oldest first, only until all runs together have at most so many.
        traces_only: delete the traces alone.
        with_other_files: delete also runs with files that are not part of a run, checkpoints among them.
    """

    names: tuple[str, ...] = ()
    older_than_seconds: float | None = None
    larger_than_bytes: int | None = None
    keep_total_bytes: int | None = None
    traces_only: bool = False
    with_other_files: bool = False

    def check(self) -> None:
        """Refuse rules that would name every run.

        Raises:
            UsageError: none is set.
        """
        limits = (self.older_than_seconds, self.larger_than_bytes, self.keep_total_bytes)
        if not self.names and all(limit is None for limit in limits):
            raise UsageError(
                "no rule says which runs to delete", what_next="give --older-than, --larger-than, --keep-total or --run"
            )

    def freed_bytes(self, run: StoredRun) -> int:
        """What deleting this run would free."""
        return run.bytes.traces if self.traces_only else run.total_bytes

    def fits(self, run: StoredRun, now_ns: int) -> bool:
        """Whether the run is old and large enough and has one of the names."""
        if self.names and not any(fnmatchcase(run.name, pattern) for pattern in self.names):
            return False
        if self.larger_than_bytes is not None and self.freed_bytes(run) <= self.larger_than_bytes:
            return False
        if self.older_than_seconds is None:
            return True
        return run.written_ns is not None and now_ns - run.written_ns > self.older_than_seconds * 1e9


def list_runs(where: str) -> RunList:
    """The runs in a folder or below a URL with their sizes, the oldest first.

    Raises:
        DataError, UnreachableError: it does not exist or cannot be listed.
    """
    return _listed(open_place(where))


def _listed(place: RunsPlace) -> RunList:
    now_ns = time.time_ns()
    runs = sorted((_stored(run, now_ns) for run in place.runs()), key=_by_age)
    total = sum((run.bytes for run in runs), RunBytes())
    warnings = []
    if leftovers := place.leftovers():
        what = f"{counted(len(leftovers), 'deletion')} of `stepscope runs prune` did not finish; the next prune ends it"
        warnings.append(Notice("unfinished_prune", f"{place.where}: {what}"))
    return RunList(place.where, runs, total, total.total, warnings)


def _by_age(run: StoredRun) -> tuple[int, str]:
    return run.written_ns or 0, run.name


def _stored(run: FoundRun, now_ns: int) -> StoredRun:
    state, why = state_of(run.sizes, run.manifest, run.uploads, run.locked, now_ns)
    manifest = run.manifest
    return StoredRun(
        name=run.name,
        path=run.path,
        state=state,
        why=why,
        started_ns=manifest.attempts[0].start_ns if manifest is not None and manifest.attempts else None,
        written_ns=run.sizes.written_ns if run.sizes.is_timed else None,
        world_size=None if manifest is None else manifest.world_size,
        num_files=run.sizes.num_files,
        bytes=run.sizes.bytes,
        total_bytes=run.sizes.bytes.total,
        other_files=run.sizes.other_files,
    )


def plan_prune(runs: RunList, rules: PruneRules, *, now_ns: int) -> PruneReport:
    """What a prune by these rules would delete of these runs, and which runs that they name it would keep."""
    left, pruned = runs.total_bytes, []
    for run in runs.runs:
        is_enough = rules.keep_total_bytes is not None and left <= rules.keep_total_bytes
        if is_enough or not rules.fits(run, now_ns):
            continue
        freed, why = rules.freed_bytes(run), _why_kept(run, rules)
        if not freed and rules.traces_only:
            continue
        left -= 0 if why else freed
        pruned.append(PrunedRun(run.name, run.path, 0 if why else freed, bool(why), why))
    warnings = [*runs.warnings, *_unmet(runs, rules, left)]
    freed = runs.total_bytes - left
    return PruneReport(runs.where, True, rules.traces_only, pruned, freed, left, warnings)


def _unmet(runs: RunList, rules: PruneRules, left: int) -> list[Notice]:
    """Notices of names that no run has, and of a total that stays too large."""
    absent = [name for name in rules.names if not any(fnmatchcase(run.name, name) for run in runs.runs)]
    notices = [Notice("unknown_run", f"{runs.where}: has no run {listed(absent)}")] if absent else []
    if rules.keep_total_bytes is not None and left > rules.keep_total_bytes:
        text = f"{runs.where}: the runs that are left are still larger than --keep-total, but no other may be deleted"
        notices.append(Notice("total_too_large", text))
    return notices


def _why_kept(run: StoredRun, rules: PruneRules) -> str:
    """Why a run that the rules name is kept; empty where it is deleted."""
    if run.state.is_written:
        return f"still written: {run.why}"
    if rules.traces_only:
        return "" if run.bytes.total > run.bytes.traces else "it has nothing but traces"
    if run.other_files and not rules.with_other_files:
        return f"it holds other files ({listed(run.other_files, 3)}); add --with-other-files to delete them too"
    return ""


class Pruning:
    """A prune in two steps: what it would do, and doing it.

    Raises:
        UsageError: no rule is set.
        DataError, UnreachableError: the place does not exist or cannot be listed.
    """

    def __init__(self, where: str, rules: PruneRules) -> None:
        rules.check()
        self._rules = rules
        self._place = open_place(where)
        self.plan = plan_prune(_listed(self._place), rules, now_ns=time.time_ns())

    def carry_out(self) -> PruneReport:
        """Delete; each run is looked at again first, and kept where it is written by now or cannot be deleted."""
        warnings = [notice for notice in self.plan.warnings if notice.code != "unfinished_prune"]
        for leftover in self._place.leftovers():
            try:
                self._place.finish(leftover)
            except store_errors() as error:
                warnings.append(Notice("not_deleted", f"{leftover}: cannot be deleted ({error})"))
        runs = [run if run.is_kept else self._prune(run) for run in self.plan.runs]
        freed = sum(run.freed_bytes for run in runs)
        left = self.plan.left_bytes + self.plan.freed_bytes - freed
        return PruneReport(self.plan.where, False, self._rules.traces_only, runs, freed, left, warnings)

    def _prune(self, planned: PrunedRun) -> PrunedRun:
        try:
            found = self._place.find(planned.name)
            if found is None:
                return PrunedRun(planned.name, planned.path, 0, True, "it is gone already")
            why = found.refused or _why_kept(_stored(found, time.time_ns()), self._rules)
            if why:
                return PrunedRun(planned.name, planned.path, 0, True, why)
            self._place.delete(found, traces_only=self._rules.traces_only)
        except (StepscopeError, *store_errors()) as error:  # type: ignore[misc]
            reason = getattr(error, "strerror", None) or str(error)
            return PrunedRun(planned.name, planned.path, 0, True, f"it cannot be deleted: {reason}")
        return planned
