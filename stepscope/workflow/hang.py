"""Ranks that hold a job up, from the flight recorder dumps of a job that stopped."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from stepscope.analyzer.hang import explain_hang
from stepscope.collectors.flight_recorder import find_dumps, read_dumps
from stepscope.core.documents.hang import HangReport
from stepscope.core.documents.run_directory import FLIGHT_FOLDER, LIVE_FOLDER, RUN_FILE
from stepscope.core.errors import DataError
from stepscope.store.runs import load_manifest
from stepscope.workflow.inputs.paths import check_readable, refuse_many_runs


def read_hang(paths: Sequence[str]) -> HangReport:
    """The answer from files, folders of dumps, or run directories with a folder flight/.

    Raises:
        DataError: a path is not there, or holds no dump that can be read.
    """
    for path in paths:
        check_readable(path)
    places = [_place(Path(path)) for path in paths]
    files, left_out = find_dumps(places)
    if not files:
        refuse_many_runs(paths)
        raise DataError(
            "holds no flight recorder dump",
            where=", ".join(paths),
            what_next="set TORCH_FR_BUFFER_SIZE=2000 and TORCH_FR_DUMP_TEMP_FILE before the job starts",
        )
    dumps, unusable = read_dumps(files)
    return replace(explain_hang(dumps, world_size=_world_size(places)), warnings=[*left_out, *unusable])


def _world_size(places: Sequence[Path]) -> int:
    """By the run that the dumps lie in; 0 where they lie in none."""
    for place in places:
        folder = place if place.is_dir() else place.parent
        folder = folder.parent if folder.name == LIVE_FOLDER else folder
        if folder.name == FLIGHT_FOLDER and (folder.parent / RUN_FILE).is_file():
            with suppress(DataError):
                return load_manifest(folder.parent).world_size
    return 0


def _place(path: Path) -> Path:
    """A run directory's dumps lie in a folder of it; those of ranks that have stood only for seconds in one of that."""
    flight = path / FLIGHT_FOLDER
    if not flight.is_dir():
        return path
    live = flight / LIVE_FOLDER
    return live if live.is_dir() and not find_dumps([flight])[0] else flight
