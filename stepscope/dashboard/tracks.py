"""Which time lines are at hand as arrays? The latest few runs', read again when their file changes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass

from stepscope.core.errors import DataError
from stepscope.core.run_layout import TIMELINE_FILE
from stepscope.store.runs import RunStore
from stepscope.workflow.timeline_tiles import Track, make_track

MAX_RUNS_KEPT = 4


@dataclass(frozen=True, slots=True)
class Window:
    """One run's time lines; the window begins with the first rank and ends with the last."""

    origin_ns: int
    length_ns: int
    tracks: dict[int, Track]


class TrackCache:
    """Keeps the windows of the runs last asked for; safe to use from several threads."""

    def __init__(self, store: RunStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, tuple[tuple[int, int], Window]] = OrderedDict()

    def load(self, run_id: str) -> Window:
        """The run's window.

        Raises:
            UnknownRunError: there is no such run.
            DataError: it is not analysed, its timeline.json is damaged, or it holds no time.
        """
        path = self._store.path_of(run_id) / TIMELINE_FILE
        with self._lock:  # one reader at a time: a page asks for several tiles at once, the file is read once
            state = (path.stat().st_mtime_ns, path.stat().st_size) if path.is_file() else (0, 0)
            kept = self._kept.get(run_id)
            if kept is None or kept[0] != state:
                kept = (state, self._read(run_id))
                self._kept[run_id] = kept
                while len(self._kept) > MAX_RUNS_KEPT:
                    self._kept.popitem(last=False)
            self._kept.move_to_end(run_id)
            return kept[1]

    def _read(self, run_id: str) -> Window:
        tracks = {line.rank: make_track(line) for line in self._store.load_timeline(run_id) if line.start_ns}
        if not tracks:
            raise DataError("its time line holds no time", where=run_id, what_next="analyse the run again")
        origin = min(int(track.edges_ns[0]) for track in tracks.values())
        end = max(int(track.edges_ns[-1]) for track in tracks.values())
        return Window(origin, max(end - origin, 1), tracks)
