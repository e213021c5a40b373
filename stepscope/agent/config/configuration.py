"""Configuration: loaded from flags, environment and file, each key with its origin; shown as TOML, JSON or a table.

Passwords and tokens are never shown.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from pathlib import Path
from typing import Any

from stepscope.agent.config.settings import (
    KEYS,
    WARNS_BEFORE,
    AgentSettings,
    Key,
    sections_of,
    typed_value,
    value_from_text,
)
from stepscope.core.errors import UsageError, from_os_error
from stepscope.core.text.numbers import nearest, unknown_name
from stepscope.store.files import read_text

PREFIX = "STEPSCOPE_AGENT__"
"""Prefix of environment variables: STEPSCOPE_AGENT__WEB__LISTEN."""


class SettingOrigin(StrEnum):
    """Where a setting of the agent was set; later ones override earlier ones."""

    DEFAULT = "default"
    FILE = "file"
    ENVIRONMENT = "environment"
    FLAG = "flag"


@dataclass(frozen=True, slots=True)
class Configuration:
    """The agent's settings with their origins.

    Attributes:
        origins: by the key's path: kind, and the file, variable or flag (empty for defaults).
    """

    settings: AgentSettings
    origins: Mapping[str, tuple[SettingOrigin, str]]

    def origin_of(self, path: str) -> str:
        """Origin of a key for an error message: the file and key, the variable or the flag."""
        kind, by = self.origins[path]
        return f"{by}: {path}" if kind is SettingOrigin.FILE else by or path


def load_configuration(
    file: Path | None = None, *, environment: Mapping[str, str] | None = None, flags: Mapping[str, Any] | None = None
) -> Configuration:
    """Load the agent's configuration: flags override environment variables, these the file, and that the defaults.

    Args:
        file: TOML; None: no file.
        environment: variables; those with other names than `STEPSCOPE_AGENT__SECTION__KEY` are ignored.
        flags: values by the key's path; None: not given.

    Raises:
        UsageError: a key is unknown, or a value is invalid. One line: where, what, the nearest key.
    """
    values = {path: key.default for path, key in KEYS.items()}
    origins = dict.fromkeys(KEYS, (SettingOrigin.DEFAULT, ""))
    if file is not None:
        for path, value in _of_file(file).items():
            values[path], origins[path] = value, (SettingOrigin.FILE, str(file))
    for name, text in (environment or {}).items():
        if name.startswith(PREFIX):
            path = _path_of(name)
            values[path], origins[path] = (
                value_from_text(KEYS[path], text, where=name),
                (SettingOrigin.ENVIRONMENT, name),
            )
    for path, value in (flags or {}).items():
        if value is not None:
            flag = KEYS[path].flag
            values[path], origins[path] = typed_value(KEYS[path], value, where=flag), (SettingOrigin.FLAG, flag)
    found = Configuration(_settings(values), origins)
    for warning, critical in WARNS_BEFORE.items():
        if values[warning] > values[critical]:
            culprit = critical if origins[warning][0] is SettingOrigin.DEFAULT else warning
            other = warning if culprit == critical else critical
            compared = "less" if culprit == critical else "more"
            line = f"is {values[culprit]:g}, {compared} than {other}, {values[other]:g}"
            raise UsageError(line, where=found.origin_of(culprit))
    return found


def _of_file(file: Path) -> dict[str, Any]:
    try:
        document = tomllib.loads(read_text(file))
    except OSError as error:
        raise from_os_error(error, "cannot be read", where=str(file), kind=UsageError) from None
    except (ValueError, RecursionError) as error:  # ValueError: also invalid numbers and characters
        raise UsageError(f"is not TOML ({error})", where=str(file)) from None
    found: dict[str, Any] = {}
    for section, content in document.items():
        if section not in sections_of(AgentSettings):
            raise _unknown(section, sections_of(AgentSettings), "section", where=str(file))
        if not isinstance(content, dict):
            raise UsageError(f"must be a section, [{section}]", where=f"{file}: {section}")
        for name, value in content.items():
            path = f"{section}.{name}"
            if path not in KEYS:
                raise _unknown(path, KEYS, "key", where=str(file))
            found[path] = typed_value(KEYS[path], value, where=f"{file}: {path}")
    return found


def _path_of(variable: str) -> str:
    path = variable.removeprefix(PREFIX).lower().replace("__", ".", 1)
    if path not in KEYS or variable != environment_variable_of(path):
        raise _unknown(variable, map(environment_variable_of, KEYS), "setting", where="environment")
    return path


def environment_variable_of(path: str) -> str:
    """The environment variable of a key of the agent's configuration."""
    return PREFIX + path.upper().replace(".", "__")


def _unknown(name: str, known: Iterable[str], what: str, *, where: str) -> UsageError:
    known = list(known)
    as_known = name.upper() if all(one.isupper() for one in known) else name
    near = nearest(as_known, known)
    if near is None and "." in name:  # right key, wrong section
        near = next((one for one in known if one.partition(".")[2] == name.partition(".")[2]), None)
    listing = "" if len(known) < 40 else "see stepscope agent config show"
    return unknown_name(what, name, known, where=where, near=near, listing=listing)


def _settings(values: Mapping[str, Any]) -> AgentSettings:
    made = {}
    for section, of_section in sections_of(AgentSettings).items():
        prefix = f"{section}."
        content = {path.removeprefix(prefix): value for path, value in values.items() if path.startswith(prefix)}
        made[section] = of_section(**content)
    return AgentSettings(**made)


SCHEMA = "stepscope.agent-config/1"
_PASSWORD = re.compile(r"((?:^|//)[^/@\s:]*:)(?!//)[^\s]*@")
_QUERY = re.compile(r"(?<=\?)[^\s]+")
"""Query of a URL, which may hold a token."""
_HIDDEN = "***"


def configuration_toml(configuration: Configuration, *, with_origin: bool) -> str:
    """The agent's configuration as a file; `with_origin`: with a comment about the origin behind each key."""
    parts = []
    for section, keys in groupby(KEYS.values(), lambda key: key.section):
        lines = [f"[{section}]"]
        for key in keys:
            line = f"{key.name} = {_toml(shown_setting(key, setting_value(configuration, key.path)))}"
            lines.append(f"{line}  # {_origin(configuration, key.path)}" if with_origin else line)
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def configuration_document(configuration: Configuration) -> dict[str, Any]:
    """Document stepscope.agent-config/1: value and origin of each key."""
    return {
        "schema": SCHEMA,
        "keys": {
            path: {
                "value": shown_setting(key, setting_value(configuration, path)),
                "origin": str(configuration.origins[path][0]),
                "by": configuration.origins[path][1],
            }
            for path, key in KEYS.items()
        },
        "warnings": [],
    }


def settings_reference() -> Iterator[str]:
    """Rows of the table of all agent settings in docs/reference/agent-configuration.md."""
    yield "| key | default | flag | what |"
    yield "| --- | --- | --- | --- |"
    for path, key in KEYS.items():
        flag = f"`{key.flag}`" if key.flag else ""
        yield f"| `{path}` | `{_toml(shown_setting(key, key.default))}` | {flag} | {key.help} |"


def setting_value(configuration: Configuration, path: str) -> Any:
    """The value of a key of the agent's configuration."""
    section, _, name = path.partition(".")
    return getattr(getattr(configuration.settings, section), name)


def shown_setting(key: Key, value: Any) -> Any:
    """The value of an agent setting as in JSON, with secrets replaced."""
    if key.is_secret and value:
        return _HIDDEN
    if isinstance(value, str):
        return _QUERY.sub(_HIDDEN, _PASSWORD.sub(rf"\1{_HIDDEN}@", value))
    return list(value) if isinstance(value, tuple) else value


def _toml(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)  # for these types JSON is valid TOML, but for one character
    return text.replace("\x7f", r"\u007f")


def _origin(configuration: Configuration, path: str) -> str:
    return " ".join(filter(None, configuration.origins[path]))
