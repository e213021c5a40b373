"""Captures among trace files: which files are of which profiled window of the same processes, by their names."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Literal, NamedTuple

from stepscope.core.errors import UsageError
from stepscope.core.vocabulary import Notice
from stepscope.trace.file_names import natural_order, read_file_name

Choice = int | Literal["all"] | None
"""A capture by its number, 1 being the earliest; all; or None for the latest."""

_MAX_SHOWN = 4


class Capture(NamedTuple):
    """One profiled window: the trace files of its ranks.

    Attributes:
        name: what tells it from the others: a folder or the first file.
        files: paths, URLs or addresses in an archive.
    """

    name: str
    files: list[str]


def captures_of(files: Sequence[str]) -> list[Capture]:
    """Group the files of a job into captures, the earliest first.

    Files whose names differ in a time, a profile id, a step or a stage alone are captures of one process. The ranks in
    a folder share ids, steps and stages; times differ between ranks, whose captures are counted from the last one back.
    """
    folders: dict[str, dict[str, _OfProcess]] = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for file in sorted(files, key=natural_order):
        name = read_file_name(file)
        folder, _, process = name.process.rpartition("/")
        folders[folder][process][name.capture, name.written_at].append(file)
    groups = [_of_folder(list(processes.values())) for processes in folders.values()]
    count = max(map(len, groups), default=0)
    found: list[list[str]] = [[] for _ in range(count)]
    for group in groups:
        for place, same in enumerate(group, count - len(group)):
            found[place] += same
    return [Capture(_name(same[0]), sorted(same, key=natural_order)) for same in found]


_OfProcess = dict[tuple[tuple[float, ...], int], list[str]]
"""Files of a process by what its ranks share of a capture, and the time."""


def _of_folder(processes: Sequence[_OfProcess]) -> list[list[str]]:
    """Files of each capture, the earliest first."""
    by_mark: dict[tuple[float, ...], list[str]] = defaultdict(list)
    if all(len({mark for mark, _ in own}) == len(own) for own in processes):
        for own in processes:
            for (mark, _), same in own.items():
                by_mark[mark] += same
        return [by_mark[mark] for mark in sorted(by_mark)]
    count = max(map(len, processes))
    found: list[list[str]] = [[] for _ in range(count)]
    for own in processes:
        for place, key in enumerate(sorted(own), count - len(own)):
            found[place] += own[key]
    return found


def _name(file: str) -> str:
    folder, _, name = file.replace("::", "/").rpartition("/")
    folder = folder.rpartition("/")[2]
    is_counted = bool(read_file_name(f"{folder}/x.json").capture)
    return folder if is_counted else name


def choose(captures: Sequence[Capture], choice: Choice, notices: list[Notice]) -> list[str]:
    """Files of the chosen captures; a notice says which one was taken of several, and how to choose.

    Files that are all of one capture by their names may still be of several by their times, and are all returned.

    Raises:
        UsageError: there is no capture of this number.
    """
    if choice == "all" or len(captures) == 1:
        return [file for capture in captures for file in capture.files]
    number = len(captures) if choice is None else choice
    check_number(number, len(captures))
    notices.append(Notice("older_captures", choice_words(number, [capture.name for capture in captures])))
    return captures[number - 1].files


def check_number(number: int, num_captures: int) -> None:
    """Check that there is a capture of this number.

    Raises:
        UsageError: there is none.
    """
    if not 1 <= number <= num_captures:
        known = "there is one capture" if num_captures == 1 else f"captures are numbered 1 to {num_captures}"
        raise UsageError(f"there is no capture {number}: {known}", what_next="leave --capture out for the latest")


def choice_words(number: int, names: Sequence[str]) -> str:
    """Which capture was taken, and how to choose another."""
    latest = ", the latest" if number == len(names) else ""
    others = [f"{place} is {name}" for place, name in enumerate(names, 1) if place != number]
    shown = ", ".join(others[-_MAX_SHOWN:])
    more = ", ..." if len(others) > _MAX_SHOWN else ""
    return f"analysed capture {number} of {len(names)}{latest}: {names[number - 1]}; choose by --capture: {shown}{more}"
