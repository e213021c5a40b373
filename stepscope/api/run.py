"""Run: one analysed job; its verdict, frames of its parts, and figures."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pandas as pd

from stepscope.api.inputs import Path as PathName
from stepscope.api.inputs import path_names, read_entering, read_records
from stepscope.api.tables import plain, table
from stepscope.core.documents.analysis import (
    Analysis,
    Collective,
    CopyTime,
    KernelFinding,
    KernelTime,
    Pipeline,
    RankArrivals,
    RootCause,
    Verdict,
    WhatIf,
)
from stepscope.core.documents.run_directory import RankTimeline, StepReport, StepRow
from stepscope.core.documents.what_if import Fix, WhatIfReport
from stepscope.core.errors import StepscopeError, UsageError
from stepscope.core.text.numbers import unknown_name
from stepscope.core.vocabulary import CATEGORY_ORDER, Cause, Notice

if TYPE_CHECKING:
    import plotly.graph_objects as go

_KERNELS_BY = {"name": "kernels", "operator": "by_operator", "module": "by_module", "call": "by_call"}
_CATEGORIES = [category.value for category in CATEGORY_ORDER]


def load(paths: PathName | Sequence[PathName], *, capture: int | None = None, keep: bool = True) -> Run:
    """Load a run: a run directory, a folder or archive of traces, files, a URL, or a saved analysis.json.

    Nothing is read before it is asked for, and nothing twice: load again for what a job has written since. An analysis
    that the run directory keeps is used if it is as new as its traces.

    Args:
        capture: which one, where there are several of the same processes, counted from 1; None for the latest.
        keep: whether to save a new analysis in the run directory.

    Raises:
        UsageError: there is no path, or no such capture.
    """
    if capture is not None and (isinstance(capture, bool) or not isinstance(capture, int)):
        raise UsageError(f"{capture!r} is not the number of a capture", what_next="leave it out for the latest")
    return Run(path_names(paths), capture=capture, keep=keep)


class Run:
    """One job. Everything is read and worked out when it is first asked for; what cannot be read raises then.

    Attributes:
        paths: as they were given.

    Raises:
        DataError: from every method, if no file can be used.
        UnreachableError: a URL's store does not answer.
    """

    def __init__(self, paths: Sequence[str], *, capture: int | None = None, keep: bool = True) -> None:
        self.paths = list(paths)
        self._capture, self._keep = capture, keep

    def __repr__(self) -> str:
        return f"Run({', '.join(map(repr, self.paths))})"

    def _repr_html_(self) -> str:
        """In a notebook: the verdict and where the time went, or why that is not known."""
        try:
            summary, breakdown = self.verdict.summary, self.breakdown()
        except StepscopeError as error:
            return f"<p>{escape(str(error))}</p>"
        notices = "".join(f"<li>{escape(notice.message)}</li>" for notice in self.warnings)
        frame = breakdown.to_html(float_format="{:.3f}".format, na_rep="")
        return f"<p><b>{escape(summary)}</b></p>{frame}{notices and f'<ul>{notices}</ul>'}"

    @cached_property
    def analysis(self) -> Analysis:
        """The document of `stepscope analyze --json` as an object."""
        return read_entering(self.paths, self._analysis_of)

    def _analysis_of(self, paths: list[str]) -> Analysis:
        from stepscope.store.documents import decode_analysis
        from stepscope.store.files import read_whole
        from stepscope.store.runs import has_current_analysis, is_recorded_run, is_saved_analysis, load_analysis
        from stepscope.workflow.analyze import analyze

        only = Path(paths[0])
        if len(paths) == 1 and "://" not in paths[0]:
            if only.is_file() and is_saved_analysis(only):
                return decode_analysis(read_whole(only), where=str(only))
            if self._capture is None and is_recorded_run(only) and has_current_analysis(only):
                return load_analysis(only)
        return analyze(paths, capture=self._capture, keep=self._keep).analysis

    @cached_property
    def timelines(self) -> list[RankTimeline]:
        """What each rank did when, in the profiled steps; empty without a trace."""
        return read_entering(self.paths, self._timelines_of)

    def _timelines_of(self, paths: list[str]) -> list[RankTimeline]:
        from stepscope.store.runs import has_current_analysis, is_recorded_run, load_timeline
        from stepscope.workflow.analyze import analyze

        only = Path(paths[0])
        if len(paths) == 1 and self._capture is None and is_recorded_run(only) and has_current_analysis(only):
            return load_timeline(only)
        result = analyze(paths, capture=self._capture, keep=self._keep, with_timelines=True)
        self.__dict__.setdefault("analysis", result.analysis)  # of the same traces: not worked out again
        return result.timelines

    def figure(self, name: str, theme: Literal["light", "dark"] = "light") -> go.Figure:
        """Plotly figure; their names and what they show are in `stepscope.api.figures`.

        Raises:
            UsageError: there is no such figure.
            DataError: the run does not have what it shows.
        """
        from stepscope.api.figures import figure

        return figure(self, name, theme)

    def to_dict(self) -> dict[str, Any]:
        """The document of `stepscope analyze --json`."""
        from stepscope.api.reports import document_of

        return document_of(self.analysis)

    @property
    def verdict(self) -> Verdict:
        """Main cause, evidence and advice."""
        return self.analysis.verdict

    @property
    def warnings(self) -> list[Notice]:
        """What is missing or was left out."""
        return self.analysis.warnings

    def breakdown(self, by: Literal["job", "rank", "step", "phase"] = "job") -> pd.DataFrame:
        """Where the time went.

        job     a row a category: `fraction` of the profiled windows of all ranks; `training_share`, of all steps of the
                run, where their records are there
        rank    a row a rank, a column a category: fraction of its profiled window
        step    a row a rank and profiled step, a column a category: fraction of the step; `ms`
        phase   a row a phase of the step records, and `data` for waits: share of the settled steps' time over all ranks
        """
        if by not in ("job", "rank", "step", "phase"):
            raise unknown_name("breakdown", str(by), ["job", "rank", "step", "phase"])
        if by == "phase":
            report = self.step_report
            shares = {"data": report.data_wait, **report.phases}
            names = pd.Index(list(shares), name="phase", dtype="str")
            return pd.DataFrame({"share": pd.Series(shares, names, "float64")})
        analysis = self.analysis
        if by == "job":
            fraction = {plain(name): value for name, value in analysis.ledger.items()}
            training = {} if analysis.job_time is None else analysis.job_time.breakdown
            names = pd.Index(dict.fromkeys([*fraction, *training]), name="category", dtype="str")
            columns = {"fraction": fraction, "training_share": training}
            return pd.DataFrame({name: pd.Series(column, names, "float64") for name, column in columns.items()})
        if by == "rank":
            rows = [list(map(rank.ledger.get, CATEGORY_ORDER)) for rank in analysis.ranks]
            ranks = pd.Index([rank.rank for rank in analysis.ranks], name="rank", dtype="int64")
            return pd.DataFrame(rows, ranks, _CATEGORIES, dtype="float64")
        steps = [(rank.rank, step) for rank in analysis.ranks for step in rank.steps]
        index = pd.MultiIndex.from_arrays(
            [[rank for rank, _ in steps], [step.index for _, step in steps]], names=["rank", "step"]
        )
        rows = [[step.ms, *map(step.ledger.get, CATEGORY_ORDER)] for _, step in steps]
        return pd.DataFrame(rows, index, ["ms", *_CATEGORIES], dtype="float64")

    @cached_property
    def step_report(self) -> StepReport:
        """The document of `stepscope steps --json` as an object: all steps of the run, profiled or not.

        Raises:
            UsageError: the run is not one directory or log.
            DataError: it has no step records.
        """
        from stepscope.workflow.run_records import read_steps

        if len(self.paths) > 1:
            raise UsageError("step records are those of one run directory", what_next="load that alone")
        return read_records(self.paths, lambda paths: read_steps(paths[0]))

    def steps(self) -> pd.DataFrame:
        """All steps of the job, profiled or not: a row a step; times are the longest of any rank, ms."""
        return table(StepRow, self.step_report.steps, index="index")

    def root_causes(self) -> pd.DataFrame:
        """Root causes of the profiled steps, the largest first; `fraction` adds up to 1."""
        return table(RootCause, self.analysis.root_causes, index="cause", without=("evidence",))

    def evidence(self) -> pd.DataFrame:
        """Evidence of the verdict."""
        from stepscope.core.vocabulary import Evidence

        return table(Evidence, self.verdict.evidence, index="metric")

    def kernels(self, by: Literal["name", "operator", "module", "call", "launch"] = "name") -> pd.DataFrame:
        """Kernels of the profiled steps over all ranks, by name, launching operator, module, or operator and shapes.

        `launch` reads the traces and has a row a kernel; see `stepscope.api.launches`. A trace that cannot be used is
        left out with a Python warning.
        """
        if by == "launch":
            from stepscope.api.launches import launches

            frame, left_out = read_entering(self.paths, lambda paths: launches(paths, self._capture))
            for notice in left_out:
                warnings.warn(notice.message, stacklevel=2)
            return frame
        if str(by) not in _KERNELS_BY:
            raise unknown_name("group of kernels", str(by), [*_KERNELS_BY, "launch"])
        return table(KernelTime, getattr(self.analysis.roofline, _KERNELS_BY[by]), index="name")

    def operators(self) -> pd.DataFrame:
        """GPU time of the profiled steps by the operator that launched the kernels."""
        return self.kernels("operator")

    def modules(self) -> pd.DataFrame:
        """GPU time of the profiled steps by module or annotated region."""
        return self.kernels("module")

    def copies(self) -> pd.DataFrame:
        """Copies between host and GPU memory, by kind."""
        return table(CopyTime, self.analysis.roofline.copies, index="kind")

    def findings(self) -> pd.DataFrame:
        """Avoidable slowdowns of kernels and copies, the largest first."""
        return table(KernelFinding, self.analysis.roofline.findings, index="code")

    def collectives(self) -> pd.DataFrame:
        """Matched calls of collectives by group, kind and size."""
        return table(Collective, self.analysis.collectives)

    def arrivals(self) -> pd.DataFrame:
        """How late each rank arrives at its collectives, the latest first."""
        return table(RankArrivals, self.analysis.arrivals, index="rank")

    def pipeline(self) -> pd.DataFrame:
        """The pipeline bubble and its parts: one row, or none without pipeline parallelism."""
        pipeline = self.analysis.pipeline
        return table(Pipeline, [] if pipeline is None else [pipeline])

    def what_if(self, *causes: Cause | str) -> pd.DataFrame:
        """Predicted step, ms, with one cause removed; those of the analysis, or a replay without the given causes."""
        if not causes:
            return table(WhatIf, self.analysis.what_if, index="fix")
        return table(Fix, self.what_if_report(*causes).fixes, index="fix")

    def what_if_report(self, *causes: Cause | str) -> WhatIfReport:
        """The document of `stepscope whatif --json` as an object.

        Raises:
            UsageError: a replay cannot remove such a cause.
        """
        from stepscope.workflow.what_if import FIXABLE, what_if

        names = sorted(cause.value for cause in FIXABLE)
        for cause in causes:
            if cause not in names:
                raise unknown_name("cause", str(cause), names)
        chosen = [Cause(cause) for cause in causes]
        return read_entering(self.paths, lambda paths: what_if(paths, causes=chosen, capture=self._capture))
