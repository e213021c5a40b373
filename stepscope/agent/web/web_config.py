"""What does a web config file of Prometheus' exporter-toolkit say? docs/agent.md has what differs.

Source: prometheus/exporter-toolkit, docs/web-configuration.md and web/tls_config.go.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stepscope.agent.web.fields import mapping, refuse_others, text
from stepscope.agent.web.tls_config import ClientAuth, TlsConfig, tls_of
from stepscope.core.errors import UsageError, from_os_error

_DEAREST = 15
"""Of bcrypt's costs: a check takes two seconds and more."""
_BCRYPT = re.compile(r"\$2[aby]\$(\d\d)\$[./A-Za-z0-9]{53}")
_HEADERS: dict[str, tuple[str, ...]] = {
    "Strict-Transport-Security": (),
    "X-Content-Type-Options": ("nosniff",),
    "X-Frame-Options": ("deny", "sameorigin"),
    "X-XSS-Protection": (),
    "Content-Security-Policy": (),
}
"""Those that may be set, and their values; none: any."""
_SECTIONS = ("tls_server_config", "http_server_config", "basic_auth_users", "rate_limit")
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:ns|us|µs|ms|s|m|h))+")
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True)
class WebConfig:
    """All of it.

    Attributes:
        tls: None: not encrypted.
        headers: to send with every answer.
        users: bcrypt hashes by name; empty: nobody is asked for a password.
        requests_per_second: how many are answered; None: all.
        burst: how many of them at once.
    """

    tls: TlsConfig | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    users: Mapping[str, bytes] = field(default_factory=dict)
    requests_per_second: float | None = None
    burst: int = 0

    @property
    def keeps_others_out(self) -> bool:
        """Whether it is safe to listen where other machines can ask."""
        has_certificates = self.tls is not None and self.tls.client_auth is ClientAuth.REQUIRE
        return self.tls is not None and (has_certificates or bool(self.users))


def read_web_config(file: Path) -> WebConfig:
    """The file's content; its relative paths are beside it.

    Raises:
        UsageError: it cannot be read, or says what there is not. One line with the key.
    """
    document = mapping(_document(file), str(file))
    refuse_others(document, _SECTIONS, str(file))
    tls = mapping(document.get("tls_server_config"), f"{file}: tls_server_config")
    users = mapping(document.get("basic_auth_users"), f"{file}: basic_auth_users")
    return WebConfig(
        tls_of(tls, file) if tls else None,
        _headers(mapping(document.get("http_server_config"), f"{file}: http_server_config"), file),
        {str(name): _hash(hashed, f"{file}: basic_auth_users.{name}") for name, hashed in users.items()},
        *_rate(mapping(document.get("rate_limit"), f"{file}: rate_limit"), f"{file}: rate_limit"),
    )


def _document(file: Path) -> Any:
    import yaml

    try:
        return yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise from_os_error(error, "cannot be read", where=str(file), kind=UsageError) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # the last two: of values, and of nested brackets
        raise UsageError(f"is no YAML ({error})", where=str(file)) from None


def _rate(content: dict[str, Any], where: str) -> tuple[float | None, int]:
    refuse_others(content, ("interval", "burst"), where)
    interval, burst = str(content.get("interval", "0")), content.get("burst", 0)
    if interval == "0":
        return None, 0
    if _DURATION.fullmatch(interval) is None:
        raise UsageError(f"must be a duration, as 500ms or 1s, not {interval}", where=f"{where}.interval")
    if type(burst) is not int or burst < 1:
        raise UsageError("must be a whole number of at least 1", where=f"{where}.burst")
    parts = re.findall(r"([\d.]+)([a-zµ]+)", interval)
    seconds = sum(float(number) * _SECONDS[unit] for number, unit in parts)
    return (1 / seconds, burst) if seconds else (None, 0)


def _headers(content: dict[str, Any], file: Path) -> dict[str, str]:
    where = f"{file}: http_server_config"
    refuse_others(content, ("http2", "headers"), where)
    headers = mapping(content.get("headers"), f"{where}.headers")
    refuse_others(headers, _HEADERS, f"{where}.headers")
    for name in headers:
        value, allowed = text(headers, name, f"{where}.headers"), _HEADERS[name]
        if allowed and value not in allowed:
            raise UsageError(f"must be one of {', '.join(allowed)}, not {value}", where=f"{where}.headers.{name}")
        if not value.isprintable() or not value.isascii():
            raise UsageError("must be plain characters on one line", where=f"{where}.headers.{name}")
    return {name: value for name, value in headers.items() if value}


def _hash(hashed: Any, where: str) -> bytes:
    match = _BCRYPT.fullmatch(hashed) if isinstance(hashed, str) else None
    if match is None:
        raise UsageError("is no bcrypt hash", where=where, what_next='make one with htpasswd -nBC 10 ""')
    if not 4 <= int(match[1]) <= _DEAREST:
        raise UsageError(f"has cost {match[1]}; a check must not take seconds", where=where, what_next="use 10 or 12")
    return str(hashed).encode()
