"""Place file of this rank: ranks/rank{r}.json says on which host and GPU it runs, and for which job of a scheduler."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

from stepscope.core.documents.run_directory import RankFile, RankPlace
from stepscope.training.run.identity import Identity, scheduled_job
from stepscope.training.run.run_files import atomic_write

logger = logging.getLogger(__name__)


class RankPlaceFile:
    """Place file of this rank; a periodic task, which writes it at the start and when the GPU has become known."""

    def __init__(self, run_directory: Path, identity: Identity, gpu_uuid: Callable[[], str | None]) -> None:
        self._path = run_directory / RankFile.PLACE.path(identity.rank)
        self._gpu_uuid = gpu_uuid
        kind, number = scheduled_job() or (None, None)
        self._place = RankPlace(
            rank=identity.rank,
            local_rank=identity.local_rank,
            host=identity.host,
            pid=os.getpid(),
            start_ns=time.time_ns(),
            job_kind=kind,
            job_id=number,
        )
        self._written: RankPlace | None = None

    def run_task(self) -> None:
        """Write the file if something is known that it does not say. A failure is a warning."""
        place = replace(self._place, gpu_uuid=self._gpu_uuid())
        if place == self._written:
            return
        self._written = place
        try:
            with atomic_write(self._path) as temporary:
                temporary.write_text(json.dumps(asdict(place)) + "\n", encoding="utf-8")
        except OSError as error:
            logger.warning("%s: cannot be written (%s); the run does not say where this rank runs", self._path, error)
