"""Examination of a machine: all checks, as one document."""

from __future__ import annotations

import socket
from collections.abc import Iterator

from stepscope.collectors.host.processes import count_gpus_on_bus
from stepscope.core.documents.machine_checks import DOCTOR_SCHEMA, Doctor, DoctorLine
from stepscope.workflow.doctor.communication import look_at_agent, look_at_communication, look_at_kineto
from stepscope.workflow.doctor.machine import (
    Machine,
    judge_clock,
    look_at_container,
    look_at_limits,
    look_at_rights,
    read_clock,
)
from stepscope.workflow.doctor.software import (
    ask_driver,
    find_torch,
    judge_detachment,
    judge_torch,
    look_at_driver,
    look_at_pynvml,
    look_at_python,
)
from stepscope.workflow.preflight.request import Programs


def examine(*, agent_address: str, agent_socket: str) -> Doctor:
    """Run all checks; takes a second or two, and more where a driver hangs.

    Args:
        agent_address: host:port of the agent.
        agent_socket: its Unix socket; empty for none.
    """
    lines = list(_lines(Machine(), agent_address, agent_socket))
    return Doctor(DOCTOR_SCHEMA, socket.gethostname(), lines, [])


def _lines(machine: Machine, address: str, agent_socket: str) -> Iterator[DoctorLine]:
    torch, driver = find_torch(), ask_driver(Programs())
    yield from look_at_python()
    num_gpus = max(len(driver.look.gpus) + len(driver.look.lost), count_gpus_on_bus(machine.files))
    yield judge_torch(torch, driver_cuda=driver.cuda, num_gpus=num_gpus)
    yield from judge_detachment(torch, machine.environment)
    yield from look_at_pynvml()
    yield from look_at_driver(machine, driver)
    yield from look_at_rights(machine)
    yield from look_at_limits(machine)
    yield from look_at_communication(machine)
    yield from look_at_kineto(machine, None if torch is None else torch.version)
    yield judge_clock(read_clock())
    yield from look_at_container(machine)
    yield from look_at_agent(address, agent_socket)
