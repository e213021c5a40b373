"""Errors of object stores that are read through fsspec, as one line with what to do."""

from __future__ import annotations

import socket
import sys

from stepscope.core.errors import DataError, StepscopeError, UnreachableError

_CLIENT_ERRORS = (
    ("botocore.exceptions", "BotoCoreError"),  # s3fs: no credentials, no answer
    ("aiohttp", "ClientError"),  # http, and below s3fs and gcsfs
    ("google.auth.exceptions", "GoogleAuthError"),  # gcsfs
    ("gcsfs.retry", "HttpError"),
    ("azure.core.exceptions", "AzureError"),  # adlfs
)
"""Root of each client's errors that are not OSErrors; s3fs turns a server's answers into OSErrors."""

_NO_CREDENTIALS = frozenset({"NoCredentialsError", "PartialCredentialsError", "DefaultCredentialsError"})
_CHECK_RIGHTS = "check that the credentials may read it"
_CREDENTIALS = "provide credentials as for the store's own tools (documentation: Many ranks)"
_CHECK_URL = "check the URL, the endpoint and the network"


def store_errors() -> tuple[type[Exception], ...]:
    """Input URLs: exception types of opening, listing or reading one; a client that raised is imported already."""
    clients = ((sys.modules.get(module), name) for module, name in _CLIENT_ERRORS)
    return (OSError, ImportError, ValueError, *(getattr(module, name) for module, name in clients if module))


def store_error(url: str, error: Exception) -> StepscopeError:
    """Input URLs: the StepscopeError for an error of an object store."""
    from fsspec.registry import known_implementations

    protocol = url.partition("://")[0]
    if isinstance(error, ImportError):
        return _without_driver(url, protocol, error)
    if isinstance(error, ValueError) and protocol not in known_implementations:
        return DataError(f"{protocol}:// is not a known kind of store", where=url, what_next="check the URL")
    if isinstance(error, FileNotFoundError):
        return DataError("does not exist", where=url, what_next="check the URL")
    if type(error).__name__ in _NO_CREDENTIALS:
        return UnreachableError(f"cannot be opened ({error})", where=url, what_next=_CREDENTIALS)
    if isinstance(error, PermissionError):
        return UnreachableError(f"access is denied ({error})", where=url, what_next=_CHECK_RIGHTS)
    return UnreachableError(f"cannot be opened ({error})", where=url, what_next=_CHECK_URL)


def _without_driver(url: str, protocol: str, error: ImportError) -> DataError:
    """The error names the machine: it may be a cluster's worker that lacks the driver."""
    missing = next((e.name for e in (error.__cause__, error) if isinstance(e, ImportError) and e.name), None)
    package = "stepscope[s3]" if missing == "s3fs" else (missing or f"fsspec[{protocol}]").partition(".")[0]
    what = f"the driver of {protocol}:// ({missing or error}) is not installed on {socket.gethostname()}"
    return DataError(what, where=url, what_next=f'run: pip install "{package}"')
