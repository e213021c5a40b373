"""A file of lines holds whole lines only, whatever happens to disk and process."""

from __future__ import annotations

from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepscope.training.run.run_files import WholeLinesFile
from tests.training.full_disk import run_on_small_disk, run_with_file_limit

_FILL = """
import sys
from pathlib import Path
from stepscope.training.run.run_files import WholeLinesFile

path = Path(sys.argv[1]) / "deep" / "lines"
lines, whole = WholeLinesFile(path), 0
try:
    while True:
        lines.write(b"".join(b"%06d %s\\n" % (number, b"x" * 92) for number in range(whole, whole + 7)))
        whole += 7
except OSError as error:
    lines.close()
    content = path.read_bytes()
    assert content.endswith(b"\\n"), content[-200:]
    numbers = [int(line[:6]) for line in content.splitlines()]
    assert numbers == list(range(len(numbers))), numbers[-9:]
    assert whole <= len(numbers) < whole + 7
    print(error.errno, len(numbers))
"""


def test_a_full_disk_leaves_every_line_that_found_room_and_no_half_one(tmp_path: Path) -> None:
    errno, num_lines = run_on_small_disk(tmp_path, 64 << 10, _FILL).split()
    assert errno == "28"  # ENOSPC
    assert 400 < int(num_lines) <= 64 * 1024 // 100


def test_a_file_that_may_not_grow_ends_with_a_whole_line(tmp_path: Path) -> None:
    assert run_with_file_limit(5_050, _FILL, str(tmp_path)).split() == ["27", "50"]  # EFBIG


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(before=st.binary(max_size=40).map(lambda text: text.replace(b"\r", b"\n")))
def test_the_half_line_of_a_killed_process_is_removed_and_whole_ones_stay(tmp_path: Path, before: bytes) -> None:
    path = tmp_path / "lines"
    path.write_bytes(before)
    lines = WholeLinesFile(path)
    lines.write(b"next\n")
    lines.close()
    lines.close()
    assert path.read_bytes() == before[: before.rfind(b"\n") + 1] + b"next\n"
