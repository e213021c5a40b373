"""HTTP GETs to many agents at once, in one thread: each has a deadline, and a silent agent delays no other.

A server that sends a byte now and then gets no longer for it. Host names are looked up in threads, since the system's
resolver blocks.
"""

from __future__ import annotations

import asyncio
import http.client
import io
import queue
import re
import resource
import socket
import ssl
import threading
import zlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from types import MappingProxyType
from typing import Any

from stepscope.core.errors import UnreachableError
from stepscope.workflow.nodes.agent_client import MAX_BYTES, AgentClient

Body = tuple[int, bytes]
"""HTTP status and content of an answer."""

_MAX_AT_ONCE = 4096
_MAX_TIMES = 5
"""Time limits after which an agent is given up although others still answer."""
_MAX_CONNECTING = 256
"""More TLS handshakes at once would be slow by this process's own work, and their agents blamed for it."""
_MAX_HEAD_BYTES = 1 << 16
_NO_HEADERS: Mapping[str, str] = MappingProxyType({})
_SPARE_FILES = 64
"""File descriptors left for the rest of the process."""
_MAX_LOOKUPS = 64
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d{1,12})[ \t]*\r\n", re.IGNORECASE)


class AgentExchanges:
    """Thread that sends requests to agents and gives each its answer. A context manager.

    Args:
        clients: of the agents that `get` may name.
        seconds: an agent is given up when neither it nor another has answered for so long.
        most: agents that may be asked at once; the number of clients by default.

    Raises:
        UsageError: a client's certificate files cannot be used.
    """

    def __init__(self, clients: Iterable[AgentClient] = (), *, seconds: float, most: int | None = None) -> None:
        self._clients = {str(client): client for client in clients}
        for client in self._clients.values():
            client.context()
        self._seconds = seconds
        self._most = len(self._clients) if most is None else most
        self._lookups = _Lookups(min(_MAX_LOOKUPS, self._most))
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stepscope-ask", daemon=True)

    def __enter__(self) -> AgentExchanges:
        self._thread.start()
        self._is_ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._lookups.close()

    def get(self, agents: Iterable[str], path: str, done: Callable[[str, Body | UnreachableError], None]) -> None:
        """Ask agents; returns at once.

        Args:
            agents: their addresses.
            done: called in the thread for each, with its answer or why there is none.
        """
        self._loop.call_soon_threadsafe(self._begin, list(agents), path, done)

    def request(
        self,
        client: AgentClient,
        path: str,
        done: Callable[[Body | UnreachableError], None],
        *,
        headers: Mapping[str, str] = _NO_HEADERS,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        """Ask one agent, whose time limit is its own; returns at once.

        Args:
            done: called in the thread, with the answer or why there is none; then its cause is the exception.
            headers: more of the request; with `Accept-Encoding: gzip` the content is unpacked.
            max_bytes: of the answer, unpacked.

        Raises:
            UsageError: the client's certificate files cannot be used.
        """
        client.context()
        request = _request(client, path, headers)

        def begin() -> None:
            round_ = _Round(self._loop, self._seconds)
            self._start(self._exchange(client, request, round_, lambda _, answer: done(answer), max_bytes))

        self._loop.call_soon_threadsafe(begin)

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._open = asyncio.Semaphore(_num_files(self._most))
        self._connecting = asyncio.Semaphore(_MAX_CONNECTING)
        self._is_ready.set()
        await self._stop.wait()

    def _begin(self, agents: list[str], path: str, done: Callable[[str, Body | UnreachableError], None]) -> None:
        round_ = _Round(self._loop, self._seconds)
        for agent in agents:
            client = self._clients[agent]
            self._start(self._exchange(client, _request(client, path), round_, done))

    def _start(self, exchange: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(exchange)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _exchange(
        self,
        client: AgentClient,
        request: bytes,
        round_: _Round,
        done: Callable[[str, Body | UnreachableError], None],
        max_bytes: int = MAX_BYTES,
    ) -> None:
        answer: Body | UnreachableError
        exchange = _Exchange(request, self._loop, max_bytes + _MAX_HEAD_BYTES)
        async with self._open:
            try:
                async with self._connecting:
                    start = self._loop.time()
                    async with round_.limit(start):
                        await self._connect(client, exchange)
                async with round_.limit(start):
                    answer = _parsed(await exchange.received, max_bytes)
                if len(answer[1]) > max_bytes:
                    answer = client.too_large(max_bytes)
            except Exception as error:  # whatever it answers: each agent that was asked has an answer
                answer = client.unreachable(error, self._seconds)
                answer.__cause__ = error.with_traceback(None)  # whose frames hold what was received
            finally:
                exchange.abort()
        done(str(client), answer)
        if isinstance(answer, tuple):
            round_.answered_at = self._loop.time()

    async def _connect(self, client: AgentClient, exchange: _Exchange) -> None:
        """Connect to the first address that answers, and send the request."""
        context = client.context()
        name = None if context is None else client.server_name or client.host
        error: OSError = OSError("no address")
        for host in await self._lookups.addresses(client.host, client.port):
            try:
                await self._loop.create_connection(
                    lambda: exchange, host, client.port, ssl=context, server_hostname=name
                )
            except ssl.SSLError:
                raise
            except OSError as failed:
                error = failed
            else:
                return
        raise error


class _Round:
    """Requests that were sent together, and their time limits.

    An agent is given up once none has answered for some seconds: while answers come, it is this machine or the network
    that is slow. A few times as long it is given up in any case.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        self._loop, self._seconds = loop, seconds
        self.answered_at = loop.time()

    @asynccontextmanager
    async def limit(self, start: float) -> AsyncIterator[None]:
        """Context of a request that was begun at a time; raises TimeoutError."""

        async with asyncio.timeout(None) as limit:
            timer = self._loop.call_at(self._end(start), lambda: check())

            def check() -> None:
                nonlocal timer
                now, end = self._loop.time(), self._end(start)
                if now < end:
                    timer = self._loop.call_at(end, check)
                else:
                    limit.reschedule(now)

            try:
                yield
            finally:
                timer.cancel()

    def _end(self, start: float) -> float:
        return min(max(start, self.answered_at), start + (_MAX_TIMES - 1) * self._seconds) + self._seconds


class _Exchange(asyncio.Protocol):
    """One connection: sends the request, and gives all that came until the answer or the connection ended."""

    def __init__(self, request: bytes, loop: asyncio.AbstractEventLoop, max_bytes: int) -> None:
        self._request = request
        self._max_bytes = max_bytes
        self._content = bytearray()
        self._length: int | None = None
        self._transport: asyncio.Transport | None = None
        self.received: asyncio.Future[bytes] = loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._content += data
        if self._length is None:
            self._length = _length(self._content, self._max_bytes)
        if len(self._content) >= (self._length or self._max_bytes):
            self._end()

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None and not self._content and not self.received.done():
            self.received.set_exception(exc)
        self._end()

    def abort(self) -> None:
        """Close the connection now."""
        self.received.cancel()
        if self._transport is not None:
            self._transport.abort()

    def _end(self) -> None:
        if not self.received.done():
            self.received.set_result(bytes(self._content))


def _length(content: bytearray, max_bytes: int) -> int | None:
    """Bytes of the whole answer, at most so many; None while they are not known."""
    end = content.find(b"\r\n\r\n")
    if end < 0:
        return None
    match = _LENGTH.search(content, 0, end + 2)
    return min(end + 4 + int(match[1]), max_bytes) if match else max_bytes


def _request(client: AgentClient, path: str, headers: Mapping[str, str] = _NO_HEADERS) -> bytes:
    lines = [f"GET {path} HTTP/1.1", f"Host: {str(client).partition('://')[2]}", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in {**client.headers(), **headers}.items()]
    return "\r\n".join([*lines, "", ""]).encode()


class _Received:
    """What was received, as http.client reads it from a socket."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def makefile(self, _mode: str) -> io.BytesIO:
        return io.BytesIO(self._content)


def _parsed(content: bytes, max_bytes: int) -> Body:
    received: Any = _Received(content)
    response = http.client.HTTPResponse(received, method="GET")
    try:
        response.begin()
        body = response.read()
        is_packed = response.headers.get("Content-Encoding", "").strip().lower() == "gzip"
        return response.status, _unpacked(body, max_bytes) if is_packed else body
    finally:
        response.close()


def _unpacked(body: bytes, max_bytes: int) -> bytes:
    """The content of a gzip stream; of a larger one than allowed, a byte more than that."""
    unpacker = zlib.decompressobj(wbits=31)
    try:
        content = unpacker.decompress(body, max_bytes + 1)
    except zlib.error as error:
        raise http.client.HTTPException(f"its answer cannot be unpacked: {error}") from None
    if not unpacker.eof and len(content) <= max_bytes:
        raise http.client.IncompleteRead(content)
    return content


def _num_files(num_agents: int) -> int:
    """Number of connections that may be open; the soft limit of files is raised where that helps."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(num_agents, _MAX_AT_ONCE) + 2 * _SPARE_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    limit = _MAX_AT_ONCE if soft == resource.RLIM_INFINITY else soft - _SPARE_FILES
    return max(1, min(limit, _MAX_AT_ONCE))


class _Lookups:
    """Looks up host names in threads, which a name server that does not answer never keeps from ending the process."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    async def addresses(self, host: str, port: int) -> list[str]:
        """Addresses of a host, the preferred first.

        Raises:
            OSError, UnicodeError: there are none.
        """
        if _is_address(host):
            return [host]
        loop = asyncio.get_running_loop()
        found: asyncio.Future[list[str]] = loop.create_future()

        def look_up() -> None:
            try:
                result: list[str] | Exception = _addresses(host, port)
            except (OSError, UnicodeError) as error:
                result = error
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(_settle, found, result)

        self._queue.put(look_up)
        if len(self._threads) < self._count:
            thread = threading.Thread(target=self._run, name="stepscope-lookup", daemon=True)
            self._threads.append(thread)
            thread.start()
        return await found

    def close(self) -> None:
        """Let the threads end once they are free."""
        for _ in self._threads:
            self._queue.put(None)

    def _run(self) -> None:
        while (look_up := self._queue.get()) is not None:
            look_up()


def _settle(found: asyncio.Future[list[str]], result: list[str] | Exception) -> None:
    if found.done():
        return
    if isinstance(result, Exception):
        found.set_exception(result)
    else:
        found.set_result(result)


def _is_address(host: str) -> bool:
    for family in (socket.AF_INET, socket.AF_INET6):
        with suppress(OSError):
            socket.inet_pton(family, host)
            return True
    return False


def _addresses(host: str, port: int) -> list[str]:
    found = []
    for *_, place in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        scope = f"%{place[3]}" if len(place) == 4 and place[3] else ""
        found.append(f"{place[0]}{scope}")
    return list(dict.fromkeys(found))
