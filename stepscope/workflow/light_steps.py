"""Calibrated steps of a run's light captures, kept beside them so that unchanged ones are replayed once."""

from __future__ import annotations

import hashlib
import itertools
import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from stepscope.analyzer.job_time.calibrated_steps import MAX_RANKS, CalibratedSteps, RankCapture, calibrated_steps
from stepscope.core.documents.run_directory import RankSteps, Step
from stepscope.core.errors import DataError
from stepscope.workflow.inputs.trace_files import light_captures, open_stamped
from stepscope.workflow.views.kept_views import is_same
from stepscope.workflow.views.view_files import is_on, owners_of, read_file, view_places, write_file
from stepscope.workflow.views.view_format import UnusableViewError, ViewFormat, ViewOptions, maker, split

_log = logging.getLogger(__name__)
_VARIANT = "light"


@dataclass(frozen=True, slots=True)
class KeptCalibration:
    """Calibration of the light captures of a job's ranks, as kept; None where they cannot be calibrated."""

    steps: CalibratedSteps | None


CALIBRATIONS = ViewFormat(KeptCalibration)


def light_steps(run: Path, ranks: Sequence[RankSteps]) -> CalibratedSteps | None:
    """The latest light captures of all ranks of a job that can be read and calibrated; None without ones."""
    if len(ranks) > MAX_RANKS:
        return None
    captures = [dict(light_captures(run, rank.rank)) for rank in ranks]
    of_all = set.intersection(*(set(of_rank) for of_rank in captures)) if captures else set()
    for attempt, first_step in sorted(of_all, reverse=True):
        paths = [str(of_rank[attempt, first_step]) for of_rank in captures]
        steps = [_until_captured(rank.steps, attempt, first_step) for rank in ranks]
        with suppress(DataError):
            if (found := _calibrated(paths, steps, first_step)) is not None:
                return found
    return None


def _until_captured(steps: Sequence[Step], attempt: int, first_step: int) -> list[Step]:
    """An attempt's steps up to the last one of a capture: later ones do not change its calibration."""
    own = [step for step in steps if step.attempt == attempt]
    later = itertools.takewhile(lambda step: step.captured, (step for step in own if step.index >= first_step))
    return [*(step for step in own if step.index < first_step), *later]


def _calibrated(paths: Sequence[str], steps: Sequence[Sequence[Step]], first_step: int) -> CalibratedSteps | None:
    """Calibration of the light captures of all ranks, as kept or made now."""
    inputs = hashlib.sha256(msgspec.msgpack.encode([first_step, *steps])).hexdigest()
    options = ViewOptions(kind="calibration", inputs=inputs)
    kept = _load(paths, options) if is_on() else None
    if kept is not None:
        return kept.steps
    ours, traces = [], []
    for path, own in zip(paths, steps, strict=True):
        (trace, *_), stamp = open_stamped(path)
        ours.append(RankCapture(trace, own, first_step))
        traces.append((Path(path).name, stamp))
    found = calibrated_steps(ours)
    stamps = [(name, stamp) for name, stamp in traces if stamp is not None]
    if is_on() and len(stamps) == len(traces):
        content = CALIBRATIONS.encode(KeptCalibration(found), stamps, options, made_ns=time.time_ns())
        write_file(view_places(paths[0], _VARIANT), content)
    return found


def _load(paths: Sequence[str], options: ViewOptions) -> KeptCalibration | None:
    for place in view_places(paths[0], _VARIANT):
        try:
            content = read_file(place, owners_of(paths[0]))
            if content is None:
                continue
            header, packed = split(content, where=str(place))
            if header.maker == maker() and header.options == options and is_same(header, paths) is not False:
                return CALIBRATIONS.decode(header, packed, where=str(place))
        except UnusableViewError as error:
            _log.warning("%s; the light captures are read again", error)
    return None
