"""Files of a machine: whatever lies in place of one, reading it waits for nothing."""

from __future__ import annotations

import os
from pathlib import Path

from stepscope.collectors.host.files import Files


def test_a_pipe_reads_as_empty(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "0")
    assert Files(tmp_path).read("0") == ""
    writer = os.open(tmp_path / "0", os.O_RDWR)
    try:
        assert Files(tmp_path).read("0") == ""
    finally:
        os.close(writer)
    (tmp_path / "1").write_text("42\n")
    assert Files(tmp_path).read("1") == "42\n"
