"""Which ranks were in a step that never ended, and in what? From what they left in flight/ while they still could."""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import msgspec

from stepscope.core.analysis import Notice
from stepscope.core.run_layout import FLIGHT_FOLDER, RunManifest
from stepscope.core.words import ranks_words

_PATTERN = "rank*.stuck.json"
_MOST_RANKS = 1000
_LARGEST_BYTES = 1 << 24
_LONGEST_WORDS = 80
_FINISHED = "finished"


class _State(msgspec.Struct):
    rank: Annotated[int, msgspec.Meta(ge=0)]
    step: Annotated[int, msgspec.Meta(ge=0)]
    began_ns: int
    where: str
    is_still: bool = True
    ended_ns: int | None = None


def stuck_steps(run_directory: Path, manifest: RunManifest | None) -> list[Notice]:
    """One notice a place: 'rank 3 stuck in step 412, in all_reduce'; none of attempts before the last."""
    attempt = manifest.attempts[-1] if manifest is not None and manifest.attempts else None
    if attempt is not None and attempt.ended == _FINISHED:
        return []
    since_ns = 0 if attempt is None else attempt.start_ns
    ranks: dict[tuple[bool, int, str], list[int]] = defaultdict(list)
    for path in sorted((run_directory / FLIGHT_FOLDER).glob(_PATTERN))[:_MOST_RANKS]:
        with suppress(OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            with path.open("rb") as file:
                state = msgspec.json.decode(file.read(_LARGEST_BYTES), type=_State)
            if state.ended_ns is None and state.began_ns >= since_ns:
                ranks[state.is_still, state.step, _printable(state.where)].append(state.rank)
    return [
        Notice("stuck_step", f"{ranks_words(of)} {_how(is_still)} in step {step}, in {where}; see {FLIGHT_FOLDER}/")
        for (is_still, step, where), of in ranks.items()
    ]


def _how(is_still: bool) -> str:
    return "stuck" if is_still else "at work while others were stuck"


def _printable(words: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in words[:_LONGEST_WORDS])
