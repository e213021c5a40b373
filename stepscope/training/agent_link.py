"""Link to the agent on this node: hello and heartbeats out; capture requests in, for the coordinator, and counters.

The connection has a thread of its own and costs training nothing: an agent that is absent, slow, does not read or sends
garbage costs no more than one that works.
"""

from __future__ import annotations

import logging
import os
import random
import select
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

from stepscope.core.protocol import messages
from stepscope.core.protocol.captures import CaptureRequest
from stepscope.core.protocol.counters import COUNTERS, Counters
from stepscope.training.captures.coordinator import RankCaptureCoordinator
from stepscope.training.captures.schedule import Schedule, SlowStep, SlowStepWatch, capture_rule_from_environment
from stepscope.training.run.context import RunContext
from stepscope.training.run.identity import gpu_uuid
from stepscope.training.steps.spans import open_phases
from stepscope.training.steps.telemetry import RecentStepTime, StepRecord

logger = logging.getLogger(__name__)

_MAX_NAMES = 32
_MAX_NAME = 80
_MAX_FIGURE = 1e300  # a whole number may be larger than any float


class HeartbeatSource:
    """Hello and heartbeat lines of a training process, made on any thread; the training thread sets the newest steps.

    Attributes:
        newest: asks for the newest finished step, on any thread; None before the first, and where its record is made.
        newest_ended: the newest finished step whose record is made.
        newest_settled: the newest finished step that has all its figures.
    """

    def __init__(self, context: RunContext, state_of_step: Callable[[], str]) -> None:
        self.newest: Callable[[], StepRecord | None] = lambda: None
        self.newest_ended: StepRecord | None = None
        self.newest_settled: StepRecord | None = None
        self.gpu_uuid: str | None = None
        self._context = context
        self._state_of_step = state_of_step
        self._pid = os.getpid()
        self._start_ns = time.time_ns()

    def hello(self) -> bytes:
        """The line that introduces this process."""
        identity = self._context.identity
        return messages.encode_message(
            messages.Hello(
                run=self._context.run_directory.name,
                run_directory=str(self._context.run_directory),
                rank=identity.rank,
                local_rank=identity.local_rank,
                world_size=identity.world_size,
                pid=self._pid,
                host=identity.host,
                start_ns=self._start_ns,
                mesh=self._context.mesh,
                gpu_uuid=self.gpu_uuid,
                wants=(COUNTERS,),
            )
        )

    def heartbeat(self) -> bytes:
        """The line on the newest step and the open one."""
        record, settled, now_ns = self.newest() or self.newest_ended, self.newest_settled, time.time_ns()
        state, doing = self._state_of_step(), self._doing()
        figures = {} if settled is None else _first_of(settled.figures)
        if record is None:
            return messages.encode_message(
                messages.Heartbeat(age_ms=max(now_ns - self._start_ns, 0) / 1e6, state=state, doing=doing)
            )
        return messages.encode_message(
            messages.Heartbeat(
                age_ms=max(now_ns - record.end_ns, 0) / 1e6,
                state=state,
                index=record.index,
                ms=max(record.duration_ns, 0) / 1e6,
                data_wait_ms=max(record.data_wait_ns, 0) / 1e6,
                phases_ms={name: max(ns, 0) / 1e6 for name, ns in _first_of(record.phases).items()},
                figures={name: value for name, value in figures.items() if -_MAX_FIGURE < value < _MAX_FIGURE},
                doing=doing,
            )
        )

    def _doing(self) -> str | None:
        phases = open_phases(self._context.open_spans())
        return next((name for name in reversed(phases) if name.isprintable() and 0 < len(name) <= _MAX_NAME), None)


def _first_of(numbers: Mapping[str, int | float]) -> dict[str, int | float]:
    """The first few of them; copied whole first, as the training thread may add one meanwhile."""
    named = {name: value for name, value in dict(numbers).items() if name.isprintable() and 0 < len(name) <= _MAX_NAME}
    return dict(list(named.items())[:_MAX_NAMES])


_LOOK_EVERY_NS = 10_000_000_000
_MAX_REASON = 500
_STEPS_TO_FIND_GPU = 3  # a loop that has not used one by then trains without one


class AgentLink(HeartbeatSource):
    """Link of a training process to the agent. Starts a thread only once there is a socket, or ranks must agree.

    Args:
        schedule: the run's own captures.
        takes_scheduled: whether this rank takes them.
        rule: by which the run requests captures itself; None is by STEPSCOPE_CAPTURE_WHEN, or never.

    Attributes:
        plan: the capture that each step belongs to.
        take_counters: takes the agent's counters, on the connection's thread.
        tick_seconds: time from one `tick` to the next.
    """

    def __init__(
        self, context: RunContext, schedule: Schedule, *, takes_scheduled: bool, rule: SlowStep | None = None
    ) -> None:
        rule = capture_rule_from_environment() if rule is None else rule
        if rule is not None and not isinstance(rule, SlowStep):
            raise TypeError(f"capture_when is made by stepscope.slow_step, not {rule!r}")
        super().__init__(context, lambda: self._captures.plan.state(self._captures.plan.step).value)
        self.step_time = RecentStepTime()
        self.take_counters: Callable[[Counters], None] = lambda _: None
        self._identity = context.identity
        self._slow_steps = None if rule is None else SlowStepWatch(rule)
        self._connection = AgentConnection(socket_path(), self)
        self._captures: RankCaptureCoordinator = RankCaptureCoordinator(
            context.run_directory.name,
            context.identity,
            schedule,
            takes_scheduled=takes_scheduled,
            step_time=self.step_time,
            slow_steps=self._slow_steps,
            send=self._send,
        )
        self.plan = self._captures.plan
        self.tick_seconds = self._captures.tick_seconds
        self._looked_ns = 0
        self._last_step_to_find_gpu = context.first_step + _STEPS_TO_FIND_GPU
        self.gpu_uuid = gpu_uuid(context.identity)
        self._start_if_needed(0)

    def steps_ended(self, records: Sequence[StepRecord], *, is_writing: bool) -> None:
        """Take in finished steps, at least one, in about a microsecond each.

        Args:
            is_writing: a trace was being written, which may have slowed them.
        """
        self.newest_ended = records[-1]
        for record in records:
            self._add(record, is_writing)
        if records[0].index <= self._last_step_to_find_gpu and self.gpu_uuid is None:
            self._find_gpu()
        now_ns = records[-1].end_ns
        if abs(now_ns - self._looked_ns) >= _LOOK_EVERY_NS:  # also after a clock was set back
            self._start_if_needed(now_ns)

    def _add(self, record: StepRecord, is_writing: bool) -> None:
        self.step_time.add(record)
        if self._slow_steps is not None and self._slow_steps.is_due(record, is_writing=is_writing):
            self._captures.request_by_rule()
            if self._connection.is_running:
                self._connection.wake()
            else:
                self._captures.tick()

    def steps_settled(self, records: Sequence[StepRecord]) -> None:
        """Take in steps that have all their figures, also deferred ones from the GPU."""
        self.newest_settled = records[-1]

    def send(self, line: bytes) -> None:
        """Send a line where there is an agent; from any thread."""
        if self._connection.is_running:
            self._connection.send(line)

    def close(self, patience_seconds: float = 2.0) -> None:
        """Fail pending requests, send what is left, and end the thread, waiting at most `patience_seconds`."""
        self._captures.close()
        self._connection.close(patience_seconds)

    def receive(self, message: messages.Message) -> None:
        """Pass a message on to the coordinator, and counters to who keeps them; called by the link."""
        if isinstance(message, Counters):
            self.take_counters(message)
        elif isinstance(message, CaptureRequest):
            self._captures.request(message)
        elif isinstance(message, messages.Cancel):
            self._captures.cancel(message)

    def receive_unreadable(self, error: messages.ProtocolError) -> None:
        """Refuse a request that cannot be read; called by the link."""
        if error.capture_id is not None:
            self._captures.refuse_unreadable(error.capture_id, str(error))

    def tick(self) -> None:
        """Settle requests; called by the link."""
        self._captures.tick()

    def _send(self, answer: messages.Answer) -> None:
        progress = answer.progress
        if progress.reason is not None:
            progress = replace(progress, reason=progress.reason[:_MAX_REASON])
        self._connection.send(messages.encode_message(messages.Answer(answer.id, progress)))

    def _find_gpu(self) -> None:
        self.gpu_uuid = gpu_uuid(self._identity)
        if self.gpu_uuid is not None:
            self._connection.send(self.hello())

    def _start_if_needed(self, now_ns: int) -> None:
        self._looked_ns = now_ns
        must_agree = self._slow_steps is not None and self._identity.world_size > 1
        if not self._connection.is_running and (must_agree or self._connection.has_agent):
            try:
                self._connection.start()
            except (OSError, RuntimeError):  # no thread or descriptor available: training goes on without
                logger.debug("the connection to the agent cannot be started", exc_info=True)


HEARTBEAT_SECONDS = 1.0
_READ_BYTES = 4096
_READ_PAUSE_SECONDS = 0.05  # 80 kB/s: a flood costs a hundredth of a core, a request for 10,000 ranks 0.7 s
_FIRST_RETRY_SECONDS, _LAST_RETRY_SECONDS = 0.5, 60.0
_OTHER_VERSION_RETRY_SECONDS = 600.0
_SETTLED_SECONDS = 5.0
_NOT_READING_SECONDS = 30.0
_MAX_QUEUED = 64
_MAX_FAULTS = 3
_BYE_SECONDS = 0.5


class ConnectionUser(Protocol):
    """User of a training process's connection to the agent. All methods are called on the connection's thread.

    Attributes:
        tick_seconds: time from one `tick` to the next.
    """

    tick_seconds: float

    def hello(self) -> bytes:
        """The first line on a connection."""

    def heartbeat(self) -> bytes:
        """The line that is sent about once a second."""

    def receive(self, message: messages.Message) -> None:
        """Take a message of the agent."""

    def receive_unreadable(self, error: messages.ProtocolError) -> None:
        """Take the error of a message that cannot be read."""

    def tick(self) -> None:
        """Called every `tick_seconds`, and after `wake`; with or without an agent."""


class AgentConnection:
    """A training process's connection to the agent, reconnected whenever it ends.

    Args:
        path: of the agent's socket; None for no agent.
    """

    def __init__(self, path: str | None, user: ConnectionUser) -> None:
        self._address = path if path is None or not path.startswith("@") else "\0" + path[1:]
        self._user = user
        self._thread: threading.Thread | None = None
        self._closing = False
        self._wake_descriptor = -1
        self._socket: socket.socket | None = None
        self._lines = messages.LineBuffer()
        self._unsent = b""
        self._sending = b""
        self._queue: deque[bytes] = deque(maxlen=_MAX_QUEUED)
        self._faults = 0
        self._retry_seconds = _FIRST_RETRY_SECONDS
        self._connected_at = self._sent_at = self._read_at = self._beat_at = self._tick_at = self._connect_at = 0.0
        self._has_warned = False

    @property
    def has_agent(self) -> bool:
        """Whether there is something at the socket's path, so that starting the thread may be useful."""
        if self._address is None or self._address == "":
            return False
        return self._address.startswith("\0") or os.path.exists(self._address)

    @property
    def is_running(self) -> bool:
        """Whether the thread has been started and not been closed."""
        return self._thread is not None and not self._closing

    def start(self) -> None:
        """Start the thread, once.

        Raises:
            OSError, RuntimeError: no descriptor or no thread is available.
        """
        if self._thread is None:
            self._wake_descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            _connections.add(self)
            self._thread = threading.Thread(target=self._run, name="stepscope-agent-link", daemon=True)
            self._thread.start()

    def wake(self) -> None:
        """Make the thread look at once; from any thread."""
        if self.is_running:
            with suppress(OSError):  # it is awake already
                os.eventfd_write(self._wake_descriptor, 1)

    def send(self, line: bytes) -> None:
        """Send this line before the next heartbeat, now or after the next hello; from any thread."""
        self._queue.append(line)
        self.wake()

    def close(self, patience_seconds: float = 2.0) -> None:
        """Have the thread send what is left and a bye, and end; wait at most `patience_seconds` for it."""
        if not self.is_running:
            return
        assert self._thread is not None
        self._closing = True
        with suppress(OSError):
            os.eventfd_write(self._wake_descriptor, 1)
        self._thread.join(patience_seconds)

    def _release(self) -> None:
        """Close the descriptors; in a forked child they are the parent's, and the agent must see the parent's end."""
        self._closing = True
        self._hang_up()
        descriptor, self._wake_descriptor = self._wake_descriptor, -1
        if descriptor >= 0:
            with suppress(OSError):
                os.close(descriptor)

    def _run(self) -> None:
        while not self._closing:
            try:
                self._turn()
            except Exception as error:  # the thread's edge: training must never notice
                self._drop(f"{type(error).__name__}: {error}")
                time.sleep(HEARTBEAT_SECONDS)
        with suppress(OSError, ValueError):
            self._say_bye()
        self._release()

    def _turn(self) -> None:
        """Do what is due, then sleep until something is."""
        now = time.monotonic()
        if now >= self._tick_at:
            self._tick_at = now + self._user.tick_seconds
            self._user.tick()
        if now >= self._beat_at:
            self._beat_at = now + HEARTBEAT_SECONDS
            if self._socket is not None and not self._unsent:
                self._unsent = self._user.heartbeat()
        if self._socket is None and self._address and now >= self._connect_at:
            self._connect(now)
        self._send(now)
        self._sleep(now)
        self._receive()

    def _sleep(self, now: float) -> None:
        until = min(self._beat_at, self._tick_at)
        poll = select.poll()
        poll.register(self._wake_descriptor, select.POLLIN)
        if self._socket is not None:
            may_read = now >= self._read_at
            until = until if may_read else min(until, self._read_at)
            poll.register(self._socket, may_read * select.POLLIN | bool(self._unsent) * select.POLLOUT)
        woken = poll.poll(max(until - now, 0.0) * 1000 + 1)
        if any(descriptor == self._wake_descriptor for descriptor, _ in woken):
            with suppress(OSError):
                os.eventfd_read(self._wake_descriptor)
            self._user.tick()

    def _connect(self, now: float) -> None:
        self._connect_at = now + self._retry_seconds * random.uniform(0.5, 1.0)
        self._retry_seconds = min(self._retry_seconds * 2, _LAST_RETRY_SECONDS)
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.setblocking(False)
        try:
            connection.connect(self._address or "")
        except (OSError, ValueError):  # no agent, one that is overloaded, or a path that no socket can have
            connection.close()
            return
        self._socket, self._lines, self._faults = connection, messages.LineBuffer(), 0
        self._connected_at = self._sent_at = now
        self._unsent = self._user.hello()

    def _send(self, now: float) -> None:
        while self._socket is not None and (self._unsent or self._queue):
            if not self._unsent:
                self._unsent = self._sending = self._queue.popleft()
            try:
                sent = self._socket.send(self._unsent, socket.MSG_NOSIGNAL)
            except BlockingIOError:
                if now - self._sent_at > _NOT_READING_SECONDS:
                    self._drop("it does not read")
                return
            except OSError as error:
                self._drop(str(error))
                return
            self._sent_at = now
            self._unsent = self._unsent[sent:]
            if not self._unsent:
                self._sending = b""

    def _receive(self) -> None:
        now = time.monotonic()
        if self._socket is None or now < self._read_at:
            return
        try:
            block = self._socket.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self._drop(str(error))
            return
        if not block:
            self._drop("it closed the connection")
            return
        self._read_at = now + _READ_PAUSE_SECONDS
        if now - self._connected_at > _SETTLED_SECONDS:
            self._retry_seconds = _FIRST_RETRY_SECONDS
        try:
            for line in self._lines.feed(block):
                self._take(line)
        except messages.ProtocolError as error:
            self._warn(f"its messages cannot be read: {error}")
            self._drop(str(error))

    def _take(self, line: bytes) -> None:
        try:
            message = messages.decode_message(line)
        except messages.ProtocolError as error:
            self._user.receive_unreadable(error)
            self._faults += error.capture_id is None
            if self._faults >= _MAX_FAULTS:
                raise
            return
        if isinstance(message, messages.Welcome) and message.version != messages.PROTOCOL_VERSION:
            self._warn(
                f"it speaks version {message.version}, this stepscope version {messages.PROTOCOL_VERSION}; update one"
            )
            self._drop("another version", retry_seconds=_OTHER_VERSION_RETRY_SECONDS)
        elif message is not None and self._socket is not None:
            self._user.receive(message)

    def _warn(self, why: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            logger.warning("stepscope goes on without the agent at %s: %s", self._address, why)

    def _drop(self, why: str, *, retry_seconds: float | None = None) -> None:
        logger.debug("the agent's connection ends: %s", why)
        self._hang_up()
        now = time.monotonic()
        if now - self._connected_at > _SETTLED_SECONDS:
            self._retry_seconds = _FIRST_RETRY_SECONDS
        self._connect_at = max(
            self._connect_at, now + (retry_seconds or self._retry_seconds * random.uniform(0.5, 1.0))
        )

    def _hang_up(self) -> None:
        connection, self._socket = self._socket, None
        if self._sending:  # partly sent: sent again on the next connection
            self._queue.appendleft(self._sending)
        self._unsent = self._sending = b""
        if connection is not None:
            with suppress(OSError):
                connection.close()

    def _say_bye(self) -> None:
        if self._socket is None:
            return
        lines = b"".join([self._unsent, *self._queue, messages.encode_message(messages.Bye())])
        self._socket.settimeout(_BYE_SECONDS)
        self._socket.sendall(lines, socket.MSG_NOSIGNAL)


def socket_path() -> str | None:
    """In the training process: where it looks for the agent's socket.

    STEPSCOPE_AGENT_SOCKET, else the default; None when it is empty.
    """
    return os.environ.get(messages.SOCKET_VARIABLE, messages.DEFAULT_SOCKET) or None


_connections: weakref.WeakSet[AgentConnection] = weakref.WeakSet()


def _release_all() -> None:
    for link in list(_connections):
        link._release()


os.register_at_fork(after_in_child=_release_all)
