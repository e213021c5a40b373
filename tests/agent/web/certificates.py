"""Certificates made by the openssl command, as an operator makes them."""

from __future__ import annotations

import subprocess
from pathlib import Path

_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")


def self_signed(folder: Path, name: str, alternative: str = "IP:127.0.0.1") -> tuple[Path, Path]:
    """A certificate that signs itself, and its key."""
    cert, key = folder / f"{name}.crt", folder / f"{name}.key"
    _openssl(
        "req", "-x509", *_NEW_KEY, "-subj", f"/CN={name}", "-addext", f"subjectAltName={alternative}",
        "-keyout", key, "-out", cert,
    )  # fmt: skip
    return cert, key


def signed(folder: Path, name: str, by: tuple[Path, Path], alternative: str) -> tuple[Path, Path]:
    """A certificate signed by another, and its key."""
    cert, key, request, names = (folder / f"{name}{end}" for end in (".crt", ".key", ".csr", ".ext"))
    names.write_text(f"subjectAltName={alternative}\n")
    _openssl("req", *_NEW_KEY, "-subj", f"/CN={name}", "-keyout", key, "-out", request)
    ca, ca_key = by
    _openssl("x509", "-req", "-in", request, "-CA", ca, "-CAkey", ca_key, "-CAcreateserial", "-days", "2",
             "-extfile", names, "-out", cert)  # fmt: skip
    return cert, key


def _openssl(*arguments: object) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)
