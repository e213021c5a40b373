"""Types of the Python API, which `stepscope` imports when it is first used."""

from typing import Any

from stepscope.api import compare as compare
from stepscope.api import compare_memory as compare_memory
from stepscope.api import doctor as doctor
from stepscope.api import goodput as goodput
from stepscope.api import hang as hang
from stepscope.api import health as health
from stepscope.api import history as history
from stepscope.api import load as load
from stepscope.api import memory as memory
from stepscope.api import nccl as nccl
from stepscope.api import preflight as preflight
from stepscope.api import runs as runs
from stepscope.api import status as status
from stepscope.api import top as top
from stepscope.api import trace_info as trace_info

__version__: str

def __getattr__(name: str) -> Any: ...
