"""Real Prometheus and VictoriaMetrics that take recorded pages as if they had scraped them, by remote write."""

from __future__ import annotations

import http.client
import shutil
import socket
import struct
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np

from stepscope.store.history.questions import Labels
from stepscope.store.history.samples import SampleBlock

Series = tuple[str, Labels]
"""Metric and its labels, without those of the target."""

STALE_NAN = struct.unpack("<d", (0x7FF0000000000002).to_bytes(8, "little"))[0]
"""Prometheus writes it where a series is not on a target's next page, or the page is missing."""
_START_SECONDS = 30.0
_SLICE_MS = 600_000
"""Prometheus takes samples of the latest hour only: series are written in slices of time."""
_MAX_LITERAL = 1 << 16


@dataclass(frozen=True, slots=True)
class RecordedPage:
    """One scrape of one target.

    Attributes:
        target: labels of the target, `instance` among them.
        time_ms: ms since the epoch.
        values: by series; None: the target did not answer.
    """

    target: Labels
    time_ms: int
    values: Mapping[Series, float] | None = field(default_factory=dict)


@contextmanager
def prometheus_server(folder: Path, *options: str, config: str = "") -> Iterator[str]:
    """An empty Prometheus; its URL.

    Raises:
        FileNotFoundError: it is not installed.
    """
    (folder / "prometheus.yml").write_text(config)
    with _server("prometheus", folder, lambda port: (
        f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}/prometheus",
        f"--web.listen-address=127.0.0.1:{port}",
        "--web.enable-remote-write-receiver",
        "--web.enable-lifecycle",
        "--storage.tsdb.retention.time=100y",
        "--log.level=warn",
        *options,
    ), "/-/ready") as url:  # fmt: skip
        yield url


@contextmanager
def victoria_metrics_server(folder: Path, *options: str) -> Iterator[str]:
    """An empty VictoriaMetrics; its URL.

    Raises:
        FileNotFoundError: it is not installed.
    """
    with _server("victoria-metrics", folder, lambda port: (
        f"-storageDataPath={folder}/victoria-metrics",
        f"-httpListenAddr=127.0.0.1:{port}",
        "-retentionPeriod=100y",
        "-loggerLevel=ERROR",
        "-memory.allowedPercent=5",
        *options,
    ), "/health") as url:  # fmt: skip
        yield url


@contextmanager
def both_servers(folder: Path) -> Iterator[dict[str, str]]:
    """URLs of a new server of each kind, by name.

    Raises:
        FileNotFoundError: one is not installed.
    """
    with prometheus_server(folder) as prometheus, victoria_metrics_server(folder) as victoria:
        yield {"prometheus": prometheus, "victoria-metrics": victoria}


def write_pages(url: str, pages: Iterable[RecordedPage]) -> int:
    """Write pages into a server with `up` and with the marks of series that end; the number of samples."""
    slices: dict[int, dict[Labels, list[tuple[int, float]]]] = {}
    before: dict[Labels, set[Series]] = {}
    count = 0

    def add(name: str, target: Labels, labels: Labels, time_ms: int, value: float) -> None:
        key = tuple(sorted((("__name__", name), *target, *labels)))
        slices.setdefault(time_ms // _SLICE_MS, {}).setdefault(key, []).append((time_ms, value))

    for page in sorted(pages, key=lambda page: page.time_ms):
        add("up", page.target, (("job", "stepscope"),), page.time_ms, float(page.values is not None))
        values = page.values or {}
        for (name, labels), value in values.items():
            add(name, page.target, labels, page.time_ms, value)
            count += 1
        for name, labels in before.get(page.target, set()) - values.keys():
            add(name, page.target, labels, page.time_ms, STALE_NAN)
        before[page.target] = set(values)
    for _, series in sorted(slices.items()):
        _post(url, "/api/v1/write", _snappy(_write_request(series)), {204, 200})
    with suppress(OSError):
        _get(url, "/internal/force_flush")  # VictoriaMetrics shows samples a second later otherwise
    return count


def sample_blocks(pages: Iterable[RecordedPage]) -> list[SampleBlock]:
    """Pages as a recorder hands them to the store: a row an entity and page, with `up` of each target."""
    rows: dict[tuple[str, ...], dict[tuple[int, Labels], dict[str, float]]] = {}
    for page in pages:
        series = {("up", ()): float(page.values is not None), **(page.values or {})}
        for (name, labels), value in series.items():
            entity = tuple(sorted((*page.target, *labels)))
            names = tuple(name for name, _ in entity)
            rows.setdefault(names, {}).setdefault((page.time_ms, entity), {})[name] = value
    blocks = []
    for table in rows.values():
        entities = {entity: number for number, entity in enumerate(dict.fromkeys(entity for _, entity in table))}
        metrics = dict.fromkeys(name for values in table.values() for name in values)
        blocks.append(
            SampleBlock(
                tuple(entities),
                np.array([entities[entity] for _, entity in table], np.int32),
                np.array([time_ms for time_ms, _ in table], np.int64) * 10**6,
                {name: np.array([values.get(name, np.nan) for values in table.values()]) for name in metrics},
            )
        )
    return blocks


def _write_request(series: Mapping[Labels, list[tuple[int, float]]]) -> bytes:
    parts = []
    for labels, samples in series.items():
        one = b"".join(_field(1, _field(1, name.encode()) + _field(2, text.encode())) for name, text in labels)
        one += b"".join(
            _field(2, b"\x09" + struct.pack("<d", value) + b"\x10" + _varint(time_ms)) for time_ms, value in samples
        )
        parts.append(_field(1, one))
    return b"".join(parts)


def _field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def _snappy(content: bytes) -> bytes:
    """The content in snappy's block format, of literals alone."""
    found = bytearray(_varint(len(content)))
    for begin in range(0, len(content), _MAX_LITERAL):
        part = content[begin : begin + _MAX_LITERAL]
        found += b"\xf4" + struct.pack("<H", len(part) - 1) + part
    return bytes(found)


@contextmanager
def _server(name: str, folder: Path, options: object, ready: str) -> Iterator[str]:
    program = shutil.which(name)
    if program is None:
        raise FileNotFoundError(f"{name} is not installed")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    assert callable(options)
    url = f"http://127.0.0.1:{port}"
    with (
        (folder / f"{name}.log").open("w") as log,
        subprocess.Popen([program, *options(port)], stdout=log, stderr=log, cwd=folder) as process,
    ):
        try:
            end = time.monotonic() + _START_SECONDS
            while not _answers(url, ready):
                if process.poll() is not None or time.monotonic() > end:
                    raise RuntimeError(f"{name} does not start: {(folder / f'{name}.log').read_text()[-500:]}")
                time.sleep(0.05)
            yield url
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()


def _answers(url: str, path: str) -> bool:
    try:
        return _get(url, path) == 200
    except OSError:
        return False


def _get(url: str, path: str) -> int:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        response.read()
        return response.status
    finally:
        connection.close()


def _post(url: str, path: str, body: bytes, allowed: set[int]) -> None:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    headers = {"Content-Encoding": "snappy", "Content-Type": "application/x-protobuf"}
    headers["X-Prometheus-Remote-Write-Version"] = "0.1.0"
    try:
        connection.request("POST", path, body, headers)
        response = connection.getresponse()
        text = response.read().decode(errors="replace")
    finally:
        connection.close()
    if response.status not in allowed:
        raise RuntimeError(f"{url}{path}: HTTP status {response.status}: {text[:300]}")
