"""NCCL topology files (XML): the tree of CPUs, switches, GPUs and network cards, or the graphs that NCCL planned."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import replace
from math import isfinite

from stepscope.core.documents.nccl_facts import LogPlace, PlannedWay, TopologyNode
from stepscope.core.errors import DataError

_KINDS = {"0x0302": "GPU", "0x0300": "GPU", "0x0380": "GPU", "0x0207": "NIC", "0x0200": "NIC", "0x0604": "PCI"}
"""By PCI class; 0x0380 is AMD's."""
_LINK_TARGETS = {"0x0680": "NVS", "0x0604": "CPU", "0x0600": "CPU"}
"""Of NVLinks that do not end at a GPU: NVSwitches and CPUs of Power."""
_PATTERNS = {"1": "balanced tree", "2": "split tree", "3": "tree", "4": "ring", "5": "NVLS", "6": "collnet"}
"""NCCL src/include/graph.h."""
_GIGATRANSFERS_OF_BYTE = 8.0
_MEGABITS_OF_GIGABYTE = 8000.0
_MAX_DEPTH = 64


def read_topology(text: str, *, file: str, line: int = 0) -> list[TopologyNode | PlannedWay]:
    """Devices in the file's order, each with its depth, and links; from a file of graphs, the paths that NCCL planned.

    Args:
        line: where the document begins in the file.

    Raises:
        DataError: it is not complete XML, or declares entities.
    """
    root, place = _root(text, file), LogPlace(file, line)
    if root.tag == "graphs":
        return [_way(graph, place) for graph in root.iter("graph")]
    return list(_nodes(root, place, 0, ""))


def _root(text: str, file: str) -> ElementTree.Element:
    if "<!" in text and ("<!DOCTYPE" in text or "<!ENTITY" in text):
        raise DataError(
            "declares entities, which a topology never does", where=file, what_next="give the file NCCL wrote"
        )
    try:
        return ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise DataError(f"is not complete XML ({error})", where=file, what_next="give the file NCCL wrote") from None


def _way(graph: ElementTree.Element, place: LogPlace) -> PlannedWay:
    return PlannedWay(
        place,
        _PATTERNS.get(graph.get("pattern", ""), graph.get("pattern", "")),
        len(graph.findall("channel")),
        _number(graph.get("speedintra")),
        _number(graph.get("speedinter")),
        graph.get("typeintra", ""),
        graph.get("typeinter", ""),
    )


def _number(text: str | None) -> float:
    try:
        number = float(text or 0)
    except ValueError:
        return 0.0
    return number if isfinite(number) else 0.0


def _nodes(element: ElementTree.Element, place: LogPlace, depth: int, machine: str) -> Iterator[TopologyNode]:
    for child in element:
        machine = child.get("host_hash", "") if child.tag == "cpu" else machine
        for node in _nodes_of(child, place, depth):
            yield replace(node, machine=machine, is_of_file=True)
        if depth < _MAX_DEPTH:
            yield from _nodes(child, place, depth + 1, machine)


def _nodes_of(element: ElementTree.Element, place: LogPlace, depth: int) -> Iterator[TopologyNode]:
    if element.tag == "cpu":
        yield TopologyNode(place, depth, "", 0.0, "CPU", element.get("numaid", ""))
    elif element.tag == "pci":
        is_gpu, is_card = element.find("gpu") is not None, element.find("nic") is not None
        kind = "NIC" if is_card else "GPU" if is_gpu else _KINDS.get(element.get("class", "")[:6], "PCI")
        yield TopologyNode(place, depth, "PCI", _slot_gbs(element), kind, short_address(element.get("busid", "")))
    elif element.tag == "net":
        gbs = max(_number(element.get("speed")), 0.0) / _MEGABITS_OF_GIGABYTE
        yield TopologyNode(place, depth, "NET", gbs, "NET", element.get("name", "") or element.get("dev", ""))
    elif element.tag in ("nvlink", "xgmi"):
        kind = _LINK_TARGETS.get(element.get("tclass", "")[:6], "GPU")
        target = short_address(element.get("target", "")) if kind == "GPU" else ""
        count = int(min(max(_number(element.get("count")), 0.0), _MAX_LINKS))
        yield TopologyNode(place, depth, "NVL" if element.tag == "nvlink" else "XGMI", 0.0, kind, target, count)


_MAX_LINKS = 1024.0
_SEPARATORS = re.compile(r"[:.]")


def short_address(address: str) -> str:
    """A PCI address as NCCL's log writes it: "0000:17:00.0" -> "17000"."""
    return _SEPARATORS.sub("", address.lower()).lstrip("0") or "0"


def _slot_gbs(element: ElementTree.Element) -> float:
    """GB/s in one direction; 0 where a virtual machine hides it."""
    rate, width = element.get("link_speed", "").split(maxsplit=1)[:1], element.get("link_width")
    return _number(rate[0] if rate else None) * _number(width) / _GIGATRANSFERS_OF_BYTE
