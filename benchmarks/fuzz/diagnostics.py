"""Fuzzer of diagnostics: damaged flight recorders, logs and memory snapshots end in an answer or in one line.

    python -m benchmarks.fuzz.diagnostics ../shared/traces [--inputs 100000] [--seed 0]

Recorded files of `stepscope hang`, `nccl` and `memory`, and written ones of `nccl`, `memory` and `steps`, are damaged:
bytes, numbers and lines changed, left out, doubled, swapped, cut off. Each input runs the whole command. Anything but a
result or an expected error, and anything that takes over five seconds, is printed with its seed and makes the program
exit with status 1.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.fuzz import written, written_nccl
from benchmarks.fuzz.fuzzer import TooSlowError
from stepscope.core.documents.nccl import nccl_document
from stepscope.core.errors import StepscopeError
from stepscope.store.documents import encode_document
from stepscope.workflow.memory import read_memory, read_memory_comparison
from stepscope.workflow.nccl import read_nccl
from stepscope.workflow.run_records import read_hang, read_steps

LONGEST_SECONDS = 5
_MOST_BYTES = 60_000
"""Of a sample: a damaged megabyte finds no more than its first part does."""
_NUMBERS = [b"0", b"-1", b"1", b"9" * 18, b"9" * 30, b"1e308", b"NaN", b"null", b"true", b"\x00", b"\xff"]
_NUMBER = re.compile(rb"\d+")


@dataclass(frozen=True)
class Target:
    """Command and the recorded jobs it runs on, each with file name and content."""

    name: str
    run: Callable[[str], object]
    jobs: list[dict[str, bytes]]


def main() -> int:
    """Print the outcomes; return 1 if an input was not handled."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="recorded traces")
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    targets = _targets(options.folder / "diag")
    outcomes: Counter[str] = Counter()
    scratch = Path(tempfile.mkdtemp(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
    begin = time.monotonic()
    try:
        for number in range(options.inputs):
            seed = f"{options.seed}/{number}"
            outcomes[_try(random.Random(seed), targets, scratch, seed)] += 1
    finally:
        shutil.rmtree(scratch)
    for outcome, count in sorted(outcomes.items()):
        print(f"{count:9,}  {outcome}")
    print(f"{options.inputs / (time.monotonic() - begin):,.0f} a second")
    return 1 if any(outcome.endswith("unhandled") for outcome in outcomes) else 0


def _targets(diag: Path) -> list[Target]:
    hangs = [_job(folder.iterdir()) for folder in sorted(diag.glob("fr_*/*"))]
    others = [
        file for part in ("nccl_logs", "inspector", "ras", "topo", "xpu_timer") for file in (diag / part).iterdir()
    ]
    snapshot = gzip.decompress((diag / "memory_h100/leak.pickle.gz").read_bytes())
    snapshots = [_small(snapshot), {"a.pickle": written.snapshot(1), "b.pickle": written.snapshot(5)}]
    return [
        Target("hang", lambda path: encode_document(read_hang([path])), hangs),
        Target(
            "nccl",
            lambda path: encode_document(nccl_document(read_nccl([path]))),
            [*(_job([file]) for file in sorted(others)), *written_nccl.jobs()],
        ),
        Target("memory", lambda path: [encode_document(one) for _, one in read_memory([path])], snapshots),
        Target("memory --compare", _compare, snapshots[1:]),
        Target("steps", lambda path: encode_document(read_steps(path)), written.logs()),
    ]


def _compare(folder: str) -> None:
    encode_document(read_memory_comparison(f"{folder}/a.pickle", f"{folder}/b.pickle"))


def _job(files: Iterator[Path] | list[Path]) -> dict[str, bytes]:
    return {file.name: file.read_bytes()[:_MOST_BYTES] for file in files if file.is_file()}


def _small(content: bytes) -> dict[str, bytes]:
    """Snapshot of the same form with few entries, pickled again; safe, as it is our own."""
    import pickle

    whole = pickle.loads(content)
    whole["segments"] = whole["segments"][:8]
    whole["device_traces"] = [trace[-150:] for trace in whole["device_traces"]]
    whole["external_annotations"] = whole["external_annotations"][-40:]
    return {"rank0-oom.pickle": pickle.dumps(whole)}


def _try(chance: random.Random, targets: list[Target], scratch: Path, seed: str) -> str:
    target = chance.choice(targets)
    job = dict(chance.choice(target.jobs))
    for name in chance.sample(sorted(job), min(len(job), chance.choice((1, 1, 2, 5)))):
        job[name] = _damaged(job[name], chance)
    folder = scratch / "one"
    folder.mkdir()
    try:
        for name, content in job.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(content)
        with _limited():
            target.run(str(folder))
    except StepscopeError as error:
        return f"{target.name}: {'one line' if chr(10) not in str(error) else 'several lines: unhandled'}"
    except (Exception, TooSlowError):  # the one thing looked for
        print(f"seed {seed}, {target.name}:", file=sys.stderr)
        traceback.print_exc()
        return f"{target.name}: unhandled"
    finally:
        shutil.rmtree(folder)
    return f"{target.name}: answered"


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    def too_long(*_: object) -> None:
        raise TooSlowError(f"over {LONGEST_SECONDS} s")

    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(LONGEST_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _damaged(content: bytes, chance: random.Random) -> bytes:
    for _ in range(chance.choice((1, 1, 2, 4, 10))):
        content = chance.choice(_DAMAGES)(content, chance)
    return content


def _byte(content: bytes, chance: random.Random) -> bytes:
    place = chance.randrange(len(content) + 1)
    return content[:place] + bytes([chance.randrange(256)]) + content[place + 1 :]


def _cut(content: bytes, chance: random.Random) -> bytes:
    return content[: chance.randrange(len(content) + 1)]


def _left_out(content: bytes, chance: random.Random) -> bytes:
    begin = chance.randrange(len(content) + 1)
    return content[:begin] + content[begin + chance.choice((1, 8, 100, 2000)) :]


def _doubled(content: bytes, chance: random.Random) -> bytes:
    begin = chance.randrange(len(content) + 1)
    return content[:begin] + content[max(begin - chance.choice((1, 50, 2000)), 0) :]


def _number(content: bytes, chance: random.Random) -> bytes:
    places = list(_NUMBER.finditer(content))
    if not places:
        return content
    match = chance.choice(places)
    return content[: match.start()] + chance.choice(_NUMBERS) + content[match.end() :]


def _lines(content: bytes, chance: random.Random) -> bytes:
    lines = content.split(b"\n")
    one, other = chance.randrange(len(lines)), chance.randrange(len(lines))
    lines[one], lines[other] = lines[other], lines[one]
    return b"\n".join(lines)


_DAMAGES = [_byte, _byte, _cut, _left_out, _doubled, _number, _number, _lines]


if __name__ == "__main__":
    raise SystemExit(main())
