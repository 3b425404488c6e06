"""Archives of others: they unpack whole, below one folder, as plain files, or leave nothing behind."""

import gzip
import io
import os
import stat
import tarfile
import zipfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tllib_ext.vision import archives
from tllib_ext.vision.archives import ArchiveError, unpack

FILES = {"data/a.txt": b"one", "data/deep/b.bin": bytes(range(256)) * 9, "data/empty": b""}


def tar_bytes(entries, mode="w:gz"):
    """A tar of ``(TarInfo or name, content)``."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:
        for entry, content in entries:
            info = tarfile.TarInfo(entry) if isinstance(entry, str) else entry
            if info.isreg():
                info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def zip_bytes(entries):
    """A zip of ``(ZipInfo or name, content)``."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for entry, content in entries:
            archive.writestr(entry, content)
    return buffer.getvalue()


def of_type(kind, name="data/x", target=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def zip_link(name="data/x"):
    info = zipfile.ZipInfo(name)
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    return info


def written(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("kind", ["zip", "w", "w:gz", "w:bz2", "w:xz"])
def test_every_kind_unpacks_to_what_was_packed(kind, tmp_path):
    content = zip_bytes(FILES.items()) if kind == "zip" else tar_bytes(FILES.items(), kind)
    (tmp_path / "archive").write_bytes(content)  # the name tells nothing
    unpack(tmp_path / "archive", tmp_path / "out")
    assert written(tmp_path / "out") == FILES


def test_owners_and_permissions_are_left_out(tmp_path):
    info = tarfile.TarInfo("data/x")
    info.mode, info.uid = 0o4777, 12345
    (tmp_path / "a.tgz").write_bytes(tar_bytes([(info, b"x")]))
    unpack(tmp_path / "a.tgz", tmp_path / "out")
    status = (tmp_path / "out" / "data" / "x").stat()
    assert status.st_uid == os.getuid() and not status.st_mode & (stat.S_ISUID | stat.S_IXUSR | stat.S_IWOTH)


HOSTILE = {
    "absolute": (tar_bytes([("/tmp/sprung", b"x")]), "an absolute path"),
    "absolute zip": (zip_bytes([("/tmp/sprung", b"x")]), "an absolute path"),
    "drive": (zip_bytes([("C:/sprung", b"x")]), "an absolute path"),
    "outside": (tar_bytes([("data/../../sprung", b"x")]), "outside of its folder"),
    "outside zip": (zip_bytes([("../sprung", b"x")]), "outside of its folder"),
    "outside by backslashes": (tar_bytes([("..\\sprung", b"x")]), "outside of its folder"),
    "link": (tar_bytes([(of_type(tarfile.SYMTYPE, target="/etc/passwd"), b"")]), "no plain file"),
    "link out": (tar_bytes([(of_type(tarfile.SYMTYPE, target=".."), b""), ("data/x/sprung", b"x")]), "no plain file"),
    "hard link": (tar_bytes([(of_type(tarfile.LNKTYPE, target="/etc/passwd"), b"")]), "no plain file"),
    "link zip": (zip_bytes([(zip_link(), b"/etc/passwd")]), "no plain file"),
    "device": (tar_bytes([(of_type(tarfile.BLKTYPE), b"")]), "no plain file"),
    "character device": (tar_bytes([(of_type(tarfile.CHRTYPE), b"")]), "no plain file"),
    "pipe": (tar_bytes([(of_type(tarfile.FIFOTYPE), b"")]), "no plain file"),
    "twice": (tar_bytes([("data/x", b"1"), ("data/x", b"2")]), "there twice"),
    "file and folder": (tar_bytes([("data", b"1"), ("data/x", b"2")]), "there twice"),
    "bomb": (tar_bytes([("data/x", b"\0" * 2_000_000)]), "unpacks to more than 1.0 MB"),
    "bomb zip": (zip_bytes([("data/x", b"\0" * 2_000_000)]), "unpacks to more than 1.0 MB"),
    "bomb of many": (tar_bytes([(f"data/{i}", b"\0" * 99_000) for i in range(12)]), "unpacks to more than 1.0 MB"),
    "bomb behind the end": (gzip.compress(tar_bytes([("data/x", b"")], "w") + b"\0" * 2_000_000), "more than 1.0 MB"),
    "many entries": (tar_bytes([(f"data/{i}", b"") for i in range(101)]), "more than 100 entries"),
    "many entries zip": (zip_bytes([(f"data/{i}", b"") for i in range(101)]), "more than 100 entries"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_archives_leave_nothing(case, tmp_path):
    content, message = HOSTILE[case]
    (tmp_path / "a").write_bytes(content)
    good = tar_bytes(FILES.items()) if content[:2] == b"\x1f\x8b" else None
    assert good is None or good[:2] == content[:2]
    with pytest.raises(ArchiveError, match=message) as caught:
        unpack(tmp_path / "a", tmp_path / "out" / "here", limit=1_000_000, most_entries=100)
    assert "\n" not in str(caught.value)
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")] in (["a", "out"], ["out", "a"])
    assert not os.path.exists("/tmp/sprung")


def test_a_hostile_entry_behind_good_ones_takes_them_with_it(tmp_path):
    (tmp_path / "a").write_bytes(tar_bytes([*FILES.items(), ("../sprung", b"x")]))
    with pytest.raises(ArchiveError, match="outside"):
        unpack(tmp_path / "a", tmp_path / "out")
    assert os.listdir(tmp_path) == ["a"]


def test_a_header_that_claims_gigabytes_is_not_read(tmp_path):
    header = tarfile.TarInfo("data/x")
    header.type, header.size = tarfile.XHDTYPE, (8 << 30) - 1
    (tmp_path / "a").write_bytes(header.tobuf(tarfile.USTAR_FORMAT) + b"\0" * 4096)
    with pytest.raises(ArchiveError, match="a header in it is larger than a megabyte"):
        unpack(tmp_path / "a", tmp_path / "out")
    assert os.listdir(tmp_path) == ["a"]


def test_a_negative_size_is_no_endless_loop(tmp_path):
    header = of_type(tarfile.DIRTYPE, "data")
    header.size = -1024
    block = bytearray(header.tobuf(tarfile.GNU_FORMAT))
    (tmp_path / "a").write_bytes(tarfile.TarInfo("first").tobuf() + block + b"\0" * 4096)
    with pytest.raises(ArchiveError, match="negative size|damaged"):
        unpack(tmp_path / "a", tmp_path / "out", most_entries=100)
    assert os.listdir(tmp_path) == ["a"]


def test_an_encrypted_zip_and_a_zip_that_lies_about_a_size(tmp_path):
    content = bytearray(zip_bytes(FILES.items()))
    at = content.index(b"PK\x01\x02")
    content[at + 8] |= 1
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(ArchiveError, match="encrypted"):
        unpack(tmp_path / "a", tmp_path / "out")
    content[at + 8] &= ~1
    content[at + 24] = 2  # "one" has three bytes
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(ArchiveError, match="damaged"):
        unpack(tmp_path / "a", tmp_path / "out")
    assert os.listdir(tmp_path) == ["a"]


def test_a_full_disk_leaves_nothing(tmp_path, monkeypatch):
    (tmp_path / "a").write_bytes(tar_bytes(FILES.items()))
    monkeypatch.setattr(archives.shutil, "disk_usage", lambda path: type("", (), {"free": 100}))
    with pytest.raises(ArchiveError, match="needs more than the 100 bytes that are free"):
        unpack(tmp_path / "a", tmp_path / "out")
    assert os.listdir(tmp_path) == ["a"]


def test_a_zip_whose_directory_claims_a_later_place_is_an_error(tmp_path):
    content = bytearray(zip_bytes(FILES.items()))
    content[-6:-2] = (int.from_bytes(content[-6:-2], "little") + 500).to_bytes(4, "little")  # entries then begin before it
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(ArchiveError, match="placed before the archive begins"):
        unpack(tmp_path / "a", tmp_path / "out")
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize("make", [zip_bytes, tar_bytes])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_damaged_archives_are_whole_or_an_error(make, data, tmp_path_factory):
    """Cut off or with changed bytes: the same files as before, or one line and nothing on the disk."""
    folder, content = tmp_path_factory.mktemp("damaged"), bytearray(make(FILES.items()))
    if data.draw(st.booleans()):
        content = content[: data.draw(st.integers(0, len(content) - 1))]
    else:
        for _ in range(data.draw(st.integers(1, 3))):
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    (folder / "a").write_bytes(content)
    try:
        unpack(folder / "a", folder / "out")
    except ArchiveError:
        assert os.listdir(folder) == ["a"]
    else:
        assert set(written(folder / "out").values()) <= set(FILES.values())
