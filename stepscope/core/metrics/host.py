"""Metrics of a machine beside its GPUs: host, cgroups, processes.

Counters stay counters, in base units; rates are left to the query. Values of a process or cgroup carry its labels.
"""

from __future__ import annotations

from stepscope.core.metrics import DcgmField, DefaultSeries, Metric, MetricGroup
from stepscope.core.metrics.readings import CGROUP, HOST, PROCESS

_FIELD = "DCGM_FI_DEV_CPU_"

_host = MetricGroup(HOST).metric
_cgroup = MetricGroup(CGROUP, ("cgroup",)).metric
_process = MetricGroup(PROCESS, ("pid",)).metric

_PORT = ("device", "port")
_ALL = DefaultSeries.ALL
_PORT_FACTS = ("state", "physical_state", "link_layer", "rate")
# fmt: off
_MACHINE: tuple[Metric, ...] = (
    _host("cpu_seconds_total", "Time of all CPUs by mode; iowait: idle, waiting for a disk.", "mode"),
    _host("cpus", "CPUs that are online."),
    _host("context_switches_total", "Context switches."),
    _host("processes_started_total", "Processes and threads started."),
    _host("processes_running", "Threads that run or are ready to run."),
    _host("processes_blocked", "Threads blocked by a disk."),
    _host("boot_time_seconds", "Boot time, since the epoch."),
    _host("load_average", "Load average: threads that run, are ready to run or wait for a disk.", "window"),
    _host("memory_total_bytes", "Total memory of the machine.", default=_ALL),
    _host("memory_available_bytes", "Memory that can be allocated without swapping; larger than free memory.",
          default=_ALL),
    _host("memory_free_bytes", "Unused memory."),
    _host("memory_buffers_bytes", "Memory used to cache raw disks."),
    _host("memory_cached_bytes", "Memory used to cache files, including shared memory."),
    _host("memory_shared_bytes", "Shared memory and tmpfs; DataLoader workers pass batches through it."),
    _host("memory_anonymous_bytes", "Memory of processes that no file backs."),
    _host("memory_unevictable_bytes", "Memory that cannot be swapped, such as pinned memory."),
    _host("memory_slab_bytes", "Memory of kernel objects."),
    _host("memory_dirty_bytes", "Memory waiting to be written to disk."),
    _host("memory_writeback_bytes", "Memory being written to disk."),
    _host("memory_committed_bytes", "Memory committed to processes."),
    _host("swap_total_bytes", "Total swap space."),
    _host("swap_free_bytes", "Free swap space."),
    _host("huge_pages_total_bytes", "Memory reserved for huge pages."),
    _host("huge_pages_free_bytes", "Memory of free huge pages."),
    _host("major_page_faults_total", "Page faults that read from a disk."),
    _host("oom_kills_total", "Processes killed by the out-of-memory killer.", default=_ALL),
    _host("swapped_in_bytes_total", "Memory read back from swap."),
    _host("swapped_out_bytes_total", "Memory written to swap."),
    _host("reclaim_stalls_total", "Allocations that had to reclaim memory directly."),
    _host("numa_memory_total_bytes", "Total memory of a NUMA node.", "node"),
    _host("numa_memory_free_bytes", "Free memory of a NUMA node.", "node"),
    _host("numa_misses_total", "Pages that a node allocated although another node was preferred.", "node"),
    _host("gpu_numa_node", "NUMA node of a GPU's PCIe slot.", "pci_bus_id", "uuid"),
    _host("disk_reads_total", "Completed reads of a disk.", "device"),
    _host("disk_writes_total", "Completed writes of a disk.", "device"),
    _host("disk_read_bytes_total", "Data read from a disk.", "device"),
    _host("disk_written_bytes_total", "Data written to a disk.", "device"),
    _host("disk_read_seconds_total", "Time spent on reads of a disk, added up over reads.", "device"),
    _host("disk_write_seconds_total", "Time spent on writes of a disk, added up over writes.", "device"),
    _host("disk_busy_seconds_total", "Time in which the disk was busy.", "device"),
    _host("disk_in_flight", "Reads and writes in flight.", "device"),
    _host("network_receive_bytes_total", "Data received by a network interface.", "device"),
    _host("network_transmit_bytes_total", "Data sent by a network interface.", "device"),
    _host("network_receive_packets_total", "Packets received by a network interface.", "device"),
    _host("network_transmit_packets_total", "Packets sent by a network interface.", "device"),
    _host("network_receive_errors_total", "Packets received with errors.", "device"),
    _host("network_transmit_errors_total", "Packets not sent because of errors.", "device"),
    _host("network_receive_drops_total", "Received packets that were dropped.", "device"),
    _host("network_transmit_drops_total", "Packets dropped instead of sent.", "device"),
    _host("network_up", "1: the interface is up.", "device"),
    _host("network_speed_bytes_per_second", "Speed of the link, per direction.", "device"),
    _host("network_carrier_changes_total", "Changes of the link between up and down.", "device"),
    _host("tcp_segments_sent_total", "TCP segments sent."),
    _host("tcp_retransmits_total", "TCP segments retransmitted."),
    _host("infiniband_up", "1: the InfiniBand or RoCE port is active.", *_PORT, default=_ALL),
    _host("infiniband_info", "State, link layer and rate of a port as labels; always 1.", *_PORT, *_PORT_FACTS),
    _host("infiniband_speed_bytes_per_second", "Current speed of the port, per direction.", *_PORT),
    _host("infiniband_receive_bytes_total", "Data received by a port.", *_PORT, default=_ALL),
    _host("infiniband_transmit_bytes_total", "Data sent by a port.", *_PORT, default=_ALL),
    _host("infiniband_receive_packets_total", "Packets received by a port.", *_PORT),
    _host("infiniband_transmit_packets_total", "Packets sent by a port.", *_PORT),
    _host("infiniband_transmit_waits_total", "Ticks in which a port had data to send and no credits.", *_PORT),
    _host("infiniband_errors_total", "Errors of a port by kind, as the adapter counts them.", *_PORT, "kind"),
    _host("infiniband_congestion_total", "Congestion notifications of a port by kind, as the adapter counts them.",
          *_PORT, "kind"),
    _host("pressure_seconds_total", "Time in which some or all threads waited for a resource (PSI).",
          "resource", "share", default=_ALL),
    _host("pressure_ratio", "Share of time in which some or all threads waited for a resource, over a window (PSI).",
          "resource", "share", "window"),
)
_OF_CGROUPS: tuple[Metric, ...] = (
    _cgroup("cpu_seconds_total", "CPU time of a cgroup."),
    _cgroup("cpu_limit_cpus", "CPU limit of a cgroup."),
    _cgroup("cpu_periods_total", "Scheduling periods in which a cgroup with a CPU limit ran."),
    _cgroup("cpu_throttled_periods_total", "Scheduling periods in which a cgroup was throttled at its CPU limit."),
    _cgroup("cpu_throttled_seconds_total", "Time for which a cgroup was throttled, added up over CPUs."),
    _cgroup("memory_bytes", "Memory of a cgroup, including cached files."),
    _cgroup("memory_limit_bytes", "Memory limit of a cgroup."),
    _cgroup("memory_events_total", "Memory events of a cgroup; max: it reached its limit.", "event"),
    _cgroup("pressure_seconds_total", "Time in which some or all threads of a cgroup waited for a resource (PSI).",
            "resource", "share"),
)
_OF_PROCESSES: tuple[Metric, ...] = (
    _process("info", "Command and cgroup of a process as labels; always 1.", "command", "cgroup"),
    _process("cpu_seconds_total", "CPU time of a process, over all threads.", "mode"),
    _process("resident_memory_bytes", "Resident memory of a process."),
    _process("threads", "Threads of a process."),
    _process("major_page_faults_total", "Page faults of a process that read from a disk."),
    _process("context_switches_total", "Context switches of a process's main thread; involuntary: it was preempted.",
             "kind"),
    _process("run_queue_seconds_total", "Time in which a process's main thread was ready to run and had no CPU."),
    _process("read_bytes_total", "Data read from disks by a process."),
    _process("written_bytes_total", "Data written to disks by a process."),
    _process("allowed_cpus", "CPUs that a process may run on."),
    _process("gpu_local_cpus", "CPUs a process may run on that are local to its GPU's NUMA node.", "uuid"),
)
CPU_METRICS_OF_DCGM: tuple[Metric, ...] = (
    _host("cpu_temperature_celsius", "Temperature of a Grace CPU.", "cpu",
          dcgm=DcgmField(_FIELD + "TEMP_CURRENT", _FIELD + "TEMP_CELSIUS")),
    _host("cpu_power_watts", "Power draw of a Grace CPU.", "cpu",
          dcgm=DcgmField(_FIELD + "POWER_UTIL_CURRENT", _FIELD + "POWER_WATTS")),
    _host("cpu_power_limit_watts", "Power limit of a Grace CPU.", "cpu",
          dcgm=DcgmField(_FIELD + "POWER_LIMIT", _FIELD + "POWER_LIMIT_WATTS")),
    _host("cpu_utilization_ratio", "Utilization of a Grace CPU or core.", "cpu", "core",
          dcgm=DcgmField(_FIELD + "UTIL_TOTAL", _FIELD + "UTIL_TOTAL")),  # 0..1: DcgmModuleSysmon.cpp
)
# fmt: on


HOST_METRICS: tuple[Metric, ...] = (*_MACHINE, *CPU_METRICS_OF_DCGM, *_OF_CGROUPS, *_OF_PROCESSES)
HOST_BY_NAME: dict[str, Metric] = {metric.name: metric for metric in HOST_METRICS}
