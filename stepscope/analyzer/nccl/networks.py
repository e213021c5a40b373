"""Networks between nodes: which one NCCL chose on which machines and why, and the variables that decide."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from stepscope.core.documents.nccl import NcclFinding, NetworkUse, SettingUse
from stepscope.core.documents.nccl_facts import (
    Cards,
    DirectMemory,
    LogEvent,
    Network,
    NoInfiniBand,
    NoPeerAccess,
    NoPlugin,
    RingPath,
    Setting,
    host_of,
)
from stepscope.core.hardware.health import Severity
from stepscope.core.text.numbers import listed

SOCKET = "Socket"
_BOOTSTRAP = "Bootstrap"
ANY_DISTANCE = frozenset(["SYS", "sys", "5"])
"""Values of NCCL_P2P_LEVEL and NCCL_NET_GDR_LEVEL that allow every distance."""

_EFFECTS: dict[str, tuple[str, frozenset[str]]] = {
    "NCCL_P2P_DISABLE": ("GPUs of one node do not reach each other directly", frozenset("0")),
    "NCCL_IB_DISABLE": ("no InfiniBand or RoCE is used", frozenset("0")),
    "NCCL_SHM_DISABLE": ("ranks of one node without P2P go over the network", frozenset("0")),
    "NCCL_NET_GDR_LEVEL": ("network cards read GPU memory themselves only up to this distance", ANY_DISTANCE),
    "NCCL_P2P_LEVEL": ("GPUs reach each other directly only up to this distance", ANY_DISTANCE),
    "NCCL_ALGO": ("NCCL may not choose its algorithm by size", frozenset()),
    "NCCL_PROTO": ("NCCL may not choose its protocol by size", frozenset()),
    "NCCL_MAX_NCHANNELS": ("no more channels than that, where the links could take more", frozenset()),
    "NCCL_NVLS_ENABLE": ("NVSwitches do not sum up: large all-reduces within a node get less", frozenset("12")),
    "NCCL_TOPO_FILE": ("links and cards are read from this file, not from the machine", frozenset()),
    "NCCL_GRAPH_FILE": ("rings and trees are read from this file, not searched", frozenset()),
    "NCCL_NET": ("no other network is tried", frozenset()),
    "NCCL_HOSTID": ("ranks with the same value count as one node", frozenset()),
    "NCCL_PXN_DISABLE": ("GPUs do not use the card of another GPU of their node", frozenset("0")),
    "NCCL_DMABUF_ENABLE": ("GPUDirect RDMA needs nvidia_peermem", frozenset("1")),
    "NCCL_IGNORE_DISABLED_P2P": ("that GPUs joined by NVLink do not reach each other is ignored", frozenset("0")),
    "NCCL_IGNORE_NET_MISMATCH": (
        "that ranks have different numbers of network cards is ignored: a channel without a peer hangs",
        frozenset("0"),
    ),
}
"""Effect of each variable, and its values without effect."""


def settings_of(events: Iterable[LogEvent]) -> list[SettingUse]:
    """Variables that are set, each value where it is named first."""
    found: dict[tuple[str, str], SettingUse] = {}
    for event in events:
        if isinstance(event, Setting):
            place = event.place
            found.setdefault((event.name, event.value), SettingUse(event.name, event.value, place.file, place.line))
    return list(found.values())


def limiting_settings(settings: Iterable[SettingUse]) -> list[NcclFinding]:
    """One finding per variable that limits or overrides NCCL's choice; the transports show whether it has an effect."""
    found: dict[str, NcclFinding] = {}
    for one in settings:
        if one.name in _EFFECTS and one.name not in found:
            effect, harmless = _EFFECTS[one.name]
            if one.value not in harmless:
                message = f"{one.name}={one.value} set in the environment: {effect}"
                found[one.name] = NcclFinding("setting", Severity.INFO, message, one.file, one.line)
    return list(found.values())


def topology_files(events: Iterable[LogEvent]) -> dict[str, str]:
    """Value of NCCL_TOPO_FILE by host, and of any host under ""."""
    found: dict[str, str] = {}
    for event in events:
        if isinstance(event, Setting) and event.name == "NCCL_TOPO_FILE":
            found.setdefault(event.place.host, event.value)
            found.setdefault("", event.value)
    return found


_OFF = ("0", "off", "false", "LOC")
OF_ENVIRONMENT = (Setting, NoInfiniBand, NoPlugin, DirectMemory, NoPeerAccess)
"""Events that `Environment` takes into account."""
_OF_NETWORKS = (Cards, Network, *OF_ENVIRONMENT)


@dataclass(slots=True)
class Environment:
    """Settings and start-up messages that decide which transports are possible."""

    settings: dict[str, str] = field(default_factory=dict)
    no_ib: str = ""
    plugin: str | None = None
    without_direct: set[str] = field(default_factory=set)
    with_direct: set[str] = field(default_factory=set)
    no_peer_access: set[tuple[int, int]] = field(default_factory=set)

    @classmethod
    def of(cls, events: Iterable[LogEvent]) -> Environment:
        """From all events of a job, or of one process."""
        one = cls()
        for event in events:
            one.note(event)
        return one

    def note(self, event: LogEvent) -> None:
        """Take one event into account."""
        if not isinstance(event, OF_ENVIRONMENT):
            return
        if isinstance(event, Setting):
            self.settings[event.name] = event.value
        elif isinstance(event, NoInfiniBand):
            self.no_ib = self.no_ib or event.why
        elif isinstance(event, NoPlugin):
            self.plugin = event.library
        elif isinstance(event, DirectMemory):
            (self.with_direct if event.is_enabled else self.without_direct).add(event.card)
        elif isinstance(event, NoPeerAccess):
            self.no_peer_access.add((event.gpu, event.peer))

    def is_set(self, name: str) -> bool:
        """Whether a variable is set and not off."""
        return self.settings.get(name, "0") not in _OFF

    def why_no_ib(self) -> str:
        """The reason that sockets are used; empty where nothing tells."""
        for name in ("NCCL_IB_DISABLE", "NCCL_NET_DISABLE"):
            if self.is_set(name):
                return f"{name}={self.settings[name]} set in the environment"
        if self.settings.get("NCCL_NET", "").lower() == SOCKET.lower():
            return "NCCL_NET=Socket set in the environment"
        return self.no_ib


@dataclass(slots=True)
class _Process:
    """What one process says about its networks."""

    environment: Environment = field(default_factory=Environment)
    cards: dict[str, tuple[str, ...]] = field(default_factory=dict)
    names: dict[str, None] = field(default_factory=dict)
    names_of_ways: dict[str, None] = field(default_factory=dict)


def networks_of(events: Iterable[LogEvent]) -> list[NetworkUse]:
    """Networks in use, with cards, reason and machines."""
    machines: dict[tuple[str, tuple[str, ...], str, bool | None], dict[str, None]] = defaultdict(dict)
    processes = _processes(events)
    of_host = {
        (host_of(process), kind): cards for process, one in processes.items() for kind, cards in one.cards.items()
    }  # not every process names them
    why_of_host: dict[str, str] = {}
    for process, one in processes.items():
        if why := one.environment.why_no_ib():
            why_of_host.setdefault(host_of(process), why)
    for process, one in processes.items():
        host = host_of(process)
        for name in one.names:
            is_socket = name == SOCKET
            # the interface over which ranks meet is the first of the sockets' interfaces
            kinds = (SOCKET, _BOOTSTRAP) if is_socket else ("IB",) if name.startswith("IB") else (name,)
            cards = next(filter(None, (one.cards.get(kind) or of_host.get((host, kind)) for kind in kinds)), ())
            shown = tuple(dict.fromkeys(card.partition(":")[0] if is_socket else card for card in cards))
            own_why = one.environment.why_no_ib() or why_of_host.get(host)
            why = (own_why or "the log does not say why no InfiniBand") if is_socket else ""
            machines[name, shown, why, None if is_socket else _direct_memory(one.environment)][host] = None
    return [
        NetworkUse(name, list(cards), why, direct, sorted(filter(None, hosts)))
        for (name, cards, why, direct), hosts in machines.items()
    ]


def _processes(events: Iterable[LogEvent]) -> dict[str, _Process]:
    """Processes that chose a network; a cut log has only their ways, NCCL before 2.5 names only its cards."""
    found: dict[str, _Process] = defaultdict(_Process)
    for event in events:
        if isinstance(event, RingPath):  # nearly all events of a large job
            if event.via.startswith("NET/"):
                found[event.place.process].names_of_ways[event.via.split("/")[1]] = None
            continue
        if not isinstance(event, _OF_NETWORKS):
            continue
        one = found[event.place.process]
        one.environment.note(event)
        if isinstance(event, Cards):
            one.cards.setdefault(event.kind, event.cards)
        elif isinstance(event, Network):
            one.names[event.name] = None
    for one in found.values():
        one.names = one.names or one.names_of_ways
        if not one.names and (kinds := one.cards.keys() - {_BOOTSTRAP}):
            one.names["IB" if "IB" in kinds else SOCKET] = None
    return {process: one for process, one in found.items() if one.names}


def _direct_memory(environment: Environment) -> bool | None:
    if environment.with_direct:
        return True
    return False if environment.without_direct else None


def different_card_counts(
    networks: Iterable[NetworkUse], events: Iterable[LogEvent], jobs: Sequence[set[str]]
) -> Iterator[NcclFinding]:
    """Finding on machines of one job with different numbers of InfiniBand cards.

    Args:
        jobs: machines of each communicator; without any, all machines are taken for one job.
    """
    by_count: dict[int, set[str]] = defaultdict(set)
    for network in networks:
        if network.name.startswith("IB") and network.cards:
            by_count[len(network.cards)].update(network.machines)
    for job in jobs or [set().union(*by_count.values())]:
        counts = {number: sorted(hosts & job) for number, hosts in by_count.items() if hosts & job}
        if len(counts) > 1:
            each = "; ".join(f"{number} on {listed(hosts, 4)}" for number, hosts in sorted(counts.items()))
            message = (
                f"machines use different numbers of network cards: {each}: make the same ones usable on all, or name "
                "the common ones in NCCL_IB_HCA"
            )
            fewest = counts[min(counts)]
            place = next(event.place for event in events if isinstance(event, Cards) and event.place.host in fewest)
            yield NcclFinding("net_count_mismatch", Severity.WARNING, message, place.file, place.line)
            return


def network_words(name: str) -> str:
    """ "NET/Socket", "NET/IB"; plugins by their own names."""
    return f"NET/{name}" if name == SOCKET or name.startswith("IB") else name
