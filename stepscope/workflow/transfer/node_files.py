"""A node's folder of a run as the source of its upload: which files, their names in the run, and their whole lines."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import BinaryIO, NamedTuple

from stepscope.core.documents import run_directory as layout

COPY_FILE = ".upload-copy"

_APPENDED = (
    f"{layout.STEPS_FOLDER}/",
    f"{layout.METRICS_FOLDER}/",
    f"{layout.TRUTH_FOLDER}/",
    f"{layout.NCCL_FOLDER}/",
)
_LEFT_OUT = (f"{layout.CHECKPOINT_FOLDER}/", f"{layout.UPLOADS_FOLDER}/")
_ORDER = (
    layout.RUN_FILE,
    f"{layout.RANKS_FOLDER}/",
    f"{layout.STEPS_FOLDER}/",
    f"{layout.FLIGHT_FOLDER}/",
    layout.LIVE_VERDICT_FILE,
    f"{layout.METRICS_FOLDER}/",
    f"{layout.VIEWS_FOLDER}/",
)
"""Small records first; other files by their size."""
_CAPTURE = re.compile(
    rf"({layout.TRACES_FOLDER}|{layout.LIGHT_FOLDER}|{layout.VIEWS_FOLDER})/step(\d+)(?:-attempt(\d+))?/(.+)"
)
_RANK_OF_STEPS = re.compile(rf"{layout.STEPS_FOLDER}/rank(\d{{1,9}})\.jsonl")
LARGE_FOLDERS = (layout.TRACES_FOLDER, layout.LIGHT_FOLDER, layout.VIEWS_FOLDER, layout.MEMORY_FOLDER)
"""Of a node's folder, removed once all has arrived; the records stay for an attempt that follows on the node."""


class NodeFile(NamedTuple):
    """A file of the node."""

    path: str
    num_bytes: int
    modified_ns: int

    @property
    def is_appended(self) -> bool:
        """Whether lines are appended to it."""
        return self.path.startswith(_APPENDED)

    @property
    def is_log(self) -> bool:
        """Whether a library writes it, which may not end its lines."""
        return self.path.startswith(f"{layout.NCCL_FOLDER}/")


def files_of_node(folder: Path) -> list[NodeFile]:
    """Files to upload, those first that say most in fewest bytes. Hidden ones are not whole yet or are ours."""
    found = []
    pending = [("", str(folder))]
    while pending:
        inside, path = pending.pop()
        try:
            entries = list(os.scandir(path))
        except OSError:
            continue
        for entry in entries:
            name = f"{inside}{entry.name}"
            try:
                if entry.name.startswith(".") or f"{name}/".startswith(_LEFT_OUT) or entry.is_symlink():
                    continue
                if entry.is_dir():
                    pending.append((f"{name}/", entry.path))
                elif entry.is_file():
                    state = entry.stat()
                    if not state.st_size and name.startswith(f"{layout.FLIGHT_FOLDER}/"):
                        continue  # opened in case that a step does not end
                    found.append(NodeFile(name, state.st_size, state.st_mtime_ns))
            except OSError:
                continue
    return sorted(found, key=_place)


def _place(file: NodeFile) -> tuple[int, int, str]:
    place = next((place for place, start in enumerate(_ORDER) if file.path.startswith(start)), len(_ORDER))
    return place, file.num_bytes, file.path


def has_view(folder: Path, trace: str, *, older_than_seconds: float = 0.0) -> bool:
    """Whether a trace of the node has had a view for so long."""
    view = folder / layout.view_path(PurePath(trace))
    try:
        return time.time() - view.stat().st_mtime >= older_than_seconds
    except OSError:
        return False


def ranks_of_node(files: list[NodeFile]) -> list[int]:
    """Ranks whose steps are among the files."""
    return sorted(int(match[1]) for file in files if (match := _RANK_OF_STEPS.fullmatch(file.path)))


def path_in_run(path: str, attempts_before: int) -> str:
    """Where a file of the node belongs in the run: captures are named by their attempt, counted over all folders."""
    match = _CAPTURE.fullmatch(path) if attempts_before else None
    if match is None:
        return path
    attempt = int(match[3] or 1) + attempts_before
    return f"{match[1]}/step{match[2]}-attempt{attempt}/{match[4]}"


_BLOCK_BYTES = 1 << 16
_COPIED_BYTES = 4 << 20


def num_whole_bytes(path: Path, num_bytes: int) -> int:
    """Bytes up to the end of the last whole line among the first `num_bytes` of a file."""
    with path.open("rb") as file:
        end = num_bytes
        while end > 0:
            begin = max(end - _BLOCK_BYTES, 0)
            file.seek(begin)
            place = file.read(end - begin).rfind(b"\n")
            if place >= 0:
                return begin + place + 1
            end = begin
    return 0


def copy_lines(folder: Path, path: str, num_bytes: int, attempts_before: int, written: BinaryIO) -> None:
    """Write the first bytes of a file of the node as they are in the run."""
    rest = b""
    with (folder / path).open("rb") as file:
        while num_bytes > 0 and (block := file.read(min(num_bytes, _COPIED_BYTES))):
            num_bytes -= len(block)
            block = rest + block
            lines = block[: block.rfind(b"\n") + 1] if num_bytes else block
            rest = block[len(lines) :]
            written.write(with_attempts(path, lines, attempts_before))


def with_attempts(path: str, lines: bytes, attempts_before: int) -> bytes:
    """Lines of a file of the node as they are in the run: steps have the number of their attempt, over all folders."""
    if not attempts_before or not path.startswith(f"{layout.STEPS_FOLDER}/"):
        return lines
    return b"".join(_with_attempt(line, attempts_before) for line in lines.splitlines(keepends=True))


def _with_attempt(line: bytes, attempts_before: int) -> bytes:
    try:
        step = json.loads(line)
        step["attempt"] = int(step.get("attempt", 1)) + attempts_before
        return json.dumps(step, separators=(",", ":")).encode() + b"\n"
    except (ValueError, TypeError, AttributeError, RecursionError):
        return line


def merged_manifest(own: bytes, before: bytes | None) -> bytes:
    """The manifest of the run: this node's, with the attempts that other folders uploaded before its own.

    Args:
        before: the manifest in the store; None without one.
    """
    attempts = [] if before is None else attempts_of(before)
    try:
        manifest = json.loads(own)
        known = {attempt["start_ns"] for attempt in manifest["attempts"]}
        earliest = min(known, default=0)
        earlier = [each for each in attempts if each["start_ns"] not in known and each["start_ns"] < earliest]
        if not earlier:
            return own
        manifest["attempts"] = [*earlier, *manifest["attempts"]]
        return json.dumps(manifest, indent=1).encode() + b"\n"
    except (ValueError, KeyError, TypeError, RecursionError):
        return own


def attempts_of(manifest: bytes) -> list[dict[str, int]]:
    """The attempts of a manifest, as they are; empty where it cannot be read."""
    try:
        document = json.loads(manifest)
        return [each for each in document["attempts"] if isinstance(each, Mapping) and int(each["start_ns"]) >= 0]  # type: ignore[misc]
    except (ValueError, KeyError, TypeError, RecursionError):
        return []


def first_time_ns(folder: Path) -> int:
    """When the node's ranks began, by what they wrote and not by times of files, ns since the epoch; 0 if unknown."""
    found = []
    for pattern in (f"{layout.STEPS_FOLDER}/rank*.jsonl", f"{layout.RANKS_FOLDER}/rank*.json"):
        for path in folder.glob(pattern):
            try:
                with path.open("rb") as file:
                    found.append(int(json.loads(file.readline())["start_ns"]))
            except (OSError, ValueError, KeyError, TypeError, RecursionError):
                continue
    return min(found, default=0)


def last_time_ns(lines: bytes) -> int:
    """End of the last step in lines of steps, ns since the epoch; 0 without one."""
    for line in reversed(lines.splitlines()):
        try:
            return int(json.loads(line)["end_ns"])
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
    return 0
