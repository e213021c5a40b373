"""A made-up month of a cluster, kept as a metric history: who had which GPU when, with MIG and time-slicing."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

import numpy as np

from stepscope.store.history.questions import Labels
from stepscope.store.history.samples import SampleBlock
from stepscope.store.history.writer import HistoryWriter

START_NS = 1_793_491_200 * 10**9
DAYS, INTERVAL_S = 30, 900
NUM_STEPS = DAYS * 86400 // INTERVAL_S
_PROFILES = ("3g.40gb", "2g.20gb", "1g.10gb")
_SLICES = {"3g.40gb": 3, "2g.20gb": 2, "1g.10gb": 1}


@dataclass
class Month:
    """A cluster of 4 nodes with 4 cards, the last card of each split by MIG; who had what when."""

    devices: list[dict[str, str]] = field(default_factory=list)
    held: list[tuple[int, int, int, int]] = field(default_factory=list)
    """device, job, first and end step"""

    @classmethod
    def made_up(cls, seed: int, num_jobs: int = 200) -> Month:
        """Jobs hold devices for hours to days; some devices are held by several at once."""
        month, chance = cls(), random.Random(seed)
        for node in range(4):
            for gpu in range(4):
                labels = {"instance": f"n{node}:9455", "gpu": str(gpu), "uuid": f"GPU-{node}-{gpu}"}
                if gpu < 3:
                    month.devices.append(labels)
                    continue
                for number, profile in enumerate(_PROFILES):
                    own = {"gpu_instance": str(number), "mig_profile": profile, "uuid": f"MIG-{node}-{number}"}
                    month.devices.append({**labels, **own})
        for job in range(num_jobs):
            first = chance.randrange(NUM_STEPS - 1)
            end = min(NUM_STEPS, first + chance.randrange(1, 3 * 96))
            for device in chance.sample(range(len(month.devices)), chance.randrange(1, 5)):
                month.held.append((device, job, first, end))
        return month

    def write(self, folder: Path) -> None:
        """Keep it as a history."""
        every = np.ones(NUM_STEPS, np.bool_)
        use = {"stepscope_gpu_use_state": np.ones(NUM_STEPS)}
        busy = {tuple(sorted((*one.items(), ("state", "busy")))): every for one in self.devices}
        holders: dict[Labels, np.ndarray] = defaultdict(lambda: np.zeros(NUM_STEPS, np.bool_))
        for device, job, first, end in self.held:
            key = {"job_kind": "slurm", "job_id": str(job), "share": "time_sliced"}
            holders[tuple(sorted({**self.devices[device], **key}.items()))][first:end] = True
        nodes = sorted({one["instance"] for one in self.devices})
        infos = {
            tuple(
                sorted(
                    {
                        "instance": nodes[job % 4],
                        "job_kind": "slurm",
                        "job_id": str(job),
                        "user": f"u{job % 7}",
                        "team": f"t{job % 3}",
                    }.items()
                )
            ): every
            for job in range(200)
        }
        cards = {
            tuple(sorted({"instance": node, "gpu": str(gpu), "uuid": f"GPU-{node[1]}-{gpu}"}.items())): every
            for node in nodes
            for gpu in range(4)
        }
        models = {tuple(sorted((*card, ("name", "NVIDIA H100 80GB HBM3")))): every for card in cards}
        with HistoryWriter(folder) as writer:
            for rows, columns in (
                (busy, use),
                (holders, {"stepscope_gpu_job_info": np.ones(NUM_STEPS)}),
                (infos, {"stepscope_job_info": np.ones(NUM_STEPS)}),
                (models, {"stepscope_gpu_info": np.ones(NUM_STEPS)}),
                (cards, {"stepscope_gpu_power_watts": np.full(NUM_STEPS, 500.0)}),
                ({(("instance", node),): every for node in nodes}, {"up": np.ones(NUM_STEPS)}),
            ):
                alike: dict[tuple[str, ...], dict[Labels, np.ndarray]] = defaultdict(dict)
                for labels, flags in rows.items():
                    alike[tuple(name for name, _ in labels)][labels] = flags
                for part in alike.values():
                    writer.append(block(part, columns))
            writer.flush()

    def hours(self) -> dict[str, Fraction]:
        """GPU-hours of each job, worked out step by step."""
        holders: dict[tuple[int, int], list[int]] = defaultdict(list)
        for device, job, first, end in self.held:
            for step in range(first, end):
                holders[device, step].append(job)
        hours: dict[str, Fraction] = defaultdict(Fraction)
        for (device, _), jobs in holders.items():
            part = Fraction(_SLICES.get(self.devices[device].get("mig_profile", ""), 7), 7)
            for job in jobs:
                hours[str(job)] += part / len(jobs) * Fraction(INTERVAL_S, 3600)
        return hours


def block(rows: dict[Labels, np.ndarray], columns: dict[str, np.ndarray]) -> SampleBlock:
    """A sample a minute before the end of each step in which an entity is there."""
    times = START_NS + (np.arange(NUM_STEPS, dtype=np.int64) + 1) * INTERVAL_S * 10**9 - 60 * 10**9
    entities = tuple(rows)
    places = [np.flatnonzero(flags) for flags in rows.values()]
    entity = np.concatenate([np.full(len(own), number, np.int32) for number, own in enumerate(places)])
    steps = np.concatenate(places)
    return SampleBlock(entities, entity, times[steps], {name: values[steps] for name, values in columns.items()})


END_NS = START_NS + DAYS * 86400 * 10**9
