"""Which layers does a rank train, whatever wraps them?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

    from stepscope.reference_workloads.injections.injection import Site


def layers_of(site: Site) -> Iterator[nn.Module]:
    """The blocks of this rank's stages, first to last; none for models without blocks."""
    from torch import nn

    for module in site.modules:
        for part in module.modules():
            blocks = getattr(part, "blocks", None)
            if isinstance(blocks, nn.ModuleDict):
                yield from blocks.values()


def widest_matrix(layer: nn.Module) -> nn.Linear:
    """The linear layer with the most outputs."""
    from torch import nn

    return max((part for part in layer.modules() if isinstance(part, nn.Linear)), key=lambda part: part.out_features)
