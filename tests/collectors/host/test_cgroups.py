"""Cgroup limits of both versions are found at each level; no limit differs from an unknown one."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepscope.collectors.host.cgroups import CgroupMount, cgroup_folder, parse_membership, parse_mounts
from stepscope.collectors.readings_builder import NoValue
from stepscope.core.metrics.readings import MissingReason
from tests.collectors.host.trees import collect, make, missing, process, value, values

V2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = (
    "31 23 0:27 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd\n"
    "32 23 0:28 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "33 23 0:29 / /sys/fs/cgroup/memory rw shared:9 master:1 - cgroup cgroup rw,memory\n"
)
POD = "/kubepods/pod1"


def v2_level(path: str, *, cpu_max: str = "max 100000", memory_max: str = "max", **cpu: int) -> dict[str, str]:
    folder = f"sys/fs/cgroup{path}"
    stat = {"usage_usec": 9_000_000, "nr_periods": 0, "nr_throttled": 0, "throttled_usec": 0} | cpu
    return {
        f"{folder}/cpu.max": f"{cpu_max}\n",
        f"{folder}/cpu.stat": "".join(f"{name} {number}\n" for name, number in stat.items()),
        f"{folder}/memory.max": f"{memory_max}\n",
        f"{folder}/memory.current": "1048576\n",
        f"{folder}/memory.events": "low 0\nhigh 1\nmax 2\noom 3\noom_kill 4\noom_group_kill 0\n",
        f"{folder}/cpu.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=2500000\n",
    }


def test_a_pod_that_is_throttled_at_the_level_above(tmp_path: Path) -> None:
    tree = process(17) | {"proc/1/mountinfo": V2} | v2_level(f"{POD}/c1")
    tree |= v2_level(POD, cpu_max="350000 100000", memory_max="4194304", nr_periods=100, nr_throttled=60,
                     throttled_usec=7_500_000)  # fmt: skip
    tree |= v2_level("/kubepods")
    found = collect(make(tmp_path, tree), (17, ()))
    assert value(found, "cgroup_cpu_limit_cpus", cgroup=POD) == 3.5
    assert value(found, "cgroup_cpu_throttled_periods_total", cgroup=POD) == 60
    assert value(found, "cgroup_cpu_throttled_seconds_total", cgroup=POD) == 7.5
    assert value(found, "cgroup_memory_limit_bytes", cgroup=POD) == 4194304
    assert value(found, "cgroup_cpu_seconds_total", cgroup=f"{POD}/c1") == 9.0
    assert value(found, "cgroup_memory_bytes", cgroup=f"{POD}/c1") == 1048576
    assert value(found, "cgroup_memory_events_total", cgroup=f"{POD}/c1", event="oom_kill") == 4
    assert value(found, "cgroup_pressure_seconds_total", cgroup=f"{POD}/c1", resource="cpu") == 2.5
    assert value(found, "process_info", cgroup=f"{POD}/c1") == 1
    assert {dict(r.labels)["cgroup"] for r in found.readings if r.metric.startswith("stepscope_cgroup")} == {
        POD,
        f"{POD}/c1",
    }
    (absent,) = missing(found, "cgroup_cpu_limit_cpus")
    assert absent.detail == f"/sys/fs/cgroup{POD}/c1/cpu.max: no limit"


def test_version_1(tmp_path: Path) -> None:
    membership = "4:memory:/slurm/job_5\n3:cpu,cpuacct:/slurm/job_5\n1:name=systemd:/user.slice\n0::/user.slice\n"
    cpu, memory = "sys/fs/cgroup/cpu,cpuacct/slurm/job_5", "sys/fs/cgroup/memory/slurm/job_5"
    tree = process(17, cgroup=membership) | {
        "proc/1/mountinfo": V1,
        f"{cpu}/cpu.cfs_quota_us": "800000\n",
        f"{cpu}/cpu.cfs_period_us": "100000\n",
        f"{cpu}/cpu.stat": "nr_periods 10\nnr_throttled 3\nthrottled_time 1500000000\n",
        f"{cpu}/cpuacct.usage": "2500000000\n",
        f"{memory}/memory.usage_in_bytes": "4096\n",
        f"{memory}/memory.limit_in_bytes": "9223372036854771712\n",
        f"{memory}/memory.failcnt": "6\n",
        f"{memory}/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
    }
    found = collect(make(tmp_path, tree), (17, ()))
    assert value(found, "cgroup_cpu_limit_cpus", cgroup="/slurm/job_5") == 8.0
    assert value(found, "cgroup_cpu_throttled_seconds_total") == 1.5
    assert value(found, "cgroup_cpu_seconds_total") == 2.5
    assert value(found, "cgroup_memory_bytes") == 4096
    assert value(found, "cgroup_memory_events_total", event="max") == 6
    assert value(found, "cgroup_memory_events_total", event="oom_kill") == 2
    assert values(found, "cgroup_memory_limit_bytes") == []
    assert missing(found, "cgroup_memory_limit_bytes")[0].detail.endswith("no limit")


def test_version_1_without_a_limit(tmp_path: Path) -> None:
    tree = process(17, cgroup="3:cpu:/a\n") | {
        "proc/1/mountinfo": "32 23 0:28 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n",
        "sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": "-1\n",
        "sys/fs/cgroup/cpu/a/cpu.cfs_period_us": "100000\n",
    }
    (absent,) = missing(collect(make(tmp_path, tree), (17, ())), "cgroup_cpu_limit_cpus")
    assert absent.detail.endswith("no limit")


def test_processes_of_one_cgroup_tell_it_once(tmp_path: Path) -> None:
    tree = process(17) | process(18) | {"proc/1/mountinfo": V2} | v2_level(f"{POD}/c1")
    found = collect(make(tmp_path, tree), (17, ()), (18, ()))
    assert len(values(found, "cgroup_memory_bytes")) == 1
    assert len(values(found, "process_info", cgroup=f"{POD}/c1")) == 2


def test_a_cgroup_outside_of_our_view_is_missing_with_its_reason(tmp_path: Path) -> None:
    tree = process(17, cgroup="0::/../../kubepods/pod9\n") | {"proc/1/mountinfo": V2}
    found = collect(make(tmp_path, tree), (17, ()))
    (absent,) = missing(found, "cgroup_memory_bytes")
    assert absent.reason is MissingReason.NOT_SUPPORTED
    assert "outside" in absent.detail


def test_the_usual_places_serve_where_mounts_are_not_told(tmp_path: Path) -> None:
    tree = process(17) | v2_level(f"{POD}/c1") | {"sys/fs/cgroup/cgroup.controllers": "cpu memory\n"}
    assert value(collect(make(tmp_path, tree), (17, ())), "cgroup_memory_bytes") == 1048576


def test_no_cgroups_at_all(tmp_path: Path) -> None:
    found = collect(make(tmp_path, process(17)), (17, ()))
    assert value(found, "process_info", cgroup="") == 1


def test_mounts_are_read_as_the_kernel_writes_them() -> None:
    text = V1 + V2 + "40 23 0:30 /a\\040b /mnt/with\\040blank rw - cgroup2 none rw\n36 1 8:1 / / rw - ext4 /dev/x rw\n"
    assert parse_mounts(text) == [
        CgroupMount(frozenset({"cpu", "cpuacct"}), "/", "/sys/fs/cgroup/cpu,cpuacct"),
        CgroupMount(frozenset({"memory"}), "/", "/sys/fs/cgroup/memory"),
        CgroupMount(frozenset(), "/", "/sys/fs/cgroup"),
        CgroupMount(frozenset(), "/a b", "/mnt/with blank"),
    ]


def test_membership() -> None:
    text = "12:cpu,cpuacct:/a:b\n1:name=systemd:/\n0::/x (deleted)\nnonsense\n"
    assert parse_membership(text) == {
        frozenset({"cpu", "cpuacct"}): "/a:b",
        frozenset({"name=systemd"}): "/",
        frozenset(): "/x",
    }


@pytest.mark.parametrize(
    ("root", "path", "folder"),
    [
        ("/", "/a/b", "sys/fs/cgroup/a/b"),
        ("/", "/", "sys/fs/cgroup"),
        ("/docker/1", "/docker/1", "sys/fs/cgroup"),
        ("/docker/1", "/docker/1/x", "sys/fs/cgroup/x"),
        ("/docker/1", "/docker/12", None),
        ("/", "/../x", None),
        ("/", "/a/..", None),
    ],
)
def test_folders(root: str, path: str, folder: str | None) -> None:
    found = cgroup_folder(CgroupMount(frozenset(), root, "/sys/fs/cgroup"), path)
    assert found == folder if folder is not None else isinstance(found, NoValue)
