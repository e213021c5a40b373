"""NCCL topology files (XML): the tree of CPUs, switches, GPUs and network cards, or the graphs that NCCL planned."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator

from stepscope.core.documents.nccl import LogPlace, PlannedWay, TopologyNode
from stepscope.core.errors import DataError

_KINDS = {"0x0302": "GPU", "0x0300": "GPU", "0x0207": "NIC", "0x0200": "NIC", "0x0604": "PCI"}
_PATTERNS = {"1": "balanced tree", "2": "split tree", "3": "tree", "4": "ring", "5": "NVLS", "6": "collnet"}
"""NCCL src/include/graph.h."""
_GIGATRANSFERS_OF_BYTE = 8.0
_MAX_DEPTH = 64


def looks_like_topology(text: str) -> bool:
    """Whether a file is a topology of NCCL, or its graphs."""
    return text.lstrip()[:1] == "<" and ("<system" in text or "<graphs" in text)


def read_topology(text: str, *, file: str) -> list[TopologyNode | PlannedWay]:
    """Devices in the file's order, each with its depth; from a file of graphs, the paths that NCCL planned.

    Raises:
        DataError: it is not complete XML, or declares entities.
    """
    root = _root(text, file)
    if root.tag == "graphs":
        return [_way(graph, file) for graph in root.iter("graph")]
    return list(_nodes(root, file, 0))


def _root(text: str, file: str) -> ElementTree.Element:
    if "<!" in text and ("<!DOCTYPE" in text or "<!ENTITY" in text):
        raise DataError(
            "declares entities, which a topology never does", where=file, what_next="give the file NCCL wrote"
        )
    try:
        return ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise DataError(f"is not complete XML ({error})", where=file, what_next="give the file NCCL wrote") from None


def _way(graph: ElementTree.Element, file: str) -> PlannedWay:
    return PlannedWay(
        LogPlace(file, 0),
        _PATTERNS.get(graph.get("pattern", ""), graph.get("pattern", "")),
        len(graph.findall("channel")),
        _number(graph.get("speedintra")),
        _number(graph.get("speedinter")),
        graph.get("typeintra", ""),
        graph.get("typeinter", ""),
    )


def _number(text: str | None) -> float:
    try:
        return float(text or 0)
    except ValueError:
        return 0.0


def _nodes(element: ElementTree.Element, file: str, depth: int) -> Iterator[TopologyNode]:
    for child in element:
        node = _node(child, file, depth)
        if node is not None:
            yield node
        if depth < _MAX_DEPTH:
            yield from _nodes(child, file, depth + 1)


def _node(element: ElementTree.Element, file: str, depth: int) -> TopologyNode | None:
    place = LogPlace(file, 0)
    if element.tag == "cpu":
        return TopologyNode(place, depth, "", 0.0, "CPU", element.get("numaid", ""))
    if element.tag != "pci":
        return None
    kind = "GPU" if element.find("gpu") is not None else _KINDS.get(element.get("class", "")[:6], "PCI")
    if element.find("nic") is not None:
        kind = "NIC"
    return TopologyNode(place, depth, "PCI", _gigabytes_per_second(element), kind, element.get("busid", ""))


def _gigabytes_per_second(element: ElementTree.Element) -> float:
    """GB/s in one direction; 0 where a virtual machine hides it."""
    try:
        rate = float(element.get("link_speed", "").split()[0])
        return rate * int(element.get("link_width", "0")) / _GIGATRANSFERS_OF_BYTE
    except (ValueError, IndexError):
        return 0.0
