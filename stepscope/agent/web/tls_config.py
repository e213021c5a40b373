"""How does the section `tls_server_config` of a web config want connections to be encrypted?"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from stepscope.agent.web.fields import refuse_others, text, texts
from stepscope.core.errors import UsageError

_VERSIONS = {
    "TLS10": ssl.TLSVersion.TLSv1,
    "TLS11": ssl.TLSVersion.TLSv1_1,
    "TLS12": ssl.TLSVersion.TLSv1_2,
    "TLS13": ssl.TLSVersion.TLSv1_3,
}
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
_ALWAYS = frozenset({"TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"})


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
        ciphers: OpenSSL's names of the suites up to TLS 1.2, the best first; none: OpenSSL's choice.
    """

    cert_file: Path
    key_file: Path
    client_auth: ClientAuth
    client_ca_file: Path | None
    client_allowed_sans: tuple[str, ...]
    min_version: ssl.TLSVersion
    max_version: ssl.TLSVersion
    ciphers: tuple[str, ...] = ()


def tls_of(content: dict[str, Any], file: Path) -> TlsConfig:
    """What the section says.

    Args:
        content: of the section.
        file: which it is of; relative paths are beside it.

    Raises:
        UsageError: it says what there is not. One line with the key.
    """
    where = f"{file}: tls_server_config"
    for inline, instead in _INLINE.items():
        if inline in content:
            raise UsageError("is not read from here", where=f"{where}.{inline}", what_next=f"name a file in {instead}")
    refuse_others(content, _KEYS, where)
    cert, key, client_ca = (text(content, name, where) for name in _FILES)
    if not cert or not key:
        raise UsageError(f"{'key_file' if cert else 'cert_file'} is missing", where=where)
    client_auth = _client_auth(text(content, "client_auth_type", where, "NoClientCert"), where)
    checks = client_auth in (ClientAuth.IF_GIVEN, ClientAuth.REQUIRE)
    if checks and not client_ca:
        raise UsageError(f"client_auth_type {client_auth} needs client_ca_file", where=where)
    if client_ca and client_auth is ClientAuth.NONE:
        raise UsageError(f"client_ca_file without client_auth_type {ClientAuth.REQUIRE} checks nobody", where=where)
    sans = texts(content, "client_allowed_sans", where)
    if sans and client_auth is not ClientAuth.REQUIRE:
        raise UsageError(f"client_allowed_sans needs client_auth_type {ClientAuth.REQUIRE}", where=where)
    least, most = _version(content, "min_version", where, "TLS12"), _version(content, "max_version", where, "TLS13")
    if least > most:
        raise UsageError("min_version is newer than max_version", where=where)
    return TlsConfig(
        file.parent / cert,
        file.parent / key,
        client_auth,
        file.parent / client_ca if client_ca else None,
        sans,
        least,
        most,
        _ciphers(texts(content, "cipher_suites", where), where),
    )


def _client_auth(told: str, where: str) -> ClientAuth:
    try:
        return ClientAuth(told)
    except ValueError:
        known = ", ".join(ClientAuth)
        raise UsageError(f"must be one of {known}, not {told}", where=f"{where}.client_auth_type") from None


def _version(content: dict[str, Any], name: str, where: str, default: str) -> ssl.TLSVersion:
    told = text(content, name, where, default)
    if told not in _VERSIONS:
        raise UsageError(f"must be one of {', '.join(_VERSIONS)}, not {told}", where=f"{where}.{name}")
    return _VERSIONS[told]


def _ciphers(names: tuple[str, ...], where: str) -> tuple[str, ...]:
    for name in names:
        if name not in _CIPHERS and name not in _ALWAYS:
            known = ", ".join(_CIPHERS)
            raise UsageError(f"has no {name}; known: {known}", where=f"{where}.cipher_suites")
    return tuple(_CIPHERS[name] for name in names if name in _CIPHERS)
