"""Results of the suite's runs and the folder that keeps them, so that a second call goes on where the first stopped.

DIR/suite.json            marks the folder as a suite's
DIR/suite.lock            held by the suite that runs in it
DIR/results/RUN.json      one a run, written as soon as it is known
DIR/runs/RUN/             the run directories
DIR/fixtures/CASE/        trimmed traces, on request
DIR/confusion.md, .json   the report
"""

from __future__ import annotations

import fcntl
import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from stepscope.core.errors import DataError, UsageError
from stepscope.core.vocabulary import Cause, Reason
from stepscope.reference_workloads.job import FaultyRunEnding
from stepscope.reference_workloads.suite.cases import SuiteRun
from stepscope.store.files import read_whole, write_whole

_LOG = logging.getLogger(__name__)

RUN_RESULT_SCHEMA = "stepscope.suite-run/1"
MARK_FILE = "suite.json"
LOCK_FILE = "suite.lock"
RUNS_FOLDER = "runs"
RESULTS_FOLDER = "results"
FIXTURES_FOLDER = "fixtures"


@dataclass(frozen=True, slots=True)
class PredictedFix:
    """What-if's step with one cause removed, as a suite keeps it: as captured, and calibrated. Milliseconds."""

    step_ms: float
    calibrated_step_ms: float | None


@dataclass(frozen=True, slots=True)
class SuiteRunResult:
    """One run of a suite, measured and analysed. Milliseconds; None is unknown.

    Attributes:
        fingerprint: of the run's job and of the code, torch and device that made it; another one means that the result
            is of another run.
        error: why it failed, one line; None when it trained to its end and was analysed.
        trained: whether all ranks came to the last step.
        step_ms: mean of the steps that no profiler touched, by rank 0.
        captured_step_ms: median over ranks of the captured device step.
        cause, reasons, confidence, summary: the verdict.
        distortion: captured / unprofiled step - 1, as the analysis has it.
        fixes: what-if's predictions by cause.
        no_fix: why what-if has none for the verdict's own cause; None where it has one, or knows no such fix.
        replay_error: of what-if's replay with nothing changed.
        artefacts: what a failed run left, relative to its run directory.
        seconds: training and analysis together.
    """

    name: str
    fingerprint: str
    seconds: float
    error: str | None = None
    trained: bool = False
    device: str | None = None
    step_ms: float | None = None
    captured_step_ms: float | None = None
    peak_allocated_bytes: int | None = None
    cause: Cause | None = None
    reasons: list[Reason] = field(default_factory=list)
    confidence: float | None = None
    summary: str | None = None
    distortion: float | None = None
    mfu: float | None = None
    fixes: dict[Cause, PredictedFix] = field(default_factory=dict)
    no_fix: str | None = None
    replay_error: float | None = None
    artefacts: list[str] = field(default_factory=list)
    schema: str = RUN_RESULT_SCHEMA


class SuiteFolder:
    """The folder of one suite. It need not be there: `held` makes it.

    Raises:
        UsageError: it holds something else.
        DataError: it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            if path.is_dir() and any(path.iterdir()) and not (path / MARK_FILE).exists():
                raise UsageError("is not empty and no suite's folder", where=str(path), what_next="choose another -o")
        except OSError as error:
            raise self._of_no_use("read", error) from error

    @contextmanager
    def held(self) -> Iterator[None]:
        """Make the folder, and keep every other suite out of it: that would delete the run that is being made.

        Raises:
            UsageError: another suite runs in it.
            DataError: it cannot be made or written.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            write_whole(self.path / MARK_FILE, msgspec.json.encode({"schema": "stepscope.suite-folder/1"}))
            self.results.mkdir(exist_ok=True)
            self.runs.mkdir(exist_ok=True)
            lock = (self.path / LOCK_FILE).open("ab")
        except OSError as error:
            raise self._of_no_use("made", error) from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UsageError(
                    "another suite runs in it", where=str(self.path), what_next="wait for its end, or choose another -o"
                ) from None
            except OSError as error:  # a file system without locks
                _LOG.warning("%s: cannot be locked (%s); start no second suite in it", self.path, error.strerror)
            try:
                yield
            finally:
                with suppress(OSError):
                    fcntl.flock(lock, fcntl.LOCK_UN)  # a killed rank's loaders, forked from here, have it open a while

    def _of_no_use(self, what_for: str, error: OSError) -> DataError:
        why = error.strerror or str(error)
        return DataError(f"cannot be {what_for} ({why})", where=str(self.path), what_next="choose another -o")

    @property
    def runs(self) -> Path:
        return self.path / RUNS_FOLDER

    @property
    def results(self) -> Path:
        return self.path / RESULTS_FOLDER

    def load(self, name: str, fingerprint: str) -> SuiteRunResult | None:
        """The result of this run; None when there is none, or one of another job, code or device."""
        path = self.results / f"{name}.json"
        if not path.exists():
            return None
        try:
            result = msgspec.json.decode(read_whole(path), type=SuiteRunResult)
        except msgspec.DecodeError:  # of another version, or damaged: the run is done again
            return None
        return result if result.fingerprint == fingerprint and result.schema == RUN_RESULT_SCHEMA else None

    def save(self, result: SuiteRunResult) -> None:
        write_whole(self.results / f"{result.name}.json", msgspec.json.format(msgspec.json.encode(result), indent=1))


def why_run_failed(run: SuiteRun, result: SuiteRunResult) -> str | None:
    """Why a suite's run failed, in one line; None if it was analysed, or ended as its fault makes it."""
    ending_faults = [injection for injection in run.job.injections if injection.ends_run]
    if not ending_faults:
        return result.error
    if result.trained:
        return "the fault was to end the run, which went on to its last step"
    ending = FaultyRunEnding(result.error or "it ended without a word", frozenset(result.artefacts))
    # One of them ends the run; the others are not reached then.
    reasons = [fault.unexpected_ending(run.job, ending) for fault in ending_faults]
    return None if None in reasons else reasons[0]
