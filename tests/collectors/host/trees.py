"""Trees of /proc and /sys, made of a dictionary."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from stepscope.collectors.host.collector import HostCollector, InfinibandCollector
from stepscope.collectors.host.processes import GpuPlace, GpuUsers
from stepscope.core.metrics.readings import Collection, Missing

NOW = 1_700_000_000_000_000_000
GPU_A = GpuPlace("GPU-a", "00000000:0F:00.0")
GPU_B = GpuPlace("GPU-b", "00000000:B3:00.0")


def make(root: Path, files: Mapping[str, str]) -> Path:
    """Write the files below a root."""
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root


def collect(root: Path, *users: tuple[int, tuple[GpuPlace, ...]], places: tuple[GpuPlace, ...] = ()) -> Collection:
    """What the collectors see there."""
    host = HostCollector(
        root=root,
        gpu_users=lambda: GpuUsers(places, users),
        wall_clock_ns=lambda: NOW,
        ticks_per_second=100.0,
        page_bytes=4096,
    )
    ports = InfinibandCollector(root=root, wall_clock_ns=lambda: NOW)
    return Collection.joined((host.collect(), ports.collect()))


def value(collection: Collection, name: str, **labels: str) -> float:
    """The one value of a metric with these labels; its name without `stepscope_`."""
    (found,) = [
        reading.value
        for reading in collection.readings
        if reading.metric == f"stepscope_{name}" and labels.items() <= dict(reading.labels).items()
    ]
    return found


def values(collection: Collection, name: str, **labels: str) -> list[float]:
    """All of them."""
    return [
        reading.value
        for reading in collection.readings
        if reading.metric == f"stepscope_{name}" and labels.items() <= dict(reading.labels).items()
    ]


def missing(collection: Collection, name: str, **labels: str) -> list[Missing]:
    """What is missing of a metric."""
    return [
        one
        for one in collection.missing
        if one.metric == f"stepscope_{name}" and labels.items() <= dict(one.labels).items()
    ]


def process(
    pid: int, *, cpus: str = "0-63", command: str = "python", cgroup: str = "0::/kubepods/pod1/c1\n"
) -> dict[str, str]:
    """Files of a process as Linux 6 writes them."""
    numbers = "S 1 1 1 0 -1 4194304 100 0 7 0 250 50 0 0 20 0 9 0 12345 1000000 2000 18446744073709551615"
    return {
        f"proc/{pid}/stat": f"{pid} ({command}) {numbers} 0 0\n",
        f"proc/{pid}/status": (
            f"Name:\t{command}\nState:\tS (sleeping)\nVmRSS:\t  204800 kB\nThreads:\t9\nCpus_allowed:\tff\n"
            f"Cpus_allowed_list:\t{cpus}\nMems_allowed_list:\t0-1\n"
            "voluntary_ctxt_switches:\t40\nnonvoluntary_ctxt_switches:\t7\n"
        ),
        f"proc/{pid}/schedstat": "2000000000 1500000000 99\n",
        f"proc/{pid}/io": "rchar: 1\nwchar: 2\nread_bytes: 8192\nwrite_bytes: 4096\ncancelled_write_bytes: 0\n",
        f"proc/{pid}/cgroup": cgroup,
    }


TWO_SOCKETS = {
    "sys/bus/pci/devices/0000:0f:00.0/numa_node": "0\n",
    "sys/bus/pci/devices/0000:0f:00.0/local_cpulist": "0-31,64-95\n",
    "sys/bus/pci/devices/0000:b3:00.0/numa_node": "1\n",
    "sys/bus/pci/devices/0000:b3:00.0/local_cpulist": "32-63,96-127\n",
}

MACHINE = {
    "proc/stat": (
        "cpu  1000 20 300 4000 50 6 70 8 90 0\ncpu0 500 10 150 2000 25 3 35 4 45 0\n"
        "cpu1 500 10 150 2000 25 3 35 4 45 0\n"
        "intr 5 1 2\nctxt 123\nbtime 1700000000\nprocesses 55\nprocs_running 3\nprocs_blocked 2\nsoftirq 1 2\n"
    ),
    "proc/loadavg": "1.50 2.25 3.00 3/456 789\n",
    "proc/meminfo": (
        "MemTotal:       1000 kB\nMemFree:         100 kB\nMemAvailable:    700 kB\nBuffers:           1 kB\n"
        "Cached:          500 kB\nSwapTotal:         0 kB\nSwapFree:          0 kB\nHugePages_Total:       4\n"
        "HugePages_Free:        1\nHugepagesize:       2048 kB\n"
    ),
    "proc/vmstat": (
        "pgmajfault 9\noom_kill 1\npswpin 2\npswpout 3\nallocstall_dma32 1\nallocstall_normal 4\nallocstall_movable 5\n"
    ),
    "sys/devices/system/node/node0/meminfo": "Node 0 MemTotal:        600 kB\nNode 0 MemFree:          50 kB\n",
    "sys/devices/system/node/node0/numastat": "numa_hit 100\nnuma_miss 7\nnuma_foreign 0\n",
    "sys/devices/system/node/node1/meminfo": "Node 1 MemTotal:        400 kB\nNode 1 MemFree:          50 kB\n",
    "sys/devices/system/node/node1/numastat": "numa_hit 100\nnuma_miss 0\nnuma_foreign 7\n",
    "sys/devices/system/node/possible": "0-1\n",
    "proc/pressure/cpu": (
        "some avg10=12.34 avg60=1.00 avg300=0.50 total=5000000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
    ),
    "proc/pressure/memory": (
        "some avg10=0.00 avg60=0.00 avg300=0.00 total=7\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=3\n"
    ),
    "proc/pressure/io": (
        "some avg10=50.00 avg60=40.00 avg300=30.00 total=1000001\nfull avg10=25.00 avg60=0.00 avg300=0.00 total=1\n"
    ),
    "proc/diskstats": (
        " 259 0 nvme0n1 100 5 2000 300 200 6 4000 500 7 800 900 0 0 0 0 1 2\n"
        " 259 1 nvme0n1p1 90 5 1900 290 190 6 3900 490 0 790 890 0 0 0 0 1 2\n"
        "   7 0 loop0 1 0 2 3 0 0 0 0 0 4 5\n 253 0 dm-0 100 0 2000 300 200 0 4000 500 0 800 900\n"
    ),
    "sys/block/nvme0n1/device/model": "X\n",
    "sys/block/loop0/size": "1\n",
    "sys/block/dm-0/size": "1\n",
    "proc/net/dev": (
        "Inter-|   Receive                                                |  Transmit\n"
        " face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed\n"  # noqa: E501
        "    lo: 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0\n  eth0:1000 10 1 2 0 0 0 0 2000 20 3 4 0 0 0 0\n"
        " veth9: 5 5 0 0 0 0 0 0 5 5 0 0 0 0 0 0\n"
    ),
    "sys/class/net/eth0/device/vendor": "0x15b3\n",
    "sys/class/net/eth0/operstate": "up\n",
    "sys/class/net/eth0/speed": "100000\n",
    "sys/class/net/eth0/carrier_changes": "3\n",
    "proc/net/snmp": (
        "Ip: Forwarding DefaultTTL\nIp: 1 64\n"
        "Tcp: RtoAlgorithm MaxConn OutSegs RetransSegs\nTcp: 1 -1 1000 12\n"
    ),
}  # fmt: skip


def port(device: str, number: str, **counters: int) -> dict[str, str]:
    """Files of an active InfiniBand port."""
    folder = f"sys/class/infiniband/{device}/ports/{number}"
    values = {
        "port_xmit_data": 1000,
        "port_rcv_data": 2000,
        "port_xmit_packets": 10,
        "port_rcv_packets": 20,
        "port_xmit_wait": 5,
        "symbol_error": 0,
        "link_downed": 1,
    } | counters
    return {
        f"{folder}/state": "4: ACTIVE\n",
        f"{folder}/phys_state": "5: LinkUp\n",
        f"{folder}/link_layer": "InfiniBand\n",
        f"{folder}/rate": "400 Gb/sec (4X NDR)\n",
        f"{folder}/hw_counters/out_of_sequence": "6\n",
        f"{folder}/hw_counters/np_cnp_sent": "8\n",
        **{f"{folder}/counters/{name}": f"{value}\n" for name, value in values.items()},
    }
