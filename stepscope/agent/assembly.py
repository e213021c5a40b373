"""Parts of an agent, made from its configuration.

A setting that cannot be used is reported with the flag, variable or key that asked for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from stepscope.agent.captures.backends import CaptureBackend, ProfileBackend
from stepscope.agent.captures.coordinator import CaptureCoordinator
from stepscope.agent.config.configuration import Configuration, Origin
from stepscope.agent.exporter.dcgm_names import DcgmNames
from stepscope.agent.gpus.supervisor import Timing
from stepscope.agent.nccl_stalls import ras_address
from stepscope.agent.node_name import node_name
from stepscope.agent.sources import Sources
from stepscope.agent.state_directory import StateLock, state_directory
from stepscope.agent.training_link.server import TrainingServer
from stepscope.agent.web.config_reload import WebConfigReloader
from stepscope.agent.web.server import Address, address_of
from stepscope.collectors.dcgm_exporter.fetching import endpoint_of
from stepscope.collectors.kineto_daemon.backend import KinetoBackend
from stepscope.core.errors import UsageError


@dataclass(frozen=True, slots=True)
class Parts:
    """Parts of an agent; nothing runs or listens yet.

    Attributes:
        address: to listen on.
        guard: access rules and encryption of connections.
        sources: to read.
        dcgm_names: names under which GPUs are shown as dcgm-exporter does; None: not at all.
        training: server of training processes; None: no server.
        kineto: server of processes started with KINETO_USE_DAEMON=1; None: no server.
        captures: takes requests for captures.
        state_directory: keeps captures, and the token where no file is named.
        token_file: holds the token of who may change something; None: in the state directory.
        state: keeps every other agent out of the state directory.
        host: name of this machine.
    """

    address: Address
    guard: WebConfigReloader
    sources: Sources
    dcgm_names: DcgmNames | None
    training: TrainingServer | None
    kineto: KinetoBackend | None
    captures: CaptureCoordinator
    state_directory: Path
    token_file: Path | None
    state: StateLock
    host: str


def assembled(configuration: Configuration) -> Parts:
    """The parts of an agent with these settings.

    Raises:
        UsageError: a setting cannot be used; names the flag, variable or file that sets it, and its key.
    """
    web = configuration.settings.web
    with _located_error(configuration, "web.config_file"):
        guard = WebConfigReloader(Path(web.config_file) if web.config_file else None)
    with _located_error(configuration, "web.listen"):
        address = address_of(web.listen, insecure=web.insecure, config=guard.config())
    names = configuration.settings.dcgm.names
    training = _training(configuration)
    kineto = _kineto(configuration)
    sources = sources_of(configuration, training, kineto)
    host = node_name(configuration.settings.jobs.node)
    captures = _captures(configuration, training, kineto, sources, host)
    directory = state_directory(configuration.settings.state.directory)
    return Parts(
        address,
        guard,
        sources,
        DcgmNames(names) if names else None,
        training,
        kineto,
        captures,
        directory,
        Path(web.token_file) if web.token_file else None,
        StateLock(directory),
        host,
    )


def sources_of(
    configuration: Configuration, training: TrainingServer | None = None, kineto: KinetoBackend | None = None
) -> Sources:
    """The sources to read; see `assembled`."""
    settings = configuration.settings
    with _located_error(configuration, "dcgm.exporter"):
        exporter = endpoint_of(settings.dcgm.exporter) if settings.dcgm.exporter else None
    return Sources(
        Timing(interval=settings.gpus.interval),
        dcgm_exporter=exporter,
        training=training,
        kineto=kineto,
        nccl_ras=_nccl_ras(configuration),
        thresholds=settings.health,
        jobs=settings.jobs,
    )


def _nccl_ras(configuration: Configuration) -> tuple[str, int] | None:
    text = configuration.settings.training.nccl_ras
    address = ras_address(text)
    if text and address is None:
        where = configuration.origin_of("training.nccl_ras")
        raise UsageError(f"{text} is not host:port", where=where, what_next="write it as 127.0.0.1:28028")
    return address


def _training(configuration: Configuration) -> TrainingServer | None:
    settings = configuration.settings.training
    if not settings.socket:
        return None
    if re.fullmatch("0?[0-7]{3}", settings.socket_mode) is None:
        where = configuration.origin_of("training.socket_mode")
        raise UsageError("is not a valid file mode", where=where, what_next="write it as 0660")
    is_required = configuration.origins["training.socket"][0] is not Origin.DEFAULT
    return TrainingServer(settings.socket, mode=int(settings.socket_mode, 8), is_required=is_required)


def _kineto(configuration: Configuration) -> KinetoBackend | None:
    settings = configuration.settings.kineto
    if not settings.enabled:
        return None
    for name, folder in (("socket_folder", settings.socket_folder), ("directory", settings.directory)):
        if folder and not folder.startswith("/"):
            where = configuration.origin_of(f"kineto.{name}")
            raise UsageError(f"{folder} is not an absolute path", where=where, what_next="begin it with /")
    is_required = any(
        configuration.origins[f"kineto.{name}"][0] is not Origin.DEFAULT for name in ("enabled", "socket_folder")
    )
    of_agent = state_directory(configuration.settings.state.directory) / "captures"
    runs = Path(settings.directory) if settings.directory else of_agent
    return KinetoBackend(runs, socket_folder=settings.socket_folder or None, is_required=is_required)


def _captures(
    configuration: Configuration,
    training: TrainingServer | None,
    kineto: KinetoBackend | None,
    sources: Sources,
    host: str,
) -> CaptureCoordinator:
    settings = configuration.settings
    backends: list[CaptureBackend] = [] if training is None else [ProfileBackend(training)]
    backends += [] if kineto is None else [kineto]

    def pids_of_job(name: str) -> frozenset[int]:
        return sources.pids_of_job(name) | (frozenset() if kineto is None else kineto.pids_of_job(name))

    captures = CaptureCoordinator(
        backends,
        limits=settings.captures,
        pids_of_job=pids_of_job,
        directory=state_directory(settings.state.directory),
        host=host,
    )
    if training is not None:
        training.wake = captures.wake
    return captures


@contextmanager
def _located_error(configuration: Configuration, path: str) -> Iterator[None]:
    try:
        yield
    except UsageError as error:
        raise UsageError(str(error), where=configuration.origin_of(path)) from None
