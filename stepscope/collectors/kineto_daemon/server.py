"""Server that answers libkineto's polls, in a thread that does nothing else.

A process waits 90 ms for its answer, once. A later answer stays in the process's socket until the next poll, and every
answer after it is one late; so a poll that has already waited too long gets none. An answer from a socket of another
name than the process expects ends it (libkineto: "Unexpected socket name", std::terminate); such a process gets none
and is reported.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import stat
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from stepscope.collectors.kineto_daemon import protocol
from stepscope.collectors.kineto_daemon.processes import Address, KinetoPeer, KinetoProcess, KinetoRegistry
from stepscope.core.errors import UsageError

_log = logging.getLogger(__name__)

ABSTRACT_ADDRESS = b"\0dynolog\0"
_SOCKET_NAME = "dynolog"
_CREDENTIALS = struct.Struct("=iII")
_TIME = struct.Struct("@qq")
_SO_TIMESTAMPNS = getattr(socket, "SO_TIMESTAMPNS", 35)
_ANCILLARY_BYTES = socket.CMSG_SPACE(_CREDENTIALS.size) + socket.CMSG_SPACE(_TIME.size)
"""Without room for descriptors that a sender may attach: the kernel closes what does not fit."""
_WAIT_SECONDS = 1.0
_PAUSE_SECONDS = 10.0
_TOO_LATE_SECONDS = 0.06
_MAX_FOLDERS = 16
_MAX_REFUSED_USERS = 256
_MAX_PER_SECOND = 2000
"""Datagrams. All processes that can be known at once poll 820 times a second."""

RequestSource = Callable[[KinetoProcess], str]
"""Returns the request text for a process at this poll, empty for none. Called on the server's thread: must not wait."""


class AddressInUseError(UsageError):
    """Another daemon (dynolog, another agent) has libkineto's address."""


class KinetoServer:
    """The kineto daemon: answers polls of processes. A context manager: listens while it is open."""

    _socket: socket.socket

    def __init__(self, take: RequestSource, *, folder: str | None = None) -> None:
        """
        Args:
            folder: of the socket, exactly as the processes' KINETO_IPC_SOCKET_DIR; None for the abstract address that
                libkineto uses without.
        """
        self._take = take
        self.address: Address = ABSTRACT_ADDRESS if folder is None else f"{folder}/{_SOCKET_NAME}"
        self._registry = KinetoRegistry()
        self._lock = threading.Lock()
        self._foreign_folders: set[str] = set()
        self._num_rejected = self._num_refused = 0
        self._refused_users: set[int] = set()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stepscope-kineto", daemon=True)

    def __enter__(self) -> KinetoServer:
        """Raises `UsageError` where the address cannot be used."""
        self._socket = _bound_socket(self.address)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop answering. Training goes on; libkineto goes on polling whoever takes the address next."""
        self._ended.set()
        self._thread.join()
        self._socket.close()
        if isinstance(self.address, str):
            Path(self.address).unlink(missing_ok=True)

    def is_free(self) -> bool:
        """Whether no process listens at the address. Does not take it, not even for a moment."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect(self.address)
            except (ConnectionRefusedError, FileNotFoundError):
                return True
            except OSError:
                return False
        return False

    def processes(self) -> tuple[KinetoProcess, ...]:
        with self._lock:
            return self._registry.processes(time.monotonic())

    def foreign_folders(self) -> tuple[str, ...]:
        """Socket folders of processes that name the daemon's folder differently; they cannot be answered."""
        with self._lock:
            return tuple(sorted(self._foreign_folders))

    def foreign_folder_text(self, folder: str) -> str:
        """One line on the processes with such a folder."""
        ours = os.path.dirname(os.fsdecode(self.address))
        return (
            f"processes have KINETO_IPC_SOCKET_DIR={folder}, this daemon's folder is {ours}: they get no answer, "
            "as libkineto would end them; mount and name the folder alike"
        )

    @property
    def num_rejected(self) -> int:
        return self._num_rejected

    @property
    def num_refused(self) -> int:
        """Polls of processes beyond the largest number of their user, or of all."""
        return self._num_refused

    def _run(self) -> None:
        second, num_read = 0.0, 0
        failed_with: type[Exception] | None = None
        while not self._ended.is_set():
            try:
                question = self._socket.recvmsg(protocol.MAX_DATAGRAM_BYTES, _ANCILLARY_BYTES)
            except TimeoutError:
                continue
            except OSError as error:  # such as no memory for a while
                _log.warning("polls of PyTorch processes cannot be read: %s", error.strerror or error)
                self._ended.wait(_PAUSE_SECONDS)
                continue
            try:
                self._answer(question[0], question[1], question[3])
            except Exception as error:  # the thread's edge: the next process gets its answer
                if type(error) is not failed_with:
                    _log.exception("a PyTorch process got no answer")
                failed_with = type(error)
            num_read = num_read + 1 if time.monotonic() < second + 1.0 else 1
            second = time.monotonic() if num_read == 1 else second
            if num_read >= _MAX_PER_SECOND:  # a flood must not cost a core
                self._ended.wait(second + 1.0 - time.monotonic())

    def _answer(self, datagram: bytes, ancillary: list[tuple[int, int, bytes]], sender: Any) -> None:
        try:
            question = protocol.decode_kineto_datagram(datagram)
        except protocol.KinetoDatagramError as error:
            self._num_rejected += 1
            _log.debug("not a datagram of libkineto: %s", error)
            return
        peer, waited = _peer_of(ancillary), _waited_seconds(ancillary)
        if peer is None or not sender or not self._would_take_answer(sender):
            return
        if isinstance(question, protocol.KinetoPoll):
            with self._lock:
                process = self._registry.record(sender, peer, question, time.monotonic())
            if process is None:
                self._refuse(peer.uid)
            if waited < _TOO_LATE_SECONDS:
                self._send(protocol.encode_kineto_request(self._take(process) if process is not None else ""), sender)
        elif waited < _TOO_LATE_SECONDS:
            with self._lock:
                known = self._registry.processes(time.monotonic())
            self._send(protocol.encode_kineto_count(sum(one.job_id == question.job_id for one in known) or 1), sender)

    def _refuse(self, uid: int) -> None:
        self._num_refused += 1
        if uid not in self._refused_users and len(self._refused_users) < _MAX_REFUSED_USERS:
            self._refused_users.add(uid)
            _log.warning("user %d has too many processes that poll for captures; further ones get none", uid)

    def _would_take_answer(self, sender: Address) -> bool:
        """Whether the process expects answers from a socket of this name (libkineto, Endpoint.h, getName)."""
        if isinstance(sender, bytes) or isinstance(self.address, bytes):
            return isinstance(sender, bytes) and isinstance(self.address, bytes)
        its_folder = sender.rpartition("/")[0]
        if self.address.startswith(its_folder + "/"):
            return True
        with self._lock:
            if len(self._foreign_folders) < _MAX_FOLDERS and its_folder not in self._foreign_folders:
                self._foreign_folders.add(its_folder)
                _log.warning("%s", self.foreign_folder_text(its_folder))
        return False

    def _send(self, answer: bytes, to: Address) -> None:
        try:
            self._socket.sendto(answer, socket.MSG_DONTWAIT, to)
        except OSError as error:  # the process has ended, or does not read
            if error.errno in (errno.ECONNREFUSED, errno.ENOENT):
                with self._lock:
                    self._registry.forget(to)


def _bound_socket(address: Address) -> socket.socket:
    ours = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        ours.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        ours.settimeout(_WAIT_SECONDS)
        if isinstance(address, str):
            # Create the folder if missing: each process, of any user, creates a socket of its own in it.
            folder = os.path.dirname(address)
            with suppress(FileExistsError):
                os.mkdir(folder)
                os.chmod(folder, 0o1777)
            _remove_dead(address)
        ours.bind(address)
        if isinstance(address, str):
            _let_all_write(address)  # training runs as any user
    except OSError as error:
        ours.close()
        where = address if isinstance(address, str) else "the abstract socket dynolog"
        if error.errno == errno.EADDRINUSE:
            raise AddressInUseError(
                "another daemon answers PyTorch processes there",
                where=where,
                what_next="stop it (dynolog or another stepscope agent), or set kineto.enabled = false",
            ) from None
        raise UsageError(
            f"no socket there ({error.strerror or error})", where=where, what_next="choose another folder"
        ) from None
    return ours


def _let_all_write(path: str) -> None:
    """Make the socket writable for all, without following a link that another user may have put in its place."""
    socket_file = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if stat.S_ISSOCK(os.fstat(socket_file).st_mode):
            os.chmod(f"/proc/self/fd/{socket_file}", 0o666)
    finally:
        os.close(socket_file)


def _remove_dead(path: str) -> None:
    """Remove the socket of a daemon that was killed, not that of a running one."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
        try:
            if not stat.S_ISSOCK(os.lstat(path).st_mode):
                raise OSError(errno.EEXIST, "something else is there")
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
        except FileNotFoundError:
            pass


def _peer_of(ancillary: list[tuple[int, int, bytes]]) -> KinetoPeer | None:
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS and len(data) == _CREDENTIALS.size:
            return KinetoPeer(*_CREDENTIALS.unpack(data))
    return None


def _waited_seconds(ancillary: list[tuple[int, int, bytes]]) -> float:
    """Time that a datagram has waited in the socket."""
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == _SO_TIMESTAMPNS and len(data) == _TIME.size:
            seconds, nanoseconds = _TIME.unpack(data)
            return float(time.time() - seconds - nanoseconds / 1e9)
    return 0.0
