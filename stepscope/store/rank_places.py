"""Where the ranks of a run ran: host, GPU and scheduler's job (ranks/rank{r}.json)."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from stepscope.core.documents.run_directory import RANKS_FOLDER, RankPlace
from stepscope.core.text.numbers import counted
from stepscope.core.vocabulary import Notice
from stepscope.store.files import open_regular

_FILE = re.compile(r"rank(\d{1,9})\.json")
_MAX_BYTES = 1 << 16
_decode = msgspec.json.Decoder(RankPlace).decode


def read_rank_places(run_directory: Path) -> tuple[list[RankPlace], list[Notice]]:
    """Read where the ranks of a run ran, by rank. Empty for a run that does not say it.

    Returns:
        The places; and a notice of files that could not be read.
    """
    try:
        found = [(int(match[1]), path) for path in (run_directory / RANKS_FOLDER).iterdir() if (match := _named(path))]
    except OSError:
        return [], []
    places, num_unreadable = [], 0
    for rank, path in sorted(found):
        try:
            with open_regular(path) as file:
                place = _decode(file.read(_MAX_BYTES))
        except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            place = None
        if place is None or place.rank != rank:
            num_unreadable += 1
        else:
            places.append(place)
    if not num_unreadable:
        return places, []
    files_left_out = counted(
        num_unreadable, "file says not where its rank ran and is", "files say not where their ranks ran and are"
    )
    return places, [Notice("unusable_file", f"{run_directory / RANKS_FOLDER}: {files_left_out} left out")]


def _named(path: Path) -> re.Match[str] | None:
    return _FILE.fullmatch(path.name)
