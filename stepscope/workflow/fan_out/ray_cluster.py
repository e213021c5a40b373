"""Reading files on the workers of a Ray cluster, results as they are ready."""

from __future__ import annotations

import atexit
import logging
import os
import pkgutil
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stepscope.core.errors import UnreachableError, UsageError
from stepscope.workflow.fan_out.tasks import (
    LOOK_EVERY_SECONDS,
    VERSION_OF,
    WORKERS_WITHIN_SECONDS,
    FileTask,
    FileViews,
    check_versions,
    killed,
    lost,
    no_workers,
    on_worker,
)

_ENGINE = "Ray"
_CONNECT_SECONDS = 10.0
_CLIENT = "ray://"
_POLL_SECONDS = 0.25


def in_ray(
    work: Callable[[FileTask], FileViews], tasks: Sequence[FileTask], *, address: str | None
) -> Iterator[FileViews]:
    """On the workers of a running Ray cluster, in the order in which they finish.

    Args:
        work: importable on the workers.
        tasks: the files.
        address: HOST:6379 on a node of the cluster, ray://HOST:10001 from outside; None for RAY_ADDRESS or, as Ray
            does, the cluster that this machine is part of.

    Raises:
        UsageError: no address is known, or the workers' stepscope is another.
        UnreachableError: the cluster does not answer, or goes away.
    """
    import ray

    where = _known() if address in (None, "auto") else address
    if where == "local":  # Ray's word for starting one
        raise UsageError(
            "no Ray cluster is named, none runs on this machine, and none is started",
            what_next=f"give --scheduler HOST:6379 or {_CLIENT}HOST:10001, or set RAY_ADDRESS",
        )
    with _connected(ray, where):
        read = ray.remote(on_worker)
        task_of = {read.remote(work, task): task for task in tasks}
        _check_workers(ray, where, len(tasks))
        seen = looked = time.monotonic()
        while task_of:
            done, _ = ray.wait(list(task_of), num_returns=len(task_of), timeout=_POLL_SECONDS)
            for reference in done:
                yield _result(ray, reference, task_of.pop(reference), where, len(task_of) + 1)
            if done or time.monotonic() - looked < LOOK_EVERY_SECONDS:
                continue
            looked = time.monotonic()
            _look(where, len(task_of))
            if ray.cluster_resources().get("CPU"):
                seen = looked
            elif looked - seen > WORKERS_WITHIN_SECONDS:
                raise no_workers(_ENGINE, where, len(task_of))


@contextmanager
def _connected(ray: Any, address: str) -> Iterator[None]:
    """A connection that the caller has already is used and left."""
    if ray.is_initialized():
        yield
        return
    if not _answers(address):
        raise UnreachableError("no Ray cluster answers", where=address, what_next="check the address and that it is up")
    try:
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, RuntimeError, ValueError) as error:
        raise UnreachableError(
            f"no Ray cluster can be joined ({error})",
            where=address,
            what_next=f"from a machine outside the cluster use {_CLIENT}HOST:10001",
        ) from error
    try:
        yield
    finally:
        if _answers(address):
            ray.shutdown()
        else:  # would wait for the lost cluster for a minute, and then end this process
            atexit.unregister(ray.shutdown)


def _known() -> str:
    """RAY_ADDRESS, or the cluster last started on this machine, where Ray too looks before it starts one."""
    address = os.environ.get("RAY_ADDRESS", "auto")
    if address in ("auto", ""):
        last = Path(os.environ.get("RAY_TMPDIR", "/tmp"), "ray", "ray_current_cluster")
        address = last.read_text().strip() if last.is_file() else "local"
    return address


def _answers(address: str) -> bool:
    """Ray itself tries a dead address for two minutes, and ends the process when its head goes away."""
    host, _, port = address.removeprefix(_CLIENT).rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS).close()
    except (OSError, ValueError):
        return False
    return True


def _look(address: str, num_missing: int) -> None:
    if not _answers(address):
        raise lost(_ENGINE, address, num_missing)


def _check_workers(ray: Any, address: str, num_missing: int) -> None:
    """One task a node that can take tasks."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ask = ray.remote(pkgutil.resolve_name)
    nodes = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
    asked = [
        ask.options(num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)).remote(
            VERSION_OF
        )
        for node in nodes
    ]
    waiting = asked
    while waiting:
        _look(address, num_missing)
        _, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=LOOK_EVERY_SECONDS)
    check_versions(
        _ENGINE, [(node["NodeName"], _version(ray, answer)) for node, answer in zip(nodes, asked, strict=True)]
    )


def _version(ray: Any, answer: Any) -> str | BaseException:
    try:
        version: str = ray.get(answer)
        return version
    except ray.exceptions.RayTaskError as error:
        cause: BaseException = error.cause
        return cause


def _result(ray: Any, reference: Any, task: FileTask, address: str, num_missing: int) -> FileViews:
    try:
        result: FileViews = ray.get(reference)
        return result
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, ModuleNotFoundError):
            check_versions(_ENGINE, [("that came later", error.cause)])
        raise
    except (
        ray.exceptions.WorkerCrashedError,
        ray.exceptions.OutOfMemoryError,
        ray.exceptions.NodeDiedError,
        ray.exceptions.ObjectLostError,
    ) as error:
        return killed(task, _ENGINE, type(error).__name__)
    except (ray.exceptions.RaySystemError, ConnectionError) as error:
        raise lost(_ENGINE, address, num_missing) from error
