"""What does the kubelet tell of devices, and since when does it not?"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from dataclasses import dataclass

from stepscope.collectors.jobs.kubernetes.grpc_call import GrpcError, call
from stepscope.collectors.jobs.kubernetes.pod_resources import LIST, GivenDevice, given_devices
from stepscope.collectors.jobs.kubernetes.protobuf import WireError
from stepscope.collectors.jobs.settings import KUBELET_SOCKET
from stepscope.core.gpu_metrics import GPU
from stepscope.core.readings import Collection, Missing, MissingReason

_SECONDS = 5.0
_KEPT_SECONDS = 60.0
"""A kubelet that restarts takes none of its pods' devices away."""
_UNIMPLEMENTED, _PERMISSION_DENIED = 12, 7


@dataclass(slots=True)
class KubeletCollector:
    """Asks the kubelet of this node, each time it is collected; to be asked in a thread of its own.

    Attributes:
        socket: its path.
        seconds: how long an answer may take.
        given: what it told last; nothing once it is silent for a minute, as pods come and go meanwhile.
    """

    socket: str = KUBELET_SOCKET
    seconds: float = _SECONDS
    clock: Callable[[], float] = time.monotonic
    given: tuple[GivenDevice, ...] = ()
    _answered: float = 0.0

    def given_now(self) -> tuple[GivenDevice, ...]:
        """What it told last; waits for nothing."""
        return self.given

    def collect(self) -> Collection:
        """Ask once; nothing is raised."""
        try:
            self.given = tuple(given_devices(call(self.socket, LIST, b"", seconds=self.seconds)))
        except TimeoutError:
            return self._failed(MissingReason.TIMED_OUT, f"no answer within {self.seconds:g} s")
        except OSError as error:
            return self._failed(_reason_of(error), error.strerror or str(error))
        except GrpcError as error:
            known = {_UNIMPLEMENTED: MissingReason.NOT_SUPPORTED, _PERMISSION_DENIED: MissingReason.NO_PERMISSION}
            return self._failed(known.get(error.status or 0, MissingReason.UNREACHABLE), str(error))
        except WireError as error:
            return self._failed(MissingReason.UNREADABLE, f"its answer cannot be read: {error}")
        self._answered = self.clock()
        return Collection()

    def _failed(self, reason: MissingReason, detail: str) -> Collection:
        if self.clock() - self._answered >= _KEPT_SECONDS:
            self.given = ()
        return Collection(missing=(Missing(GPU + "job_info", (), reason, f"kubelet at {self.socket}: {detail}"),))


def _reason_of(error: OSError) -> MissingReason:
    if error.errno in (errno.EACCES, errno.EPERM):
        return MissingReason.NO_PERMISSION
    return MissingReason.NOT_INSTALLED if error.errno == errno.ENOENT else MissingReason.UNREACHABLE
