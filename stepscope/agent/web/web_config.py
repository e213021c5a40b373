"""What does a web config file of Prometheus' exporter-toolkit say? TLS, users, headers; docs/agent.md has what differs.

Source: prometheus/exporter-toolkit, docs/web-configuration.md and web/tls_config.go.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from stepscope.core.errors import UsageError

_DEAREST = 15
"""Of bcrypt's costs: a check takes two seconds and more."""
_BCRYPT = re.compile(r"\$2[aby]\$(\d\d)\$[./A-Za-z0-9]{53}")
_VERSIONS = {
    "TLS10": ssl.TLSVersion.TLSv1,
    "TLS11": ssl.TLSVersion.TLSv1_1,
    "TLS12": ssl.TLSVersion.TLSv1_2,
    "TLS13": ssl.TLSVersion.TLSv1_3,
}
_HEADERS: dict[str, tuple[str, ...]] = {
    "Strict-Transport-Security": (),
    "X-Content-Type-Options": ("nosniff",),
    "X-Frame-Options": ("deny", "sameorigin"),
    "X-XSS-Protection": (),
    "Content-Security-Policy": (),
}
"""Those that may be set, and their values; none: any."""
_INLINE = {"cert": "cert_file", "key": "key_file", "client_ca": "client_ca_file"}
_FILES = ("cert_file", "key_file", "client_ca_file")
_TLS_KEYS = frozenset(
    {*_FILES, "client_auth_type", "client_allowed_sans", "min_version", "max_version", "prefer_server_cipher_suites"}
)


class ClientAuth(StrEnum):
    """Whose certificate is asked for."""

    NONE = "NoClientCert"
    REQUEST = "RequestClientCert"  # it is not verified, so that it makes no difference
    IF_GIVEN = "VerifyClientCertIfGiven"
    REQUIRE = "RequireAndVerifyClientCert"


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """How connections are encrypted.

    Attributes:
        cert_file, key_file: certificate chain and key, PEM.
        client_auth: which clients must have a certificate.
        client_ca_file: who signs those; None: nobody.
        client_allowed_sans: one of these alternative names must be in a client's certificate; none: any.
        min_version, max_version: of TLS.
    """

    cert_file: Path
    key_file: Path
    client_auth: ClientAuth
    client_ca_file: Path | None
    client_allowed_sans: tuple[str, ...]
    min_version: ssl.TLSVersion
    max_version: ssl.TLSVersion


@dataclass(frozen=True, slots=True)
class WebConfig:
    """All of it.

    Attributes:
        tls: None: not encrypted.
        headers: to send with every answer.
        users: bcrypt hashes by name; empty: nobody is asked for a password.
    """

    tls: TlsConfig | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    users: Mapping[str, bytes] = field(default_factory=dict)

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
    document = _mapping(_document(file), str(file))
    _refuse_others(document, ("tls_server_config", "http_server_config", "basic_auth_users"), str(file))
    tls = _mapping(document.get("tls_server_config"), f"{file}: tls_server_config")
    users = _mapping(document.get("basic_auth_users"), f"{file}: basic_auth_users")
    return WebConfig(
        _tls(tls, file) if tls else None,
        _headers(_mapping(document.get("http_server_config"), f"{file}: http_server_config"), file),
        {str(name): _hash(hashed, f"{file}: basic_auth_users.{name}") for name, hashed in users.items()},
    )


def _document(file: Path) -> Any:
    import yaml

    try:
        return yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot be read ({error.strerror or error})", where=str(file)) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # the last two: of values, and of nested brackets
        raise UsageError(f"is no YAML ({error})", where=str(file)) from None


def _tls(content: dict[str, Any], file: Path) -> TlsConfig:
    where = f"{file}: tls_server_config"
    for inline, instead in _INLINE.items():
        if inline in content:
            raise UsageError("is not read from here", where=f"{where}.{inline}", what_next=f"name a file in {instead}")
    _refuse_others(content, _TLS_KEYS, where)
    cert, key, client_ca = (_text(content, name, where) for name in _FILES)
    if not cert or not key:
        raise UsageError(f"{'key_file' if cert else 'cert_file'} is missing", where=where)
    client_auth = _client_auth(_text(content, "client_auth_type", where, "NoClientCert"), where)
    checks = client_auth in (ClientAuth.IF_GIVEN, ClientAuth.REQUIRE)
    if checks and not client_ca:
        raise UsageError(f"client_auth_type {client_auth} needs client_ca_file", where=where)
    if client_ca and client_auth is ClientAuth.NONE:
        raise UsageError(f"client_ca_file without client_auth_type {ClientAuth.REQUIRE} checks nobody", where=where)
    sans = content.get("client_allowed_sans") or []
    if not isinstance(sans, list) or not all(isinstance(one, str) for one in sans):
        raise UsageError("must be a list of texts", where=f"{where}.client_allowed_sans")
    if sans and client_auth is not ClientAuth.REQUIRE:
        raise UsageError(f"client_allowed_sans needs client_auth_type {ClientAuth.REQUIRE}", where=where)
    return TlsConfig(
        file.parent / cert,
        file.parent / key,
        client_auth,
        file.parent / client_ca if client_ca else None,
        tuple(sans),
        _version(content, "min_version", where, "TLS12"),
        _version(content, "max_version", where, "TLS13"),
    )


def _client_auth(text: str, where: str) -> ClientAuth:
    try:
        return ClientAuth(text)
    except ValueError:
        known = ", ".join(ClientAuth)
        raise UsageError(f"must be one of {known}, not {text}", where=f"{where}.client_auth_type") from None


def _version(content: dict[str, Any], name: str, where: str, default: str) -> ssl.TLSVersion:
    text = _text(content, name, where, default)
    if text not in _VERSIONS:
        raise UsageError(f"must be one of {', '.join(_VERSIONS)}, not {text}", where=f"{where}.{name}")
    return _VERSIONS[text]


def _headers(content: dict[str, Any], file: Path) -> dict[str, str]:
    where = f"{file}: http_server_config"
    _refuse_others(content, ("http2", "headers"), where)
    headers = _mapping(content.get("headers"), f"{where}.headers")
    _refuse_others(headers, _HEADERS, f"{where}.headers")
    for name in headers:
        value, allowed = _text(headers, name, f"{where}.headers"), _HEADERS[name]
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


def _mapping(value: Any, where: str) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise UsageError("must have keys and values", where=where)
    return {str(name): content for name, content in value.items()}


def _text(content: dict[str, Any], name: str, where: str, default: str = "") -> str:
    value = content.get(name, default)
    if not isinstance(value, str):
        raise UsageError("must be a text", where=f"{where}.{name}")
    return value


def _refuse_others(content: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    for name in content:
        if name not in known:
            raise UsageError(f"unknown or unsupported key {name}; known: {', '.join(sorted(known))}", where=where)
