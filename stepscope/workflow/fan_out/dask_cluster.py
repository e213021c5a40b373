"""Reading files on the workers of a Dask cluster, results as they are ready."""

from __future__ import annotations

import logging
import os
import pkgutil
import queue
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from stepscope.core.errors import UnreachableError, UsageError
from stepscope.workflow.fan_out import tasks as fan_out


def in_dask(
    work: Callable[[fan_out.FileTask], fan_out.FileViews], tasks: Sequence[fan_out.FileTask], *, address: str | None
) -> Iterator[fan_out.FileViews]:
    """View files on the workers of a running Dask cluster; results in the order in which they finish.

    Args:
        work: importable on the workers.
        address: of the scheduler, or its scheduler file (*.json); None for Dask's own setting.

    Raises:
        UsageError: no address is known, or a worker has another version.
        UnreachableError: the cluster does not answer, or goes away.
    """
    address = address or _configured()
    with _quiet(), _connected(address) as client:
        connection = _Connection(client, fan_out.Cluster("Dask", address), on_file=partial(fan_out.on_worker, work))
        suspects = []
        for result in connection.results(tasks, check=True):
            if isinstance(result.error, fan_out.KilledError):
                suspects.append(result.task)
            else:
                yield result
        # Dask blames every task that waited on a worker that died: run one by one, the others succeed
        for task in suspects:
            yield from connection.results([task])


@dataclass(frozen=True, slots=True)
class _Connection:
    client: Any
    cluster: fan_out.Cluster
    on_file: Callable[[fan_out.FileTask], fan_out.FileViews]

    def results(self, tasks: Sequence[fan_out.FileTask], *, check: bool = False) -> Iterator[fan_out.FileViews]:
        """Results as they come; `check` checks the workers first."""
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
        """Check the versions of the present workers; clusters that grow on demand need the tasks first."""
        try:
            self.client.wait_for_workers(1, timeout=fan_out.WORKERS_WITHIN_SECONDS)
            versions = self.client.run(pkgutil.resolve_name, fan_out.VERSION_OF, on_error="return")
        except TimeoutError as error:
            raise self.cluster.no_workers(num_missing) from error
        except OSError as error:
            raise self.cluster.lost(num_missing) from error
        self.cluster.check_versions(versions.items())

    def _next(self, arrived: queue.SimpleQueue[Any], num_missing: int) -> Any:
        watch = fan_out.WorkerWatch(self.cluster)
        while True:
            with suppress(queue.Empty):
                return arrived.get(timeout=fan_out.POLL_SECONDS)
            is_up = self.client.status == "running"
            watch.check(num_missing, is_up=is_up, has_workers=lambda: bool(self.client.scheduler_info()["workers"]))

    def _result(self, future: Any, task: fan_out.FileTask, num_missing: int) -> fan_out.FileViews:
        from distributed import CancelledError, KilledWorker

        while True:
            try:
                result: fan_out.FileViews = future.result(timeout=fan_out.POLL_SECONDS)
                return result
            except KilledWorker as error:
                return self.cluster.killed(task, f"last {error.last_worker.address}")
            except (CancelledError, OSError) as error:
                if self.client.status == "running" and isinstance(error, TimeoutError):
                    continue  # the worker that held the result went away; it is computed again
                raise self.cluster.lost(num_missing) from error
            except ModuleNotFoundError as error:
                self.cluster.check_versions([("that came later", error)])
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
    """A client of its own; pending tasks are cancelled when it closes."""
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
        client.close(timeout=fan_out.POLL_SECONDS)


def _place(address: str) -> dict[str, str]:
    """The client's argument, checked here: a client given a malformed address hangs for a minute."""
    from distributed.comm import get_address_host_port

    if address.endswith(".json"):
        if not os.path.isfile(address):
            raise UsageError("does not exist", where=address, what_next="give the scheduler file that Dask wrote")
        return {"scheduler_file": address}
    try:
        get_address_host_port(address)
    except ValueError as error:
        raise UsageError(
            f"is not the address of a scheduler ({error})", where=address, what_next="give HOST:PORT"
        ) from error
    return {"address": address}


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the client's loggers: a lost connection is one error line of ours, not a dozen of theirs."""
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
