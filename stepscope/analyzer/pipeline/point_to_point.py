"""In which order did the stages run their passes where nothing marks them? By what they sent and received.

A stage sends an activation when a forward is done and a gradient when a backward is; the first stage receives a
gradient before each backward, the last one an activation before each forward.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from stepscope.analyzer.alignment.call import Call
from stepscope.analyzer.pipeline.chains import Chain
from stepscope.analyzer.pipeline.schedules import interleaved_order
from stepscope.analyzer.pipeline.tasks import Order, Pass, Task

_Way = tuple[bool, bool]
"""(is a send, goes the forward way)"""


def order_from_traffic(chain: Chain, calls_of_rank: Mapping[int, list[Call]], step: int) -> Order | None:
    """Each stage's passes in one step, in order; None when the traffic is no whole schedule's.

    Several stages a device are told by activations that go from the last rank to the first; between two ranks these
    look like gradients, so there a device is taken to hold one stage.
    """
    ways = [_ways(place, chain, calls_of_rank[rank], step) for place, rank in enumerate(chain.ranks)]
    down = Counter(ways[0])[True, True]
    back = Counter(ways[-1])[True, True]
    if back >= down or down % (down - back):
        return None
    num_micro_batches, num_chunks = down - back, down // (down - back)
    passes = [_passes(place, len(ways), way) for place, way in enumerate(ways)]
    total = num_micro_batches * num_chunks
    if any(kinds.count(kind) != total for kinds in passes for kind in (Pass.FORWARD, Pass.BACKWARD)):
        return None
    if num_chunks > 1:
        known = interleaved_order(len(ways), num_micro_batches, num_chunks)
        return known if [[task.kind for task in tasks] for tasks in known] == passes else None
    return [_numbered(place, kinds) for place, kinds in enumerate(passes)]


def _ways(place: int, chain: Chain, calls: list[Call], step: int) -> list[_Way]:
    """One rank's traffic in issue order; of one call's directions the sends come first: they end what came before."""
    ranks = chain.ranks
    rank, following, previous = ranks[place], ranks[(place + 1) % len(ranks)], ranks[place - 1]
    found = []
    for call in calls:
        if call.step != step:
            continue
        for peer in sorted(call.peers, key=lambda peer: peer.source != rank):
            is_send = peer.source == rank
            other = peer.destination if is_send else peer.source
            if len(ranks) == 2 and other == following:
                found.append((is_send, is_send == (place == 0)))
            elif other in (following, previous):
                found.append((is_send, is_send == (other == following)))
    return found


def _passes(place: int, num_devices: int, ways: list[_Way]) -> list[Pass]:
    if place == 0:
        tells = {(True, True): Pass.FORWARD, (False, False): Pass.BACKWARD}
    elif place == num_devices - 1:
        tells = {(False, True): Pass.FORWARD, (True, False): Pass.BACKWARD}
    else:
        tells = {(True, True): Pass.FORWARD, (True, False): Pass.BACKWARD}
    return [tells[way] for way in ways if way in tells]


def _numbered(stage: int, kinds: list[Pass]) -> list[Task]:
    """Micro-batches come in turn, forwards and backwards each."""
    count = Counter[Pass]()
    tasks = []
    for kind in kinds:
        tasks.append(Task(kind, stage, count[kind]))
        count[kind] += 1
    return tasks
