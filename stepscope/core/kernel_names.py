"""How is a kernel called on one line? Its name without what all names have."""

from __future__ import annotations

import re

_NAMESPACES = re.compile(r"\b(at|native|c10|cutlass|cutlass_cudnn|cub|thrust|internal|std)::|\(anonymous namespace\)::")


def short_kernel_name(name: str, *, most: int = 56) -> str:
    """The name without return type and common namespaces, cut to `most` characters."""
    bare = _NAMESPACES.sub("", name.removeprefix("void "))
    return bare if len(bare) <= most else bare[: most - 3] + "..."
