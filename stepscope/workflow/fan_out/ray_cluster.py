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
from stepscope.workflow.fan_out import tasks as fan_out

_CONNECT_SECONDS = 10.0
_CLIENT = "ray://"
_WAIT_SECONDS = 0.25


def in_ray(
    work: Callable[[fan_out.FileTask], fan_out.FileViews], tasks: Sequence[fan_out.FileTask], *, address: str | None
) -> Iterator[fan_out.FileViews]:
    """View files on the workers of a running Ray cluster; results in the order in which they finish.

    Args:
        work: importable on the workers.
        address: HOST:6379 on a node of the cluster, ray://HOST:10001 from outside; None for RAY_ADDRESS or, as Ray
            does, the cluster that this machine is part of.

    Raises:
        UsageError: no address is known, or a worker has another version.
        UnreachableError: the cluster does not answer, or goes away.
    """
    import ray

    where = _configured() if address in (None, "auto") else address
    if where == "local":  # Ray's word for starting one
        raise UsageError(
            "no Ray cluster is named, none runs on this machine, and none is started",
            what_next=f"give --scheduler HOST:6379 or {_CLIENT}HOST:10001, or set RAY_ADDRESS",
        )
    cluster = fan_out.Cluster("Ray", where)
    with _connected(ray, where):
        read = ray.remote(fan_out.on_worker)
        task_of = {read.remote(work, task): task for task in tasks}
        _check_workers(ray, cluster, len(tasks))
        watch, checked = fan_out.WorkerWatch(cluster), time.monotonic()
        while task_of:
            done, _ = ray.wait(list(task_of), num_returns=len(task_of), timeout=_WAIT_SECONDS)
            for reference in done:
                yield _result(ray, reference, task_of.pop(reference), cluster, len(task_of) + 1)
            if not done and time.monotonic() - checked >= fan_out.POLL_SECONDS:
                checked = time.monotonic()
                is_up = _answers(where)
                watch.check(len(task_of), is_up=is_up, has_workers=lambda: bool(ray.cluster_resources().get("CPU")))


@contextmanager
def _connected(ray: Any, address: str) -> Iterator[None]:
    """Connect; an existing connection of the caller is used and left open."""
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
        else:  # it would wait for the lost cluster for a minute, and then exit this process
            atexit.unregister(ray.shutdown)


def _configured() -> str:
    """RAY_ADDRESS, or the cluster last started on this machine, in Ray's own order; "local" for none."""
    address = os.environ.get("RAY_ADDRESS", "auto")
    if address in ("auto", ""):
        last = Path(os.environ.get("RAY_TMPDIR", "/tmp"), "ray", "ray_current_cluster")
        address = last.read_text().strip() if last.is_file() else "local"
    return address


def _answers(address: str) -> bool:
    """Whether the address accepts connections: Ray itself tries a dead one for two minutes and may exit the process."""
    host, _, port = address.removeprefix(_CLIENT).rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS).close()
    except (OSError, ValueError):
        return False
    return True


def _check_workers(ray: Any, cluster: fan_out.Cluster, num_missing: int) -> None:
    """Check the version on each node that takes tasks."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ask = ray.remote(pkgutil.resolve_name)
    nodes = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
    asked = [
        ask.options(num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)).remote(
            fan_out.VERSION_OF
        )
        for node in nodes
    ]
    waiting = asked
    while waiting:
        if not _answers(cluster.address):
            raise cluster.lost(num_missing)
        _, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=fan_out.POLL_SECONDS)
    versions = [(node["NodeName"], _version(ray, answer)) for node, answer in zip(nodes, asked, strict=True)]
    cluster.check_versions(versions)


def _version(ray: Any, answer: Any) -> str | BaseException:
    try:
        version: str = ray.get(answer)
        return version
    except ray.exceptions.RayTaskError as error:
        cause: BaseException = error.cause
        return cause


def _result(
    ray: Any, reference: Any, task: fan_out.FileTask, cluster: fan_out.Cluster, num_missing: int
) -> fan_out.FileViews:
    try:
        result: fan_out.FileViews = ray.get(reference)
        return result
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, ModuleNotFoundError):
            cluster.check_versions([("that came later", error.cause)])
        raise
    except (
        ray.exceptions.WorkerCrashedError,
        ray.exceptions.OutOfMemoryError,
        ray.exceptions.NodeDiedError,
        ray.exceptions.ObjectLostError,
    ) as error:
        return cluster.killed(task, type(error).__name__)
    except (ray.exceptions.RaySystemError, ConnectionError) as error:
        raise cluster.lost(num_missing) from error
