"""Causes of NCCL's errors: warnings that name what is wrong on a machine, told before the warnings that follow from it.

One failed call makes NCCL write ten lines on every rank: its own, those of the proxy, and those of all peers whose
connection it closed. Each row is one thing that a person can repair; what the rows match is NCCL's own text, of 2.4 to
2.30, and torch's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from stepscope.analyzer.nccl.communicators import CommunicatorIndex
from stepscope.core.documents.nccl import NcclFinding
from stepscope.core.documents.nccl_facts import CallFailed, FailedTransfer, LogEvent, LogPlace, Warned, host_of
from stepscope.core.hardware.health import Severity
from stepscope.core.text.numbers import counted, listed, plain_size


@dataclass(frozen=True, slots=True)
class _Cause:
    """What a warning means and what to do; `{0}`, `{1}` in `what` are the groups of the expression."""

    code: str
    expression: re.Pattern[str]
    what: str
    remedy: str
    severity: Severity = Severity.CRITICAL


def _cause(code: str, expression: str, what: str, remedy: str, severity: Severity = Severity.CRITICAL) -> _Cause:
    return _Cause(code, re.compile(expression), what, remedy, severity)


_SHM_REMEDY = (
    "enlarge it (docker run --shm-size=1g or --ipc=host; Kubernetes: an emptyDir with medium: Memory at /dev/shm), and "
    "remove /dev/shm/nccl-* of jobs that were killed"
)
_REACH = (
    "let all ports through between the nodes (firewall, security group, network policy), and set NCCL_SOCKET_IFNAME to "
    "the interface that the nodes share"
)

_CAUSES: tuple[_Cause, ...] = (
    _cause(
        "shm_full",
        r"(?:failed to extend /dev/shm/\S+ to (?P<bytes>\d+) bytes(?!.*error: (?!No space))"
        r"|Error while creating shared memory segment \S+ \(size (?P<size>\d+)\).*No space left"
        r"|posix_fallocate failed ?: No space left|/dev/shm.*No space left)",
        "/dev/shm is full or too small",
        _SHM_REMEDY,
    ),
    _cause(
        "shm_full",
        r"(?:Bus error.*shared memory|insufficient shared memory|unable to allocate shared memory)",
        "/dev/shm is full or too small: DataLoader workers pass their batches through it",
        _SHM_REMEDY,
    ),
    _cause(
        "shm_denied",
        r"(?:shared memory|/dev/shm).*(?:Permission denied|Operation not permitted|Read-only)",
        "/dev/shm cannot be written",
        "mount it writable for the job's user, or set NCCL_SHM_DISABLE=1",
    ),
    _cause(
        "memlock_limit",
        r"Call to (ibv_\w+) failed(?: with error)?:? ?(?:Cannot allocate memory|\(?12\)?\b)",
        "{0} may not lock enough memory",
        "raise the limit of locked memory to unlimited where the job starts (docker run --ulimit memlock=-1, "
        "LimitMEMLOCK=infinity of the Slurm or container daemon, /etc/security/limits.conf); ulimit -l shows it",
    ),
    _cause(
        "gdr_registration",
        r"Call to (ibv_reg_\w+) failed(?: with error)?:? ?"
        r"(?:Bad address|Invalid argument|Operation not (?:supported|permitted))",
        "{0} cannot register GPU memory with the network card",
        "load nvidia_peermem, or use a driver and kernel with DMA-BUF; NCCL_NET_GDR_LEVEL=LOC works without, slower",
    ),
    _cause(
        "gid_unreachable",
        r"Call to (?:ibv_modify_qp|\w*ibv_modify_qp\w*) failed with (?:error )?(?:\d+ )?"
        r"(Connection timed out|Network is unreachable|No route to host|Invalid argument|No such device)",
        "the card finds no way to its peer ({0})",
        "choose the GID of the RoCE v2 address (NCCL_IB_GID_INDEX, often 3; show_gids) and cards of one subnet "
        "(NCCL_IB_HCA); where only cards of the same rail reach each other, NCCL_CROSS_NIC=0",
    ),
    _cause(
        "ib_device_missing",
        r"NET/IB ?: Unable to (?:open|query) device (\S+)",
        "InfiniBand device {0} is there but cannot be opened",
        "give the container /dev/infiniband and its device cgroup (the RDMA device plugin), or leave the card out with "
        "NCCL_IB_HCA",
        Severity.WARNING,
    ),
    _cause(
        "net_count_mismatch",
        r"Detected mixed local \w*Net device counts across ranks \(min (\d+), max (\d+)\)",
        "ranks have different numbers of network cards, {0} to {1}",
        "make the same cards usable on all nodes, or name the common ones in NCCL_IB_HCA",
    ),
    _cause(
        "link_type_mismatch",
        r"(?:Attempted to (?:connect|merge) incompatible devices|device is incompatible with the local)",
        "InfiniBand and RoCE cards are mixed",
        "name cards of one kind in NCCL_IB_HCA",
    ),
    _cause(
        "no_interface",
        r"(?:no socket interface found|No usable listening interface found|No IP interface found|"
        r"NET/\w+ ?: no device found matching|connecting to address \S* ?with family \d+ is neither)",
        "a rank has no network interface that NCCL may use",
        "set NCCL_SOCKET_IFNAME to an interface that exists on every node (ip addr shows them); several may be listed",
    ),
    _cause(
        "rendezvous",
        r"The client socket has (?:failed|timed out).{0,80}? connect to [\[(]?([\w.:-]+?)\]?[,:] ?(\d+)\b",
        "no connection to torch's rendezvous at {0}, port {1}",
        "start rank 0 there first, open the port, and check MASTER_ADDR and MASTER_PORT",
    ),
    _cause(
        "unreachable",
        r"(?:[Cc]onnect to|socketPollConnect\w*:? ?(?:Connect )?to|Call to connect to) (\S+?)(?:<\d+>)? .*?"
        r"(Connection refused|No route to host|Connection timed out|Software caused connection abort|"
        r"Network is unreachable|Cannot assign requested address|Host is down)",
        "no connection to {0}: {1}",
        _REACH,
    ),
    _cause(
        "unreachable",
        r"(?:Call to connect failed ?: |poll\(\) failed.*error )"
        r"(Connection timed out|Connection refused|No route to host)",
        "no connection to a peer: {0}",
        _REACH,
    ),
    _cause(
        "port_in_use",
        r"server socket has failed to (?:listen|bind).*(?:EADDRINUSE|[Aa]ddress already in use)",
        "the port of torch's rendezvous is in use",
        "end the job that has it, or choose another MASTER_PORT (torchrun --rdzv-endpoint host:0)",
    ),
    _cause(
        "foreign_connection",
        r"(?:wrong (?:magic|type) \S+ != \S+|magic mismatch)",
        "something else than this job connected to a port of NCCL's",
        "keep port scanners off the nodes, and check that no two jobs share MASTER_ADDR and MASTER_PORT",
    ),
    _cause(
        "rank_count_mismatch",
        r"Bootstrap Root ?: (?:mismatch in (?:rank count|info) from procs,?(?: nranks)? (\d+) ?(?::|vs) ?(\d+)"
        r"|rank (\d+) of (\d+) ranks has already checked in)",
        "ranks do not agree on how many they are, or two have the same number",
        "give every process the same WORLD_SIZE and a RANK of its own; end what is left of an earlier job",
    ),
    _cause(
        "version_mismatch",
        r"Mismatched NCCL version detected ?: rank (\d+) version (\d+) rank (\d+) version (\d+)",
        "ranks load different versions of NCCL: rank {0} {v1}, rank {2} {v3}",
        "use the same image and LD_LIBRARY_PATH on all nodes (torch.cuda.nccl.version())",
    ),
    _cause(
        "version_mismatch",
        r"undefined symbol: (nccl\w+)",
        "the NCCL that is loaded lacks {0}, which torch needs",
        "remove the older libnccl from LD_LIBRARY_PATH and the system, or install nvidia-nccl of torch's version",
    ),
    _cause(
        "duplicate_gpu",
        r"Duplicate GPU detected ?: rank (\d+) and rank (\d+) both on CUDA device (\w+)",
        "ranks {0} and {1} use the same GPU ({2})",
        "call torch.cuda.set_device(local_rank) before the process group is made, and start no more processes per node "
        "than it has GPUs",
    ),
    _cause(
        "duplicate_gpu",
        r"(\w+) Ranks are using the same GPU",
        "several ranks use the same GPU",
        "call torch.cuda.set_device(local_rank) before the process group is made",
    ),
    _cause(
        "nvlink_p2p",
        r"P2P is disabled between NVLINK connected GPUs (\d+) and (\d+)",
        "GPUs {0} and {1} are joined by NVLink but do not reach each other",
        "have the GPUs and their links checked (nvidia-smi topo -p2p r, nvidia-smi nvlink -s); "
        "NCCL_IGNORE_DISABLED_P2P=1 goes on without",
    ),
    _cause(
        "imex",
        r"MNNVL \(cliqueSize (\d+)\) is available but not working",
        "NVLink between nodes ({0} GPUs) does not work",
        "start nvidia-imex on all nodes with the same node list and give the job its channel "
        "(/dev/nvidia-caps-imex-channels); NCCL_MNNVL_ENABLE=0 goes on without",
    ),
    _cause(
        "fabric_manager",
        r"[Cc](?:uda|UDA) failure (?:802 )?'system not yet initialized'",
        "the NVSwitch fabric is not ready",
        "start nvidia-fabricmanager in the driver's version; see nvidia-smi -q, Fabric",
    ),
    _cause(
        "driver_mismatch",
        r"(?:nvmlInit|nvml\w*)\S* failed.*(?:Driver/library version mismatch)|CUDA driver version is insufficient",
        "the driver is older than, or another than, the libraries need",
        "reboot after a driver update, or install a driver for this CUDA version",
    ),
    _cause(
        "gpu_memory",
        r"(?:Cuda failure (?:2 )?'out of memory'|Failed to CUDA (?:m|c)alloc)",
        "the GPU has no memory left for NCCL's buffers",
        "leave 1 to 2 GiB free, make fewer process groups, or fewer channels (NCCL_MAX_NCHANNELS, NCCL_BUFFSIZE)",
    ),
    _cause(
        "gpu_fault",
        r"Cuda failure (?:\d+ )?'(an illegal memory access was encountered|unspecified launch failure|"
        r"uncorrectable ECC error encountered|misaligned address|an illegal instruction was encountered|"
        r"device-side assert triggered|unknown error|GPU is lost)'",
        "a kernel failed on the GPU before NCCL used it: {0}",
        "look for the first error of the job's own code (CUDA_LAUNCH_BLOCKING=1, compute-sanitizer) and for XIDs in "
        "the kernel log",
    ),
    _cause(
        "cuda_call",
        r"Cuda failure (?:\d+ )?'(peer access is not supported between these two devices|operation not supported|"
        r"named symbol not found|no kernel image is available[^']*|invalid device ordinal)'",
        "CUDA refuses what NCCL asks of it: {0}",
        "check that NCCL is built for this GPU and CUDA version, and that all GPUs are visible to each process; "
        "NCCL_CUMEM_ENABLE=0 or NCCL_P2P_DISABLE=1 tell which call it is",
    ),
    _cause(
        "open_files",
        r"Too many open files",
        "a process may not open more files",
        "raise ulimit -n to 65536 or more where the job starts",
    ),
    _cause(
        "process_limit",
        r"(?:pthread_create|thread).*Resource temporarily unavailable",
        "a process may not start more threads",
        "raise ulimit -u and the pids limit of the container (docker run --pids-limit=-1)",
    ),
    _cause(
        "call_mismatch",
        r"(?:collective mismatch error|[Mm]ismatched collective detected|Message truncated ?: received|"
        r"posted incorrect receive info)",
        "ranks call collectives of different sizes, or in another order",
        "find the first call in which they differ: TORCH_DISTRIBUTED_DEBUG=DETAIL, or NCCL_DEBUG_SUBSYS=COLL; "
        "NCCL_* variables must be the same on all ranks",
    ),
)

_CONSEQUENCE = re.compile(
    r"[Cc]onnection closed by remote peer|Socket recv failed while polling|Proxy Call to rank \d+ failed"
    r"|Failed to execute operation|Error encountered progressing operation|Could not receive type from localRank"
    r"|Call to (?:recv|send)(?: from| to)? .*(?:Connection reset|Broken pipe|[Tt]imed out)|Accept failed"
    r"|Error while (?:creating|attaching to) shared memory segment|ncclAsyncJobComplete|encountered a fatal error"
    r"|(?:socket state|wrong socket state|unexpected socket state)|in abort state|proxyDestroy failed"
    r"|for opId=|Proxy Service.*failed|commDestroy|Cuda failure .*'driver shutting down'"
)
"""Warnings of ranks whose peer is gone."""
_MAX_WARNINGS = 20
_MAX_DETAILS = 3


@dataclass(slots=True)
class _Seen:
    """Where a cause was reported: its details, and all processes and ranks.

    Attributes:
        whats: texts of `_Cause.what`, which may name addresses and ranks.
        asked: bytes that NCCL asked for.
    """

    cause: _Cause
    place: LogPlace
    asked: int | None
    whats: dict[str, None] = field(default_factory=dict)
    processes: dict[str, None] = field(default_factory=dict)
    ranks: set[int] = field(default_factory=set)


def causes_of(events: Sequence[LogEvent], index: CommunicatorIndex) -> list[NcclFinding]:
    """One finding per cause, in the log's order; then other warnings, and what follows from the causes."""
    seen: dict[str, _Seen] = {}
    others: dict[str, tuple[LogPlace, str]] = {}
    following: dict[str, tuple[LogPlace, str]] = {}
    causes: dict[str, _Cause | None] = {}
    num_following = 0
    for number, event in enumerate(events):
        if isinstance(event, CallFailed):
            following.setdefault(event.error, (event.place, f"torch raised an NCCL error: {event.error}"))
            num_following += 1
        if not isinstance(event, Warned):
            continue
        kind = _NUMBER.sub("#", event.text)
        if kind not in causes:
            causes[kind] = next((one for one in _CAUSES if one.expression.search(event.text)), None)
        cause = causes[kind]
        match = None if cause is None else cause.expression.search(event.text)
        if cause is not None and match is not None:
            rank = index.at[number][1] if number in index.at else None
            _note(seen.setdefault(cause.code, _Seen(cause, event.place, _bytes_asked(match))), match, event, rank)
        elif _CONSEQUENCE.search(event.text):
            following.setdefault(kind, (event.place, _with_process(event)))
            num_following += 1
        else:
            others.setdefault(kind, (event.place, _with_process(event)))
    findings = [_finding(one) for one in seen.values()]
    has_cause = any(finding.severity is Severity.CRITICAL for finding in findings) or any(
        isinstance(event, FailedTransfer) for event in events
    )
    warnings = [_warning(place, text) for place, text in list(others.values())[:_MAX_WARNINGS]]
    return [*findings, *warnings, *_consequences(list(following.values()), num_following, has_cause=has_cause)]


_NUMBER = re.compile(r"0x[0-9a-f]+|\d+")


def _note(one: _Seen, match: re.Match[str], event: Warned, rank: int | None) -> None:
    versions = {f"v{number}": _version(text) for number, text in enumerate(match.groups()) if text and text.isdecimal()}
    if len(one.whats) < _MAX_WARNINGS:
        one.whats[one.cause.what.format(*match.groups(), **versions)] = None
    one.processes[event.place.process] = None
    if rank is not None:
        one.ranks.add(rank)


def _bytes_asked(match: re.Match[str]) -> int | None:
    groups = match.groupdict()
    text = groups.get("bytes") or groups.get("size")
    return int(text[:18]) if text else None


def _version(code: str) -> str:
    """21803 is 2.18.3."""
    number = int(code[:6])
    return f"{number // 10_000}.{number % 10_000 // 100}.{number % 100}"


def _finding(one: _Seen) -> NcclFinding:
    details = [] if one.asked is None else [f"NCCL asks for {plain_size(one.asked)} more"]
    hosts = sorted({host_of(process) for process in one.processes} - {""})
    details += [f"on {listed(hosts, 4)}"] if hosts else []
    details += [counted(len(one.processes), "process")] if len(one.processes) > 1 else []
    around = f" ({', '.join(details)})" if details else ""
    shown = list(one.whats)[:_MAX_DETAILS]
    more = f" and {len(one.whats) - len(shown)} more such" if len(one.whats) > len(shown) else ""
    message = f"{'; '.join(shown)}{more}{around}: {one.cause.remedy}"
    return NcclFinding(one.cause.code, one.cause.severity, message, one.place.file, one.place.line, sorted(one.ranks))


def _with_process(event: Warned) -> str:
    return f"{event.place.process}: {event.text}" if event.place.process else event.text


def _warning(place: LogPlace, message: str) -> NcclFinding:
    return NcclFinding("nccl_warning", Severity.WARNING, message, place.file, place.line)


def _consequences(
    following: Sequence[tuple[LogPlace, str]], num_following: int, *, has_cause: bool
) -> Iterator[NcclFinding]:
    """What ranks report whose peer or call failed; where no file tells why, each kind, and where to look."""
    if has_cause and following:
        place, text = following[0]
        errors = counted(num_following, "further error")
        message = f"{errors} ({text}): consequences of a call or a peer that failed before"
        yield NcclFinding("consequence", Severity.INFO, message, place.file, place.line)
        return
    for place, text in following[:_MAX_WARNINGS]:
        yield _warning(
            place,
            f"{text}: a consequence of another error; look for the first one of all ranks (NCCL_DEBUG=WARN on each)",
        )
