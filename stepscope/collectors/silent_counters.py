"""Are a GPU's profiling counters 0 because they stopped?

They stop together after an XID 31 or after weeks, and are told as 0 (NVIDIA/DCGM#303, NVIDIA/dcgm-exporter#662,
NVIDIA/gpu-monitoring-tools#189). A GPU whose engine was never active was not busy, so that one of the two is wrong:
power tells which. Without an engine's counter zeros may be true: a kernel that spins moves neither tensor cores nor
memory.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Set
from dataclasses import dataclass, field

from stepscope.core.gpu_metrics import GPU, PROFILING_METRICS
from stepscope.core.readings import Collection, Labels, Missing, MissingReason

SILENT = "profiling_silent"
"""The finding's code."""
_WHOLE = frozenset({"gpu", "uuid"})
"""Labels of a GPU; instances have further ones."""
_ENGINE = (GPU + "graphics_engine_active_ratio", GPU + "sm_active_ratio")
ACTIVITY = (*_ENGINE, GPU + "tensor_active_ratio", GPU + "dram_active_ratio")
"""How active a GPU and its parts are."""
_BUSY = 0.5
"""Utilisation over which some engine must have been active."""
_POWER_SHARE = 0.3
"""Of the limit: idle GPUs with a context draw up to a fifth (140 of 700 W on recorded H100s)."""
_POWER_WATTS = 200.0
"""The same where the limit is not known, as on a dcgm-exporter's default page. Above what any GPU draws idle, so that
small ones (T4: 70 W at most) are not judged by power there."""


@dataclass(frozen=True, slots=True)
class Zeros:
    """What a GPU told while its engine was never active.

    Attributes:
        busy_ratio, power_watts, limit_watts: None where it is not known.
        others_count: another of its profiling counters moved, as bytes over PCIe do at rest, too.
    """

    busy_ratio: float | None
    power_watts: float | None
    limit_watts: float | None
    others_count: bool

    @property
    def may_work(self) -> bool:
        """Nothing says that it does not."""
        return self.busy_ratio is None or self.busy_ratio >= _BUSY

    @property
    def draws(self) -> bool:
        """More power than at rest."""
        least = _POWER_SHARE * self.limit_watts if self.limit_watts else _POWER_WATTS
        return self.power_watts is not None and self.power_watts >= least

    @property
    def are_silent(self) -> bool:
        """The counters do not count: they cannot be 0."""
        return self.draws and self.may_work and not self.others_count

    @property
    def facts(self) -> list[str]:
        """Utilisation and power, in words."""
        facts = [] if self.busy_ratio is None else [f"{self.busy_ratio:.0%} utilisation"]
        return facts if self.power_watts is None else [*facts, f"{self.power_watts:.0f} W"]

    @property
    def sentence(self) -> str:
        """That they are 0, and at what."""
        which = "the engine's" if self.others_count else "all profiling"
        return f"{which} counters are 0 at {' and '.join(self.facts)}"

    @property
    def silence(self) -> str:
        """The line of the finding."""
        return f"{self.sentence}: they are not counting"

    @property
    def silence_since(self) -> str:
        """The same while the GPU does not work any more."""
        facts = ", ".join(self.facts)
        return f"all profiling counters were 0 when it last worked ({facts}); not known until they count"


def zeros_of(values: Mapping[str, float]) -> Zeros | None:
    """None where the engine was active, or no counter of it is told.

    Args:
        values: of one GPU, by metric; with MIG the highest of its instances.
    """
    if any(values.get(name) for name in ACTIVITY) or not any(name in values for name in _ENGINE):
        return None
    busy, power, limit = (values.get(GPU + name) for name in ("utilization_ratio", "power_watts", "power_limit_watts"))
    return Zeros(busy, power, limit, others_count=any(values.get(name) for name in PROFILING_METRICS))


@dataclass(slots=True)
class SilentCounters:
    """GPUs whose counters were found silent. They are not believed until one of them moves, also while the GPU rests:
    unknown is never zero. Counters that are told no more are no silent ones."""

    _silent: dict[Labels, tuple[Zeros, str]] = field(default_factory=dict)
    """Of each what was found, and what is said of it."""

    def __contains__(self, labels: Labels) -> bool:
        return labels in self._silent

    def observe(self, gpus: Mapping[Labels, Mapping[str, float]], silent: Set[Labels]) -> dict[Labels, str]:
        """What is to be said of those whose counters are not believed.

        Args:
            gpus: values of each GPU, by metric.
            silent: those of them whose counters were found silent now.
        """
        for labels, values in gpus.items():
            counters = [values[name] for name in PROFILING_METRICS if name in values]
            zeros = zeros_of(values) if labels in silent else None
            if zeros is not None:
                self._silent[labels] = zeros, zeros.silence
            elif any(counters) or not counters:
                self._silent.pop(labels, None)
            elif labels in self._silent:
                before, _ = self._silent[labels]
                self._silent[labels] = before, before.silence_since
        return {labels: self._silent[labels][1] for labels in gpus if labels in self._silent}

    def without(self, collection: Collection, advice: str) -> Collection:
        """The collection with these counters as missing.

        Args:
            collection: of the same GPUs, with all their readings.
            advice: what is to be done.
        """
        if not self._silent:
            return collection
        readings, missing = [], list(collection.missing)
        for reading in collection.readings:
            whole = tuple(pair for pair in reading.labels if pair[0] in _WHOLE)
            if reading.metric in PROFILING_METRICS and whole in self._silent:
                detail = f"{self._silent[whole][1]}; {advice}"
                missing.append(Missing(reading.metric, reading.labels, MissingReason.UNREADABLE, detail))
            else:
                readings.append(reading)
        return Collection(tuple(readings), tuple(missing), collection.findings)

    def forget_all_but(self, gpus: Container[Labels]) -> None:
        """Only these are still there."""
        self._silent = {labels: found for labels, found in self._silent.items() if labels in gpus}
