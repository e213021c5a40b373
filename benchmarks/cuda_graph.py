"""CUDA graph of a whole training step, for benchmarks."""

from __future__ import annotations

from collections.abc import Callable


def graph_replay(update: Callable[[], object]) -> Callable[[], None]:
    """The call that replays a step, which is captured after three of it on a side stream, as torch asks for."""
    import torch

    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            update()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        update()
    return graph.replay
