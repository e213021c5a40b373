"""What does a gRPC server on a Unix socket answer to one call? HTTP/2 by h2: grpcio takes four times the memory."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterable
from urllib.parse import unquote

import h2.config
import h2.connection
import h2.events
import h2.exceptions

_LARGEST = 16 << 20
"""Bytes of an answer, the size at which Kubernetes' own clients stop."""
_PREFIX = struct.Struct(">BI")
_READ_BYTES = 1 << 16
_OK, _UNKNOWN = 0, 2


class GrpcError(Exception):
    """The server refused, or did not speak gRPC.

    Attributes:
        status: gRPC's number; None where there is none.
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        self.status = status
        super().__init__(message)


def call(path: str, method: str, request: bytes, *, seconds: float) -> bytes:
    """Call a method once, over a connection of its own.

    Args:
        path: of the socket.
        method: "/v1.PodResourcesLister/List".
        request: the message.
        seconds: how long all of it may take.

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
        exchange = _Exchange(method, request)
        try:
            while not exchange.is_over:
                left = end - time.monotonic()
                if left <= 0:
                    raise TimeoutError(f"no answer within {seconds:g} s")
                connection.settimeout(left)
                connection.sendall(exchange.to_send())
                received = connection.recv(_READ_BYTES)
                if not received:
                    raise GrpcError("the server closed the connection before it answered")
                exchange.receive(received)
        except h2.exceptions.ProtocolError as error:
            raise GrpcError(f"it does not speak HTTP/2: {error}") from error
        return exchange.message()


class _Exchange:
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
        self._connection.send_data(self._stream, _PREFIX.pack(0, len(request)) + request, end_stream=True)

    def to_send(self) -> bytes:
        """What is to go out now; may be empty."""
        return self._connection.data_to_send()

    def receive(self, received: bytes) -> None:
        """Take what came.

        Raises:
            GrpcError: there is no use in waiting for more.
            h2.exceptions.ProtocolError: it is no HTTP/2.
        """
        for event in self._connection.receive_data(received):
            if isinstance(event, (h2.events.ResponseReceived, h2.events.TrailersReceived)):
                self._note(event.headers or ())
            elif isinstance(event, h2.events.DataReceived):
                self._body += event.data or b""
                if len(self._body) > _LARGEST:
                    raise GrpcError(f"its answer is larger than {_LARGEST >> 20} MiB")
                self._connection.acknowledge_received_data(event.flow_controlled_length or 0, self._stream)
            elif isinstance(event, h2.events.StreamEnded):
                self.is_over = True
            elif isinstance(event, h2.events.StreamReset):
                raise GrpcError(f"the server broke the call off (HTTP/2 error {event.error_code})")
            elif isinstance(event, h2.events.ConnectionTerminated):
                raise GrpcError(f"the server is closing down (HTTP/2 error {event.error_code})")

    def _note(self, headers: Iterable[tuple[str | bytes, str | bytes]]) -> None:
        self._headers.update((str(name), str(value)) for name, value in headers)

    def message(self) -> bytes:
        """The answer.

        Raises:
            GrpcError: it is an error, or none.
        """
        if self._headers.get(":status") != "200":
            raise GrpcError(f"it answers HTTP status {self._headers.get(':status', 'none')}: no gRPC server")
        word = self._headers.get("grpc-status", "")
        status = int(word) if word.isdecimal() else _UNKNOWN
        if status != _OK:
            detail = unquote(self._headers.get("grpc-message", "")) or "it gives no reason"
            raise GrpcError(f"gRPC status {status}: {detail}", status)
        if len(self._body) < _PREFIX.size:
            raise GrpcError("its answer is without a message")
        is_compressed, size = _PREFIX.unpack_from(self._body)
        if is_compressed or len(self._body) != _PREFIX.size + size:
            raise GrpcError("its answer is compressed, or not one message")
        return bytes(self._body[_PREFIX.size :])
