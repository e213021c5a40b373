"""How many GPUs of NVIDIA's are on the PCI bus, whatever the driver says?"""

from __future__ import annotations

from stepscope.collectors.host.files import Files, Unread

_NVIDIA, _DISPLAY_CLASSES = "0x10de", ("0x0300", "0x0302")
_FOLDER = "sys/bus/pci/devices"


def count_on_bus(files: Files) -> int:
    """Their number; 0 where the bus cannot be looked at."""
    names = files.names(_FOLDER)
    return sum(
        _text(files, name, "vendor").strip() == _NVIDIA and _text(files, name, "class").startswith(_DISPLAY_CLASSES)
        for name in ([] if isinstance(names, Unread) else names)
    )


def _text(files: Files, name: str, what: str) -> str:
    text = files.read(f"{_FOLDER}/{name}/{what}")
    return "" if isinstance(text, Unread) else text
