"""Names of trace files: which rank, which place in each parallel dimension, which capture of which process.

Writers and their names: torch's tensorboard_trace_handler (`host_pid.time.pt.trace.json`), vLLM
(`dp0_pp1_tp3_dcp0_ep0_rank7.time.pt.trace.json.gz`), SGLang (`time-TP-3-DP-0-PP-1-EP-3-DECODE.trace.json.gz`),
Megatron-LM (`rank-3.json.gz`), torchtitan (`iteration_10/rank3_trace.json.gz`), Primus (`...-rank[3].time.pt...`),
TensorRT-LLM (`trace-rank-3.json`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from stepscope.core.text.wording import place_words

MAX_RANK = 2**18
"""A larger rank or world size is damage: no job has a quarter of a million ranks, and missing ones are listed."""

_DIMENSION = re.compile(
    r"(?<![a-z0-9])(tp|pp|dp|ep|cp|dcp|pcp|etp|edp)((?:[_-]?rank)?[_=\[-]?)(\d{1,6})(?![a-z0-9])", re.IGNORECASE
)
_PLACING = frozenset({"tp", "pp", "dp"})
"""A name places its rank by one of these: `ep3` or `cp3` alone is an episode, an epoch or a checkpoint."""
_RANK = re.compile(
    r"(?<![a-z])(?:(local|node|host|machine|group|mp)[_-]?)?(?:(?:global|world)[_-]?)?"
    r"(?:rank[ _=:#(\[-]{0,2}(\d{1,9})(?!\d)|worker[ _=:#(\[-]{0,2}(\d{1,9})(?!\d|_\d+$))",
    re.IGNORECASE,
)
"""A rank; with the first group it is not the job's. In `job-worker-3_4008` the worker is a host, 4008 its process."""
_RANK_FOLDER = re.compile(r"(?:global[_-]?)?rank[_-]?(\d{1,9})", re.IGNORECASE)
_NODE = re.compile(r"(?<![a-z])(?:node|host|machine)[_-]?(\d{1,6})(?!\d)", re.IGNORECASE)
_RANK_AND_THREAD = re.compile(r"(?<![a-z0-9])r(\d{1,9})t\d+(?![a-z0-9])", re.IGNORECASE)
_ENDING = re.compile(r"(?:\.pt)?(?:\.trace)?\.json(?:\.gz)?$", re.IGNORECASE)
_WRITTEN_AT = re.compile(r"\.(1\d{12}|1\d{15}|1\d{18})$")
"""Time of the export (ms, us or ns since the epoch), which differs from rank to rank."""
_PROFILE_ID = re.compile(r"(?<![a-z0-9.])(1\d{9})(\.\d+)?(?![a-z0-9.])", re.IGNORECASE)
"""Time of a profiling request (seconds since the epoch), which all ranks share."""
_COUNTER = re.compile(r"(?<![a-z])(?:iteration|iter|step|cycle|epoch|capture)s?[_=-]?(\d{1,12})(?!\d)", re.IGNORECASE)
_STAGE = re.compile(r"(?<![a-z])(extend|prefill|decode)(?![a-z])", re.IGNORECASE)
_NUMBERS = re.compile(r"[0-9]+")


def natural_order(text: str) -> tuple[list[tuple[int, str]], str]:
    """Sort key that compares numbers in a text as numbers: TP-2 before TP-10."""
    words = _NUMBERS.split(text)
    numbers = [number.lstrip("0") for number in _NUMBERS.findall(text)]
    parts = [(0, words[0])]
    for number, word in zip(numbers, words[1:], strict=True):
        parts += [(len(number), number), (0, word)]
    return parts, text


def without_numbers(path: str) -> str:
    """A path without its numbers: equal for files that are numbered."""
    return _NUMBERS.sub("", path)


@dataclass(frozen=True, slots=True)
class FileName:
    """What the name of a trace file says.

    Attributes:
        rank: the rank; of a vLLM worker the one in its data-parallel replica. None where the name does not give it.
        place: index by parallel dimension ("tp": 3), in the name's order; empty where the name does not give it.
        has_indices: the numbers of the place are indices for sure (TP-3, tp_rank_3); in "tp8" it may be the size.
        node: number of the machine, as text; empty where neither the name nor its folder gives it.
        process: the name and its folder without what differs between captures of one process.
        capture: sort key of a capture by what all its ranks share: profile id, steps, stage; empty without any.
        written_at: time of the export, in nanoseconds since the epoch; 0 where the name does not give it.
    """

    rank: int | None
    place: dict[str, int] = field(default_factory=dict)
    has_indices: bool = False
    node: str = ""
    process: str = ""
    capture: tuple[float, ...] = ()
    written_at: int = 0


def read_file_name(path: str) -> FileName:
    """Read the name of a trace file, and of its folder where that counts steps, ranks or machines (`iteration_10/`).

    Args:
        path: a path, URL, or address in an archive (`ARCHIVE::MEMBER`).
    """
    whole = PurePosixPath(path.replace("\\", "/").replace("::", "/"))
    stem = _ENDING.sub("", whole.name)
    written_at = _WRITTEN_AT.search(stem)
    stem = _WRITTEN_AT.sub("", stem)
    places = _DIMENSION.findall(stem)
    place = {dimension.lower(): int(index) for dimension, _, index in places}
    ranks = [int(rank or worker) for part, rank, worker in _RANK.findall(_DIMENSION.sub(" ", stem)) if not part]
    ranks = ranks or [int(rank) for rank in _RANK_AND_THREAD.findall(stem)]
    folder = whole.parent
    if not ranks and (of_rank := _RANK_FOLDER.fullmatch(folder.name)):
        ranks = [int(of_rank[1])]
    node = _NODE.search(stem) or _NODE.search(folder.name)
    counted = f"{folder.name}/{stem}" if _COUNTER.fullmatch(folder.name) else stem
    process = counted
    for mark in (_PROFILE_ID, _COUNTER, _STAGE):
        process = mark.sub("*", process)
    return FileName(
        rank=ranks[-1] if ranks and ranks[-1] <= MAX_RANK else None,
        place=place if _PLACING & place.keys() else {},
        has_indices=all(between for _, between, _ in places),
        node=node[1] if node else "",
        process=str((folder.parent if counted != stem else folder) / process),
        capture=_capture(counted),
        written_at=int(written_at[1].ljust(19, "0")) if written_at else 0,
    )


def folder_of_job(folder: str) -> str:
    """A folder's name without what differs between the steps, ranks and machines of a job: equal for its folders."""
    name = read_file_name(f"{folder}/x.json").process
    for mark in (_RANK, _NODE):
        name = mark.sub("*", name)
    return name


def _capture(text: str) -> tuple[float, ...]:
    ids = [float(f"{whole}{fraction}") for whole, fraction in _PROFILE_ID.findall(text)]
    counters = [float(number) for number in _COUNTER.findall(text)]
    stages = [float(stage.lower() == "decode") for stage in _STAGE.findall(text)]
    return (*ids, *counters, *stages)


def ranks_by_name(names: Sequence[FileName]) -> list[int | None]:
    """Rank of each file of one job by the names of all; None where they do not give it.

    If files of different places or machines share a rank, all are those of replicas or machines. Without ranks, places
    give them where one dimension alone varies and the others are 0: how further ones are numbered differs between
    frameworks.
    """
    numbered = {(name.rank, place_words(name.place), name.node) for name in names if name.rank is not None}
    is_global = len({rank for rank, *_ in numbered}) == len(numbered)
    ranks = [name.rank if is_global else None for name in names]
    placed = [name for name in names if name.rank is None and name.place]
    dimension = _only_dimension([name.place for name in placed])
    if dimension is None:
        return ranks
    indices = [name.place[dimension] for name in placed]
    is_complete = len(indices) > 1 and set(indices) == set(range(len(indices)))
    if not is_complete and not all(name.has_indices for name in placed):
        return ranks
    return [
        name.place[dimension] if name.rank is None and name.place else rank
        for rank, name in zip(ranks, names, strict=True)
    ]


def _only_dimension(places: Sequence[dict[str, int]]) -> str | None:
    """The dimension in which these places differ, where all others are 0; of one place its only dimension."""
    if len({tuple(place) for place in places}) != 1:
        return None
    first = places[0]
    varying = [dimension for dimension in first if len({place[dimension] for place in places}) > 1]
    if len(places) == 1 and len(first) == 1:
        varying = list(first)
    is_only = len(varying) == 1 and not any(index for dimension, index in first.items() if dimension not in varying)
    return varying[0] if is_only else None
