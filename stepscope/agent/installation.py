"""Installation of the agent as a systemd service: unit, user and settings for this machine, as files below a folder."""

from __future__ import annotations

import grp
import os
import shlex
import shutil
import stat
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from stepscope.collectors.dcgm_exporter.page import PageFetchError, dcgm_endpoint_of, fetch_dcgm_page
from stepscope.collectors.host.files import Files
from stepscope.collectors.host.processes import count_gpus_on_bus
from stepscope.core.errors import UsageError, from_os_error
from stepscope.workflow.preflight.driver import look_by_driver
from stepscope.workflow.preflight.workers import WorkerPrograms

UNIT_FILE = "etc/systemd/system/stepscope-agent.service"
USER_FILE = "etc/sysusers.d/stepscope.conf"
SETTINGS_FILE = "etc/stepscope/agent.toml"
_PROGRAM = "/opt/stepscope/bin/stepscope"
_SETTINGS = f"/{SETTINGS_FILE}"
_GROUPS = ("video", "render", "systemd-journal")
"""GPUs and the journal; a unit with a group that does not exist does not start."""
_DRIVER_SECONDS = 30.0
_DCGM_PAGE = "http://127.0.0.1:9400/metrics"
_DCGM_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class ServiceMachine:
    """Facts of a machine that the agent's service depends on.

    Attributes:
        command: how stepscope is started there.
        groups: of the agent's user, beside its own.
        num_gpus: GPUs that the driver or the PCI bus shows; 0 for none.
        dcgm_exporter: address of a dcgm-exporter's page; empty for none.
        notes: lines on what stands in the way.
    """

    command: tuple[str, ...]
    groups: tuple[str, ...]
    num_gpus: int
    dcgm_exporter: str = ""
    notes: tuple[str, ...] = ()


def look_at_machine(root: Path = Path("/")) -> ServiceMachine:
    """The machine that this process runs on, for the agent's service; takes some seconds.

    Args:
        root: where /dev is.
    """
    driver = look_by_driver(WorkerPrograms(), _DRIVER_SECONDS)
    on_bus = count_gpus_on_bus(Files(root))
    notes = []
    if driver.why_not:
        notes.append(f"no GPU driver answers: {driver.why_not}; the agent reads the GPUs once it does")
    command = service_command()
    program = Path(command[0])
    if closed := _closed_folder(program):
        notes.append(
            f"the user stepscope cannot start {program}: {closed} is closed to others; "
            f"install stepscope and its Python elsewhere, as in {Path(_PROGRAM).parents[1]}"
        )
    num_gpus = len(driver.gpus) + len(driver.lost)
    return ServiceMachine(command, _device_groups(root), num_gpus or on_bus, _dcgm_page(), tuple(notes))


def service_command(executable: str = sys.executable) -> tuple[str, ...]:
    """Command of this installation of stepscope, for the agent's unit."""
    beside = Path(executable).with_name("stepscope")
    if beside.is_file() and os.access(beside, os.X_OK):
        return (str(beside),)
    return (executable, "-m", "stepscope")


def _closed_folder(program: Path) -> Path | None:
    """The first folder on the way to a program, or to what it links to, that other users cannot enter."""
    for path in (program, program.resolve(), Path(os.path.realpath(sys.executable))):
        for folder in reversed(path.parents):
            if folder.is_dir() and not folder.stat().st_mode & stat.S_IXOTH:
                return folder
    return None


def _device_groups(root: Path) -> tuple[str, ...]:
    """Groups that exist here: those that the unit has everywhere, and that of GPUs that not everybody may open."""
    names = {entry.gr_name for entry in grp.getgrall()}
    groups = [name for name in _GROUPS if name in names]
    for device in sorted(root.glob("dev/nvidia[0-9]*")):
        status = device.stat()
        if not status.st_mode & stat.S_IROTH and status.st_gid:
            groups.append(next((one.gr_name for one in grp.getgrall() if one.gr_gid == status.st_gid), ""))
    return tuple(dict.fromkeys(filter(None, groups)))


def _dcgm_page() -> str:
    try:
        page = fetch_dcgm_page(dcgm_endpoint_of(_DCGM_PAGE), timeout_seconds=_DCGM_SECONDS)
    except PageFetchError:
        return ""
    return _DCGM_PAGE if "DCGM_" in page else ""


def service_files(machine: ServiceMachine) -> Mapping[str, str]:
    """Contents of the files of the agent's service, by their path below the root of a machine."""
    unit = _asset("stepscope-agent.service")
    unit = _replaced(unit, _PROGRAM, " ".join(map(_unit_word, machine.command)))
    groups = f"SupplementaryGroups={' '.join(machine.groups)}\n" if machine.groups else ""
    unit = _replaced(unit, f"SupplementaryGroups={' '.join(_GROUPS)}\n", groups)
    settings = _asset("agent.toml")
    if machine.num_gpus:
        settings = _replaced(settings, "expected_gpus = 0", f"expected_gpus = {machine.num_gpus}")
    if machine.dcgm_exporter:
        commented = f'# [dcgm]\n# exporter = "{_DCGM_PAGE}"'
        settings = _replaced(settings, commented, f'[dcgm]\nexporter = "{machine.dcgm_exporter}"')
    return {UNIT_FILE: unit, USER_FILE: _asset("stepscope.sysusers.conf"), SETTINGS_FILE: settings}


def _asset(name: str) -> str:
    return (files("stepscope.agent") / "assets" / name).read_text(encoding="utf-8")


def _replaced(text: str, old: str, new: str) -> str:
    assert text.count(old) == 1, f"{old!r} is not once in the file of the package"
    return text.replace(old, new)


def _unit_word(word: str) -> str:
    """A word of a command line in a unit (systemd.service(5), systemd.syntax(7))."""
    word = word.replace("%", "%%").replace("$", "$$").replace("\\", "\\\\").replace('"', '\\"')
    return f'"{word}"' if any(character.isspace() or character in "\"';" for character in word) else word


def write_service_files(contents: Mapping[str, str], prefix: Path, say: Callable[[str], None]) -> None:
    """Write the files of the agent's service. Settings that are there already stay as they are.

    Args:
        prefix: folder below which they are written.
        say: receives a line on each.

    Raises:
        UsageError: one cannot be written.
    """
    for name, text in contents.items():
        file = prefix / name
        try:
            before = file.read_text(encoding="utf-8") if file.exists() else None
            if before == text:
                say(f"{file}: is up to date")
                continue
            if before is not None and name == SETTINGS_FILE:
                say(f"{file}: is kept; it differs from what would be written (--dry-run shows that)")
                continue
            file.parent.mkdir(parents=True, exist_ok=True)
            partial = file.with_name(f".{file.name}.new")
            partial.write_text(text, encoding="utf-8")
            partial.chmod(0o644)
            os.replace(partial, file)
        except OSError as error:
            raise from_os_error(error, "cannot be written", where=str(file), kind=UsageError) from None
        say(f"{file}: {'written' if before is None else 'replaced'}")


def next_commands(machine: ServiceMachine, prefix: Path) -> Sequence[str]:
    """What to run after the files of the agent's service were written."""
    stepscope = shlex.join(machine.command)
    if prefix != Path("/"):
        return (
            f"systemd-sysusers --root={prefix}",
            f"systemctl --root={prefix} enable stepscope-agent",
        )
    missing = [name for name in ("systemctl", "systemd-sysusers") if shutil.which(name) is None]
    note = [f"# {' and '.join(missing)}: not on this machine"] if missing else []
    return (
        *note,
        f"{stepscope} agent config check {_SETTINGS}",
        "systemd-sysusers",
        "systemctl daemon-reload",
        "systemctl enable --now stepscope-agent",
        f"{stepscope} status",
    )
