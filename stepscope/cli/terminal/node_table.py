"""GPUs of many machines as one table in a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from stepscope.core.errors import printable
from stepscope.core.hardware.health import Severity
from stepscope.core.text.live_verdict import live_verdict_line
from stepscope.core.text.numbers import UNKNOWN, counted
from stepscope.core.text.wording import cause_phrase

if TYPE_CHECKING:
    from stepscope.core.documents.node import Node, NodeDevice
    from stepscope.core.hardware.health import OperatorNote
    from stepscope.workflow.nodes.answers import NodeAnswer

_OLD_SECONDS = 5.0
_STYLES = {"failed": "bold red", "degraded": "yellow", "unknown": "dim", "healthy": "green"}
_SHORT = {
    "software_power_cap": "power",
    "hardware_slowdown": "hw",
    "hardware_thermal": "hw heat",
    "software_thermal": "heat",
    "hardware_power_brake": "brake",
    "sync_boost": "sync",
    "application_clocks": "app clocks",
    "display_clocks": "display",
}
"""Throttle reasons; `idle` is not one."""
_COLUMNS = ("host", "GPU", "job", "class", "util", "tensor", "DRAM", "W", "GiB", "°C", "MHz", "throttled", "health")
_RIGHT = frozenset({"util", "tensor", "DRAM", "W", "GiB", "°C", "MHz"})


def node_table(answers: Sequence[NodeAnswer], now: float) -> Group:
    """Table of GPUs for the terminal: a summary, a row per GPU and MIG instance, one per silent agent.

    Args:
        now: by the monotonic clock.
    """
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in _COLUMNS:
        table.add_column(name, justify="right" if name in _RIGHT else "left", no_wrap=name != "health")
    for answer in answers:
        for row in _rows(answer, now):
            table.add_row(*row)
    return Group(summary_line(answers), table, *verdict_lines(answers))


def verdict_lines(answers: Sequence[NodeAnswer]) -> list[Text]:
    """Lines below the table: the live verdict of each run, once where several machines have it."""
    known = [(one, answer.node.time_ns) for answer in answers if answer.node for one in answer.node.verdicts]
    known.sort(key=lambda pair: pair[0].verdict.time_ns)
    newest = {(one.verdict.run, one.uid): (one, now_ns) for one, now_ns in known}
    return [
        _text(
            f"{one.verdict.run}  {live_verdict_line(one.verdict, now_ns)}", "yellow" if one.verdict.bottleneck else ""
        )
        for one, now_ns in sorted(newest.values(), key=lambda pair: pair[0].verdict.run)
    ]


def summary_line(answers: Sequence[NodeAnswer]) -> Text:
    """Line above the table: machines, GPUs, how busy they are, their power, agents that do not answer."""
    devices = [one for answer in answers if answer.node and not answer.error for one in answer.node.devices]
    gpus = [one for one in devices if not one.device.instance]
    parts = [counted(len(answers), "machine"), counted(len(gpus), "GPU")]
    busy = [one.values["utilization_ratio"] for one in gpus if "utilization_ratio" in one.values]
    if busy:
        parts.append(f"{percent_text(sum(busy) / len(busy))} busy")
    watts = [one.values["power_watts"] for one in gpus if "power_watts" in one.values]
    if watts:
        parts.append(f"{sum(watts) / 1000:,.1f} kW")
    silent = sum(1 for answer in answers if answer.error)
    if silent:
        parts.append(f"{counted(silent, 'agent does', 'agents do')} not answer")
    return Text(", ".join(parts))


def _rows(answer: NodeAnswer, now: float) -> Iterator[Sequence[Text | str]]:
    node = answer.node
    if node is None or answer.error:
        since = "" if answer.at is None else f", last heard {now - answer.at:.0f} s ago"
        text = _text(f"{answer.error or 'asked'}{since}", "red" if answer.error else "dim")
        yield (_text(_shown_host(answer), "bold"), *([""] * (len(_COLUMNS) - 2)), text)
    if node is None:
        return
    age = 0.0 if answer.at is None else now - answer.at
    for device in node.devices:
        yield _row(node, device, age)
    if not node.devices and not answer.error:
        why = next((f" ({one.reason})" for one in node.sources if one.name == "nvml" and not one.is_up), "")
        what = f"unknown: no GPU driver answers{why}" if why else "unknown: no GPU is known there"
        yield (_text(node.host), *([""] * (len(_COLUMNS) - 2)), _text(what, "dim"))


def _shown_host(answer: NodeAnswer) -> str:
    return answer.node.host if answer.node else answer.agent.partition("://")[2]


def _row(node: Node, device: NodeDevice, age: float) -> Sequence[Text | str]:
    values = device.values
    style = "dim" if device.is_up is False or age > _OLD_SECONDS else ""
    cells = (
        node.host,
        " ".join(filter(None, (device.device.name, device.device.profile))),
        _job(device),
        UNKNOWN if device.spent is None else cause_phrase(device.spent.cause),
        percent_text(values.get("utilization_ratio")),
        percent_text(values.get("tensor_active_ratio")),
        percent_text(values.get("dram_active_ratio")),
        _of(values.get("power_watts"), values.get("power_limit_watts"), 1.0),
        _of(values.get("memory_used_bytes"), values.get("memory_total_bytes"), 1 << 30),
        _number(values.get("temperature_celsius")),
        _number(values.get("sm_clock_hertz"), 1e6),
        _throttled(device.by_label.get("throttle_reason", {})),
    )
    return (*(_text(cell, style) for cell in cells), _health(node, device, age))


def _job(device: NodeDevice) -> str:
    names = [" ".join(filter(None, (one.job.name or one.job.id, one.job.user))) for one in device.jobs[:2]]
    further = f" +{len(device.jobs) - 2}" if len(device.jobs) > 2 else ""
    state = device.marked("use_state").replace("_", " ")
    return ", ".join(names) + further or ("" if state in ("busy", "unknown") else state)


def _throttled(reasons: dict[str, float]) -> str:
    active = (name for name, value in reasons.items() if value == 1.0 and name != "idle")
    return ", ".join(_SHORT.get(name, name.replace("_", " ")) for name in active)


def _health(node: Node, device: NodeDevice, age: float) -> Text:
    old = max(age, device.age_seconds or 0.0)
    since = f" ({old:.0f} s old)" if old > _OLD_SECONDS else ""
    note = _acknowledgement(node, device)
    known = acknowledged_text(note)
    if device.is_up is False:
        return _text(f"does not answer: {device.reason.replace('_', ' ')}{known}{since}", "dim" if note else "bold red")
    if device.health is None:
        return Text(f"{UNKNOWN}{since}")
    state = device.health.state if not device.health.reason else f"{device.health.state}: {device.health.reason}"
    return _text(state + known + since, "dim" if note else _STYLES.get(device.health.state, ""))


def acknowledged_text(note: OperatorNote | None) -> str:
    """Who knows of what it is put behind; empty if nobody has said so."""
    return f" (acknowledged by {note.by})" if note else ""


def _acknowledgement(node: Node, device: NodeDevice) -> OperatorNote | None:
    """The note on the worst open event of a GPU, if all of them are acknowledged."""
    uuid = device.device.uuid
    notes = [
        event.acknowledged
        for event in node.events
        if event.ended_ns is None and event.severity is not Severity.INFO and ("uuid", uuid) in event.labels
    ]
    return notes[0] if notes and None not in notes else None


def _text(text: str, style: str = "") -> Text:
    """Text from elsewhere, such as names of jobs, without control sequences."""
    return Text(printable(text), style=style)


def percent_text(ratio: float | None) -> str:
    """A ratio in whole percent; a dash if it is not known."""
    return UNKNOWN if ratio is None else f"{100 * ratio:.0f}%"


def _number(value: float | None, unit: float = 1.0) -> str:
    return UNKNOWN if value is None else f"{value / unit:,.0f}"


def _of(value: float | None, most: float | None, unit: float) -> str:
    return _number(value, unit) if most is None else f"{_number(value, unit)}/{_number(most, unit)}"
