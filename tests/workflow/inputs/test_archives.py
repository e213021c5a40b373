"""Archives are analyzed as their folders would be, without unpacking them to disk."""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import fsspec
import pytest

from stepscope.core.documents.analysis import Analysis
from stepscope.core.errors import DataError
from stepscope.workflow.analyze import analyze
from stepscope.workflow.fan_out.engine import FanOut
from stepscope.workflow.inputs.archives import absolute, split_address
from stepscope.workflow.inputs.trace_files import find_trace_files, open_ranks
from stepscope.workflow.trace_info import read_trace_info
from tests.workflow.written_traces import write_straggling_job, write_trace

Pack = Callable[[Path, Path], None]


def _tar(folder: Path, archive: Path) -> None:
    with tarfile.open(archive, "w:gz" if archive.suffix in (".gz", ".tgz", ".bin") else "w") as opened:
        opened.add(folder, arcname=folder.name)


def _zip(folder: Path, archive: Path) -> None:
    with zipfile.ZipFile(archive, "w") as opened:
        for file in sorted(folder.rglob("*")):
            opened.write(file, file.relative_to(folder))


@pytest.fixture(params=["a.tar", "a.tar.gz", "a.tgz", "odd.bin", "a.zip"])
def packed(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Path]:
    """A job's folder, and an archive of it."""
    job = write_straggling_job(tmp_path / "job")
    (job / "._rank0.json.gz").write_bytes(b"a Mac's notes")
    (job / "README.txt").write_text("not a trace")
    archive = tmp_path / "packed" / request.param
    archive.parent.mkdir()
    (_zip if archive.suffix == ".zip" else _tar)(job, archive)
    return job, archive


def _plain(analysis: Analysis) -> Analysis:
    return replace(analysis, warnings=[])


@pytest.mark.parametrize("num_workers", [1, 2])
def test_an_archive_gives_the_analysis_of_its_folder(packed: tuple[Path, Path], num_workers: int) -> None:
    job, archive = packed
    apart = analyze([str(job)], keep=False).analysis
    result = analyze([str(archive)], fan_out=FanOut(num_workers=num_workers))
    assert _plain(result.analysis) == _plain(apart)
    assert result.analysis.verdict.ranks == [1]
    assert sorted(path.name for path in archive.parent.iterdir()) == [archive.name]


def test_information_names_each_member(packed: tuple[Path, Path]) -> None:
    _, archive = packed
    info = read_trace_info([str(archive)])
    assert [file.rank for file in info.files] == [0, 1]
    assert all(file.path.startswith(f"{archive}::") for file in info.files)


def test_a_member_can_be_given_by_its_address(packed: tuple[Path, Path]) -> None:
    _, archive = packed
    address = find_trace_files([str(archive)]).paths[1]
    assert find_trace_files([address]).paths == [address]
    (trace,) = open_ranks(address)
    assert trace.header.rank == 1


def test_an_archive_of_an_object_store_is_read(packed: tuple[Path, Path]) -> None:
    _, archive = packed
    if archive.name == "odd.bin":
        pytest.skip("in a store archives are known by their names")
    store = fsspec.filesystem("memory")
    store.pipe_file(f"/bucket/{archive.name}", archive.read_bytes())
    try:
        here = FanOut(num_workers=1)  # another process has a memory of its own
        analysis = analyze([f"memory://bucket/{archive.name}"], fan_out=here).analysis
    finally:
        store.rm("/bucket", recursive=True)
    assert analysis.job.ranks == [0, 1]


def test_a_folder_without_traces_names_the_archives_in_it(packed: tuple[Path, Path]) -> None:
    _, archive = packed
    if archive.name == "odd.bin":
        pytest.skip("in a folder archives are known by their names")
    with pytest.raises(DataError, match=rf"holds no trace .*, but {archive.name}; give the archive"):
        find_trace_files([str(archive.parent)])


def test_names_of_members_are_never_paths(tmp_path: Path) -> None:
    outside = write_trace(tmp_path / "rank5.json", 5)
    archive = tmp_path / "packed" / "a.tar"
    archive.parent.mkdir()
    with tarfile.open(archive, "w") as opened:
        for rank in (0, 1):
            content = write_trace(tmp_path / "job" / f"rank{rank}.json", rank).read_bytes()
            member = tarfile.TarInfo(f"../rank{rank + 5}.json")
            member.size = len(content)
            opened.addfile(member, io.BytesIO(content))
    assert analyze([str(archive)]).analysis.job.ranks == [0, 1]
    assert outside.is_file()
    assert absolute(f"{archive}::../../x.json") == f"{archive}::../../x.json"
    with pytest.raises(DataError, match="is not in the archive"):
        open_ranks(f"{archive}::../rank1.json")


def test_a_run_directory_may_be_packed(tmp_path: Path) -> None:
    run = tmp_path / "run"
    for step in (5, 20):
        for rank in (0, 1):
            write_trace(run / "traces" / f"step{step}" / f"rank{rank}.json.gz", rank, later_us=1e6 * step)
    (run / "run.json").write_text("{}")
    (run / "memory").mkdir()
    (run / "memory" / "rank0.json").write_text("{}")
    _tar(run, tmp_path / "run.tar.gz")
    found = find_trace_files([str(tmp_path / "run.tar.gz")])
    assert [path.partition("::")[2] for path in found.paths] == [
        f"run/traces/step20/rank{rank}.json.gz" for rank in (0, 1)
    ]
    assert [notice.code for notice in found.notices] == ["older_captures"]


def test_a_packed_run_directory_says_that_its_step_records_are_not_read(tmp_path: Path) -> None:
    run = tmp_path / "run"
    write_trace(run / "traces" / "step5" / "rank0.json.gz")
    (run / "steps").mkdir()
    (run / "steps" / "rank0.jsonl").write_text("{}\n")
    _tar(run, tmp_path / "run.tar")
    (notice,) = [one for one in find_trace_files([str(tmp_path / "run.tar")]).notices if one.code == "steps_not_read"]
    assert "unpack it, and give the run directory" in notice.message


def test_folders_of_several_jobs_are_refused(tmp_path: Path) -> None:
    for name in ("first", "second"):
        write_trace(tmp_path / "jobs" / name / "rank0.json")
    _tar(tmp_path / "jobs", tmp_path / "jobs.tar")
    with pytest.raises(DataError, match=r"holds folders of traces \(jobs/first, jobs/second\)"):
        find_trace_files([str(tmp_path / "jobs.tar")])


def test_an_archive_without_traces_says_what_is_in_it(tmp_path: Path) -> None:
    for name, says in (
        ("data.pkl", "is a file of torch.save"),
        ("notes.txt", r"without traces .*: archive/notes\.txt"),
    ):
        with zipfile.ZipFile(tmp_path / "a.pt", "w") as opened:
            opened.writestr(f"archive/{name}", b"x")
        with pytest.raises(DataError, match=says):
            find_trace_files([str(tmp_path / "a.pt")])


def test_an_archive_cut_short_is_said_and_gives_the_ranks_that_are_whole(tmp_path: Path) -> None:
    job = write_straggling_job(tmp_path / "job")
    _tar(job, tmp_path / "a.tar")
    whole = (tmp_path / "a.tar").read_bytes()
    end = whole.index(b"job/rank1.json.gz") + 600
    (tmp_path / "a.tar").write_bytes(whole[:end])
    analysis = analyze([str(tmp_path / "a.tar")]).analysis
    assert analysis.job.ranks == [0]
    assert {notice.code for notice in analysis.warnings} >= {"cut_archive", "unusable_file"}


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("s3://b/a.tar.gz::x/rank0.json", ("s3://b/a.tar.gz", "x/rank0.json")),
        ("s3://b/a.tar.gz", ("s3://b/a.tar.gz", None)),
        ("simplecache::s3://b/a.json", ("simplecache::s3://b/a.json", None)),
        ("zip://x.json::s3://b/a.zip", ("zip://x.json::s3://b/a.zip", None)),
        ("zip://x.zip::s3://b/a.zip", ("zip://x.zip::s3://b/a.zip", None)),
        ("absent.tar::x", ("absent.tar::x", None)),
    ],
)
def test_addresses_are_told_from_paths_and_chained_urls(address: str, parts: tuple[str, str | None]) -> None:
    assert split_address(address) == parts
