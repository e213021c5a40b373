"""What does one GPU tell, and how often is each part of it asked for?"""

from __future__ import annotations

from enum import StrEnum

from stepscope.collectors.nvml import fields, often, seldom
from stepscope.collectors.nvml.binding import GpuUnusableError, Handle, Nvml
from stepscope.collectors.nvml.events import XidListener
from stepscope.collectors.nvml.gathering import Gathering
from stepscope.collectors.nvml.gpm import GpmSampler
from stepscope.collectors.nvml.identity import GpuIdentity
from stepscope.collectors.nvml.mig import MigInstances
from stepscope.collectors.nvml.nvlinks import nvlink_ends
from stepscope.collectors.nvml.processes import ProcessReader
from stepscope.collectors.nvml.queries import QueryTable
from stepscope.core.gpu_metrics import GPU
from stepscope.core.readings import Collection, MissingReason


class Part(StrEnum):
    """What is read together."""

    OFTEN = "often"  # what it does now
    SELDOM = "seldom"  # limits, links, memory errors, processes


class Gpu:
    """One GPU and its MIG instances.

    Attributes:
        identity: its names.
        is_usable: whether it may be asked again.
    """

    def __init__(self, nvml: Nvml, handle: Handle, identity: GpuIdentity) -> None:
        """
        Raises:
            DriverUnusableError, GpuUnusableError: it does not answer.
        """
        self.identity = identity
        self.is_usable = True
        self._labels = identity.labels
        self._nvml = nvml
        self._handle = handle
        self._ask_for_all()
        self._gpm = GpmSampler(nvml, handle)
        self._processes = ProcessReader(nvml, handle)
        self._events = XidListener(nvml, handle)
        self._mig = MigInstances(nvml, handle, identity)

    def _ask_for_all(self) -> None:
        """Also for what was not supported."""
        self._often = QueryTable(often.QUERIES)
        self._often_fields = fields.FieldBatch(fields.OFTEN)
        self._seldom = QueryTable(seldom.QUERIES)
        self._seldom_fields = fields.FieldBatch(fields.SELDOM)

    def read(self, part: Part, time_ns: int) -> Collection:
        """Read a part once. A GPU that turns out to be lost tells what it told before, and why no more.

        Args:
            part: which.
            time_ns: now, ns since the epoch.

        Raises:
            DriverUnusableError: no GPU can be asked any more.
        """
        into = Gathering(self._labels, time_ns)
        try:
            instances = self._read_often(into) if part is Part.OFTEN else self._read_seldom(into)
        except GpuUnusableError as error:
            self.is_usable = False
            return Collection.joined((into.collection(), unusable(into, error)))
        return Collection.joined((into.collection(), instances))

    def _read_often(self, into: Gathering) -> Collection:
        self._events.read(into)  # first: a GPU that was just lost has an XID to tell
        self._often.read(self._nvml, self._handle, into)
        self._often_fields.read(self._nvml, self._handle, into)
        self._gpm.read(into)
        self._unified_memory(into)
        instances = self._mig.read(into.time_ns)
        into.add("up", 1)
        return instances

    def _read_seldom(self, into: Gathering) -> Collection:
        was_split = self._mig.is_on
        self._mig.look()
        if self._mig.is_on != was_split:  # from Hopper on without a reset; the whole GPU's utilisation comes and goes
            self._ask_for_all()
        into.add("info", 1, further=self.identity.facts)
        self._seldom.read(self._nvml, self._handle, into)
        self._seldom_fields.read(self._nvml, self._handle, into)
        self._processes.read(into)
        return Collection()

    def _unified_memory(self, into: Gathering) -> None:
        """A GPU on the host's memory (GB10) has none to tell: what its processes hold is all that is known."""
        used = GPU + "memory_used_bytes"
        unsupported = {missing.metric for missing in into.missing if missing.reason is MissingReason.NOT_SUPPORTED} >= {
            used,
            GPU + "memory_total_bytes",
        }
        if unsupported and self._processes.memory_bytes is not None:
            into.missing = [missing for missing in into.missing if missing.metric != used]
            into.add("memory_used_bytes", self._processes.memory_bytes)
            into.add("memory_unified", 1)

    def nvlink_ends(self) -> dict[str, int]:
        """See `nvlinks.nvlink_ends`."""
        return nvlink_ends(self._nvml, self._handle)


def unusable(labelled: Gathering, error: GpuUnusableError) -> Collection:
    """What is said of a GPU that does not answer."""
    into = Gathering(labelled.labels, labelled.time_ns)
    into.add("up", 0, further=(("reason", error.reason),))
    into.miss("", error.reason, error.detail)
    return into.collection()
