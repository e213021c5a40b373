"""Two trainings without a common folder write one run to an S3 server while their uploads are killed again and again.

    python -m benchmarks.runs_out [--server moto|seaweedfs[=/path/of/weed]] [--kills 50] [--seconds 60] [--seed 1]

Each training is a real `profile(out="s3://...")` of its own rank with a folder of its own; it captures every second or
so and writes a file of 40 MB, so that some objects are uploaded in parts. Meanwhile its upload is killed at random
moments, every object in the store is compared with the node's file, and `runs prune` is told to delete all runs. In the
end the store must hold exactly the nodes' files, byte for byte. Prints one JSON document; exits with 1 where it does
not.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.runs_out.servers import free_port, s3_server

_URL = "s3://bucket/runs"
_RUN = "gpt"
_LARGE_BYTES = 40 << 20
_TRAIN = """
import os, random, sys, time
from pathlib import Path
import torch
import torch.distributed as dist
import stepscope
from stepscope.training.run import upload
upload._FIRST_AGAIN_SECONDS = upload._LAST_AGAIN_SECONDS = 0.2  # start a killed upload again at once
seconds, rank = float(sys.argv[1]), int(os.environ["RANK"])
dist.init_process_group("gloo")
until = time.monotonic() + seconds
schedule = stepscope.every(50, first=10, active=2)
with stepscope.profile(run=sys.argv[2], out=sys.argv[3], schedule=schedule, memory="off") as prof:
    x, step, is_over = torch.ones(64, 64), 0, torch.zeros(1)
    while not is_over.item():
        y = x @ x
        time.sleep(0.01)
        is_over = torch.tensor([float(time.monotonic() > until)])
        dist.all_reduce(is_over)
        prof.step(loss=float(step))
        step += 1
        if step == 100:
            large = prof.run_directory / "memory" / f"rank{rank}.bin"
            large.parent.mkdir(exist_ok=True)
            part = large.with_name(".large.part")
            part.write_bytes(random.Random(rank).randbytes(int(sys.argv[4])))
            part.rename(large)
print(step, prof.run_directory, flush=True)
"""


def main() -> int:
    """Run the benchmark; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", default="moto")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, s3_server(options.server, Path(folder)) as settings:
        os.environ.update(settings)
        try:
            result = _measure(Path(folder), options)
        finally:
            _end_all(folder)
    print(json.dumps(result, indent=1))
    return 0 if result["is_right"] else 1


def _measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    import fsspec

    store = fsspec.filesystem("s3", use_listings_cache=False)
    store.mkdir("bucket")
    rng, port = random.Random(options.seed), free_port()
    trainings = [_train(folder / f"node{rank}", rank, options.seconds, port) for rank in (0, 1)]
    began = look_at = time.monotonic()
    num_kills = num_amid = num_prunes = num_objects = 0
    wrong: list[str] = []
    lives: dict[int, _Life] = {}
    while any(training.poll() is None for training in trainings):
        time.sleep(rng.uniform(0.01, 0.05))
        has_killed = False
        for rank, training in enumerate(trainings):
            for process in _uploads_of(training) if num_kills < options.kills else []:
                life = lives.setdefault(process, _Life(process, folder / f"node{rank}", rng))
                if life.is_over():
                    num_amid += life.is_amid()
                    with suppress(ProcessLookupError):
                        os.kill(process, signal.SIGKILL)
                        num_kills += 1
                        has_killed = True
        if not has_killed and time.monotonic() < look_at:
            continue
        look_at = time.monotonic() + 3.0
        checked, errors = _check_objects(store, folder, is_over=False)
        num_objects += checked
        wrong += errors
        if has_killed and num_kills % 5 == 1:
            num_prunes += 1
            wrong += _prune(folder)
        if time.monotonic() - began > options.seconds + 180.0:
            wrong.append("training did not end")
            break
    steps = []
    for training in trainings:
        output, errors_text = training.communicate(timeout=300)
        steps.append(int(output.split()[0]) if output else None)
        wrong += [] if training.returncode == 0 else [errors_text[-500:]]
    while num_kills < options.kills:  # and uploads after training
        rank = rng.randrange(2)
        upload = subprocess.Popen(_upload_command(folder, rank), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        life = _Life(upload.pid, folder / f"node{rank}", rng, has_work=False)
        while not life.is_over() and upload.poll() is None:
            time.sleep(0.02)
        num_amid += upload.poll() is None and life.is_amid()
        upload.kill()
        upload.wait()
        num_kills += 1
    wrong += [error for rank in (0, 1) if (error := _finish(_upload_command(folder, rank)))]
    checked, errors = _check_objects(store, folder, is_over=True)
    lines = [store.cat_file(f"bucket/runs/{_RUN}/steps/rank{rank}.jsonl").splitlines() for rank in (0, 1)]
    indices = [[json.loads(line)["index"] for line in of_rank] for of_rank in lines]
    wrong += [*errors, *(f"steps of rank {rank}" for rank in (0, 1) if indices[rank] != list(range(steps[rank] or 0)))]
    analysed = subprocess.run(
        [sys.executable, "-m", "stepscope", "analyze", f"{_URL}/{_RUN}", "--json"],
        capture_output=True,
        text=True,
    )
    document = json.loads(analysed.stdout) if analysed.returncode == 0 else {}
    ranks = document.get("job", {}).get("ranks")
    wrong += (
        [] if ranks == [0, 1] else [f"analyze: ranks {ranks}, {document.get('warnings') or analysed.stderr[-500:]}"]
    )
    unfinished = store.call_s3("list_multipart_uploads", Bucket="bucket").get("Uploads") or []
    return {
        "server": options.server.partition("=")[0],
        "is_right": not wrong,
        "wrong": wrong[:20],
        "kills": num_kills,
        "kills_while_files_waited": num_amid,
        "prunes_of_the_running_job": num_prunes,
        "objects_compared_meanwhile": num_objects,
        "objects_in_the_end": checked,
        "unfinished_parts_in_the_end": len(unfinished),
        "steps": steps,
        "ranks_analysed": ranks,
    }


def _train(folder: Path, rank: int, seconds: float, port: int) -> subprocess.Popen[str]:
    folder.mkdir()
    environment = os.environ | {
        "RANK": str(rank),
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "STEPSCOPE_SPOOL": str(folder),
        "STEPSCOPE_SPOOL_KEEP": "1",
        "STEPSCOPE_UPLOAD_WAIT": "60",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-c", _TRAIN, str(seconds), _RUN, _URL, str(_LARGE_BYTES)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def _uploads_of(training: subprocess.Popen[str]) -> list[int]:
    """The processes that upload beside a training."""
    found = []
    try:
        children = Path(f"/proc/{training.pid}/task/{training.pid}/children").read_text().split()
        for path in Path(f"/proc/{training.pid}/task").glob("*/children"):
            children += path.read_text().split()
    except OSError:
        return []
    for child in dict.fromkeys(children):
        with suppress(OSError):
            if b"stepscope.workflow.transfer.upload_process" in Path(f"/proc/{child}/cmdline").read_bytes():
                found.append(int(child))
    return found


def _end_all(folder: str) -> None:
    """End the trainings and uploads that still work in the benchmark's folder."""
    own = f"STEPSCOPE_SPOOL={folder}/".encode()
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            uploads = b"transfer.upload_process" in (command := (path / "cmdline").read_bytes())
            if (uploads and folder.encode() in command) or own in (path / "environ").read_bytes():
                os.kill(int(path.name), signal.SIGKILL)


def _node_folder(node: Path) -> Path | None:
    return next(iter(node.glob(f"*/{_RUN}")), None)


class _Life:
    """Life of an upload, until it is killed: at any time, or while it talks to the store and files wait."""

    def __init__(self, process: int, node: Path, rng: random.Random, *, has_work: bool = True) -> None:
        self._process = process
        self._node = node
        self._kills_amid = has_work and rng.random() < 0.7
        self._until = time.monotonic() + (20.0 if self._kills_amid else rng.uniform(0.5, 6.0))
        self._delay = rng.uniform(0.0, 0.4)

    def is_over(self) -> bool:
        """Whether it is to be killed now."""
        if self._kills_amid and self.is_amid():
            self._until, self._kills_amid = time.monotonic() + self._delay, False
        return time.monotonic() >= self._until

    def is_amid(self) -> bool:
        """Whether it has a connection to the store, and has claimed files that have not arrived."""
        folder = _node_folder(self._node)
        for path in [] if folder is None else (folder / "uploads").glob("*.json"):
            with suppress(OSError, ValueError):
                record = json.loads(path.read_bytes())
                return bool(set(record["claimed"]) - set(record["files"])) and self._is_talking()
        return False

    def _is_talking(self) -> bool:
        port = int(os.environ["AWS_ENDPOINT_URL"].rpartition(":")[2])
        lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        to_store = {line[9] for line in lines if int(line[2].rpartition(":")[2], 16) == port and line[3] == "01"}
        with suppress(OSError):
            for descriptor in Path(f"/proc/{self._process}/fd").iterdir():
                with suppress(OSError):
                    if os.readlink(descriptor).removeprefix("socket:[").rstrip("]") in to_store:
                        return True
        return False


def _check_objects(store: Any, folder: Path, *, is_over: bool) -> tuple[int, list[str]]:
    """Compare the store with the nodes' files: whole, or the beginning in whole lines of what is still written."""
    root = f"bucket/runs/{_RUN}"
    wrong: list[str] = []
    nodes = [found for rank in (0, 1) if (found := _node_folder(folder / f"node{rank}")) is not None]
    try:
        paths = store.find(root)
        objects = {path[len(root) + 1 :]: store.cat_file(path) for path in paths if "/uploads/" not in path}
    except FileNotFoundError:
        return 0, []
    for name, content in objects.items():
        held = [node / name for node in nodes if (node / name).is_file()]
        if len(held) != 1:
            wrong.append(f"{name}: of {len(held)} nodes")
        elif name == "run.json":
            json.loads(content)
        elif name.endswith(".jsonl") and not is_over:
            here = held[0].read_bytes()
            if not here.startswith(content) or (content and not content.endswith(b"\n")):
                wrong.append(f"{name}: not the beginning of the node's, in whole lines")
        elif name.startswith("ranks/") and not is_over:
            json.loads(content)
        elif hashlib.sha256(content).digest() != hashlib.sha256(held[0].read_bytes()).digest():
            wrong.append(f"{name}: differs")
    if is_over:
        here = {
            str(path.relative_to(node))
            for node in nodes
            for path in node.rglob("*")
            if path.is_file() and not path.name.startswith(".") and path.parent.name != "uploads"
        }
        wrong += [f"{name}: is missing" for name in sorted(here - set(objects))]
    return len(objects), wrong


def _prune(folder: Path) -> list[str]:
    """Have all runs deleted, in the store and on the nodes: the running job must lose nothing."""
    wrong = []
    for where in [_URL, *(str(path) for rank in (0, 1) for path in (folder / f"node{rank}").glob("*"))]:
        command = [sys.executable, "-m", "stepscope", "runs", "prune", where, "--run", "*", "--yes", "--json"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode in (3, 4) and not done.stdout:
            continue  # nothing there yet
        report = json.loads(done.stdout)
        wrong += [f"pruned {run['path']}" for run in report["runs"] if not run["is_kept"]]
    return wrong


def _finish(command: list[str]) -> str:
    """Upload to the end; the process of the training may still be at it. Returns the error; empty without one."""
    until = time.monotonic() + 300.0
    while True:
        done = subprocess.run(command, capture_output=True, text=True)
        if not done.returncode or "by another process" not in done.stderr or time.monotonic() > until:
            return done.stderr if done.returncode else ""
        time.sleep(1.0)


def _upload_command(folder: Path, rank: int) -> list[str]:
    node = _node_folder(folder / f"node{rank}")
    return [sys.executable, "-m", "stepscope", "runs", "upload", str(node), _URL]


if __name__ == "__main__":
    sys.exit(main())
