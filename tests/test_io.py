"""Atomic writes, file locks and CSV columns: what is on the disk after an error, a kill, a race."""

import errno
import os
import signal
import socket
import stat
import subprocess
import sys
import time

import numpy as np
import pytest
from conftest import ROOT

from tllib_ext import io
from tllib_ext.errors import LockHeld, UserError


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_failed_block_leaves_the_old_file_and_no_temporary_file(tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("old")
    with pytest.raises(RuntimeError), io.atomic_path(file) as temporary:
        temporary.write_text("half")
        assert temporary.parent == tmp_path, "a rename across file systems is not atomic"
        raise RuntimeError
    assert file.read_text() == "old" and names(tmp_path) == ["a.txt"]


def test_a_failed_stream_leaves_the_old_file(tmp_path):
    file = tmp_path / "a.txt"
    io.write_text(file, "old")
    with pytest.raises(RuntimeError), io.atomic_text(file) as stream:
        stream.write("half")
        raise RuntimeError
    assert file.read_text() == "old" and names(tmp_path) == ["a.txt"]


def test_the_old_content_is_read_until_the_block_ends(tmp_path):
    file = tmp_path / "a.txt"
    io.write_text(file, "old")
    with io.atomic_text(file) as stream:
        stream.write("new")
        stream.flush()
        assert file.read_text() == "old"
    assert file.read_text() == "new" and names(tmp_path) == ["a.txt"]


def test_the_content_is_on_the_disk_before_the_rename_and_the_rename_after(tmp_path, monkeypatch):
    calls, replace = [], os.replace

    def fsync(handle):
        target = os.readlink(f"/proc/self/fd/{handle}")
        content = open(target).read() if os.path.isfile(target) else None
        calls.append(("fsync", content, target == str(tmp_path)))

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", lambda *paths: (calls.append(("replace",)), replace(*paths)))
    io.write_text(tmp_path / "a.txt", "all of it")
    assert calls == [("fsync", "all of it", False), ("replace",), ("fsync", None, True)]


def test_a_failed_fsync_keeps_the_old_file(tmp_path, monkeypatch):
    file = tmp_path / "a.txt"
    io.write_text(file, "old")

    def fsync(handle):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OSError, match="a.txt"):
        io.write_text(file, "new")
    assert file.read_text() == "old" and names(tmp_path) == ["a.txt"]


@pytest.mark.parametrize("error", [OSError("5 requested and 3 written"), OSError(errno.EFBIG, "File too large")])
def test_a_write_error_names_the_file(tmp_path, error):
    with pytest.raises(OSError) as caught, io.atomic_path(tmp_path / "a.npy"):
        raise error
    assert caught.value.filename == str(tmp_path / "a.npy") and caught.value.errno in (errno.ENOSPC, errno.EFBIG)


def test_json_round_trip_keeps_names_that_are_no_utf_8(tmp_path):
    io.write_json(tmp_path / "a.json", {"name": "\udcff", "é": [1, None]})
    text = (tmp_path / "a.json").read_text(encoding="ascii")
    assert text.endswith("\n") and __import__("json").loads(text) == {"name": "\udcff", "é": [1, None]}


def test_text_between_marks(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"before {io.BEGIN}old{io.END} after")
    io.write_between_marks(page, "new")
    assert page.read_text() == f"before {io.BEGIN}new{io.END} after"
    page.write_text("no marks")
    with pytest.raises(UserError, match="marks"):
        io.write_between_marks(page, "new")


def test_temporary_files_of_a_killed_process_are_removed_and_nothing_else(tmp_path):
    (tmp_path / "plots").mkdir()
    for name in (".a.txt.123.part", "plots/.b.png.9.part", "a.part", ".lock", "b.txt"):
        (tmp_path / name).touch()
    io.remove_temporary_files(tmp_path)
    assert names(tmp_path) == [".lock", "a.part", "b.txt", "plots"] and names(tmp_path / "plots") == []


def test_torn_and_foreign_lines_are_skipped(tmp_path):
    file = tmp_path / "results.jsonl"
    assert io.read_json_lines(file) == []
    file.write_text('{"step": 1, "os": 0.5}\n[1]\n{"step": true}\n{"os": 1}\n' + "[" * 100_000 + '\n{"step": 2, "o')
    assert io.read_json_lines(file) == [{"step": 1, "os": 0.5}]


HOLD = """
import os, sys, time
from tllib_ext.io import file_lock
with file_lock(sys.argv[1]):
    if "fork" in sys.argv and os.fork() == 0:
        time.sleep(60)
    print("held", os.getpid(), flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path):
    """``holder(*words)`` -> a process that holds ``tmp_path/sub/.lock``, in a process group of its own."""
    started = []

    def start(*words):
        command = [sys.executable, "-c", HOLD, str(tmp_path / "sub" / ".lock"), *words]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
        started.append(process)
        assert process.stdout.readline().startswith("held")
        return process

    yield start
    for process in started:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_one_process_holds_a_lock(tmp_path, holder):
    process = holder()
    with pytest.raises(LockHeld, match="another process"), io.file_lock(tmp_path / "sub" / ".lock", blocking=False):
        raise AssertionError
    assert process.poll() is None


def test_a_lock_ends_with_its_process_even_if_a_child_lives_on(tmp_path, holder):
    process = holder("fork")
    os.kill(process.pid, signal.SIGKILL)
    os.waitpid(process.pid, os.WNOHANG)
    start = time.monotonic()
    with io.file_lock(tmp_path / "sub" / ".lock"):
        assert time.monotonic() - start < 10


def test_a_lock_can_be_taken_again_after_an_error_in_its_block(tmp_path):
    for _ in range(2):
        with pytest.raises(RuntimeError), io.file_lock(tmp_path / ".lock", blocking=False):
            raise RuntimeError


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP])
def test_a_file_system_without_locks_is_used_unlocked(tmp_path, monkeypatch, number):
    import fcntl

    def flock(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    ran = []
    with io.file_lock(tmp_path / ".lock", blocking=False):
        ran.append(1)
    assert ran


def test_another_error_of_a_lock_is_raised(tmp_path, monkeypatch):
    import fcntl

    def flock(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(OSError, match="Input/output"), io.file_lock(tmp_path / ".lock"):
        pass


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_a_pipe_in_place_of_a_lock_file_is_an_error_and_does_not_hang(tmp_path, make):
    make(tmp_path / ".lock")
    with pytest.raises(UserError, match="not a regular file"), io.file_lock(tmp_path / ".lock"):
        pass


COLUMNS = {"path": (io.unescape_formula, object), "label": (int, np.int64), "score": (io.number_or_nan, np.float64)}


def test_columns_in_chunks(tmp_path, monkeypatch):
    monkeypatch.setattr(io, "CHUNK", 2)
    file = tmp_path / "a.csv"
    file.write_text("\ufeffpath,other,label\n'=a,x,1\n\nb,y,2\nc,z,3\n", encoding="utf-8")
    columns = io.read_columns(file, COLUMNS, ["path", "label"])
    assert {name: values.tolist() for name, values in columns.items()} == {"path": ["=a", "b", "c"], "label": [1, 2, 3]}


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "is empty: expected the header path,label,score"),
        ("path,label\n", "a header and no rows"),
        ("a,b\n1,2\n", "not a CSV file of this kind"),
        ("path,score\na,1\n", "no column label"),
        ("path,label,label\na,1,1\n", "column label twice"),
        ("path,label\na,1\nb\n", "row 2: 1 cells, the header has 2"),
        ("path,label\na,1\nb,2\nc,x\n", "label, row 3: found 'x', expected an integer"),
        ("path,label,score\na,1,high\n", "score, row 1: found 'high', expected a number"),
        ("path,label\na,99999999999999999999\n", "row 1: found '99999999999999999999', expected an integer"),
        ('path,label\n"a\x00b' + "x" * 140_000 + '",1\n', "is not a CSV file"),
    ],
)
def test_errors_of_a_csv_file_name_file_and_row(tmp_path, monkeypatch, text, message):
    monkeypatch.setattr(io, "CHUNK", 2)
    file = tmp_path / "a.csv"
    file.write_text(text)
    with pytest.raises(UserError) as caught:
        io.read_columns(file, COLUMNS, ["path", "label"])
    assert message in str(caught.value) and str(file) in str(caught.value)


def test_a_missing_file_is_a_user_error(tmp_path):
    with pytest.raises(UserError, match="cannot read .*No such file"):
        io.read_columns(tmp_path / "none.csv", COLUMNS, ["path"])


# --- what is no regular file ------------------------------------------------------------------------------------------


def test_a_link_stays_and_its_target_is_written(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there/file.txt")
    for text in ("new", "newer"):  # a dangling link, and one to a file
        io.write_text(tmp_path / "link", text)
        assert (tmp_path / "link").is_symlink() and (tmp_path / "there" / "file.txt").read_text() == text
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file.txt", "link", "there"]


def test_a_pipe_is_written_to(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    io.write_json(tmp_path / "pipe", {"a": 1})
    assert b'"a": 1' in os.read(reader, 100)
    os.close(reader)
    assert stat.S_ISFIFO(os.stat(tmp_path / "pipe").st_mode) and len(list(tmp_path.iterdir())) == 1


def test_a_socket_is_written_to(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a short name: they are limited
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
        listener.listen()
        io.write_text("socket", "text")
        connection = listener.accept()[0]
        with connection:
            assert connection.recv(100) == b"text"
    assert stat.S_ISSOCK(os.stat("socket").st_mode)


def test_standard_output_is_one_stream(tmp_path):
    code = "from tllib_ext import io; print('one'); io.write_text('/dev/stdout', 'two\\n'); print('three')"
    for redirected in (False, True):
        with open(tmp_path / "out", "w+") as file:
            done = subprocess.run([sys.executable, "-c", code], stdout=file if redirected else subprocess.PIPE, text=True,
                                  env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True)  # fmt: skip
        assert ((tmp_path / "out").read_text() if redirected else done.stdout) == "one\ntwo\nthree\n"


def test_a_pipe_is_not_read(tmp_path):
    os.mkfifo(tmp_path / "labels.csv")
    with pytest.raises(UserError, match="not a regular file"), io.open_text(tmp_path / "labels.csv"):
        pass
