"""Archives are read member by member, whatever their writer; damage and absurd sizes are refused in one line."""

from __future__ import annotations

import contextlib
import gzip
import io
import tarfile
import zipfile
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.core.errors import DataError
from stepscope.trace import archive, inflating
from stepscope.trace.archive import HEAD_BYTES, is_archive, list_members, open_member

FILES = {"traces/rank0.json": b"first" * 500, "traces/" + "long" * 60 + "/rank1.json.gz": b"", "../../etc/passwd": b"x"}


def tar_of(files: Mapping[str, bytes], *, packed: bool = False, form: int = tarfile.PAX_FORMAT) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz" if packed else "w", format=form) as opened:
        folder = tarfile.TarInfo("traces")
        folder.type = tarfile.DIRTYPE
        opened.addfile(folder)
        link = tarfile.TarInfo("traces/latest.json")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        opened.addfile(link)
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            opened.addfile(member, io.BytesIO(content))
    return stream.getvalue()


def zip_of(files: Mapping[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as opened:
        opened.mkdir("traces")
        for name, content in files.items():
            opened.writestr(name, content)
    return stream.getvalue()


def read_all(content: bytes) -> dict[str, bytes]:
    contents = list_members(io.BytesIO(content), path="a")
    assert contents.is_whole
    found = {}
    for member in contents.members:
        with open_member(io.BytesIO(content), member.name, path="a") as opened:
            assert opened.num_bytes == member.num_bytes
            found[member.name] = opened.read(1 << 20)
            assert opened.read(10) == b""
    return found


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
@pytest.mark.parametrize("packed", [False, True])
def test_a_tar_of_any_writer_gives_its_files(form: int, packed: bool) -> None:
    files = {name: content for name, content in FILES.items() if form != tarfile.USTAR_FORMAT or len(name) < 200}
    content = tar_of(files, packed=packed, form=form)
    assert is_archive(content[:HEAD_BYTES])
    assert read_all(content) == files


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_zip_gives_its_files(method: int) -> None:
    content = zip_of(FILES, method)
    assert is_archive(content[:HEAD_BYTES])
    assert read_all(content) == FILES


NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=30).filter(
    lambda name: name.strip("/") and not name.endswith("/") and not name.startswith("/")
)


@given(st.dictionaries(NAMES, st.binary(max_size=1500), max_size=4), st.booleans())
def test_any_files_come_back_as_they_went(files: dict[str, bytes], packed: bool) -> None:
    assert read_all(tar_of(files, packed=packed)) == files


@pytest.mark.parametrize(
    "content", [b"", b"{", b'{"traceEvents": []}', gzip.compress(b'{"traceEvents": []}', mtime=0), b"\0" * 1024]
)
def test_what_is_no_archive_is_not_taken_for_one(content: bytes) -> None:
    assert not is_archive(content[:HEAD_BYTES])


def test_of_files_of_the_same_name_the_last_is_read() -> None:
    stream = io.BytesIO(tar_of({"a": b"1"}))
    with tarfile.open(fileobj=stream, mode="a") as opened:
        member = tarfile.TarInfo("a")
        member.size = 2
        opened.addfile(member, io.BytesIO(b"22"))
    assert read_all(stream.getvalue()) == {"a": b"22"}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_an_archive_cut_short_gives_what_it_still_holds_and_says_so(packed: bool, share: float) -> None:
    whole = tar_of({f"rank{rank}.json": bytes(range(256)) * 40 for rank in range(8)}, packed=packed)
    if packed:
        whole = gzip.compress(gzip.decompress(whole), compresslevel=0)
    contents = list_members(io.BytesIO(whole[: int(len(whole) * share)]), path="a.tar")
    assert 0 < len(contents.members) <= 8
    assert not contents.is_whole


def test_a_member_that_is_not_there_is_one_line() -> None:
    for content in (tar_of(FILES), zip_of(FILES)):
        with (
            pytest.raises(DataError, match=r"a\.tar: nothing: is not in the archive"),
            open_member(io.BytesIO(content), "nothing", path="a.tar"),
        ):
            pass


@given(st.binary(max_size=300), st.integers(0, 2**32), st.sampled_from([False, True, None]))
def test_damage_ends_in_data_or_in_one_line(junk: bytes, place: int, packed: bool | None) -> None:
    content = bytearray(zip_of(FILES) if packed is None else tar_of(FILES, packed=packed))
    start = place % len(content)
    content[start : start + len(junk)] = junk
    with contextlib.suppress(DataError):
        members = list_members(io.BytesIO(bytes(content)), path="a").members
        for member in members:
            with open_member(io.BytesIO(bytes(content)), member.name, path="a") as opened:
                while opened.read(1 << 16):
                    pass


def test_absurd_sizes_are_refused() -> None:
    header = bytearray(tar_of({"a": b""})[1024:1536])
    header[124:136] = b"\x80" + (2**60).to_bytes(11, "big")
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    with pytest.raises(DataError, match="holds a file of 1,048,576 TiB by its own account: refused"):
        list_members(io.BytesIO(bytes(header)), path="a.tar")


def test_a_header_that_would_fill_the_memory_is_refused() -> None:
    with pytest.raises(DataError, match="absurdly large header: refused"):
        list_members(io.BytesIO(tar_of({"x" * 100_000: b""}, form=tarfile.GNU_FORMAT)), path="a.tar")


def test_more_files_than_any_job_writes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MAX_MEMBERS", 2)
    for content in (tar_of(FILES), zip_of(FILES)):
        with pytest.raises(DataError, match="holds over 2 files: refused"):
            list_members(io.BytesIO(content), path="a.tar")


def test_bombs_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inflating, "RATIO_COUNTS_FROM_BYTES", 100_000)
    zeros = {"rank0.json": bytes(2_000_000)}
    with pytest.raises(DataError, match="inflates to over 400 times its size: refused"):
        list_members(io.BytesIO(tar_of(zeros, packed=True)), path="a.tar.gz")
    with (
        pytest.raises(DataError, match=r"a\.zip: rank0\.json: inflates to over 400 times"),
        open_member(io.BytesIO(zip_of(zeros)), "rank0.json", path="a.zip"),
    ):
        pass
    assert read_all(zip_of({"a": bytes(range(256)) * 4000}))["a"]


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_another_compression_is_one_line(method: int) -> None:
    content = zip_of({"rank0.json": b"x"}, method)
    with (
        pytest.raises(DataError, match="not packed by deflate"),
        open_member(io.BytesIO(content), "rank0.json", path="a.zip"),
    ):
        pass


def test_an_encrypted_file_is_one_line() -> None:
    content = zip_of({"rank0.json": b"x"})
    content = content.replace(b"PK\x01\x02\x14\x03\x14\x00\x00", b"PK\x01\x02\x14\x03\x14\x00\x01")
    with pytest.raises(DataError, match="is encrypted"), open_member(io.BytesIO(content), "rank0.json", path="a.zip"):
        pass


def test_a_sparse_file_is_one_line() -> None:
    header = bytearray(tar_of({"a": b""}, form=tarfile.GNU_FORMAT)[1024:1536])
    header[156:157] = b"S"
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    with pytest.raises(DataError, match="holds a sparse file"):
        list_members(io.BytesIO(bytes(header)), path="a.tar")
