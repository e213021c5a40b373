"""Memory of the agent: modules that it never needs are not loaded."""

from __future__ import annotations

import subprocess
import sys

_NEVER = {"prometheus_client", "numpy", "yaml", "torch", "rich", "pynvml"} | {
    *("_ssl", "_hashlib", "http.client", "http.server", "email", "asyncio"),
    *("tempfile", "shutil", "bz2", "lzma", "random", "html", "pickle", "difflib"),
    *("stepscope.core.documents.analysis", "stepscope.collectors.dcgm_exporter", "stepscope.agent.kubernetes.reporter"),
}
"""pynvml is the reading process's alone; the others belong to other commands, or to settings that are off. OpenSSL
(`_ssl`, `_hashlib`) is for these, for events and for orders."""


def test_the_agent_loads_nothing_that_it_does_not_need() -> None:
    code = "import sys, stepscope.cli.agent, stepscope.agent.service; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert _NEVER & set(done.stdout.split()) == set()
