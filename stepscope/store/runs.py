"""The runs in a directory, and the analysis, timelines and manifest kept in each."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import msgspec

from stepscope.core.documents import run_directory as layout
from stepscope.core.documents.analysis import (
    ANALYSIS_SCHEMA,
    AnalysedJob,
    Analysis,
    JobTime,
    MeshSizes,
    RootCause,
    Verdict,
)
from stepscope.core.errors import DataError, UsageError
from stepscope.core.protocol.verdicts import MAX_VERDICT_BYTES, LiveVerdict, read_live_verdict
from stepscope.core.vocabulary import Cause
from stepscope.store import documents
from stepscope.store.files import open_regular, read_whole, write_whole


class UnknownRunError(UsageError):
    """The directory of runs has no run of that name."""


class NotAnalysedError(DataError):
    """The stored run has no analysis yet."""


class RunStatus(StrEnum):
    """Whether a stored run has an analysis."""

    ANALYSED = "analysed"
    NOT_ANALYSED = "not_analysed"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One row of the list of stored runs.

    Attributes:
        id: name of the run directory; safe in a URL once quoted.
        path: the run directory.
        started_ns: start of the first attempt, ns since the epoch; None without run.json.
        world_size: number of ranks; None where neither file says.
        gpu: the driver's device name.
        device_kind: "gpu" or "cpu"; None where unknown.
        step_ms: mean step of the training time; median device step where only profiled steps are known.
        cause, summary: the verdict; None when not analysed.
        cause_fraction, cause_ms_per_step: share of that cause, and its part of such a step; None where unknown.
        problem: one line on files that cannot be read; None when all can.
        live_verdict: the newest of a run that has not ended; None without one.
    """

    id: str
    path: str
    started_ns: int | None
    world_size: int | None
    mesh: MeshSizes
    gpu: str | None
    device_kind: str | None
    step_ms: float | None
    cause: Cause | None
    summary: str | None
    cause_fraction: float | None
    cause_ms_per_step: float | None
    status: RunStatus
    problem: str | None
    live_verdict: LiveVerdict | None = None


class _AnalysisHead(msgspec.Struct):
    """The part of analysis.json that a list of runs needs; decoding skips the rest."""

    schema: str
    job: AnalysedJob
    verdict: Verdict
    root_causes: list[RootCause]
    job_time: JobTime | None = None


class RunStore:
    """The runs in a directory: each child that is a run, or the directory itself if it is one."""

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root)
        self._known: dict[str, tuple[tuple[object, ...], RunSummary]] = {}

    def list_runs(self) -> list[RunSummary]:
        """All runs, the latest first; those without a start time last, by name.

        Raises:
            DataError: the root is not a directory or cannot be read.
        """
        summaries = [self._summary(run_id, path) for run_id, path in sorted(self._directories().items())]
        return sorted(summaries, key=lambda run: -(run.started_ns or 0))

    def get(self, run_id: str) -> RunSummary:
        """Summary of one run; raises as `path_of`."""
        return self._summary(run_id, self.path_of(run_id))

    def path_of(self, run_id: str) -> Path:
        """Directory of a run. Only plain names are accepted, so that no id reaches outside the root.

        Raises:
            UnknownRunError: there is no such run.
        """
        if is_run(self.root):
            if run_id == _name_of(self.root):
                return self.root
        elif _is_plain_name(run_id) and is_run(self.root / run_id):
            return self.root / run_id
        raise UnknownRunError(
            f"has no run {run_id!r}", where=str(self.root), what_next="choose one from the list of runs"
        )

    def load_analysis(self, run_id: str) -> Analysis:
        """The run's analysis; raises as `path_of` and as the function `load_analysis`."""
        return load_analysis(self.path_of(run_id))

    def load_timeline(self, run_id: str) -> list[layout.RankTimeline]:
        """The run's timelines, one for each rank; raises as `path_of` and as the function `load_timeline`."""
        return load_timeline(self.path_of(run_id))

    def _directories(self) -> dict[str, Path]:
        try:
            if is_run(self.root):
                return {_name_of(self.root): self.root}
            with os.scandir(self.root) as entries:
                names = [entry.name for entry in entries if _is_plain_name(entry.name)]
        except OSError as error:
            raise DataError(
                f"cannot be listed ({error.strerror or error})",
                where=str(self.root),
                what_next="name a directory of runs with --runs",
            ) from error
        return {name: self.root / name for name in names if is_run(self.root / name)}

    def _summary(self, run_id: str, path: Path) -> RunSummary:
        """The summary, read again only when a file has changed: a long list is fast the second time."""
        files = (layout.RUN_FILE, layout.ANALYSIS_FILE, layout.LIVE_VERDICT_FILE)
        state = tuple(_signature(path / name) for name in files)
        known = self._known.get(run_id)
        if known is None or known[0] != state:
            known = (state, _summarise(run_id, path))
            self._known[run_id] = known
        return known[1]


def is_run(path: Path) -> bool:
    """Whether a directory is a stored run: it has a run.json, an analysis.json or a traces folder."""
    return is_recorded_run(path) or os.path.isfile(path / layout.ANALYSIS_FILE)


def is_recorded_run(path: Path) -> bool:
    """Whether a directory is a run that `profile()` recorded: it has a run.json or a traces folder."""
    # os.path returns False for a name too long or a folder without permission; pathlib raises.
    return os.path.isfile(path / layout.RUN_FILE) or os.path.isdir(path / layout.TRACES_FOLDER)


def load_analysis(run_directory: Path) -> Analysis:
    """Load the analysis kept in a run directory.

    Raises:
        NotAnalysedError: the run is not analysed.
        DataError: analysis.json is damaged.
    """
    path = run_directory / layout.ANALYSIS_FILE
    return documents.decode_analysis(_read_result(path), where=str(path))


def load_timeline(run_directory: Path) -> list[layout.RankTimeline]:
    """Load the timelines kept in a run directory, one for each rank.

    Raises:
        NotAnalysedError: the run is not analysed.
        DataError: timeline.json is damaged.
    """
    path = run_directory / layout.TIMELINE_FILE
    return documents.decode_timelines(_read_result(path), where=str(path))


def load_manifest(run_directory: Path) -> layout.RunManifest:
    """Load the manifest (run.json) of a run directory.

    Raises:
        DataError: it does not exist or is damaged.
    """
    path = run_directory / layout.RUN_FILE
    return documents.decode_manifest(read_whole(path), where=str(path))


def find_manifest(run_directory: Path) -> layout.RunManifest | None:
    """Load the manifest of a run directory; None if it does not exist or is damaged."""
    try:
        return load_manifest(run_directory)
    except DataError:
        return None


def save_analysis(run_directory: Path, analysis: Analysis) -> Path:
    """Write an analysis into a run directory; returns the path of the file.

    Raises:
        DataError: the directory cannot be written.
    """
    path = run_directory / layout.ANALYSIS_FILE
    write_whole(path, documents.encode_document(analysis))
    return path


def save_timelines(run_directory: Path, timelines: list[layout.RankTimeline]) -> Path:
    """Write the ranks' timelines into a run directory; returns the path of the file.

    Raises:
        DataError: the directory cannot be written.
    """
    path = run_directory / layout.TIMELINE_FILE
    write_whole(path, documents.encode_timelines(timelines))
    return path


def find_analysis(run_directory: Path) -> Analysis | None:
    """Load the analysis kept in a run directory; None where there is none, or where it is old or damaged."""
    try:
        return load_analysis(run_directory) if has_current_analysis(run_directory) else None
    except (DataError, OSError):
        return None


def _read_result(path: Path) -> bytes:
    if not path.is_file():
        run = path.parent
        raise NotAnalysedError("is not analysed yet", where=str(run), what_next=f"run: stepscope analyze {run}")
    return read_whole(path)


def _summarise(run_id: str, path: Path) -> RunSummary:
    problems: list[str] = []
    manifest = head = None
    if (path / layout.RUN_FILE).is_file():
        try:
            manifest = load_manifest(path)
        except DataError as error:
            problems.append(str(error))
    if (path / layout.ANALYSIS_FILE).is_file():
        try:
            head = _load_head(path / layout.ANALYSIS_FILE)
        except DataError as error:
            problems.append(str(error))
    job = head.job if head else None
    step_ms, share, share_ms = (None, None, None) if head is None else _cost(head)
    unanalysed = RunStatus.UNREADABLE if problems else RunStatus.NOT_ANALYSED
    return RunSummary(
        id=run_id,
        path=str(path),
        started_ns=manifest.attempts[0].start_ns if manifest and manifest.attempts else None,
        world_size=job.world_size if job else manifest.world_size if manifest else None,
        mesh=job.mesh if job else _mesh_of(manifest),
        gpu=job.gpu if job else None,
        device_kind=job.device_kind if job else None,
        step_ms=step_ms,
        cause=head.verdict.cause if head else None,
        summary=head.verdict.summary if head else None,
        cause_fraction=share,
        cause_ms_per_step=share_ms,
        status=RunStatus.ANALYSED if head else unanalysed,
        problem=" ".join(problems) or None,
        live_verdict=_live_verdict(path) if manifest and _has_not_ended(manifest) else None,
    )


def _has_not_ended(manifest: layout.RunManifest) -> bool:
    return bool(manifest.attempts) and manifest.attempts[-1].end_ns is None


def _live_verdict(run_directory: Path) -> LiveVerdict | None:
    """The newest live verdict of a run; None without one that can be read."""
    try:
        with open_regular(run_directory / layout.LIVE_VERDICT_FILE) as file:
            return read_live_verdict(msgspec.json.decode(file.read(MAX_VERDICT_BYTES)))
    except (OSError, ValueError, RecursionError):
        return None


def _cost(head: _AnalysisHead) -> tuple[float | None, float | None, float | None]:
    """The step, the share of the verdict's cause, and its ms a step."""
    if head.job_time is None:
        row = next((row for row in head.root_causes if row.cause == head.verdict.cause), None)
        return head.job.step_ms, row.fraction if row else None, row.ms_per_step if row else None
    step_ms, share = head.job_time.mean_step_ms, head.verdict.share
    return step_ms, share, None if share is None else share * step_ms


def _load_head(path: Path) -> _AnalysisHead:
    head = documents.decode_document(read_whole(path), kind=_AnalysisHead, schema=ANALYSIS_SCHEMA, where=str(path))
    documents.check_job(head.job, where=str(path))
    return head


def _mesh_of(manifest: layout.RunManifest | None) -> MeshSizes:
    sizes = manifest.mesh if manifest else {}
    return MeshSizes(**{name: sizes.get(name) for name in MeshSizes.__slots__})


def _signature(path: Path) -> tuple[int, int] | None:
    try:
        state = path.stat()
    except OSError:
        return None
    return state.st_mtime_ns, state.st_size


def _name_of(root: Path) -> str:
    return root.resolve().name or "run"


def _is_plain_name(name: str) -> bool:
    """Whether the name is one path component that URLs and JSON can carry: no NUL, newline or undecodable byte."""
    return bool(name) and not name.startswith(".") and name.isprintable() and not set(name) & {"/", "\\"}


_SAVED_ANALYSIS = re.compile(rb'"schema"\s*:\s*"stepscope\.analysis/')
_HEAD_BYTES = 65_536


def is_saved_analysis(path: Path) -> bool:
    """Whether a stored file looks like the output of `analyze --json`, by its beginning."""
    with open_regular(path) as file:
        return _SAVED_ANALYSIS.search(file.read(_HEAD_BYTES)) is not None


_CAPTURES = (layout.VIEWS_FOLDER, layout.TRACES_FOLDER)


def capture_folders(run: Path) -> list[Path]:
    """The folders of captured traces in a stored run's directory; of one without traces those of their views."""
    folders = {folder.name: folder for kind in _CAPTURES for folder in (run / kind).glob("step*")}
    return list(folders.values())


def has_current_analysis(run: Path) -> bool:
    """Whether a stored run has an analysis at least as new as its captures (its steps without any) and dumps."""
    saved = run / layout.ANALYSIS_FILE
    if not saved.is_file():
        return False
    saved_ns = saved.stat().st_mtime_ns
    inputs = capture_folders(run) or list((run / layout.STEPS_FOLDER).glob("rank*.jsonl"))
    dumps = (layout.FLIGHT_FOLDER, layout.MEMORY_FOLDER, layout.NCCL_FOLDER)
    inputs += [file for folder in dumps for file in (run / folder).glob("*") if file.is_file()]
    return all(path.stat().st_mtime_ns <= saved_ns for path in inputs)
