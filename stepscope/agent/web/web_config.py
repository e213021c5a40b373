"""Web config file in the format of Prometheus' exporter-toolkit: TLS, users, headers and rate limits.

Certificates and users change while the agent runs: `WebConfigReloader`. docs/guides/agent.md lists what differs. Errors
name the place and never the value, which may be a secret.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.core.errors import UsageError, from_os_error
from stepscope.core.text.numbers import unknown_name
from stepscope.store.files import read_text

if TYPE_CHECKING:
    import ssl  # OpenSSL takes 5 MB, which an agent without TLS does without

_MAX_BCRYPT_COST = 15
"""A check takes two seconds and more."""
_BCRYPT = re.compile(r"\$2[aby]\$(\d\d)\$[./A-Za-z0-9]{53}")
_HEADERS: dict[str, tuple[str, ...]] = {
    "Strict-Transport-Security": (),
    "X-Content-Type-Options": ("nosniff",),
    "X-Frame-Options": ("deny", "sameorigin"),
    "X-XSS-Protection": (),
    "Content-Security-Policy": (),
}
"""Headers that may be set, and their allowed values; none: any."""
_SECTIONS = ("tls_server_config", "http_server_config", "basic_auth_users", "rate_limit")
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:ns|us|µs|ms|s|m|h))+")
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True)
class WebConfig:
    """Content of a web config file: TLS, users and limits of the HTTP server.

    Attributes:
        users: bcrypt hashes by name; empty: no passwords.
        requests_per_second: limit; None: unlimited.
        burst: requests at once within that limit.
    """

    tls: TlsConfig | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    users: Mapping[str, bytes] = field(default_factory=dict)
    requests_per_second: float | None = None
    burst: int = 0

    @property
    def missing_protection(self) -> str:
        """What is missing for an address that other machines can reach; empty: nothing."""
        has_certificates = self.tls is not None and self.tls.client_auth is ClientAuth.REQUIRE
        has_login = has_certificates or bool(self.users)
        if self.tls is None:
            return (
                "the web config has users but no tls_server_config" if has_login else "there is neither TLS nor a login"
            )
        return (
            "" if has_login else "the web config has TLS but neither basic_auth_users nor required client certificates"
        )


def read_web_config(file: Path) -> WebConfig:
    """Read a web config file; relative paths in it are relative to its folder.

    Raises:
        UsageError: it cannot be read, or is invalid. One line with the key.
    """
    document = _mapping_field(_document(file), str(file))
    _refuse_unknown_keys(document, _SECTIONS, str(file))
    tls = _mapping_field(document.get("tls_server_config"), f"{file}: tls_server_config")
    users = _mapping_field(document.get("basic_auth_users"), f"{file}: basic_auth_users")
    return WebConfig(
        tls_config_of(tls, file) if tls else None,
        _headers(_mapping_field(document.get("http_server_config"), f"{file}: http_server_config"), file),
        {str(name): _hash(hashed, f"{file}: basic_auth_users.{name}") for name, hashed in users.items()},
        *_rate(_mapping_field(document.get("rate_limit"), f"{file}: rate_limit"), f"{file}: rate_limit"),
    )


def _document(file: Path) -> Any:
    import yaml

    try:
        return yaml.safe_load(read_text(file))
    except OSError as error:
        raise from_os_error(error, "cannot be read", where=str(file), kind=UsageError) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # the last two: invalid values, and nested brackets
        raise UsageError(f"is not YAML ({error})", where=str(file)) from None


def _rate(content: dict[str, Any], where: str) -> tuple[float | None, int]:
    _refuse_unknown_keys(content, ("interval", "burst"), where)
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
    _refuse_unknown_keys(content, ("http2", "headers"), where)
    headers = _mapping_field(content.get("headers"), f"{where}.headers")
    _refuse_unknown_keys(headers, _HEADERS, f"{where}.headers")
    for name in headers:
        value, allowed = _text_field(headers, name, f"{where}.headers"), _HEADERS[name]
        if allowed and value not in allowed:
            raise UsageError(f"must be one of {', '.join(allowed)}, not {value}", where=f"{where}.headers.{name}")
        if not value.isprintable() or not value.isascii():
            raise UsageError("must be plain characters on one line", where=f"{where}.headers.{name}")
    return {name: value for name, value in headers.items() if value}


def _hash(hashed: Any, where: str) -> bytes:
    match = _BCRYPT.fullmatch(hashed) if isinstance(hashed, str) else None
    if match is None:
        raise UsageError("is not a bcrypt hash", where=where, what_next='make one with htpasswd -nBC 10 ""')
    if not 4 <= int(match[1]) <= _MAX_BCRYPT_COST:
        raise UsageError(
            f"has cost {match[1]}, which makes a check take seconds", where=where, what_next="use 10 or 12"
        )
    return str(hashed).encode()


_VERSIONS = {"TLS10": "TLSv1", "TLS11": "TLSv1_1", "TLS12": "TLSv1_2", "TLS13": "TLSv1_3"}
"""Names of TLS versions in the file, and in `ssl.TLSVersion`."""
_INLINE = {"cert": "cert_file", "key": "key_file", "client_ca": "client_ca_file"}
_FILES = ("cert_file", "key_file", "client_ca_file")
_KEYS = (
    *_FILES,
    *("client_auth_type", "client_allowed_sans"),
    *("min_version", "max_version", "cipher_suites", "prefer_server_cipher_suites"),
)
_CIPHERS = {
    f"TLS_ECDHE_{key}_WITH_{go}": f"ECDHE-{key}-{openssl}"
    for key in ("ECDSA", "RSA")
    for go, openssl in (
        ("AES_128_GCM_SHA256", "AES128-GCM-SHA256"),
        ("AES_256_GCM_SHA384", "AES256-GCM-SHA384"),
        ("CHACHA20_POLY1305_SHA256", "CHACHA20-POLY1305"),
        ("AES_128_CBC_SHA", "AES128-SHA"),
        ("AES_256_CBC_SHA", "AES256-SHA"),
    )
}
"""Go's names of its secure suites up to TLS 1.2, and OpenSSL's. As in Go, those of TLS 1.3 cannot be chosen."""
_TLS13_CIPHERS = frozenset({"TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"})


class ClientAuth(StrEnum):
    """Which clients of the HTTP server must show a certificate."""

    NONE = "NoClientCert"
    REQUEST = "RequestClientCert"  # never verified, so the same as NONE
    IF_GIVEN = "VerifyClientCertIfGiven"
    REQUIRE = "RequireAndVerifyClientCert"


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """How connections to the HTTP server are encrypted.

    Attributes:
        cert_file, key_file: certificate chain and key, PEM.
        client_auth: which clients must have a certificate.
        client_ca_file: CAs that sign those; None: no CA.
        client_allowed_sans: subject alternative names, one of which a client's certificate must have; none: any.
        ciphers: OpenSSL's names of the suites up to TLS 1.2, the best first; none: OpenSSL's default.
    """

    cert_file: Path
    key_file: Path
    client_auth: ClientAuth
    client_ca_file: Path | None
    client_allowed_sans: tuple[str, ...]
    min_version: ssl.TLSVersion
    max_version: ssl.TLSVersion
    ciphers: tuple[str, ...] = ()


def tls_config_of(content: dict[str, Any], file: Path) -> TlsConfig:
    """Parse the section tls_server_config; paths in it are relative to the file's folder.

    Raises:
        UsageError: it is invalid. One line with the key.
    """
    where = f"{file}: tls_server_config"
    for inline, instead in _INLINE.items():
        if inline in content:
            raise UsageError("is not supported", where=f"{where}.{inline}", what_next=f"name a file in {instead}")
    _refuse_unknown_keys(content, _KEYS, where)
    cert, key, client_ca = (_text_field(content, name, where) for name in _FILES)
    if not cert or not key:
        raise UsageError(f"{'key_file' if cert else 'cert_file'} is missing", where=where)
    client_auth = _client_auth(_text_field(content, "client_auth_type", where, "NoClientCert"), where)
    checks = client_auth in (ClientAuth.IF_GIVEN, ClientAuth.REQUIRE)
    if checks and not client_ca:
        raise UsageError(f"client_auth_type {client_auth} needs client_ca_file", where=where)
    if client_ca and client_auth is ClientAuth.NONE:
        raise UsageError(f"client_ca_file without client_auth_type {ClientAuth.REQUIRE} has no effect", where=where)
    sans = _text_list_field(content, "client_allowed_sans", where)
    if sans and client_auth is not ClientAuth.REQUIRE:
        raise UsageError(f"client_allowed_sans needs client_auth_type {ClientAuth.REQUIRE}", where=where)
    min_version, max_version = (
        _version(content, "min_version", where, "TLS12"),
        _version(content, "max_version", where, "TLS13"),
    )
    if min_version > max_version:
        raise UsageError("min_version is newer than max_version", where=where)
    names = _text_list_field(content, "cipher_suites", where)
    for name in names:
        if name not in _CIPHERS and name not in _TLS13_CIPHERS:
            raise unknown_name("cipher suite", name, _CIPHERS, where=f"{where}.cipher_suites")
    return TlsConfig(
        file.parent / cert,
        file.parent / key,
        client_auth,
        file.parent / client_ca if client_ca else None,
        sans,
        min_version,
        max_version,
        tuple(_CIPHERS[name] for name in names if name in _CIPHERS),
    )


def _client_auth(text: str, where: str) -> ClientAuth:
    try:
        return ClientAuth(text)
    except ValueError:
        known = ", ".join(ClientAuth)
        raise UsageError(f"must be one of {known}, not {text}", where=f"{where}.client_auth_type") from None


def _version(content: dict[str, Any], name: str, where: str, default: str) -> ssl.TLSVersion:
    import ssl

    version = _text_field(content, name, where, default)
    if version not in _VERSIONS:
        raise UsageError(f"must be one of {', '.join(_VERSIONS)}, not {version}", where=f"{where}.{name}")
    return ssl.TLSVersion[_VERSIONS[version]]


def _mapping_field(value: Any, where: str) -> dict[str, Any]:
    """A mapping; empty where the key is absent."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise UsageError("must be a mapping", where=where)
    return {str(name): content for name, content in value.items()}


def _text_list_field(content: Mapping[str, Any], name: str, where: str) -> tuple[str, ...]:
    """A list of strings; empty where the key is absent."""
    value = content.get(name) or []
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise UsageError("must be a list of strings", where=f"{where}.{name}")
    return tuple(value)


def _text_field(content: Mapping[str, Any], name: str, where: str, default: str = "") -> str:
    value = content.get(name, default)
    if not isinstance(value, str):
        raise UsageError("must be a string", where=f"{where}.{name}")
    return value


def _refuse_unknown_keys(content: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    known = sorted(known)
    for name in content:
        if name not in known:
            raise unknown_name("key", name, known, where=where)


_log = logging.getLogger(__name__)

_RETRY_SECONDS = 5.0
_Stamp = tuple[tuple[int, int, int] | None, ...]


@dataclass(frozen=True, slots=True)
class _Loaded:
    config: WebConfig
    context: ssl.SSLContext | None
    stamp: _Stamp


class WebConfigReloader:
    """The web config as the file is now. It is read again whenever it or a file that it names has changed; while the
    new one is invalid, or would open the server to everybody, the last valid one stays and one log line says so.
    """

    def __init__(self, file: Path | None = None) -> None:
        """
        Args:
            file: None: no TLS and no users.

        Raises:
            UsageError: it is invalid.
        """
        self._file = file
        self._lock = threading.Lock()
        self._loaded = _Loaded(WebConfig(), None, ()) if file is None else _load(file)
        self._last_error = ""
        self._next_try = 0.0

    def config(self) -> WebConfig:
        return self._current().config

    def context(self) -> ssl.SSLContext | None:
        """TLS context of the next connection; None: it is not encrypted."""
        return self._current().context

    def _current(self) -> _Loaded:
        if self._file is not None:
            with self._lock:
                stamp = _stamp(_files(self._file, self._loaded.config.tls))
                if stamp != self._loaded.stamp and time.monotonic() >= self._next_try:
                    self._reload(self._file)
        return self._loaded

    def _reload(self, file: Path) -> None:
        try:
            loaded = _load(file)
            if (loaded.context is None) != (self._loaded.context is None):
                raise UsageError("TLS can be turned on or off only by a restart", where=str(file))
            if loaded.config.missing_protection and not self._loaded.config.missing_protection:
                raise UsageError("would let everybody in, which needs a restart", where=str(file))
        except UsageError as error:
            self._next_try = time.monotonic() + _RETRY_SECONDS
            if str(error) != self._last_error:
                self._last_error = str(error)
                _log.error("%s; the configuration read before stays in use", error)
            return
        self._loaded, self._last_error = loaded, ""


def _load(file: Path) -> _Loaded:
    stamp = _stamp([file])  # taken before reading: a change meanwhile is seen the next time
    _refuse_special([file])
    config = read_web_config(file)
    _refuse_special(_files(file, config.tls))
    stamp += _stamp(_files(file, config.tls)[1:])
    return _Loaded(config, _context(config.tls) if config.tls else None, stamp)


def _refuse_special(files: Iterable[Path]) -> None:
    """Reading a pipe would wait for ever, and every connection with it."""
    for file in files:
        if file.exists() and not file.is_file():
            raise UsageError("is not a file", where=str(file))


def _files(file: Path, tls: TlsConfig | None) -> list[Path]:
    named = (tls.cert_file, tls.key_file, tls.client_ca_file) if tls else ()
    return [file, *(one for one in named if one is not None)]


def _stamp(files: Iterable[Path]) -> _Stamp:
    return tuple(_stamp_of(file) for file in files)


def _stamp_of(file: Path) -> tuple[int, int, int] | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino, status.st_size


def _context(tls: TlsConfig) -> ssl.SSLContext:
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version, context.maximum_version = tls.min_version, tls.max_version
    try:
        for file in (tls.cert_file, tls.key_file):
            file.open("rb").close()  # ssl's error does not say which of them is missing
        context.load_cert_chain(tls.cert_file, tls.key_file, password=lambda: "")
    except ssl.SSLError as error:
        said = error.reason or error
        raise UsageError(
            f"is not a certificate with its key ({said})", where=f"{tls.cert_file}, {tls.key_file}"
        ) from None
    except OSError as error:
        raise from_os_error(error, "cannot be read", where=str(error.filename), kind=UsageError) from None
    if tls.ciphers:
        context.set_ciphers(":".join(tls.ciphers))
    checks = {ClientAuth.IF_GIVEN: ssl.CERT_OPTIONAL, ClientAuth.REQUIRE: ssl.CERT_REQUIRED}
    context.verify_mode = checks.get(tls.client_auth, ssl.CERT_NONE)
    if tls.client_ca_file is not None:
        try:
            context.load_verify_locations(tls.client_ca_file)
        except ssl.SSLError as error:
            raise UsageError(f"has no certificates ({error.reason or error})", where=str(tls.client_ca_file)) from None
        except OSError as error:
            raise from_os_error(error, "cannot be read", where=str(tls.client_ca_file), kind=UsageError) from None
    return context
