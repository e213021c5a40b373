"""Machines by NCCL's topologies: GPUs, network cards and NVLinks of each, and links that are slower than their equals.

Every rank may dump the topology of its machine, each time it joins a communicator, with only the GPUs of that
communicator: all dumps of one host are put together.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from stepscope.core.documents.nccl import Devices, NcclFinding, PlannedWays
from stepscope.core.documents.nccl_facts import LogEvent, LogPlace, PlannedWay, TopologyNode
from stepscope.core.hardware.health import Severity
from stepscope.core.text.numbers import counted, listed

_SLOTS = frozenset(["PCI", ""])
_XGMI = "XGMI"
_NVLINKS = frozenset(["NVL", _XGMI])
_SWITCH = "NVS"
_NO_SLOT_GBS = 5000.0
"""NCCL's figure for devices that are in no slot, as interfaces of the kernel are."""


@dataclass(frozen=True, slots=True)
class _Link:
    """NVLinks from one GPU to another or to the switches, as far as each is known: GB/s, and their number."""

    gbs: float
    count: int
    place: LogPlace

    @property
    def size(self) -> float:
        return self.gbs or float(self.count)

    def words(self) -> str:
        """ "240 GB/s", "12 links"."""
        return f"{self.gbs:g} GB/s" if self.gbs else counted(self.count, "link")


@dataclass(slots=True)
class Machine:
    """Devices of one machine, by their names in NCCL's topology.

    Attributes:
        parents: switch or processor above each device.
        slots: GB/s of each device's slot.
        ports: ports of network cards with their GB/s, by card; cards without one are not used.
        links: NVLinks by GPU and what they lead to.
        is_amd: whether they are XGMI, AMD's.
    """

    name: str
    place: LogPlace
    is_of_file: bool
    processors: set[str] = field(default_factory=set)
    switches: dict[str, LogPlace] = field(default_factory=dict)
    gpus: dict[str, LogPlace] = field(default_factory=dict)
    cards: dict[str, LogPlace] = field(default_factory=dict)
    parents: dict[tuple[str, str], tuple[str, str]] = field(default_factory=dict)
    slots: dict[tuple[str, str], float] = field(default_factory=dict)
    ports: dict[str, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))
    links: dict[tuple[str, str], _Link] = field(default_factory=dict)
    is_amd: bool = False

    def port_speeds(self) -> list[float]:
        """GB/s of every port; of joined ports ("mlx5_0+mlx5_1") not the single ones again."""
        ports = {name: gbs for of_card in self.ports.values() for name, gbs in of_card.items()}
        joined = {part for name in ports if "+" in name for part in name.split("+")}
        return [gbs for name, gbs in ports.items() if name not in joined]


def machines_of(events: Iterable[LogEvent]) -> list[Machine]:
    """Machines with a topology: by host in logs, by host hash in files; a file without one is a machine of its own."""
    trees: dict[tuple[str, str, str, int], list[TopologyNode]] = defaultdict(list)
    for event in events:
        if isinstance(event, TopologyNode):
            place = event.place
            trees[place.file, place.process, place.thread, place.line if event.is_of_file else 0].append(event)
    machines: dict[str, Machine] = {}
    for (file, *_), nodes in trees.items():
        first = nodes[0]
        host = first.place.host
        identity = first.machine or host or (_shape(nodes) if first.is_of_file else file)
        if len({_system(node.name) for node in nodes if node.kind == "GPU"} - {""}) > 1:
            identity, host = file, ""  # NVLink joins several hosts; each of them dumps all
        machine = machines.setdefault(identity, Machine(host, first.place, first.is_of_file))
        _add(machine, nodes)
    return list(machines.values())


def _shape(nodes: Sequence[TopologyNode]) -> str:
    """Equal for files of equal trees, as ranks of one machine write them."""
    return repr([(node.depth, node.link, node.gbs, node.kind, node.name, node.count) for node in nodes])


def _system(name: str) -> str:
    """Number of the host in a topology of several: "1" of "1-17000"."""
    return name.partition("-")[0] if "-" in name else ""


def _add(machine: Machine, nodes: Sequence[TopologyNode]) -> None:
    stack: list[TopologyNode] = []
    links: dict[tuple[str, str], _Link] = {}
    for node in nodes:
        while stack and stack[-1].depth >= node.depth:
            stack.pop()
        parent = stack[-1] if stack else None
        if node.link in _SLOTS:
            _add_device(machine, node, parent)
            stack.append(node)
        elif node.link == "LOC" and node.kind == "GPU" and parent is not None and parent.kind == "DEV":
            continue  # NCCL 2.30 puts the links of a GPU on the device that holds it
        elif parent is not None and node.link in _NVLINKS:
            machine.is_amd = machine.is_amd or node.link == _XGMI
            target = _SWITCH if node.kind == _SWITCH else node.name
            before = links.get((parent.name, target))
            count = (node.count or 0) + (0 if before is None else before.count)  # a file has a row for each NVSwitch
            links[parent.name, target] = _Link(node.gbs, count, node.place)
        elif parent is not None and node.kind == "NET":
            card = next((one.name for one in reversed(stack) if one.kind == "NIC"), "")
            machine.ports[card][node.name] = node.gbs
    machine.links.update(links)


def _add_device(machine: Machine, node: TopologyNode, parent: TopologyNode | None) -> None:
    kind = "GPU" if node.kind == "DEV" else node.kind
    if kind == "CPU":
        machine.processors.add(node.name)
    elif kind == "GPU":
        machine.gpus.setdefault(node.name, node.place)
    elif kind == "NIC":
        machine.cards.setdefault(node.name, node.place)
    machine.slots[kind, node.name] = node.gbs
    if parent is not None:
        machine.parents.setdefault((kind, node.name), (parent.kind, parent.name))
    if kind not in ("GPU", "NIC"):
        machine.switches.setdefault(f"{kind}/{node.name}", node.place)


def devices_of(machines: Iterable[Machine]) -> list[Devices]:
    """NCCL diagnosis: number of devices of each machine, and their slowest links."""
    return [_devices(machine) for machine in machines]


def _devices(machine: Machine) -> Devices:
    slots = [machine.slots["GPU", gpu] for gpu in machine.gpus]
    speeds = machine.port_speeds()
    totals = [sum(link.gbs for link in links) for links in _links_by_gpu(machine)]
    counts = [sum(link.count for link in links) for links in _links_by_gpu(machine)]
    return Devices(
        machine.place.file,
        len(machine.processors),
        len(machine.gpus),
        len(speeds) or sum(machine.slots["NIC", card] < _NO_SLOT_GBS for card in machine.cards),
        min((gbs for gbs in slots if 0 < gbs < _NO_SLOT_GBS), default=None),
        machine.name,
        min((gbs for gbs in speeds if gbs), default=None),
        min((total for total in totals if total), default=None),
        min((count for count in counts if count), default=None),
        _name_of_links(machine),
    )


_NVLINK = "NVLink"


def _name_of_links(machine: Machine) -> str:
    """ "NVLink", "XGMI", or empty without any."""
    return (_XGMI if machine.is_amd else _NVLINK) if machine.links else ""


def _links_by_gpu(machine: Machine) -> list[list[_Link]]:
    by_gpu: dict[str, list[_Link]] = defaultdict(list)
    for (gpu, _), link in machine.links.items():
        by_gpu[gpu].append(link)
    return list(by_gpu.values())


def planned_paths(events: Iterable[LogEvent]) -> list[PlannedWays]:
    """Paths that NCCL planned, by file."""
    return [
        PlannedWays(
            one.place.file, one.pattern, one.num_channels, one.inside, one.inside_gbs, one.between, one.between_gbs
        )
        for one in events
        if isinstance(one, PlannedWay)
    ]


def slow_links(machines: Iterable[Machine], topology_files: Mapping[str, str]) -> Iterator[NcclFinding]:
    """NCCL topologies: NVLinks that are slower, or fewer, than those between equal pairs of devices.

    Two directions of one pair are equal; so are all GPUs' links to NVSwitches, and all pairs where every GPU has links
    to every other one of its island and all islands have the same size. Other meshes have pairs of two kinds by design.

    Args:
        topology_files: NCCL_TOPO_FILE by host, of any host under "": there the numbers are the file's.
    """
    for machine in machines:
        slow = _one_way(machine)
        slow |= _to_switches(machine)
        pairs = _equal_pairs(machine)
        usual = _usual_size([machine.links[pair] for pair in pairs])
        for pair in pairs:
            if machine.links[pair].size < usual and pair not in slow:
                slow[pair] = f"where others have {_like(machine.links[pair], usual)}"
        of_machine = f"{machine.name}: " if machine.name else ""
        file = topology_files.get(machine.name)
        for (gpu, target), other in slow.items():
            link = machine.links.get((gpu, target))
            place = link.place if link is not None else machine.gpus[gpu]
            to = "NVSwitch" if target == _SWITCH else f"GPU {_address(target)}"
            have = link.words() if link is not None else "no link"
            message = (
                f"{of_machine}{_name_of_links(machine) or _NVLINK} from GPU {_address(gpu)} to {to}: {have}, {other}: "
                f"{_of_file(file) if file else _OF_AMD if machine.is_amd else _OF_HARDWARE}"
            )
            yield NcclFinding("slow_nvlink", Severity.WARNING, message, place.file, place.line)


_OF_HARDWARE = "links are down or not trained; see nvidia-smi nvlink -s, and have the GPU or its bridge checked"


_OF_AMD = "links are down or not trained; see rocm-smi --showtopo and amd-smi xgmi, and have the GPU checked"


def _of_file(file: str) -> str:
    return (
        f"by NCCL_TOPO_FILE={file}, which NCCL reads instead of the machine: correct the file, or run without it to "
        "see the machine's own links"
    )


def _address(name: str) -> str:
    """The PCI address in a name: "17000" of "0-17000"; of other hosts than the first the whole name."""
    return name.removeprefix("0-")


def _like(link: _Link, size: float) -> str:
    return f"{size:g} GB/s" if link.gbs else counted(size, "link")


def _one_way(machine: Machine) -> dict[tuple[str, str], str]:
    slow = {}
    for (gpu, target), link in machine.links.items():
        back = machine.links.get((target, gpu))
        if back is not None and target in machine.gpus and link.size < back.size:
            slow[gpu, target] = f"but {back.words()} back"
    return slow


def _usual_size(links: Sequence[_Link]) -> float:
    """The most frequent size, of two equally frequent ones the larger; 0 of fewer than two links."""
    sizes = Counter(link.size for link in links)
    return max(sizes.items(), key=lambda entry: (entry[1], entry[0]))[0] if len(links) > 1 else 0.0


def _to_switches(machine: Machine) -> dict[tuple[str, str], str]:
    links = {gpu: link for (gpu, target), link in machine.links.items() if target == _SWITCH and gpu in machine.gpus}
    usual = _usual_size(list(links.values()))
    return {
        (gpu, _SWITCH): f"where others have {_like(next(iter(links.values())), usual)}"
        for gpu in machine.gpus
        if (0.0 if gpu not in links else links[gpu].size) < usual
    }


def _equal_pairs(machine: Machine) -> list[tuple[str, str]]:
    """Pairs of GPUs with NVLinks, if those form islands of one size in each of which all pairs are linked."""
    peers: dict[str, set[str]] = defaultdict(set)
    for gpu, target in machine.links:
        if gpu in machine.gpus and target in machine.gpus and gpu != target:
            peers[gpu].add(target)
    islands = {frozenset({gpu, *of_gpu}) for gpu, of_gpu in peers.items()}
    is_regular = len({len(island) for island in islands}) == 1 and sum(map(len, islands)) == len(peers)
    return [(gpu, target) for gpu, of_gpu in peers.items() for target in of_gpu] if is_regular else []


def shared_cards(machines: Iterable[Machine]) -> Iterator[NcclFinding]:
    """Places where several GPUs share fewer network cards, those behind equal switches in one finding."""
    for machine in machines:
        shares: dict[tuple[int, int, str, str], list[LogPlace]] = defaultdict(list)
        for above, (gpus, cards) in _nearest(machine).items():
            speeds = [gbs for card in cards for gbs in machine.ports.get(card, {}).values()]
            num_ports = len(speeds) or len(cards)
            if num_ports and len(gpus) > num_ports:
                of_speed = _speed_words(speeds)
                kind = "processor" if above.startswith("CPU/") else "switch"
                shares[len(gpus), num_ports, of_speed, kind].append(machine.switches[above])
        for (num_gpus, num_ports, of_speed, kind), places in shares.items():
            of_machine = f"{machine.name}: " if machine.name else ""
            where = f"behind one {kind}" if len(places) == 1 else f"behind {counted(len(places), kind)} each"
            message = (
                f"{of_machine}{num_gpus} GPUs share {counted(num_ports, 'network card')}{of_speed} {where}: "
                "each gets a part of its rate between nodes"
            )
            yield NcclFinding("shared_nic", Severity.WARNING, message, places[0].file, places[0].line)


def _speed_words(speeds: Sequence[float]) -> str:
    known = sorted({gbs for gbs in speeds if gbs})
    if not known:
        return ""
    return f" of {known[0]:g} GB/s" if len(known) == 1 else f" of {listed(f'{gbs:g}' for gbs in known)} GB/s"


def _nearest(machine: Machine) -> dict[str, tuple[list[str], list[str]]]:
    """GPUs and cards by the innermost switch or processor around them that has cards below it.

    A log names the cards' ports only for communicators of several nodes, and a card without a port is not used: where
    no card has one, only a topology file, which is written by hand, tells that they are.
    """
    has_ports = any(machine.ports.values())
    if not has_ports and not machine.is_of_file:
        return {}
    used = [
        card
        for card in machine.cards
        if (machine.ports.get(card) or not has_ports) and machine.slots["NIC", card] < _NO_SLOT_GBS
    ]
    with_cards = {above for card in used for above in _above(machine, "NIC", card)}
    found: dict[str, tuple[list[str], list[str]]] = defaultdict(lambda: ([], []))
    for kind, names in (("GPU", list(machine.gpus)), ("NIC", used)):
        for name in names:
            around = next((above for above in _above(machine, kind, name) if above in with_cards), None)
            if around is not None:
                found[around][kind == "NIC"].append(name)
    return found


def _above(machine: Machine, kind: str, name: str) -> Iterator[str]:
    """Switches and processors above a device, innermost first."""
    seen = {(kind, name)}
    while (above := machine.parents.get((kind, name))) is not None and above not in seen:
        seen.add(above)
        kind, name = above
        yield f"{kind}/{name}"
