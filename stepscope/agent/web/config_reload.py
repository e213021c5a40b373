"""Reload of the web config file: certificates and users change while the agent runs."""

from __future__ import annotations

import logging
import ssl
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from stepscope.agent.web.web_config import ClientAuth, TlsConfig, WebConfig, read_web_config
from stepscope.core.errors import UsageError, from_os_error

_log = logging.getLogger(__name__)

_RETRY_SECONDS = 5.0
_Stamp = tuple[tuple[int, int, int] | None, ...]
_CHECKS = {
    ClientAuth.NONE: ssl.CERT_NONE,
    ClientAuth.REQUEST: ssl.CERT_NONE,
    ClientAuth.IF_GIVEN: ssl.CERT_OPTIONAL,
    ClientAuth.REQUIRE: ssl.CERT_REQUIRED,
}


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
        """The current config."""
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
            _refuse_opening(loaded, self._loaded, file)
        except UsageError as error:
            self._next_try = time.monotonic() + _RETRY_SECONDS
            if str(error) != self._last_error:
                self._last_error = str(error)
                _log.error("%s; the configuration read before stays in use", error)
            return
        self._loaded, self._last_error = loaded, ""


def _refuse_opening(after: _Loaded, before: _Loaded, file: Path) -> None:
    if (after.context is None) != (before.context is None):
        raise UsageError("TLS can be turned on or off only by a restart", where=str(file))
    if before.config.keeps_others_out and not after.config.keeps_others_out:
        raise UsageError("would let everybody in, which needs a restart", where=str(file))


def _load(file: Path) -> _Loaded:
    stamp = _stamp([file])  # taken before reading: a change meanwhile is seen the next time
    config = read_web_config(file)
    stamp += _stamp(_files(file, config.tls)[1:])
    return _Loaded(config, _context(config.tls) if config.tls else None, stamp)


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
    context.verify_mode = _CHECKS[tls.client_auth]
    if tls.client_ca_file is not None:
        try:
            context.load_verify_locations(tls.client_ca_file)
        except ssl.SSLError as error:
            raise UsageError(f"has no certificates ({error.reason or error})", where=str(tls.client_ca_file)) from None
        except OSError as error:
            raise from_os_error(error, "cannot be read", where=str(tls.client_ca_file), kind=UsageError) from None
    return context
