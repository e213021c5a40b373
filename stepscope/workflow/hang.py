"""Hang reports from the flight recorder dumps of a stopped job."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from stepscope.analyzer.hang import explain_hang
from stepscope.collectors.flight_recorder import find_flight_dumps, read_flight_dumps
from stepscope.core.documents.hang import HangReport
from stepscope.core.documents.run_directory import FLIGHT_FOLDER, LIVE_FOLDER
from stepscope.core.errors import DataError
from stepscope.core.text.numbers import listed
from stepscope.store.runs import find_manifest
from stepscope.workflow.inputs.paths import MAX_LISTED_RUNS, part_of_run, refuse_many_runs


def read_hang(paths: Sequence[str]) -> HangReport:
    """Hang report from files, folders of dumps, or run directories with a folder flight/.

    Raises:
        DataError: a path does not exist, or no dump can be read.
    """
    places = [_dumps_of(path) for path in paths]
    files, left_out = find_flight_dumps(places)
    if not files:
        refuse_many_runs(paths)
        _refuse_dumps_below(places)
        raise DataError(
            "holds no flight recorder dump",
            where=", ".join(paths),
            what_next="set TORCH_FR_BUFFER_SIZE=2000 and TORCH_FR_DUMP_TEMP_FILE before the job starts",
        )
    dumps, unusable = read_flight_dumps(files)
    return replace(explain_hang(dumps, world_size=_world_size(places)), warnings=[*left_out, *unusable])


def _refuse_dumps_below(places: Sequence[Path]) -> None:
    """Refuse a folder whose dumps are one level down; to be called where nothing else was found.

    Raises:
        DataError: a path is such a folder; names the folders with dumps.
    """
    for place in places:
        folders = sorted(child for child in place.iterdir() if child.is_dir()) if place.is_dir() else []
        with_dumps = [
            folder for folder in folders if os.access(folder, os.R_OK | os.X_OK) and find_flight_dumps([folder])[0]
        ]
        if with_dumps:
            holders = listed((folder.name for folder in with_dumps), MAX_LISTED_RUNS)
            what = f"no flight recorder dump here; these folders in it hold some: {holders}"
            raise DataError(what, where=str(place), what_next=f"run: stepscope hang {with_dumps[0]}")


def _world_size(places: Sequence[Path]) -> int:
    """World size of the run that contains the dumps; 0 if no run does."""
    for place in places:
        folder = place if place.is_dir() else place.parent
        folder = folder.parent if folder.name == LIVE_FOLDER else folder
        if folder.name == FLIGHT_FOLDER and (manifest := find_manifest(folder.parent)):
            return manifest.world_size
    return 0


def _dumps_of(path: str) -> Path:
    """Where the dumps of a path are: of a run directory in flight/, or else in flight/live/ while a step hangs."""
    flight = part_of_run(path, FLIGHT_FOLDER)
    if flight == Path(path):
        return flight
    live = flight / LIVE_FOLDER
    return live if live.is_dir() and not find_flight_dumps([flight])[0] else flight
