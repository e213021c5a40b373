"""Check of the node's agent: answers on its web address and its socket."""

from __future__ import annotations

import http.client
import socket
import ssl
from collections.abc import Iterator

from stepscope.core.documents.machine_checks import DoctorLine, DoctorState

_SECONDS = 2.0
_START = "start it: stepscope agent run"
_OK, _WARN, _FAIL = DoctorState.OK, DoctorState.WARN, DoctorState.FAIL


def look_at_agent(address: str, socket_path: str) -> Iterator[DoctorLine]:
    """Check the agent's web address and socket.

    Args:
        address: host:port on which it is configured to listen.
        socket_path: of its Unix socket; @name for an abstract one, empty for none.
    """
    yield _web(address)
    if socket_path:
        yield _socket(socket_path)


def _web(address: str) -> DoctorLine:
    host, _, port = address.rpartition(":")
    host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "[::]": "::1"}.get(host, host.strip("[]"))
    if not port.isdecimal() or port == "0":
        return DoctorLine("agent", _OK, f"{address} is not an address that can be checked")
    status = _status(http.client.HTTPConnection(host, int(port), timeout=_SECONDS))
    if status is None:
        unchecked = ssl.create_default_context()
        unchecked.check_hostname, unchecked.verify_mode = False, ssl.CERT_NONE  # only whether it is there
        status = _status(http.client.HTTPSConnection(host, int(port), timeout=_SECONDS, context=unchecked))
    if status is None:
        return DoctorLine("agent", _WARN, f"none answers at {address}", _START)
    if status == 200:
        return DoctorLine("agent", _OK, f"answers at {address}")
    return DoctorLine("agent", _FAIL, f"what answers at {address} is none, or not well (HTTP {status})", _START)


def _status(connection: http.client.HTTPConnection) -> int | None:
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def _socket(path: str) -> DoctorLine:
    place = "\0" + path[1:] if path.startswith("@") else path
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(_SECONDS)
        try:
            client.connect(place)
        except FileNotFoundError:
            return DoctorLine("agent's socket", _WARN, f"{path} is not there: training cannot be captured", _START)
        except PermissionError:
            advice = "open its folder and the socket to this user (setting training.socket_mode)"
            return DoctorLine("agent's socket", _FAIL, f"{path} may not be opened by this user", advice)
        except OSError as error:
            why = error.strerror or str(error)
            return DoctorLine("agent's socket", _WARN, f"{path}: nobody listens ({why})", _START)
    return DoctorLine("agent's socket", _OK, f"{path} answers")
