"""How is a configuration shown to a person or a program? Without passwords and tokens."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import groupby
from typing import Any

from stepscope.agent.config.keys import Key
from stepscope.agent.config.loading import Configuration
from stepscope.agent.config.settings import KEYS

SCHEMA = "stepscope.agent-config/1"
_PASSWORD = re.compile(r"((?:^|//)[^/@\s:]*:)(?!//)[^\s]*@")
_QUERY = re.compile(r"(?<=\?)[^\s]+")
"""Of a URL: a token may be in it."""
_HIDDEN = "***"


def as_toml(configuration: Configuration, *, with_origin: bool) -> str:
    """The file that says the same; with_origin: behind each key who said so."""
    parts = []
    for section, keys in groupby(KEYS.values(), lambda key: key.section):
        lines = [f"[{section}]"]
        for key in keys:
            line = f"{key.name} = {_toml(shown(key, value_of(configuration, key.path)))}"
            lines.append(f"{line}  # {_origin(configuration, key.path)}" if with_origin else line)
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def as_document(configuration: Configuration) -> dict[str, Any]:
    """Schema stepscope.agent-config/1: of each key its value and who said so."""
    return {
        "schema": SCHEMA,
        "keys": {
            path: {
                "value": shown(key, value_of(configuration, path)),
                "origin": str(configuration.origins[path][0]),
                "by": configuration.origins[path][1],
            }
            for path, key in KEYS.items()
        },
        "warnings": [],
    }


def reference() -> Iterator[str]:
    """Rows of the table of all settings in docs/agent.md."""
    yield "| key | default | flag | what |"
    yield "| --- | --- | --- | --- |"
    for path, key in KEYS.items():
        flag = f"`{key.flag}`" if key.flag else ""
        yield f"| `{path}` | `{_toml(shown(key, key.default))}` | {flag} | {key.help} |"


def value_of(configuration: Configuration, path: str) -> Any:
    """The value of a key."""
    section, _, name = path.partition(".")
    return getattr(getattr(configuration.settings, section), name)


def shown(key: Key, value: Any) -> Any:
    """The value as JSON has it; without what is secret."""
    if key.is_secret and value:
        return _HIDDEN
    if isinstance(value, str):
        return _QUERY.sub(_HIDDEN, _PASSWORD.sub(rf"\1{_HIDDEN}@", value))
    return list(value) if isinstance(value, tuple) else value


def _toml(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)  # of these types JSON's form is TOML's, but for one character
    return text.replace("\x7f", r"\u007f")


def _origin(configuration: Configuration, path: str) -> str:
    return " ".join(filter(None, configuration.origins[path]))
