"""Metrics of a machine beside its GPUs: host, cgroups, processes.

Counters stay counters, in base units: rates are for whoever asks. Values of a process or a cgroup have its labels.
"""

from __future__ import annotations

from stepscope.core.metrics import Dcgm, Metric, MetricKind, Unit

HOST = "stepscope_host_"
CGROUP = "stepscope_cgroup_"
PROCESS = "stepscope_process_"
_FIELD = "DCGM_FI_DEV_CPU_"


def _gauge(name: str, unit: Unit, text: str, *labels: str) -> Metric:
    return Metric(name, MetricKind.GAUGE, unit, text, None, labels)


def _count(name: str, unit: Unit, text: str, *labels: str) -> Metric:
    return Metric(name, MetricKind.COUNTER, unit, text, None, labels)


U = Unit
_PORT = ("device", "port")
_PORT_FACTS = ("state", "physical_state", "link_layer", "rate")
# fmt: off
_MACHINE: tuple[Metric, ...] = (
    _count("cpu_seconds_total", U.SECONDS, "Time of all CPUs by what they did; iowait: idle for a disk.", "mode"),
    _gauge("cpus", U.NONE, "CPUs that are online."),
    _count("context_switches_total", U.NONE, "Switches from one thread to another."),
    _count("processes_started_total", U.NONE, "Processes and threads started."),
    _gauge("processes_running", U.NONE, "Threads that run or wait for a CPU."),
    _gauge("processes_blocked", U.NONE, "Threads that wait for a disk."),
    _gauge("boot_time_seconds", U.SECONDS, "When the machine started, since the epoch."),
    _gauge("load_average", U.NONE, "Threads that run, wait for a CPU or for a disk, averaged.", "window"),
    _gauge("memory_total_bytes", U.BYTES, "Memory of the machine."),
    _gauge("memory_available_bytes", U.BYTES, "What can be allocated without swapping; free memory is far less."),
    _gauge("memory_free_bytes", U.BYTES, "Memory used for nothing at all."),
    _gauge("memory_buffers_bytes", U.BYTES, "Memory that caches raw disks."),
    _gauge("memory_cached_bytes", U.BYTES, "Memory that caches files, shared memory included."),
    _gauge("memory_shared_bytes", U.BYTES, "Shared memory and tmpfs; loaders' workers pass batches through it."),
    _gauge("memory_anonymous_bytes", U.BYTES, "Memory of processes that is no file's."),
    _gauge("memory_unevictable_bytes", U.BYTES, "Memory that cannot be swapped, as pinned memory."),
    _gauge("memory_slab_bytes", U.BYTES, "Memory of the kernel's own objects."),
    _gauge("memory_dirty_bytes", U.BYTES, "Memory that waits to be written to disk."),
    _gauge("memory_writeback_bytes", U.BYTES, "Memory that is being written to disk."),
    _gauge("memory_committed_bytes", U.BYTES, "Memory that was promised to processes."),
    _gauge("swap_total_bytes", U.BYTES, "Swap space."),
    _gauge("swap_free_bytes", U.BYTES, "Swap space that is free."),
    _gauge("huge_pages_total_bytes", U.BYTES, "Memory set apart for huge pages."),
    _gauge("huge_pages_free_bytes", U.BYTES, "The part of it that nobody uses."),
    _count("major_page_faults_total", U.NONE, "Page faults that had to read a disk."),
    _count("oom_kills_total", U.NONE, "Processes killed for want of memory."),
    _count("swapped_in_bytes_total", U.BYTES, "Read back from swap."),
    _count("swapped_out_bytes_total", U.BYTES, "Written to swap."),
    _count("reclaim_stalls_total", U.NONE, "Allocations that had to free memory themselves first."),
    _gauge("numa_memory_total_bytes", U.BYTES, "Memory of a NUMA node.", "node"),
    _gauge("numa_memory_free_bytes", U.BYTES, "Free memory of a NUMA node.", "node"),
    _count("numa_misses_total", U.NONE, "Pages that a node had to give although another was asked.", "node"),
    _gauge("gpu_numa_node", U.NONE, "NUMA node of a GPU's PCIe slot.", "pci_bus_id", "uuid"),
    _count("disk_reads_total", U.NONE, "Reads of a disk.", "device"),
    _count("disk_writes_total", U.NONE, "Writes of a disk.", "device"),
    _count("disk_read_bytes_total", U.BYTES, "Read from a disk.", "device"),
    _count("disk_written_bytes_total", U.BYTES, "Written to a disk.", "device"),
    _count("disk_read_seconds_total", U.SECONDS, "Time that all reads took together.", "device"),
    _count("disk_write_seconds_total", U.SECONDS, "Time that all writes took together.", "device"),
    _count("disk_busy_seconds_total", U.SECONDS, "Time in which the disk had anything to do.", "device"),
    _gauge("disk_in_flight", U.NONE, "Reads and writes under way.", "device"),
    _count("network_receive_bytes_total", U.BYTES, "Received by a network interface.", "device"),
    _count("network_transmit_bytes_total", U.BYTES, "Sent by a network interface.", "device"),
    _count("network_receive_packets_total", U.NONE, "Packets received.", "device"),
    _count("network_transmit_packets_total", U.NONE, "Packets sent.", "device"),
    _count("network_receive_errors_total", U.NONE, "Packets received wrong.", "device"),
    _count("network_transmit_errors_total", U.NONE, "Packets not sent because of errors.", "device"),
    _count("network_receive_drops_total", U.NONE, "Packets received and thrown away.", "device"),
    _count("network_transmit_drops_total", U.NONE, "Packets thrown away instead of sent.", "device"),
    _gauge("network_up", U.NONE, "1: the interface is up.", "device"),
    _gauge("network_speed_bytes_per_second", U.BYTES_PER_SECOND, "Speed of the link, each way.", "device"),
    _count("network_carrier_changes_total", U.NONE, "How often the link went up or down.", "device"),
    _count("tcp_segments_sent_total", U.NONE, "TCP segments sent."),
    _count("tcp_retransmits_total", U.NONE, "TCP segments sent again."),
    _gauge("infiniband_up", U.NONE, "1: the port is active.", *_PORT),
    _gauge("infiniband_info", U.NONE, "1; its labels say how the port is.", *_PORT, *_PORT_FACTS),
    _gauge("infiniband_speed_bytes_per_second", U.BYTES_PER_SECOND, "Speed of the port now, each way.", *_PORT),
    _count("infiniband_receive_bytes_total", U.BYTES, "Received by a port.", *_PORT),
    _count("infiniband_transmit_bytes_total", U.BYTES, "Sent by a port.", *_PORT),
    _count("infiniband_receive_packets_total", U.NONE, "Packets received by a port.", *_PORT),
    _count("infiniband_transmit_packets_total", U.NONE, "Packets sent by a port.", *_PORT),
    _count("infiniband_transmit_waits_total", U.NONE, "Ticks in which a port had data and no credit.", *_PORT),
    _count("infiniband_errors_total", U.NONE, "Errors of a port, as the adapter counts them.", *_PORT, "kind"),
    _count("infiniband_congestion_total", U.NONE, "Notices of congestion, as the adapter counts them.", *_PORT, "kind"),
    _count("pressure_seconds_total", U.SECONDS, "Time in which some or all threads waited.", "resource", "share"),
    _gauge("pressure_ratio", U.RATIO, "Share of the last while in which they did.", "resource", "share", "window"),
)
_OF_CGROUPS: tuple[Metric, ...] = (
    _count("cpu_seconds_total", U.SECONDS, "CPU time of a cgroup."),
    _gauge("cpu_limit_cpus", U.NONE, "CPUs that a cgroup may use at most."),
    _count("cpu_periods_total", U.NONE, "Periods in which a cgroup with a limit ran."),
    _count("cpu_throttled_periods_total", U.NONE, "Periods in which it was stopped at its limit."),
    _count("cpu_throttled_seconds_total", U.SECONDS, "Time in which its threads were stopped, added up over CPUs."),
    _gauge("memory_bytes", U.BYTES, "Memory of a cgroup, cached files included."),
    _gauge("memory_limit_bytes", U.BYTES, "Memory that it may use at most."),
    _count("memory_events_total", U.NONE, "What its limit led to; max: it was reached.", "event"),
    _count("pressure_seconds_total", U.SECONDS, "The same of its threads alone.", "resource", "share"),
)
_OF_PROCESSES: tuple[Metric, ...] = (
    _gauge("info", U.NONE, "1; its labels say what the process is.", "command", "cgroup"),
    _count("cpu_seconds_total", U.SECONDS, "CPU time of a process, all threads.", "mode"),
    _gauge("resident_memory_bytes", U.BYTES, "Memory of a process."),
    _gauge("threads", U.NONE, "Threads of a process."),
    _count("major_page_faults_total", U.NONE, "Its page faults that had to read a disk."),
    _count("context_switches_total", U.NONE, "Switches of its main thread; involuntary: others took its CPU.", "kind"),
    _count("run_queue_seconds_total", U.SECONDS, "Time in which its main thread could run and had no CPU."),
    _count("read_bytes_total", U.BYTES, "Read from disks for a process."),
    _count("written_bytes_total", U.BYTES, "Written to disks for a process."),
    _gauge("allowed_cpus", U.NONE, "CPUs that a process may run on."),
    _gauge("gpu_local_cpus", U.NONE, "Those of them that are next to its GPU.", "uuid"),
)
CPU_METRICS_OF_DCGM: tuple[Metric, ...] = (
    Metric(HOST + "cpu_temperature_celsius", MetricKind.GAUGE, U.CELSIUS, "Temperature of a Grace CPU.",
           Dcgm(_FIELD + "TEMP_CURRENT", _FIELD + "TEMP_CELSIUS"), ("cpu",)),
    Metric(HOST + "cpu_power_watts", MetricKind.GAUGE, U.WATTS, "Power of a Grace CPU.",
           Dcgm(_FIELD + "POWER_UTIL_CURRENT", _FIELD + "POWER_WATTS"), ("cpu",)),
    Metric(HOST + "cpu_power_limit_watts", MetricKind.GAUGE, U.WATTS, "Power limit of a Grace CPU.",
           Dcgm(_FIELD + "POWER_LIMIT", _FIELD + "POWER_LIMIT_WATTS"), ("cpu",)),
    Metric(HOST + "cpu_utilization_ratio", MetricKind.GAUGE, U.RATIO, "Share of time in which a CPU or core worked.",
           Dcgm(_FIELD + "UTIL_TOTAL", _FIELD + "UTIL_TOTAL"), ("cpu", "core")),  # 0..1: DcgmModuleSysmon.cpp
)
# fmt: on


def _prefixed(prefix: str, rows: tuple[Metric, ...], *labels: str) -> tuple[Metric, ...]:
    return tuple(Metric(prefix + row.name, row.kind, row.unit, row.help, None, (*labels, *row.labels)) for row in rows)


HOST_METRICS: tuple[Metric, ...] = (
    *_prefixed(HOST, _MACHINE),
    *CPU_METRICS_OF_DCGM,
    *_prefixed(CGROUP, _OF_CGROUPS, "cgroup"),
    *_prefixed(PROCESS, _OF_PROCESSES, "pid"),
)
HOST_BY_NAME: dict[str, Metric] = {metric.name: metric for metric in HOST_METRICS}
