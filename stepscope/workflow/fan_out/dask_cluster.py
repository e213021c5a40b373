"""Reading files on the workers of a Dask cluster, results as they are ready."""

from __future__ import annotations

import logging
import os
import pkgutil
import queue
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from stepscope.core.errors import UnreachableError, UsageError
from stepscope.workflow.fan_out.tasks import (
    LOOK_EVERY_SECONDS,
    VERSION_OF,
    WORKERS_WITHIN_SECONDS,
    FileTask,
    FileViews,
    KilledError,
    check_versions,
    killed,
    lost,
    no_workers,
    on_worker,
)

_ENGINE = "Dask"


def in_dask(
    work: Callable[[FileTask], FileViews], tasks: Sequence[FileTask], *, address: str | None
) -> Iterator[FileViews]:
    """On the workers of a running Dask cluster, in the order in which they finish.

    Args:
        work: importable on the workers.
        tasks: the files.
        address: of the scheduler, or its scheduler file (*.json); None for Dask's own setting.

    Raises:
        UsageError: no address is known, or the workers' stepscope is another.
        UnreachableError: the cluster does not answer, or goes away.
    """
    address = address or _configured()
    with _quiet(), _connected(address) as client:
        cluster = _Cluster(client, address, on_file=partial(on_worker, work))
        suspects = []
        for result in cluster.results(tasks, check=True):
            if isinstance(result.error, KilledError):
                suspects.append(result.task)
            else:
                yield result
        # Dask suspects all that waited on a worker that died: one after another the innocent are read
        for task in suspects:
            yield from cluster.results([task])


@dataclass(frozen=True, slots=True)
class _Cluster:
    """A connection, and what to do there with each file."""

    client: Any
    address: str
    on_file: Callable[[FileTask], FileViews]

    def results(self, tasks: Sequence[FileTask], *, check: bool = False) -> Iterator[FileViews]:
        """As they come; `check` looks at the workers first."""
        futures = self.client.map(self.on_file, tasks, pure=False)
        arrived: queue.SimpleQueue[Any] = queue.SimpleQueue()
        for future in futures:
            future.add_done_callback(arrived.put)
        task_of = {future.key: task for future, task in zip(futures, tasks, strict=True)}
        if check:
            self._check_workers(len(tasks))
        while task_of:
            future = self._next(arrived, len(task_of))
            yield self._result(future, task_of.pop(future.key), len(task_of) + 1)
            future.release()  # the cluster may forget it

    def _check_workers(self, num_missing: int) -> None:
        """Those that are there; clusters that grow on demand need the tasks first."""
        try:
            self.client.wait_for_workers(1, timeout=WORKERS_WITHIN_SECONDS)
            found = self.client.run(pkgutil.resolve_name, VERSION_OF, on_error="return")
        except TimeoutError as error:
            raise no_workers(_ENGINE, self.address, num_missing) from error
        except OSError as error:
            raise lost(_ENGINE, self.address, num_missing) from error
        check_versions(_ENGINE, found.items())

    def _next(self, arrived: queue.SimpleQueue[Any], num_missing: int) -> Any:
        """The next future that is done."""
        seen = time.monotonic()
        while True:
            try:
                return arrived.get(timeout=LOOK_EVERY_SECONDS)
            except queue.Empty:
                if self.client.status != "running":
                    raise lost(_ENGINE, self.address, num_missing) from None
                if self.client.scheduler_info()["workers"]:
                    seen = time.monotonic()
                elif time.monotonic() - seen > WORKERS_WITHIN_SECONDS:
                    raise no_workers(_ENGINE, self.address, num_missing) from None

    def _result(self, future: Any, task: FileTask, num_missing: int) -> FileViews:
        from distributed import CancelledError, KilledWorker

        while True:
            try:
                result: FileViews = future.result(timeout=LOOK_EVERY_SECONDS)
                return result
            except KilledWorker as error:
                return killed(task, _ENGINE, f"last {error.last_worker.address}")
            except (CancelledError, OSError) as error:
                if self.client.status == "running" and isinstance(error, TimeoutError):
                    continue  # whoever held the result went away; it is made again
                raise lost(_ENGINE, self.address, num_missing) from error
            except ModuleNotFoundError as error:
                check_versions(_ENGINE, [("that came later", error)])
                raise


def _configured() -> str:
    """DASK_SCHEDULER_ADDRESS or `scheduler-address` of Dask's configuration files."""
    import dask

    address = dask.config.get("scheduler-address", None)
    if not address:
        raise UsageError(
            "no Dask cluster is named, and none is started",
            what_next="give --scheduler tcp://HOST:8786 or set DASK_SCHEDULER_ADDRESS",
        )
    return str(address)


@contextmanager
def _connected(address: str) -> Iterator[Any]:
    """A client of its own; what it still waits for when it closes is cancelled."""
    from distributed import Client

    where = _place(address)
    try:
        client = Client(**where, set_as_default=False, name="stepscope")
    except OSError as error:
        raise UnreachableError(
            f"no Dask scheduler answers ({error})", where=address, what_next="check the address and that it is up"
        ) from error
    try:
        yield client
    finally:
        client.close(timeout=LOOK_EVERY_SECONDS)


def _place(address: str) -> dict[str, str]:
    """The client's argument. Given an address of no form it knows, a client hangs for a minute before it says so."""
    from distributed.comm import get_address_host_port

    if address.endswith(".json"):
        if not os.path.isfile(address):
            raise UsageError("does not exist", where=address, what_next="give the scheduler file that Dask wrote")
        return {"scheduler_file": address}
    try:
        get_address_host_port(address)
    except ValueError as error:
        raise UsageError(f"is no scheduler's address ({error})", where=address, what_next="give HOST:PORT") from error
    return {"address": address}


@contextmanager
def _quiet() -> Iterator[None]:
    """A lost connection is told in our one line, not in a dozen of the client's."""
    import distributed  # sets its loggers' levels on import

    logs = [logging.getLogger(name) for name in (distributed.__name__, distributed.client.__name__)]
    before = [log.level for log in logs]
    for log in logs:
        log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for log, level in zip(logs, before, strict=True):
            log.setLevel(level)
