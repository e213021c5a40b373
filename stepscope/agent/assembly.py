"""Which parts does a configuration make? What cannot be made is said with the key that asks for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from stepscope.agent.config import Configuration
from stepscope.agent.exporter import DcgmNames
from stepscope.agent.isolation import Timing
from stepscope.agent.sources import Sources
from stepscope.agent.web import Address, Guard, address_of
from stepscope.collectors.dcgm_exporter.fetching import endpoint_of
from stepscope.core.errors import UsageError


@dataclass(frozen=True, slots=True)
class Parts:
    """What an agent is made of; nothing runs or listens yet.

    Attributes:
        address: where to listen.
        guard: who may ask, and how connections are encrypted.
        sources: what to read.
        dcgm_names: how to show GPUs under DCGM's names; None: not at all.
    """

    address: Address
    guard: Guard
    sources: Sources
    dcgm_names: DcgmNames | None


def assembled(configuration: Configuration) -> Parts:
    """The parts.

    Raises:
        UsageError: a setting names nothing that can be, or what must not be. One line with who said so and the key.
    """
    web = configuration.settings.web
    with _asked_by(configuration, "web.config_file"):
        guard = Guard(Path(web.config_file) if web.config_file else None)
    with _asked_by(configuration, "web.listen"):
        keeps_others_out = guard.config().keeps_others_out
        address = address_of(web.listen, insecure=web.insecure, keeps_others_out=keeps_others_out)
    names = configuration.settings.dcgm.names
    return Parts(address, guard, sources_of(configuration), DcgmNames(names) if names else None)


def sources_of(configuration: Configuration) -> Sources:
    """What to read; see `assembled`."""
    settings = configuration.settings
    with _asked_by(configuration, "dcgm.exporter"):
        exporter = endpoint_of(settings.dcgm.exporter) if settings.dcgm.exporter else None
    return Sources(Timing(interval=settings.gpus.interval), dcgm_exporter=exporter)


@contextmanager
def _asked_by(configuration: Configuration, path: str) -> Iterator[None]:
    try:
        yield
    except UsageError as error:
        raise UsageError(str(error), where=configuration.asked_by(path)) from None
