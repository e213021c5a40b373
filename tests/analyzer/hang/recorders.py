"""Flight recorders of made-up jobs: who called what in which group, and what ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from stepscope.core.documents.hang import FlightDump, GroupProgress, Operation, StackFrame

WORLD = "0"


@dataclass
class Job:
    """Calls are made in the order in which they are added.

    Attributes:
        groups: members by name; of each group all ranks know the members.
    """

    groups: Mapping[str, tuple[int, ...]]
    backend: str = "nccl"
    _calls: dict[int, list[Operation]] = field(default_factory=dict)

    def call(
        self,
        group: str,
        ranks: Sequence[int] | None = None,
        *,
        name: str = "all_reduce",
        done: bool = True,
        given_up: bool = False,
        size: int = 4,
        function: str = "train",
    ) -> Job:
        """One collective of these ranks (all members unless told); `given_up`: as gloo leaves what timed out."""
        members = self.groups[group]
        for rank in members if ranks is None else ranks:
            made = self._calls.setdefault(rank, [])
            number = 1 + sum(one.group == group and not one.is_p2p for one in made)
            frames = (
                StackFrame(name, "site-packages/torch/distributed/distributed_c10d.py", 1),
                StackFrame(function, "train.py", 7),
            )
            made.append(
                Operation(
                    len(made),
                    group,
                    f"{group}_group",
                    int(group),
                    number,
                    name,
                    self.backend,
                    is_p2p=False,
                    is_done=done or given_up,
                    is_given_up=given_up,
                    input_sizes=((size,),),
                    dtypes=("Float",),
                    frames=frames,
                )
            )
        return self

    def message(self, group: str, rank: int, name: str, *, done: bool = True) -> Job:
        """One message: "send 0->1", ranks by their place in the group."""
        made = self._calls.setdefault(rank, [])
        made.append(Operation(len(made), group, "", int(group), 0, name, self.backend, is_p2p=True, is_done=done))
        return self

    def dumps(self, *, without: Sequence[int] = (), only_open: bool = False, newest: int = 2000) -> list[FlightDump]:
        """What each rank's recorder has.

        Args:
            without: ranks that left none.
            only_open: only calls that have not ended, as a dump of those that are active.
            newest: so many calls, as a ring buffer keeps them.
        """
        world = sorted({rank for members in self.groups.values() for rank in members})
        return [self._dump(rank, only_open, newest) for rank in world if rank not in without]

    def _dump(self, rank: int, only_open: bool, newest: int) -> FlightDump:
        made = self._calls.get(rank, [])
        groups = {name: members for name, members in self.groups.items() if rank in members}
        progress = {}
        for name in groups:
            calls = [one for one in made if one.group == name and not one.is_p2p]
            ended = max((one.sequence for one in calls if one.is_done and not one.is_given_up), default=0)
            progress[int(name)] = GroupProgress(len(calls), ended)
        kept = [one for one in made if not (only_open and one.is_done)][-newest:]
        return FlightDump(
            rank,
            f"dump_{rank}",
            "2.10",
            dict(groups),
            {name: f"{name}_group" for name in groups},
            progress,
            tuple(kept),
        )


def mesh(num_tensor: int, num_data: int) -> dict[str, tuple[int, ...]]:
    """Groups of a job of tensor-parallel ranks next to each other: the world is "0", then TP groups, then DP groups."""
    world = tuple(range(num_tensor * num_data))
    groups = {WORLD: world}
    for first in range(0, len(world), num_tensor):
        groups[str(len(groups))] = world[first : first + num_tensor]
    for first in range(num_tensor):
        groups[str(len(groups))] = world[first::num_tensor]
    return groups
