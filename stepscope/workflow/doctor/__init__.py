"""Checks of what stands in the way of measuring on this machine. Looks only: starts nothing and changes nothing."""

from __future__ import annotations

import socket
from collections.abc import Iterator

from stepscope.collectors.host.processes import count_gpus_on_bus
from stepscope.core.documents.machine_checks import DOCTOR_SCHEMA, Doctor, DoctorLine
from stepscope.workflow.doctor import communication, machine, software
from stepscope.workflow.preflight.workers import WorkerPrograms


def examine(*, agent_address: str, agent_socket: str) -> Doctor:
    """Run all checks of `stepscope doctor`; takes some seconds, more where a driver hangs.

    Args:
        agent_address: host:port of the agent.
        agent_socket: its Unix socket; empty for none.
    """
    lines = list(_lines(machine.Machine(), agent_address, agent_socket))
    return Doctor(DOCTOR_SCHEMA, socket.gethostname(), lines, [])


def _lines(node: machine.Machine, address: str, agent_socket: str) -> Iterator[DoctorLine]:
    torch, driver = software.find_torch(), software.ask_driver(WorkerPrograms())
    yield from software.look_at_python()
    num_gpus = max(len(driver.look.gpus) + len(driver.look.lost), count_gpus_on_bus(node.files))
    yield software.judge_torch(torch, driver_cuda=driver.cuda, num_gpus=num_gpus)
    yield from software.judge_detachment(torch, node.environment)
    yield from software.look_at_pynvml()
    yield from software.look_at_driver(node, driver)
    yield from machine.look_at_rights(node)
    yield from machine.look_at_limits(node)
    yield from communication.look_at_communication(node)
    yield from communication.look_at_kineto(node, None if torch is None else torch.version)
    yield machine.judge_clock(machine.read_clock())
    yield from machine.look_at_container(node)
    yield from communication.look_at_agent(address, agent_socket)
