"""Server of the training socket, one thread for all connections.

A process that is idle, floods or sends garbage does not affect the others, nor does one of another user that uses the
same names.
"""

from __future__ import annotations

import logging
import os
import selectors
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace

from stepscope.agent.training_link.connection import (
    DEFAULT_MODE,
    ConnectionEndedError,
    PacingBucket,
    SocketFile,
    TrainingConnection,
    TrainingPeer,
    is_hung_up,
    training_peer_of,
    uid_of_process,
)
from stepscope.agent.training_link.tenancy import RunClaims
from stepscope.core.documents.node import TrainingRank
from stepscope.core.errors import UsageError, printable
from stepscope.core.metrics.readings import Missing, MissingReason
from stepscope.core.protocol.captures import CaptureRequest, CaptureUpdate
from stepscope.core.protocol.messages import Cancel, encode_message

_log = logging.getLogger(__name__)

MAX_CONNECTIONS = 256
DEFAULT_CONNECTIONS_OF_USER = 64
_MAX_WARNED = 256
_READ_BYTES = 4 << 10
_BYTES_PER_SECOND = 8 << 10  # of one; it sends about 0.5 kB a second, 5 kB with the most phases
_BYTES_PER_SECOND_OF_ALL = 128 << 10  # of all that send too much: together a fiftieth of a core
_MIN_BYTES_PER_SECOND = 1 << 10
_LAST_READS = 4  # from a process that is gone, though it sent too much
_ACCEPTS, _ACCEPTS_PER_SECOND = 256.0, 20.0
_TURN_SECONDS = 0.5
_IDLE_SECONDS = 5.0
"""Without a process there is nothing to look after; one that connects, and the end, wake the thread."""
_MAX_BACKLOGD = 4096


class TrainingServer:
    """Server of training processes; listens while it is open, a context manager. No call waits for a process.

    Attributes:
        wake: called on the server's thread when an answer has come, or a process has connected or gone.
        why_closed: why it does not listen although it is open; None while it does.
    """

    _selector: selectors.BaseSelector

    def __init__(
        self,
        path: str,
        *,
        mode: int = DEFAULT_MODE,
        is_required: bool = True,
        connections_of_user: int = DEFAULT_CONNECTIONS_OF_USER,
    ) -> None:
        """Without `is_required` it goes on where this user cannot create the socket."""
        self.wake: Callable[[], None] = lambda: None
        self.why_closed: Missing | None = None
        self._file = SocketFile(path, mode=mode)
        self._is_required = is_required
        self._connections_of_user = connections_of_user
        self._claims = RunClaims()
        self._lock = threading.Lock()
        self._clients: dict[socket.socket, TrainingConnection] = {}
        self._paused: dict[socket.socket, float] = {}
        self._outbox: deque[tuple[str, bytes, bool]] = deque(maxlen=_MAX_BACKLOGD)
        self._num_left_counters = 0
        self._updates: deque[CaptureUpdate] = deque(maxlen=_MAX_BACKLOGD)
        self._refused: Counter[str] = Counter()
        self._accepts = PacingBucket(_ACCEPTS, time.monotonic())
        self._accept_at = 0.0
        self._has_warned = False
        self._warned: set[tuple[int | None, str]] = set()
        self._closing = False
        self._event = -1
        self._thread = threading.Thread(target=self._run, name="stepscope-training", daemon=True)

    def __enter__(self) -> TrainingServer:
        """Raises `UsageError` where another agent listens, or the required socket cannot be created."""
        try:
            self._file.__enter__()
        except OSError as error:
            detail = f"no socket for training at {self._file.path} ({error.strerror or error})"
            if self._is_required:
                raise UsageError(detail, what_next="choose another with --socket, or '' for none") from None
            is_forbidden = isinstance(error, PermissionError)
            reason = MissingReason.NO_PERMISSION if is_forbidden else MissingReason.FAILED
            self.why_closed = Missing("", (), reason, detail)
            return self
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._selector = selectors.DefaultSelector()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.why_closed is not None:
            return
        self._closing = True
        os.eventfd_write(self._event, 1)
        self._thread.join()
        os.close(self._event)
        self._file.__exit__()

    def ranks(self) -> tuple[TrainingRank, ...]:
        """The connected processes, by run and rank; of one with two connections the newer.

        The name of a run is the one that its user may use, see `RunClaims`.
        """
        now = time.monotonic()
        with self._lock:
            ranks = [self._named(rank, now) for client in self._clients.values() if (rank := client.rank(now))]
        newest = {rank.key: rank for rank in ranks}
        return tuple(sorted(newest.values(), key=_order))

    def _named(self, rank: TrainingRank, now: float) -> TrainingRank:
        run, since = rank.hello.run, self._claims.since(rank.uid, rank.hello.run)
        name = self._claims.shown_name(rank.uid, run, now)
        return replace(rank, hello=rank.hello if name == run else replace(rank.hello, run=name), known_since=since)

    def refused(self) -> dict[str, int]:
        """Number of connections that the agent has closed, by reason."""
        with self._lock:
            return dict(self._refused)

    def send(self, message: CaptureRequest | Cancel, keys: Iterable[str]) -> None:
        """Send a message to these processes; those that are away do not get it."""
        if self.why_closed is not None:
            return
        line = encode_message(message)
        self._outbox.extend((key, line, False) for key in keys)
        os.eventfd_write(self._event, 1)

    def counter_takers(self) -> list[tuple[str, TrainingPeer]]:
        """Keys of the processes that want counters, and who they are; without those that did not read them."""
        with self._lock:
            return [(client.key, client.peer) for client in self._clients.values() if client.takes_counters]

    @property
    def num_left_counters(self) -> int:
        """Processes that get no more counters, as they did not read them."""
        return self._num_left_counters

    def send_counters(self, key: str, line: bytes) -> None:
        """Send counters to a process; one that does not read them gets no more, and keeps its connection."""
        if self.why_closed is None:
            self._outbox.append((key, line, True))
            os.eventfd_write(self._event, 1)

    def take_updates(self) -> list[CaptureUpdate]:
        """Answers of processes since the last call; the oldest of too many are lost."""
        taken = []
        with suppress(IndexError):
            while True:
                taken.append(self._updates.popleft())
        return taken

    def _run(self) -> None:
        with self._selector:
            self._selector.register(self._event, selectors.EVENT_READ)
            while not self._closing:
                try:
                    self._turn()
                except Exception:  # the thread's edge: the next turn serves training again
                    _log.exception("the training socket failed; it continues")
                    time.sleep(_TURN_SECONDS)
            for connection in list(self._clients):
                self._end(connection, "agent_ends", "")

    def _turn(self) -> None:
        now = time.monotonic()
        for connection, until in list(self._paused.items()):
            if until <= now:
                del self._paused[connection]
                if is_hung_up(connection):
                    # Read some of the bytes that a process that is gone has left, not for minutes.
                    for _ in range(_LAST_READS):
                        if connection in self._clients:
                            self._serve(connection, selectors.EVENT_READ)
                    if connection in self._clients:
                        self._end(connection, "gone", "")
                else:
                    self._listen(connection)
        due = [*self._paused.values()]
        listening = self._file.listening
        if self._accept_at > now:
            due.append(self._accept_at)
        elif listening not in self._selector.get_map():
            self._selector.register(listening, selectors.EVENT_READ)
        for key, events in self._selector.select(
            min([_TURN_SECONDS if self._clients else _IDLE_SECONDS, *(at - now for at in due)])
        ):
            if key.fileobj is listening:
                self._accept()
            elif isinstance(key.fileobj, socket.socket):
                self._serve(key.fileobj, events)
            else:
                os.eventfd_read(self._event)
        self._deliver()
        now = time.monotonic()
        for connection, client in list(self._clients.items()):
            try:
                client.check_hello(now)
            except ConnectionEndedError as ended:
                self._end(connection, ended.reason, str(ended))

    def _accept(self) -> None:
        try:
            connection, _ = self._file.listening.accept()
        except BlockingIOError:
            return
        except OSError as error:  # no descriptor left: waiting processes are accepted later
            if not self._has_warned:
                self._has_warned = True
                _log.warning("training processes cannot be accepted: %s", error)
            self._accept_later(_TURN_SECONDS)
            return
        self._accepts.use(1)
        self._accept_later(self._accepts.wait_seconds(_ACCEPTS_PER_SECOND, time.monotonic()))
        connection.setblocking(False)
        peer = training_peer_of(connection)
        of_user = sum(client.peer.uid == peer.uid for client in self._clients.values())
        if len(self._clients) >= MAX_CONNECTIONS or of_user >= self._connections_of_user:
            connection.close()
            self._refuse(peer.uid, "too_many", f"it has {of_user} of at most {self._connections_of_user} connections")
            return
        with self._lock:
            self._clients[connection] = TrainingConnection(peer, time.monotonic(), uid_of=uid_of_process)
        self._selector.register(connection, selectors.EVENT_READ)

    def _accept_later(self, seconds: float) -> None:
        if seconds:
            self._accept_at = time.monotonic() + seconds
            self._selector.unregister(self._file.listening)

    def _serve(self, connection: socket.socket, events: int) -> None:
        client = self._clients[connection]
        try:
            if events & selectors.EVENT_READ:
                self._receive(connection, client)
            self._send(connection, client)
        except ConnectionEndedError as ended:
            with suppress(OSError):  # such as the version of this agent
                connection.send(client.unsent)
            self._end(connection, ended.reason, str(ended))
        except OSError as error:
            self._end(connection, "gone", str(error))
        else:
            self._listen(connection)

    def _receive(self, connection: socket.socket, client: TrainingConnection) -> None:
        try:
            block = connection.recv(_READ_BYTES)
        except BlockingIOError:
            return
        if not block:
            raise ConnectionEndedError("gone")
        now, was_known = time.monotonic(), client.hello is not None
        with self._lock:
            try:
                answers = client.receive(block, now)
            finally:
                if client.hello is not None and not was_known:
                    self._claims.connect(client.peer.uid, client.hello.run, now)
        self._updates.extend(CaptureUpdate(answer.id, client.key, answer.progress) for answer in answers)
        of_all = _BYTES_PER_SECOND_OF_ALL / (len(self._paused) + 1)
        pause = client.pause_seconds(max(min(_BYTES_PER_SECOND, of_all), _MIN_BYTES_PER_SECOND), now)
        if pause:
            self._paused[connection] = now + pause
        if answers or (client.hello is not None and not was_known):
            self.wake()

    def _send(self, connection: socket.socket, client: TrainingConnection) -> None:
        if client.unsent:
            with suppress(BlockingIOError):
                client.unsent = client.unsent[connection.send(client.unsent, socket.MSG_NOSIGNAL) :]

    def _listen(self, connection: socket.socket) -> None:
        """Select the connection for reading and writing as it needs."""
        events = (connection not in self._paused) * selectors.EVENT_READ
        events |= bool(self._clients[connection].unsent) * selectors.EVENT_WRITE
        known = self._selector.get_map().get(connection)
        if known is None and events:
            self._selector.register(connection, events)
        elif known is not None and not events:
            self._selector.unregister(connection)
        elif known is not None and known.events != events:
            self._selector.modify(connection, events)

    def _deliver(self) -> None:
        by_key = {client.key: connection for connection, client in self._clients.items() if client.key}
        with suppress(IndexError):
            while True:
                key, line, is_counters = self._outbox.popleft()
                connection = by_key.get(key)
                if connection is None or connection not in self._clients:
                    continue
                client = self._clients[connection]
                if is_counters:
                    took = client.takes_counters
                    self._num_left_counters += took and not client.queue_counters(line)
                    self._serve(connection, 0)
                    continue
                try:
                    client.queue(line)
                except ConnectionEndedError as ended:
                    self._end(connection, ended.reason, str(ended))
                else:
                    self._serve(connection, 0)

    def _end(self, connection: socket.socket, reason: str, detail: str) -> None:
        if connection in self._selector.get_map():
            self._selector.unregister(connection)
        self._paused.pop(connection, None)
        with self._lock:
            client = self._clients.pop(connection)
            if client.hello is not None:
                self._claims.disconnect(client.peer.uid, client.hello.run, time.monotonic())
        connection.close()
        if reason not in ("bye", "gone", "agent_ends"):
            self._refuse(client.peer.uid, reason, detail)
            _log.debug("connection of process %s of user %s is closed: %s", client.peer.pid, client.peer.uid, detail)
        if client.key:
            self.wake()

    def _refuse(self, uid: int | None, reason: str, detail: str) -> None:
        """Count a connection that is closed, and log the first one of this user for this reason."""
        with self._lock:
            self._refused[reason] += 1
        if (uid, reason) not in self._warned and len(self._warned) < _MAX_WARNED:
            self._warned.add((uid, reason))
            _log.warning(
                "a training connection of user %s is closed (%s): %s; further ones are counted only",
                uid,
                reason,
                printable(detail),
            )


def _order(rank: TrainingRank) -> tuple[str, str, int, int]:
    hello = rank.hello
    return hello.run, hello.run_directory, hello.rank, hello.start_ns
