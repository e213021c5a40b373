"""Kubelet collector: reads the pod-resources API over gRPC on a Unix socket.

HTTP/2 is h2's: grpcio takes four times the memory. This module is imported only where there is a kubelet.
"""

from __future__ import annotations

import errno
import socket
import struct
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from urllib.parse import unquote

import h2.config
import h2.connection
import h2.events
import h2.exceptions

from stepscope.collectors.jobs.kubernetes import pod_resources
from stepscope.core.deadline_socket import DeadlineSocket
from stepscope.core.metrics.readings import GPU, Collection, Missing, MissingReason

_ANSWER_SECONDS = 5.0
_KEPT_SECONDS = 60.0
"""A kubelet that restarts takes none of its pods' devices away."""
_UNIMPLEMENTED, _PERMISSION_DENIED = 12, 7


@dataclass(slots=True)
class KubeletCollector:
    """Collector of the devices that the kubelet of this node gave to pods; `collect` blocks."""

    socket: str = pod_resources.KUBELET_SOCKET
    seconds: float = _ANSWER_SECONDS
    clock: Callable[[], float] = time.monotonic
    _given: tuple[pod_resources.PodDevice, ...] = ()
    _answered: float = 0.0

    def pod_devices(self) -> tuple[pod_resources.PodDevice, ...]:
        """Devices of its last answer; none once it is silent for a minute, as pods come and go meanwhile."""
        return self._given

    def collect(self) -> Collection:
        """Ask once; nothing is raised."""
        try:
            self._given = tuple(
                pod_resources.parse_pod_devices(
                    call_grpc(self.socket, pod_resources.LIST_METHOD, b"", seconds=self.seconds)
                )
            )
        except TimeoutError:
            return self._failed(MissingReason.TIMED_OUT, f"no answer within {self.seconds:g} s")
        except OSError as error:
            return self._failed(_reason_of_os_error(error), error.strerror or str(error))
        except KubeletError as error:
            known = {_UNIMPLEMENTED: MissingReason.NOT_SUPPORTED, _PERMISSION_DENIED: MissingReason.NO_PERMISSION}
            return self._failed(known.get(error.status or 0, MissingReason.UNREACHABLE), str(error))
        except pod_resources.ProtobufError as error:
            return self._failed(MissingReason.UNREADABLE, f"its answer cannot be read: {error}")
        self._answered = self.clock()
        return Collection()

    def _failed(self, reason: MissingReason, detail: str) -> Collection:
        if self.clock() - self._answered >= _KEPT_SECONDS:
            self._given = ()
        return Collection(missing=(Missing(GPU + "job_info", (), reason, f"kubelet at {self.socket}: {detail}"),))


def _reason_of_os_error(error: OSError) -> MissingReason:
    if error.errno in (errno.EACCES, errno.EPERM):
        return MissingReason.NO_PERMISSION
    return MissingReason.NOT_INSTALLED if error.errno == errno.ENOENT else MissingReason.UNREACHABLE


_LARGEST_ANSWER_BYTES = 16 << 20
"""Bytes of an answer, the size at which Kubernetes' own clients stop."""
_MESSAGE_PREFIX = struct.Struct(">BI")
_READ_BYTES = 1 << 16
_OK, _UNKNOWN = 0, 2


class KubeletError(Exception):
    """The kubelet refused a call, with gRPC's status (None where there is none), or does not speak gRPC."""

    def __init__(self, message: str, status: int | None = None) -> None:
        self.status = status
        super().__init__(message)


def call_grpc(path: str, method: str, request: bytes, *, seconds: float) -> bytes:
    """Call a gRPC method of the kubelet once, over a connection of its own.

    Args:
        method: "/v1.PodResourcesLister/List".

    Returns:
        The answer's message.

    Raises:
        OSError: the socket cannot be reached; TimeoutError: it takes too long.
        GrpcError: no answer with a message.
    """
    end = time.monotonic() + seconds
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(seconds)
        connection.connect(path)
        channel = DeadlineSocket(connection, end)
        exchange = _GrpcExchange(method, request)
        try:
            while not exchange.is_over:
                channel.sendall(exchange.to_send())
                received = channel.recv(_READ_BYTES)
                if not received:
                    raise KubeletError("the server closed the connection before it answered")
                exchange.receive(received)
        except h2.exceptions.ProtocolError as error:
            raise KubeletError(f"it does not speak HTTP/2: {error}") from error
        return exchange.message()


class _GrpcExchange:
    """One request and its answer, apart from the socket."""

    def __init__(self, method: str, request: bytes) -> None:
        self._connection = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        self._connection.initiate_connection()
        self._stream = self._connection.get_next_available_stream_id()
        self._headers: dict[str, str] = {}
        self._body = bytearray()
        self.is_over = False
        headers = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", method),
            (":authority", "localhost"),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            ("user-agent", "stepscope"),
        ]
        self._connection.send_headers(self._stream, headers)
        self._connection.send_data(self._stream, _MESSAGE_PREFIX.pack(0, len(request)) + request, end_stream=True)

    def to_send(self) -> bytes:
        """What is to go out now; may be empty."""
        return self._connection.data_to_send()

    def receive(self, received: bytes) -> None:
        """Process received bytes.

        Raises:
            GrpcError: the call has failed.
            h2.exceptions.ProtocolError: it is not HTTP/2.
        """
        for event in self._connection.receive_data(received):
            if isinstance(event, (h2.events.ResponseReceived, h2.events.TrailersReceived)):
                self._note(event.headers or ())
            elif isinstance(event, h2.events.DataReceived):
                self._body += event.data or b""
                if len(self._body) > _LARGEST_ANSWER_BYTES:
                    raise KubeletError(f"its answer is larger than {_LARGEST_ANSWER_BYTES >> 20} MiB")
                self._connection.acknowledge_received_data(event.flow_controlled_length or 0, self._stream)
            elif isinstance(event, h2.events.StreamEnded):
                self.is_over = True
            elif isinstance(event, h2.events.StreamReset):
                raise KubeletError(f"the server broke the call off (HTTP/2 error {event.error_code})")
            elif isinstance(event, h2.events.ConnectionTerminated):
                raise KubeletError(f"the server is closing down (HTTP/2 error {event.error_code})")

    def _note(self, headers: Iterable[tuple[str | bytes, str | bytes]]) -> None:
        self._headers.update((str(name), str(value)) for name, value in headers)

    def message(self) -> bytes:
        """The answer.

        Raises:
            GrpcError: it is an error, or none.
        """
        if self._headers.get(":status") != "200":
            raise KubeletError(f"it answers HTTP status {self._headers.get(':status', 'none')}: no gRPC server")
        word = self._headers.get("grpc-status", "")
        status = int(word) if word.isdecimal() else _UNKNOWN
        if status != _OK:
            detail = unquote(self._headers.get("grpc-message", "")) or "it gives no reason"
            raise KubeletError(f"gRPC status {status}: {detail}", status)
        if len(self._body) < _MESSAGE_PREFIX.size:
            raise KubeletError("its answer is without a message")
        is_compressed, size = _MESSAGE_PREFIX.unpack_from(self._body)
        if is_compressed or len(self._body) != _MESSAGE_PREFIX.size + size:
            raise KubeletError("its answer is compressed, or not one message")
        return bytes(self._body[_MESSAGE_PREFIX.size :])
