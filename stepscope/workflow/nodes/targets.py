"""Target sources: where the agents of a cluster are, by Prometheus' service discovery, Slurm, Kubernetes or a list.

/etc/prometheus/nodes/*.yml    files of Prometheus' file_sd_configs; *.json too
nodes.txt                      one address a line
http://sd:8080/nodes           a URL of Prometheus' http_sd_configs, as an agent's /sd
slurm:PARTITION                nodes of a Slurm partition by `sinfo`; without a name all nodes
nodes:gpu[001-128,130]:9455    a node list, as SLURM_JOB_NODELIST has it
k8s:NAMESPACE/SERVICE          endpoints of a Kubernetes service
"""

from __future__ import annotations

import glob
import http.client
import json
import logging
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from stepscope.core.errors import DataError, StepscopeError, UnreachableError, UsageError, from_os_error
from stepscope.core.http_exchange import HTTP_ERRORS, exchange
from stepscope.store.files import read_text
from stepscope.workflow.nodes.agent_client import AgentClient, agent_client
from stepscope.workflow.nodes.kubernetes_targets import kubernetes_targets
from stepscope.workflow.nodes.node_list import expand_node_list

_log = logging.getLogger(__name__)

_SECONDS = 10.0
_END_SECONDS = 1.0
_MAX_BYTES = 32 << 20
_GLOB = re.compile(r"[*?]")
_PORT = re.compile(r"(.*):(\d{1,5})", re.DOTALL)
_POWERED_OFF = ("~", "!", "%")
"""Suffixes of sinfo's states: powered down, pending or going there."""
_NO_NODE = ("futr", "future")
SCHEME, SERVER_NAME = "__scheme__", "__meta_stepscope_server_name"
"""Labels of targets: http or https, as Prometheus reads it, and the name in the certificate if that is not the host."""

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Target:
    """Where an agent is.

    Attributes:
        address: HOST:PORT, HOST or a URL.
        labels: from its source, sorted: "rack", "__scheme__", "__meta_kubernetes_node".
    """

    address: str
    labels: Labels = ()

    def client(self, **options: Any) -> AgentClient:
        """The client of its agent; `options` as of `agent_client`.

        Raises:
            UsageError: it is not the address of an agent.
        """
        labels = dict(self.labels)
        has_scheme = "://" in self.address or SCHEME not in labels
        client = agent_client(self.address if has_scheme else f"{labels[SCHEME]}://{self.address}", **options)
        return replace(client, labels=self.labels, server_name=labels.get(SERVER_NAME, ""))


@dataclass(frozen=True, slots=True)
class AgentSources:
    """Where the agents of a command are, and how it shows them who it is.

    Attributes:
        urls: addresses of agents.
        sources: target sources, see `targets_of`.
        credentials: `token`, `ca_file`, `cert_file`, `key_file` of `agent_client`, for all agents.
    """

    urls: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    credentials: Mapping[str, str] = field(default_factory=dict)

    def named(self) -> list[AgentClient]:
        """Clients of the agents whose addresses are given.

        Raises:
            UsageError: one is not an address.
        """
        return [agent_client(url, **self.credentials) for url in self.urls]

    def client_of(self, target: Target) -> AgentClient:
        """The client of an agent that a source names; raises as `Target.client`."""
        return target.client(**self.credentials)

    def clients(self) -> list[AgentClient]:
        """Clients of all agents, each once, as the sources are now; raises as `named` and `targets_of`."""
        found = targets_of_all(self.sources) if self.sources else ()
        clients = [*self.named(), *map(self.client_of, found)]
        return list({str(client): client for client in clients}.values())


_KINDS = ("slurm", "nodes", "k8s")
_KIND = re.compile(r"(\w+):")


def check_source(source: str) -> None:
    """Check that a text names a target source; whether it answers is seen when it is read.

    Raises:
        UsageError: it does not.
    """
    match = _KIND.match(source)
    is_of_a_kind = match is None or match[1] in _KINDS or source.startswith(("http://", "https://"))
    if not source.strip() or not (is_of_a_kind or Path(source).exists()):
        what_next = f"give a file, a URL, or one of {', '.join(f'{kind}:' for kind in _KINDS)}"
        raise UsageError(f"{source!r} is not a source of targets", what_next=what_next)


def targets_of(source: str, *, seconds: float = _SECONDS) -> tuple[Target, ...]:
    """The targets of a source, each address once.

    Raises:
        UsageError: it is not a source.
        DataError: its content cannot be used.
        UnreachableError: it does not answer.
    """
    check_source(source)
    kind, _, rest = source.partition(":")
    if source.startswith(("http://", "https://")):
        found: Iterable[Target] = _from_url(source, seconds)
    elif kind == "slurm":
        found = _of_slurm(rest, seconds)
    elif kind == "nodes":
        found = _of_node_list(rest)
    elif kind == "k8s":
        found = [Target(address, labels) for address, labels in kubernetes_targets(rest, seconds=seconds)]
    else:
        found = _of_files(source)
    return tuple({target.address: target for target in found}.values())


def targets_of_all(sources: Iterable[str], *, seconds: float = _SECONDS) -> tuple[Target, ...]:
    """The targets of several sources, each address once; raises as `targets_of`."""
    found = (target for source in sources for target in targets_of(source, seconds=seconds))
    return tuple({target.address: target for target in found}.values())


def _of_files(pattern: str) -> list[Target]:
    paths = sorted(glob.glob(pattern)) if _GLOB.search(pattern) else [pattern]
    if not paths:
        raise DataError("names no file", where=pattern, what_next="check the path")
    return [target for path in paths for target in _of_file(Path(path))]


def _of_file(path: Path) -> list[Target]:
    try:
        text = read_text(path)
    except OSError as error:
        raise from_os_error(error, "cannot be read", where=str(path)) from None
    except UnicodeDecodeError:
        raise DataError("is not a text file", where=str(path), what_next=_FORMS) from None
    if path.suffix == ".json":
        return _groups(_parsed(text, json.loads, str(path)), str(path))
    if path.suffix in (".yml", ".yaml"):
        return _groups(_parsed(text, _load_yaml, str(path)), str(path))
    return [Target(line) for line in lines_of(text)]


def lines_of(text: str) -> list[str]:
    """Addresses in a text, one a line; what follows # is a comment."""
    lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    return [line for line in lines if line]


_FORMS = "give a list as Prometheus' file_sd_configs reads it, or one address a line"


def _load_yaml(text: str) -> Any:
    try:
        import yaml
    except ModuleNotFoundError:
        what_next = 'pip install "stepscope[agent]", or write it as JSON'
        raise UsageError("YAML files need PyYAML", what_next=what_next) from None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())[:200]) from None


def _parsed(text: str, load: Callable[[str], Any], where: str) -> Any:
    try:
        return load(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"cannot be parsed ({error})", where=where, what_next=_FORMS) from None


def _groups(document: Any, where: str) -> list[Target]:
    """Targets of a list of groups, as Prometheus' service discovery has them."""
    found = []
    groups: list[Any] = document if isinstance(document, list) else [None]
    for group in groups:
        addresses = group.get("targets") if isinstance(group, dict) else None
        labels = (group.get("labels") or {}) if isinstance(group, dict) else {}
        if not _is_texts(addresses) or not isinstance(labels, dict):
            raise DataError("is not a list of {targets: [...], labels: {...}}", where=where, what_next=_FORMS)
        pairs = tuple(sorted((str(name), str(value)) for name, value in labels.items()))
        found += [Target(address, pairs) for address in addresses or ()]
    return found


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _from_url(url: str, seconds: float) -> list[Target]:
    shown = url.rpartition("@")[2]
    content = _get(url, seconds, shown)
    return _groups(_parsed(content.decode(errors="replace"), json.loads, shown), shown)


def _get(url: str, seconds: float, shown: str) -> bytes:
    parts = urlsplit(url)
    client = agent_client(f"{parts.scheme}://{parts.netloc}")
    port = parts.port or (443 if parts.scheme == "https" else 80)
    context = client.context()
    connection = (
        http.client.HTTPConnection(client.host, port, timeout=seconds)
        if context is None
        else http.client.HTTPSConnection(client.host, port, timeout=seconds, context=context)
    )
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    headers = {"Accept": "application/json", **client.headers()}
    deadline = time.monotonic() + seconds
    try:
        reply = exchange(connection, "GET", path, headers=headers, deadline=deadline, max_bytes=_MAX_BYTES)
    except HTTP_ERRORS as error:
        what = f"it has not answered within {seconds:g} s" if isinstance(error, TimeoutError) else str(error)
        raise UnreachableError(f"the targets cannot be read ({what})", where=shown) from None
    if reply.status != 200:
        raise UnreachableError(f"answers with HTTP status {reply.status}", where=shown)
    if len(reply.content) > _MAX_BYTES:
        raise DataError(f"answers more than {_MAX_BYTES >> 20} MiB", where=shown)
    return reply.content


def _of_node_list(text: str) -> list[Target]:
    nodes, port = _with_port(text)
    return [Target(f"{name}{port}") for name in expand_node_list(nodes)]


def _with_port(text: str) -> tuple[str, str]:
    match = _PORT.fullmatch(text)
    return (match[1], f":{match[2]}") if match else (text, "")


def _of_slurm(text: str, seconds: float) -> list[Target]:
    partition, port = _with_port(text)
    command = ["sinfo", "--noheader", "--Node", "--format=%N|%t|%R"]
    command += [f"--partition={partition}"] if partition else []
    where = f"slurm:{text}"
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except FileNotFoundError:
        raise UnreachableError("there is no sinfo here", where=where, what_next="ask on a Slurm login node") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnreachableError(f"sinfo does not answer ({error})", where=where) from None
    if result.returncode:
        last = (result.stderr.strip().splitlines() or [f"exit code {result.returncode}"])[-1]
        raise UnreachableError(f"sinfo fails ({last})", where=where)
    found = slurm_nodes(result.stdout)
    if not found:
        raise DataError("Slurm has no node there that is on", where=where, what_next="sinfo lists the partitions")
    return [Target(f"{name}{port}", labels) for name, labels in found.items()]


def slurm_nodes(output: str) -> dict[str, Labels]:
    """Nodes that are on, with state and partitions as labels, from lines NODE|STATE|PARTITION of sinfo."""
    states, partitions = dict[str, str](), dict[str, list[str]]()
    for line in output.splitlines():
        name, *rest = (part.strip() for part in line.split("|"))
        if len(rest) != 2 or not name:
            continue
        state = rest[0].lower()
        if state.endswith(_POWERED_OFF) or state.startswith(_NO_NODE):
            continue
        states[name] = state.rstrip("*#$@^-+")
        partitions.setdefault(name, []).append(rest[1])
    return {
        name: (
            ("__meta_slurm_partition", ",".join(dict.fromkeys(partitions[name]))),
            ("__meta_slurm_state", state),
        )
        for name, state in states.items()
    }


def discovery_groups(targets: Sequence[Target]) -> list[dict[str, Any]]:
    """Targets as Prometheus' service discovery reads them: those with the same labels in one group."""
    groups: dict[Labels, list[str]] = {}
    for target in targets:
        scheme, separator, rest = target.address.rpartition("://")
        labels = {SCHEME: scheme, **dict(target.labels)} if separator else dict(target.labels)
        groups.setdefault(tuple(sorted(labels.items())), []).append(_with_default_port(rest))
    return [{"targets": addresses, "labels": dict(labels)} for labels, addresses in groups.items()]


def _with_default_port(address: str) -> str:
    client = agent_client(address)
    host = f"[{client.host}]" if ":" in client.host else client.host
    return f"{host}:{client.port}"


class TargetList:
    """Targets of sources, read in the background; the last ones stay while a source fails. A context manager.

    Args:
        sources: see `targets_of`.
        interval: seconds from one reading to the next.
    """

    def __init__(self, sources: Sequence[str], *, interval: float = 60.0) -> None:
        self._sources, self._interval = tuple(sources), interval
        self._targets: tuple[Target, ...] | None = None
        self._last_error = ""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stepscope-targets", daemon=True)

    def __enter__(self) -> TargetList:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """A source that hangs is left behind; it keeps no process."""
        self._stop.set()
        self._thread.join(_END_SECONDS)

    def targets(self) -> tuple[Target, ...] | None:
        """The last ones; None before the first."""
        return self._targets

    def groups(self) -> list[dict[str, Any]] | None:
        """The last ones as Prometheus' service discovery reads them; None before the first."""
        targets = self._targets
        return None if targets is None else discovery_groups(targets)

    def _run(self) -> None:
        while True:
            error = ""
            try:
                self._targets = targets_of_all(self._sources)
            except StepscopeError as failed:
                error = str(failed)
            except Exception as failed:  # the thread's edge: what stood there last is still served
                error = f"{type(failed).__name__}: {failed}"
            if error and error != self._last_error:
                _log.warning("targets: %s", error)
            self._last_error = error
            if self._stop.wait(self._interval):
                return
