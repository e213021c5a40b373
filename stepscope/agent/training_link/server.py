"""Server of the training socket: one thread for all connections, and the socket file that they connect to.

A process that is idle, floods or sends garbage does not affect the others.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import selectors
import socket
import stat
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection
from contextlib import suppress

from stepscope.agent.token_bucket import PacingBucket
from stepscope.agent.training_link.connection import ConnectionEndedError, TrainingConnection, is_hung_up, peer_of
from stepscope.core.documents.node import TrainingRank
from stepscope.core.errors import UsageError
from stepscope.core.metrics.readings import Missing, MissingReason
from stepscope.core.protocol.captures import CaptureRequest, CaptureUpdate
from stepscope.core.protocol.messages import Cancel, encode_message

_log = logging.getLogger(__name__)

_MAX_CONNECTIONS = 256
_MAX_CONNECTIONS_OF_USER = 192
_READ_BYTES = 4 << 10
_BYTES_PER_SECOND = 8 << 10  # of one; it sends about 0.5 kB a second, 5 kB with the most phases
_BYTES_PER_SECOND_OF_ALL = 128 << 10  # of all that send too much: together a fiftieth of a core
_MIN_BYTES_PER_SECOND = 1 << 10
_LAST_READS = 4  # from a process that is gone, though it sent too much
_ACCEPTS, _ACCEPTS_PER_SECOND = 256.0, 20.0
_TURN_SECONDS = 0.5
_MAX_BACKLOGD = 4096


DEFAULT_MODE = 0o666
"""Training runs under any user, and connecting needs write permission."""


class TrainingServer:
    """Listens while it is open; a context manager. No call waits for a process.

    Attributes:
        wake: called on the server's thread when an answer has come, or a process has connected or gone.
        why_closed: why it does not listen although it is open; None while it does.
    """

    _selector: selectors.BaseSelector

    def __init__(self, path: str, *, mode: int = DEFAULT_MODE, is_required: bool = True) -> None:
        """
        Args:
            path: of the socket; @name for an abstract one.
            mode: of the socket's file.
            is_required: False goes on without where this user cannot create one.
        """
        self.wake: Callable[[], None] = lambda: None
        self.why_closed: Missing | None = None
        self._file = SocketFile(path, mode=mode)
        self._is_required = is_required
        self._lock = threading.Lock()
        self._clients: dict[socket.socket, TrainingConnection] = {}
        self._paused: dict[socket.socket, float] = {}
        self._outbox: deque[tuple[str, bytes]] = deque(maxlen=_MAX_BACKLOGD)
        self._updates: deque[CaptureUpdate] = deque(maxlen=_MAX_BACKLOGD)
        self._refused: Counter[str] = Counter()
        self._accepts = PacingBucket(_ACCEPTS, time.monotonic())
        self._accept_at = 0.0
        self._has_warned = False
        self._closing = False
        self._event = -1
        self._thread = threading.Thread(target=self._run, name="stepscope-training", daemon=True)

    def __enter__(self) -> TrainingServer:
        """
        Raises:
            UsageError: another agent listens there, or the required socket cannot be created.
        """
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
        """The connected processes, by run and rank; of one with two connections the newer."""
        now = time.monotonic()
        with self._lock:
            ranks = [client.rank(now) for client in self._clients.values()]
        newest = {rank.key: rank for rank in ranks if rank is not None}
        return tuple(sorted(newest.values(), key=_order))

    def refused(self) -> dict[str, int]:
        """Number of connections that the agent has closed, by reason."""
        with self._lock:
            return dict(self._refused)

    def send(self, message: CaptureRequest | Cancel, keys: Collection[str]) -> None:
        """Send a message to these processes; those that are away do not get it."""
        if self.why_closed is not None:
            return
        line = encode_message(message)
        self._outbox.extend((key, line) for key in keys)
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
                    self._serve_last(connection)
                else:
                    self._listen(connection)
        due = [*self._paused.values()]
        listening = self._file.listening
        if self._accept_at > now:
            due.append(self._accept_at)
        elif listening not in self._selector.get_map():
            self._selector.register(listening, selectors.EVENT_READ)
        for key, events in self._selector.select(min([_TURN_SECONDS, *(at - now for at in due)])):
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
        peer = peer_of(connection)
        of_user = sum(client.peer.uid == peer.uid for client in self._clients.values())
        if len(self._clients) >= _MAX_CONNECTIONS or of_user >= _MAX_CONNECTIONS_OF_USER:
            connection.close()
            self._count("too_many")
            return
        with self._lock:
            self._clients[connection] = TrainingConnection(peer, time.monotonic())
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

    def _serve_last(self, connection: socket.socket) -> None:
        """Read some of the bytes that a process that is gone has left, not for minutes."""
        for _ in range(_LAST_READS):
            if connection in self._clients:
                self._serve(connection, selectors.EVENT_READ)
        if connection in self._clients:
            self._end(connection, "gone", "")

    def _receive(self, connection: socket.socket, client: TrainingConnection) -> None:
        try:
            block = connection.recv(_READ_BYTES)
        except BlockingIOError:
            return
        if not block:
            raise ConnectionEndedError("gone")
        now, was_known = time.monotonic(), client.hello is not None
        with self._lock:
            answers = client.receive(block, now)
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
                key, line = self._outbox.popleft()
                connection = by_key.get(key)
                if connection is None or connection not in self._clients:
                    continue
                try:
                    self._clients[connection].queue(line)
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
        connection.close()
        if reason not in ("bye", "gone", "agent_ends"):
            self._count(reason)
            _log.debug("connection of process %s of user %s is closed: %s", client.peer.pid, client.peer.uid, detail)
        if client.key:
            self.wake()

    def _count(self, reason: str) -> None:
        with self._lock:
            self._refused[reason] += 1


def _order(rank: TrainingRank) -> tuple[str, str, int, int]:
    hello = rank.hello
    return hello.run, hello.run_directory, hello.rank, hello.start_ns


_MAX_PATH_BYTES = 107
"""Bytes of the path in sockaddr_un, without the zero at its end."""
_BACKLOG = 128


class SocketFile:
    """Listening Unix socket of this process alone; a context manager that removes it at the end.

    A lock file beside it distinguishes a running agent from a socket file that a killed one has left. An abstract
    socket (@name) has neither file nor mode.

    Attributes:
        listening: non-blocking; exists while it is open.
    """

    listening: socket.socket

    def __init__(self, path: str, *, mode: int = DEFAULT_MODE) -> None:
        self.path = path
        self._mode = mode
        self._lock = -1

    def __enter__(self) -> SocketFile:
        """
        Raises:
            UsageError: another agent listens there, or something else has this path.
            OSError: this user cannot create one there, or the folder's parent is missing.
        """
        try:
            self.listening = self._abstract() if self.path.startswith("@") else self._in_folder()
        except BaseException:
            self._unlock()
            raise
        self.listening.setblocking(False)
        return self

    def __exit__(self, *_: object) -> None:
        if not self.path.startswith("@"):
            with suppress(OSError):
                os.unlink(self.path)
        self.listening.close()
        self._unlock()

    def _abstract(self) -> socket.socket:
        return self._bound("\0" + self.path[1:])

    def _in_folder(self) -> socket.socket:
        if len(os.fsencode(self.path)) > _MAX_PATH_BYTES:  # before anything is created there
            raise OSError(
                errno.ENAMETOOLONG, f"too long for a socket, which has at most {_MAX_PATH_BYTES} bytes", self.path
            )
        folder = os.path.dirname(self.path)
        if folder and not os.path.isdir(folder):
            os.mkdir(folder)
            os.chmod(folder, 0o755)  # whatever the umask: for training of other users
        self._lock = os.open(f"{self.path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise self._taken() from None
        self._remove_stale()
        listening = self._bound(self.path)
        os.chmod(self.path, self._mode)  # until now no other user could connect
        return listening

    def _remove_stale(self) -> None:
        try:
            is_socket = stat.S_ISSOCK(os.lstat(self.path).st_mode)
        except FileNotFoundError:
            return
        if not is_socket:
            raise UsageError("exists and is not a socket", where=self.path, what_next="choose another with --socket")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.setblocking(False)
            try:
                probe.connect(self.path)
            except ConnectionRefusedError:
                os.unlink(self.path)
                return
            except BlockingIOError:
                pass  # a process listens, and is busy
        raise self._taken()

    def _bound(self, address: str) -> socket.socket:
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listening.bind(address)
            listening.listen(_BACKLOG)
        except OSError:
            listening.close()
            if address.startswith("\0"):
                raise self._taken() from None
            raise
        return listening

    def _taken(self) -> UsageError:
        return UsageError(
            "another agent listens at this socket",
            where=self.path,
            what_next="stop it, or choose another with --socket ('' for none)",
        )

    def _unlock(self) -> None:
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)  # the file stays: if it were removed, two agents could lock two files
