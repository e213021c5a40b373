"""Quiet text of a job's output: blocks of whole lines in which no reader of NCCL's finds anything.

Nearly all of a training log is quiet. One expression that looks for all marks at once tells it apart at a fraction of
what reading its lines takes.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from io import StringIO
from itertools import chain

from stepscope.collectors.nccl.job_lines import JOB_MARKS, ROW_IN_TEXT
from stepscope.collectors.nccl.log import LOG_MARKS, without_colours
from stepscope.collectors.nccl.sections import MAX_LINES_BEFORE_MARK, SECTION_MARKS
from stepscope.collectors.nccl.wrapped_lines import WidthDetector

MAX_LINE = 1 << 20
"""Characters of a line, which are more than NCCL writes; longer ones come in pieces."""

_RAREST_FIRST = "XJQZKVYUWHGCTALRPDMB\"{+Okybjqzxw=()[]|'vFSINEgfpmu,:._/-9876543210cdlhrsniotae "
"""Characters of training logs; those that are not listed are rarer."""


def _marks_expression(marks: Iterable[str]) -> re.Pattern[str]:
    """Expression that finds any of the marks by its rarest character, and then looks at what is around it."""
    by_rarest: dict[str, list[str]] = defaultdict(list)
    for mark in marks:
        place = min(range(len(mark)), key=lambda place: _RAREST_FIRST.find(mark[place]))
        before, after = re.escape(mark[: place + 1]), re.escape(mark[place + 1 :])
        by_rarest[mark[place]].append(f"(?<={before}){after}")
    return re.compile("|".join(f"{re.escape(rarest)}(?:{'|'.join(ways)})" for rarest, ways in by_rarest.items()))


_MARK = _marks_expression((*LOG_MARKS, *JOB_MARKS, *SECTION_MARKS))


def is_quiet(block: str) -> bool:
    """Whether no line of a block can be of any reader's, unless it began to read a document or a row before."""
    text = "\n" + without_colours(block)
    return _MARK.search(text) is None and ROW_IN_TEXT.search(text) is None


def numbered_lines(blocks: Iterable[str]) -> Iterator[tuple[int, str]]:
    """All lines of a file's blocks with their numbers."""
    return enumerate(chain.from_iterable(map(_lines_of, blocks)), 1)


def lines_with_marks(
    blocks: Iterable[str], widths: WidthDetector, is_idle: Callable[[int], bool]
) -> Iterator[tuple[int, str]]:
    """Lines of a file's blocks with their numbers, without those of quiet blocks.

    `is_idle` tells whether to all readers the line of a number has nothing to do with those before. `widths` sees the
    lines of the other blocks.
    """
    number = 0
    just_before = deque[tuple[int, str]](maxlen=MAX_LINES_BEFORE_MARK)
    """Skipped lines with which a document may begin whose mark comes later."""
    for block in blocks:
        lines = list(_lines_of(block))
        if is_idle(number + 1) and is_quiet(block):
            number += len(lines)
            last = lines[-MAX_LINES_BEFORE_MARK:]
            just_before.extend(enumerate(last, number - len(last) + 1))
            continue
        widths.watch(lines)
        yield from just_before
        just_before.clear()
        yield from enumerate(lines, number + 1)
        number += len(lines)


def _lines_of(block: str) -> Iterator[str]:
    return iter(partial(StringIO(block).readline, MAX_LINE), "")
