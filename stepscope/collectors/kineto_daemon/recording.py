"""How do one capture's requests reach processes, and their traces a run? The files that belong to its decisions."""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from stepscope.collectors.kineto_daemon.capture import Offer, Take
from stepscope.collectors.kineto_daemon.config import StepsConfig
from stepscope.collectors.kineto_daemon.keeping import Partial, compress, keep, next_capture
from stepscope.collectors.kineto_daemon.orders import Orders
from stepscope.collectors.kineto_daemon.rank_capture import Sight
from stepscope.collectors.kineto_daemon.registry import KinetoProcess
from stepscope.collectors.kineto_daemon.staging import Staging
from stepscope.collectors.kineto_daemon.targets import Target, ranks_to_keep
from stepscope.core.run_layout import trace_path


class Recording:
    """The files of one capture. For one thread, beside the readers' that it gives work to.

    Attributes:
        targets: the processes by key.
    """

    def __init__(
        self,
        targets: Mapping[str, Target],
        *,
        num_steps: int,
        max_bytes: int | None,
        orders: Orders,
        readers: ThreadPoolExecutor,
    ) -> None:
        self.targets = targets
        self._num_steps = num_steps
        self._max_bytes = max_bytes
        self._orders = orders
        self._readers = readers
        self._staging: dict[str, Staging] = {}
        self._configs: dict[str, StepsConfig] = {}
        self._reading: dict[str, Future[Partial]] = {}
        self._partials: dict[str, Partial] = {}
        self._folders: dict[Path, int] = {}
        self._folders_lock = threading.Lock()

    @property
    def is_reading(self) -> bool:
        """Whether a reader is still at work."""
        return bool(self._reading)

    def sight(self, key: str, process: KinetoProcess | None) -> Sight:
        """What is seen of a process; `process` was looked up before."""
        config = self._configs.get(key)
        written = config is not None and self._staging[key].has(config.written_path(self.targets[key].process.pid))
        return Sight(process, self._orders.delivered(key), written)

    def offer(self, offer: Offer) -> None:
        """Lay out a request.

        Raises:
            OSError: there is no folder that the process could write to.
            ValueError: libkineto could not be told of it.
        """
        target = self.targets[offer.key]
        if offer.key not in self._staging:
            self._staging[offer.key] = Staging(target.process, target.place.trace_folder)
        path = self._staging[offer.key].path / f"attempt{offer.attempt}.json"
        config = StepsConfig(path, self._num_steps, offer.start_multiple)
        self._configs[offer.key] = config
        witness = self._staging[offer.key].witness(config.written_path(target.process.pid))
        self._orders.lay_out(offer.key, config.text(), unless=witness)

    def start_reading(self, take: Take) -> None:
        """Have a trace read and compressed."""
        self._reading[take.key] = self._readers.submit(self._read, take)

    def finished(self) -> list[tuple[str, Partial | str]]:
        """The keys whose traces were read since the last call, with the compressed trace or why there is none."""
        results: list[tuple[str, Partial | str]] = []
        for key, reading in list(self._reading.items()):
            if not reading.done():
                continue
            del self._reading[key]
            self._drop(key)  # of an earlier attempt
            try:
                self._partials[key] = reading.result()
            except Exception as error:  # a trace may hold anything: what nobody foresaw is this capture's fault alone
                results.append((key, said(error)))
            else:
                results.append((key, self._partials[key]))
        return results

    def keep(self, keys: Collection[str]) -> dict[str, tuple[Path, int] | str]:
        """Give traces their names; path and bytes of each, or why it could not be kept."""
        in_trace = {key: self._partials[key].summary.rank for key in keys}
        ranks = ranks_to_keep([self.targets[key] for key in keys], in_trace)
        kept: dict[str, tuple[Path, int] | str] = {}
        for key, rank in ranks.items():
            run, partial = self.targets[key].run_directory, self._partials[key]
            try:
                kept[key] = (keep(partial, run, self._folders[run], rank), partial.num_bytes)
                del self._partials[key]
            except OSError as error:
                kept[key] = said(error)
        return kept

    def close(self) -> None:
        """Remove what is left. A process that is to write there afterwards logs an error and goes on."""
        for key in list(self._partials):
            self._drop(key)
        for staging in self._staging.values():
            staging.remove()
        for run, number in self._folders.items():
            with suppress(OSError):  # it holds traces
                (run / trace_path(number, 0)).parent.rmdir()

    def _read(self, take: Take) -> Partial:
        target = self.targets[take.key]
        path = self._configs[take.key].written_path(target.process.pid)
        source = self._staging[take.key].open(path)
        try:
            folder = self._capture_folder(target.run_directory)
            partial = folder / f".{take.key}.{take.attempt}.partial"
            return compress(source, partial, target.process.peer, max_bytes=self._max_bytes)
        finally:
            os.close(source)

    def _capture_folder(self, run: Path) -> Path:
        with self._folders_lock:
            if run not in self._folders:
                self._folders[run] = next_capture(run)
            return (run / trace_path(self._folders[run], 0)).parent

    def _drop(self, key: str) -> None:
        partial = self._partials.pop(key, None)
        if partial is not None:
            partial.path.unlink(missing_ok=True)


def said(error: Exception) -> str:
    """One line for people."""
    text = getattr(error, "strerror", None) or str(error)
    where = getattr(error, "filename", None)
    return f"{where}: {text}" if where else text
