"""Results of a recording: a line for each case as it ends, from which the next call goes on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

RECORDED, FAILED, BLOCKS = "recorded", "failed", "blocks"
FILE = "cases.jsonl"


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a case.

    Attributes:
        state: recorded, failed, or blocks: bare steps without what another pool measures.
        started: seconds since the epoch.
        seconds: it took.
        figures: of its truth, or bare steps.
        trouble: why it failed.
    """

    name: str
    state: str
    started: float
    seconds: float
    figures: dict[str, Any] = field(default_factory=dict)
    trouble: str | None = None


class Results:
    """Results in a folder, and those of earlier calls.

    Args:
        earlier: files of results, whose recorded cases are not made again.
        again: names of cases that are made again all the same, if `out` does not have them.
    """

    def __init__(self, out: Path, earlier: Sequence[Path] = (), again: Sequence[str] = ()) -> None:
        self._path = out / FILE
        self._known = [one for path in earlier for one in read_results(path) if one.name not in again]
        self._known += read_results(self._path)

    def is_recorded(self, name: str) -> bool:
        return any(one.name == name and one.state == RECORDED for one in self._known)

    def add(self, result: Result) -> None:
        """Write it at once: the call may be killed."""
        self._known.append(result)
        with self._path.open("a") as file:
            file.write(json.dumps(asdict(result)) + "\n")

    def of_this_call(self, began: float) -> list[Result]:
        return [one for one in self._known if one.started >= began]


def read_results(path: Path) -> list[Result]:
    """Whole lines of a file of results; none where there is no file."""
    results = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            results.append(Result(**json.loads(line)))
        except (ValueError, TypeError):
            continue  # a kill left it incomplete
    return results
