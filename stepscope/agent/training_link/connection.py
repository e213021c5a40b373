"""Connection of one training process: its messages, the bytes to send to it, the peer; and the socket that it uses.

`TrainingConnection` is without I/O: bytes in, bytes out, time is an argument.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import socket
import stat
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from stepscope.collectors.host.processes import parse_fields, parse_process_stat
from stepscope.core.documents.node import TrainingRank
from stepscope.core.errors import UsageError
from stepscope.core.protocol import messages
from stepscope.core.protocol.counters import COUNTERS
from stepscope.core.protocol.verdicts import LiveVerdict

_BURST_BYTES = 32 << 10
_FIRST_BYTES = 4 << 10  # connecting repeatedly gives no more
_MAX_UNSENT_BYTES = 128 << 10
_MAX_FAULTS = 3
_MAX_LATE_COUNTERS = 2
"""In a row: another message may wait once."""
_HELLO_SECONDS = 10.0
_VERDICT_SECONDS = 3600.0
"""Training makes one at least every hour, where there are new steps."""


class ConnectionEndedError(Exception):
    """The connection of a training process must be closed.

    Attributes:
        reason: label of the metric: bye, gone, no_hello, garbage, other_version, other_process, deaf.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        self.reason = reason
        super().__init__(detail or reason)


class TrainingConnection:
    """Connection of one training process to the agent.

    Attributes:
        key: of the process; empty before its hello.
        unsent: bytes that wait until it reads.
        takes_counters: it wants counters, and has read those that it was sent.
    """

    def __init__(self, peer: TrainingPeer, now: float, *, uid_of: Callable[[int], int | None] = lambda _: None) -> None:
        """Times are monotonic seconds; `uid_of` says whose a process of this machine is, None where it is not known."""
        self.peer = peer
        self._uid_of = uid_of
        self.hello: messages.Hello | None = None
        self.key = ""
        self.unsent = b""
        self._num_late_counters = 0
        self._lines = messages.LineBuffer()
        self._heartbeat: messages.Heartbeat | None = None
        self._verdict: LiveVerdict | None = None
        self._verdict_at = now
        self._connected_at = self._received_at = self._heartbeat_at = now
        self._budget = PacingBucket(_BURST_BYTES, now, start=_FIRST_BYTES)
        self._faults = 0
        self._last_fault = ""

    def receive(self, block: bytes, now: float) -> list[messages.Answer]:
        """Take in received bytes; returns the answers in them.

        Raises:
            ConnectionEndedError: it says bye, or sends garbage.
        """
        self._budget.use(len(block))
        try:
            lines = self._lines.feed(block)
        except messages.ProtocolError as error:
            raise ConnectionEndedError("garbage", str(error)) from None
        answers = []
        for line in lines:
            try:
                message = messages.decode_message(line)
            except messages.ProtocolError as error:
                self._fault(str(error))
                continue
            answer = self._take(message, now)
            if answer is not None:
                answers.append(answer)
        return answers

    def queue(self, line: bytes) -> None:
        """Add a line to `unsent`.

        Raises:
            ConnectionEndedError: it has not read for too long.
        """
        if len(self.unsent) + len(line) > _MAX_UNSENT_BYTES:
            raise ConnectionEndedError("deaf")
        self.unsent += line

    @property
    def takes_counters(self) -> bool:
        return self.hello is not None and COUNTERS in self.hello.wants and self._num_late_counters < _MAX_LATE_COUNTERS

    def queue_counters(self, line: bytes) -> bool:
        """Add counters to `unsent`, unless it has not read what came before; False where it gets no more of them."""
        if self.unsent:
            self._num_late_counters += 1
        elif self.takes_counters:
            self._num_late_counters = 0
            self.unsent = line
        return self.takes_counters

    def pause_seconds(self, bytes_per_second: float, now: float) -> float:
        """Seconds not to read from it, because it has sent more than allowed; 0 if it has not."""
        return self._budget.wait_seconds(bytes_per_second, now)

    def check_hello(self, now: float) -> None:
        """Raises `ConnectionEndedError` where its hello has not come in time."""
        if self.hello is None and now - self._connected_at > _HELLO_SECONDS:
            raise ConnectionEndedError("no_hello", self._last_fault or "it has not said whose process it is")

    def rank(self, now: float) -> TrainingRank | None:
        """The process at `now`; None before its hello."""
        if self.hello is None:
            return None
        heartbeat = self._heartbeat
        return TrainingRank(
            self.key,
            self.hello,
            heartbeat,
            self.peer.pid,
            self.peer.uid,
            heartbeat_age_ms=(now - self._received_at) * 1e3,
            step_age_ms=heartbeat.age_ms + (now - self._heartbeat_at) * 1e3 if heartbeat else None,
            verdict=self._verdict if now - self._verdict_at < _VERDICT_SECONDS else None,
        )

    def _take(self, message: messages.Message | None, now: float) -> messages.Answer | None:
        if isinstance(message, messages.Hello):
            self._greet(message)
        elif self.hello is None:
            self._fault("a message before its hello")
        elif isinstance(message, messages.Heartbeat):
            self._heartbeat, self._heartbeat_at = message, now
        elif isinstance(message, LiveVerdict):
            if message.run == self.hello.run:
                self._verdict, self._verdict_at = message, now
            else:
                self._fault("a verdict on another run")
        elif isinstance(message, messages.Bye):
            raise ConnectionEndedError("bye")
        self._received_at = now
        return message if isinstance(message, messages.Answer) and self.hello is not None else None

    def _greet(self, hello: messages.Hello) -> None:
        if hello.version != messages.PROTOCOL_VERSION:
            self.unsent += messages.encode_message(messages.Welcome())
            raise ConnectionEndedError(
                "other_version", f"it speaks version {hello.version}, this agent version {messages.PROTOCOL_VERSION}"
            )
        key = _key_of(hello, self.peer)
        if self.peer.pids and hello.pid not in self.peer.pids and self._uid_of(hello.pid) != self.peer.uid:
            raise ConnectionEndedError("other_process", f"it gives {hello.pid} as its process id, which is not its own")
        if self.hello is not None and (key, hello.run) != (self.key, self.hello.run):
            raise ConnectionEndedError("garbage", "its hello is that of another process now")
        if self.hello is None:
            self.unsent += messages.encode_message(messages.Welcome())
        self.hello, self.key = hello, key

    def _fault(self, what: str) -> None:
        self._faults += 1
        self._last_fault = what
        if self._faults >= _MAX_FAULTS:
            raise ConnectionEndedError("garbage", what)


def _key_of(hello: messages.Hello, peer: TrainingPeer) -> str:
    """Key of the process: the same on each of its connections, and unlike that of a process of another user."""
    import hashlib  # it loads OpenSSL, 4 MB that an agent without training does without

    identity = f"{peer.uid}\n{hello.run_directory}\n{hello.rank}\n{hello.pid}\n{hello.start_ns}"
    return f"profile-{hello.rank}-{hashlib.sha256(identity.encode(errors='replace')).hexdigest()[:16]}"


_CREDENTIALS = struct.Struct("3i")


@dataclass(frozen=True, slots=True)
class TrainingPeer:
    """Ids of the training process at the other end; None where the kernel does not tell.

    Attributes:
        pids: its process ids in the agent's namespace and those below, as a process in a container has several; empty
            where they cannot be read.
        start_ticks: when it began, since boot; process ids are used again.
    """

    pid: int | None
    uid: int | None
    pids: tuple[int, ...] = ()
    start_ticks: int | None = None


def training_peer_of(connection: socket.socket, proc: Path = Path("/proc")) -> TrainingPeer:
    """Ids of the training process at the other end of a connection."""
    packed = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(packed)
    if not pid:
        return TrainingPeer(None, uid if uid >= 0 else None)
    inner = _status(pid, proc).get("NSpid", "").split()
    pids = tuple(int(one) for one in inner if one.isdecimal())
    pids = pids if pid in pids else ()  # /proc is that of another namespace
    return TrainingPeer(pid, uid if uid >= 0 else None, pids, start_ticks_of(pid, proc))


def uid_of_process(pid: int, proc: Path = Path("/proc")) -> int | None:
    """Effective uid of a training process in the agent's namespace; None where it is not known."""
    uids = _status(pid, proc).get("Uid", "").split()
    return int(uids[1]) if len(uids) == 4 and uids[1].isdecimal() else None


def start_ticks_of(pid: int, proc: Path = Path("/proc")) -> int | None:
    """When a training process began, since boot; None where it is gone."""
    stat_of = parse_process_stat(_text(proc / str(pid) / "stat"))
    return stat_of.start_ticks if stat_of else None


def _status(pid: int, proc: Path) -> dict[str, str]:
    return parse_fields(_text(proc / str(pid) / "status"))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def is_hung_up(connection: socket.socket) -> bool:
    """Whether a training process has closed its connection; bytes from before may still be there to read."""
    poll = select.poll()
    poll.register(connection, 0)
    return bool(poll.poll(0))


class PacingBucket:
    """Pacing of training processes: a budget that may be overdrawn, and how long to wait until the debt is paid.

    Args:
        start: amount at the start; default: full.
    """

    def __init__(self, max_amount: float, now: float, *, start: float | None = None) -> None:
        self._max_amount = max_amount
        self._left = max_amount if start is None else start
        self._at = now

    def use(self, amount: float) -> None:
        self._left -= amount

    def wait_seconds(self, per_second: float, now: float) -> float:
        """Seconds until the debt is paid, 0 without one; `per_second` is the refill rate since the last call."""
        self._left = min(self._left + (now - self._at) * per_second, self._max_amount)
        self._at = now
        return max(-self._left / per_second, 0.0)


DEFAULT_MODE = 0o666
"""Training runs under any user, and connecting needs write permission."""
_MAX_PATH_BYTES = 107
"""Bytes of the path in sockaddr_un, without the zero at its end."""
_BACKLOG = 128


class SocketFile:
    """Unix socket on which the agent listens for training processes; a context manager that removes it at the end.

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
            self.listening = self._bound("\0" + self.path[1:]) if self.path.startswith("@") else self._in_folder()
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
