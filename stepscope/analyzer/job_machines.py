"""On which machine did each rank run, where its trace's host name alone does not say?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from stepscope.analyzer.alignment.call import Call
from stepscope.analyzer.alignment.machines import machine_of_rank
from stepscope.analyzer.alignment.matching import Matches
from stepscope.analyzer.rank_view import RankView
from stepscope.core.analysis import Notice


def on_machines(
    views: Mapping[int, RankView], calls_of_rank: Mapping[int, list[Call]], matches: Matches
) -> dict[int, RankView]:
    """The views under their machines' names, with a warning where these differ from the hosts'.

    Not of CPU jobs, the ends of whose collectives say too little, and not without steps: calls counted from the
    file's start may be matched a call too early all along, which looks like another clock.
    """
    if not all(view.on_device and view.facts.step_indices for view in views.values()):
        return dict(views)
    hosts = {rank: view.header.host_name for rank, view in views.items()}
    half_a_step = min(float(np.median(view.window.whole_step_ns)) for view in views.values()) / 2
    machines = machine_of_rank(calls_of_rank, matches, hosts, half_a_step)
    return {
        rank: view if machines[rank] == hosts[rank] else _moved(view, machines[rank]) for rank, view in views.items()
    }


def _moved(view: RankView, machine: str | None) -> RankView:
    apart = f"ranks of host {view.header.host_name!r} have different clocks: taken for several machines"
    return replace(
        view,
        header=replace(view.header, host_name=machine),
        notices=[*view.notices, Notice("shared_host_name", apart)],
    )
