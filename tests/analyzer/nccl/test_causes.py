"""Warnings that name a cause become a finding with what to do; what follows from them is one note."""

from __future__ import annotations

import pytest

from stepscope.analyzer.nccl import explain_nccl
from stepscope.core.documents.nccl import NcclFinding
from stepscope.core.documents.nccl_facts import CallFailed, FailedTransfer, Join, LogEvent, LogPlace, Warned
from stepscope.core.hardware.health import Severity


def _at(host: str = "a", process: int = 1, line: int = 1) -> LogPlace:
    return LogPlace("log", line, f"{host}:{process}")


def _findings(*texts: str) -> list[NcclFinding]:
    return explain_nccl([Warned(_at(line=line), text) for line, text in enumerate(texts, 1)]).findings


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("Call to posix_fallocate failed : No space left on device", "shm_full", "--shm-size=1g"),  # nccl#290
        ("Error: failed to extend /dev/shm/nccl-K to 5967876 bytes", "shm_full", "NCCL asks for 5.7 MiB more"),
        ("Bus error. It is possible that dataloader's workers are out of shared memory.", "shm_full", "DataLoader"),
        ("Error: failed to create shared memory file /dev/shm/a, error Permission denied (13)", "shm_denied", "mount"),
        ("Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory", "memlock_limit", "ulimit -l"),
        ("Call to ibv_create_cq failed with error Cannot allocate memory errno 12", "memlock_limit", "ibv_create_cq"),
        ("Call to ibv_reg_mr_iova2 failed with error Bad address", "gdr_registration", "nvidia_peermem"),
        ("Call to ibv_modify_qp failed with error Network is unreachable", "gid_unreachable", "NCCL_IB_GID_INDEX"),
        ("Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_0:1", "gid_unreachable", "CROSS_NIC"),
        ("NET/IB : Unable to open device erdma_1", "ib_device_missing", "InfiniBand device erdma_1"),  # nccl#2428
        ("Detected mixed local Net device counts across ranks (min 1, max 2).", "net_count_mismatch", "1 to 2"),
        ("NET/IB : Attempted to connect incompatible devices: [0]a:1/IB and", "link_type_mismatch", "NCCL_IB_HCA"),
        ("Bootstrap : no socket interface found", "no_interface", "NCCL_SOCKET_IFNAME"),
        ("ncclSocketInit: connecting to address  with family 599 is neither AF_INET(2) nor", "no_interface", "ip addr"),
        ("Net : Connect to 192.168.1.9<54263> failed : No route to host", "unreachable",
         "no connection to 192.168.1.9: No route to host"),
        ("socketPollConnect: Connect to 10.0.0.4<56849> returned 113(No route to host)", "unreachable", "10.0.0.4"),
        ("ncclOsSocketPollConnect to 10.0.0.4<56> failed with error Connection timed out", "unreachable", "firewall"),
        ("The client socket has failed to connect to [n1]:29500 (errno: 110 - Connection timed out).", "rendezvous",
         "torch's rendezvous at n1, port 29500"),
        ("The client socket has timed out after 900000ms while trying to connect to (10.0.0.1, 29500).", "rendezvous",
         "at 10.0.0.1, port 29500"),
        ("The server socket has failed to listen on any local network address. port: 29500, name: EADDRINUSE",
         "port_in_use", "MASTER_PORT"),
        ("socketFinalizeAccept: wrong type 4 != 3", "foreign_connection", "port scanners"),
        ("Bootstrap Root : mismatch in rank count from procs 2 : 4", "rank_count_mismatch", "WORLD_SIZE"),
        ("Mismatched NCCL version detected : rank 0 version 21803 rank 1 version 22005", "version_mismatch",
         "rank 0 2.18.3, rank 1 2.20.5"),
        ("undefined symbol: ncclCommWindowRegister", "version_mismatch", "lacks ncclCommWindowRegister"),
        ("Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 10", "duplicate_gpu", "set_device(local"),
        ("P2P is disabled between NVLINK connected GPUs 1 and 0. This should not", "nvlink_p2p", "GPUs 1 and 0"),
        ("MNNVL (cliqueSize 36) is available but not working on this system.", "imex", "nvidia-imex"),
        ("Cuda failure 802 'system not yet initialized'", "fabric_manager", "nvidia-fabricmanager"),
        ("nvmlInit_v2() failed: Driver/library version mismatch", "driver_mismatch", "reboot"),
        ("Cuda failure 'out of memory'", "gpu_memory", "NCCL_BUFFSIZE"),
        ("Cuda failure 700 'an illegal memory access was encountered'", "gpu_fault", "XIDs"),
        ("Cuda failure 'named symbol not found'", "cuda_call", "built for this GPU"),
        ("Call to accept failed : Too many open files", "open_files", "ulimit -n"),
        ("pthread_create failed: Resource temporarily unavailable", "process_limit", "--pids-limit"),
        ("NET/IB : req 0/1 tag 0 peer a collective mismatch error, local size 496640 remote size 65536",
         "call_mismatch", "TORCH_DISTRIBUTED_DEBUG"),
        ("Message truncated : received 1024 bytes instead of 256", "call_mismatch", "sizes"),
    ],
)  # fmt: skip
def test_what_a_warning_means_and_what_to_do(text: str, code: str, said: str) -> None:
    (finding,) = _findings(text)
    assert finding.code == code
    assert said in finding.message


@pytest.mark.parametrize(
    "text",
    [
        "Cuda failure 'invalid argument'",
        "NET/IB : mlx5_0:1 GID table changed",
        "Error: failed to extend /dev/shm/nccl-K to 5967876 bytes, error: Invalid argument (22)",
    ],
)
def test_a_warning_of_no_known_cause_is_told_as_it_is(text: str) -> None:
    assert [(finding.code, finding.message) for finding in _findings(text)] == [("nccl_warning", f"a:1: {text}")]


_CLOSED = "socketProgress: Connection closed by remote peer 10.0.0.2<{}>"


def test_what_follows_from_a_cause_is_one_note() -> None:
    texts = [
        _CLOSED.format(1),
        "Cuda failure 'out of memory'",
        _CLOSED.format(2),
        "Proxy Call to rank 14 failed (Connect)",
    ]
    cause, following = _findings(*texts)
    assert (cause.code, following.code, following.severity) == ("gpu_memory", "consequence", Severity.INFO)
    assert following.message.startswith("3 further errors (a:1: socketProgress: Connection closed by remote peer")


def test_a_failed_transfer_is_a_cause_too() -> None:
    report = explain_nccl([FailedTransfer(_at(), "p", 12, 129, "mlx5_0"), Warned(_at("b"), _CLOSED.format(1))])
    assert [finding.code for finding in report.findings] == ["transfer_failed", "consequence"]


def test_without_a_cause_each_kind_of_consequence_is_told_once_and_where_to_look() -> None:
    texts = [_CLOSED.format(1), _CLOSED.format(22), "Socket recv failed while polling for opId=0x7fa0242685e0"]
    findings = _findings(*texts)
    assert [finding.line for finding in findings] == [1, 3]
    assert all("look for the first one of all ranks" in finding.message for finding in findings)


def test_an_error_of_torch_alone_is_no_verdict() -> None:
    (finding,) = explain_nccl([CallFailed(LogPlace("log", 1), "unhandled system error", "2.20.5")]).findings
    assert (finding.code, finding.severity) == ("nccl_warning", Severity.WARNING)
    assert finding.message.startswith("torch raised an NCCL error: unhandled system error: a consequence of another")


def test_a_cause_names_hosts_ranks_and_how_often_once() -> None:
    events: list[LogEvent] = [Join(_at("a", rank), "0x1", rank, 8, 0, is_complete=False) for rank in range(6)]
    for rank in range(1, 6):
        text = f"Duplicate GPU detected : rank {rank} and rank 0 both on CUDA device 1000"
        events += [Warned(_at("a", rank), text)] * 2
    finding = explain_nccl(events).findings[0]
    assert finding.ranks == [1, 2, 3, 4, 5]
    assert finding.message.startswith(
        "ranks 1 and 0 use the same GPU (1000); ranks 2 and 0 use the same GPU (1000); ranks 3 and 0 use the same GPU "
        "(1000) and 2 more such (on a, 5 processes): call torch.cuda.set_device"
    )


def test_causes_come_before_all_that_is_as_severe() -> None:
    events: list[LogEvent] = [FailedTransfer(_at(), "p", 12, 129, ""), Warned(_at(), "Cuda failure 'out of memory'")]
    assert [finding.code for finding in explain_nccl(events).findings] == ["gpu_memory", "transfer_failed"]
