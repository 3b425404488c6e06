"""Downloads against a server that breaks off, stalls, lies and refuses: complete and right, or not there."""

import hashlib
import os
import shutil
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pytest
from file_server import Answer, serve

from tllib_ext.errors import UserError
from tllib_ext.io import file_lock
from tllib_ext.vision import transfer
from tllib_ext.vision.fetch import RemoteFile, forbidden, provide
from tllib_ext.vision.transfer import FetchError

CONTENT = bytes(range(256)) * 4000  # about a megabyte
DIGEST = hashlib.sha256(CONTENT).hexdigest()[:8]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.delenv("TLLIB_EXT_OFFLINE", raising=False)
    monkeypatch.setattr(transfer, "PAUSE", 0.0)
    monkeypatch.setattr(transfer, "TIMEOUT", 0.2)


def remote(server, folder, digest=DIGEST, name="w.pth"):
    return RemoteFile("the weights", f"{server.url}/{name}", Path(folder) / "deep" / name, digest)


def names(folder):
    return sorted(path.name for path in Path(folder).rglob("*"))


def test_a_file_is_fetched_once_and_one_line_says_so(tmp_path, capfd):
    with serve({"/w.pth": CONTENT}) as server:
        wanted = remote(server, tmp_path)
        wanted.fetch()
        wanted.fetch()
    assert wanted.path.read_bytes() == CONTENT and names(tmp_path) == ["deep", "w.pth"]
    assert server.requests == [("/w.pth", None)]
    out, err = capfd.readouterr()
    assert out == "" and err == f"downloading the weights, 1.0 MB, from {server.url}/w.pth to {wanted.path}\n"


BROKEN = {
    "breaks off": [Answer(send=1000), Answer(send=5000)],
    "stalls": [Answer(send=1000, stall=True)],
    "stalls at once": [Answer(send=0, stall=True)],
    "is overloaded": [Answer(status=503), Answer(status=429)],
    "breaks off and has no ranges": [Answer(send=1000), Answer(ranges=False)],
    "says too much, then the truth": [Answer(longer=99), Answer()],
    "sends another range": [Answer(send=1000), Answer(shift=5), Answer()],
    "says no length": [Answer(length=False)],
}


@pytest.mark.parametrize("plan", BROKEN.values(), ids=BROKEN)
def test_a_server_that_recovers(plan, tmp_path):
    with serve({"/w.pth": CONTENT}, plan) as server:
        remote(server, tmp_path).fetch()
    assert (tmp_path / "deep" / "w.pth").read_bytes() == CONTENT and names(tmp_path) == ["deep", "w.pth"]


def test_what_was_received_is_not_asked_for_again(tmp_path):
    with serve({"/w.pth": CONTENT}, default=Answer(send=1000)) as server:
        with pytest.raises(FetchError, match="ended after 5000 of 1024000 bytes; 5.0 kB are kept, the same command continues"):
            remote(server, tmp_path).fetch()
        assert [wanted for _, wanted in server.requests] == [None] + [f"bytes={n}000-" for n in range(1, 5)]
        assert names(tmp_path) == ["deep", "w.pth.part"]
        server.default = Answer()
        remote(server, tmp_path).fetch()
        assert server.requests[-1] == ("/w.pth", "bytes=5000-")
    assert (tmp_path / "deep" / "w.pth").read_bytes() == CONTENT


def test_a_part_that_is_complete_or_of_another_file(tmp_path):
    part = tmp_path / "deep" / "w.pth.part"
    part.parent.mkdir()
    for begun in (CONTENT, CONTENT + b"more", b"x" * 500, b""):
        part.write_bytes(begun)
        with serve({"/w.pth": CONTENT}) as server:
            remote(server, tmp_path).fetch()
        assert (tmp_path / "deep" / "w.pth").read_bytes() == CONTENT, begun[:9]
        (tmp_path / "deep" / "w.pth").unlink()


Usage = namedtuple("Usage", "total used free")
FINAL = {  # how a server answers, what the error says, and how often it is asked
    "not found": (Answer(status=404), "the server answered 404", 1),
    "forbidden": (Answer(status=403), "the server answered 403", 1),
    "too large": (Answer(longer=1 << 50), "expected at most", 1),
    "says too little": (Answer(longer=-99), "is damaged: its SHA-256", 1),
    "says too much": (Answer(longer=99, ranges=False), "ended after 1024000 of 1024099 bytes", 5),
    "stalls for ever": (Answer(send=0, stall=True), "timed out", 5),
    "breaks off at once": (Answer(send=0), "ended after 0 of 1024000 bytes", 5),
    "is overloaded": (Answer(status=503), "the server answered 503", 5),
}


@pytest.mark.parametrize("case", FINAL)
def test_a_server_that_does_not_recover(case, tmp_path):
    answer, message, count = FINAL[case]
    with serve({"/w.pth": CONTENT}, default=answer) as server:
        with pytest.raises(FetchError, match=message) as caught:
            remote(server, tmp_path).fetch()
        assert str(caught.value).count("http://") == 1
        assert len(server.requests) == count
    assert names(tmp_path) in ([], ["deep", "w.pth.part"])


def test_a_wrong_content_is_removed(tmp_path):
    with serve({"/w.pth": CONTENT[::-1]}) as server:
        with pytest.raises(FetchError, match=f"does not begin with {DIGEST}; it was removed"):
            remote(server, tmp_path).fetch()
    assert names(tmp_path) == []


def test_an_endless_answer_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(transfer, "LARGEST", 10_000)
    with serve({"/w.pth": CONTENT}, default=Answer(length=False)) as server:
        with pytest.raises(FetchError, match="sends more than 10.0 kB"):
            remote(server, tmp_path).fetch()
    assert names(tmp_path) == []


def test_a_full_disk_is_an_error_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**9, 10**9 - 500_000, 500_000))
    with serve({"/w.pth": CONTENT}) as server:
        with pytest.raises(FetchError, match=r"it needs 1.0 MB in .*deep, where 500.0 kB are free: free some space"):
            remote(server, tmp_path).fetch()
    assert names(tmp_path) == []


def test_no_network_is_one_line_that_names_the_files(tmp_path):
    with serve({}) as server:
        pass
    needed = [remote(server, tmp_path), remote(server, tmp_path, name="other.pth")]
    with pytest.raises(UserError) as caught:
        provide(needed)
    text = str(caught.value)
    assert "refused" in text and text.count("\n") == 0 and names(tmp_path) == []
    for one in needed:
        assert f"bring {one.url} to {one.path}" in text


def test_nothing_is_fetched_where_it_is_forbidden(tmp_path, monkeypatch):
    with serve({"/w.pth": CONTENT}) as server:
        with pytest.raises(
            UserError, match=r"not on .*: the weights; downloads are .* \(download=False\); without .*: bring http"
        ):
            provide([remote(server, tmp_path)], download=False)
        monkeypatch.setenv("TLLIB_EXT_OFFLINE", "1")
        with pytest.raises(UserError, match=r"downloads are forbidden \(TLLIB_EXT_OFFLINE=1\)"):
            provide([remote(server, tmp_path)])
        monkeypatch.setenv("TLLIB_EXT_OFFLINE", "0")
        assert server.requests == [] and names(tmp_path) == [] and not forbidden()
        provide([remote(server, tmp_path)])
    provide([remote(server, tmp_path)], download=False)  # it is there


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://127.0.0.1/x", "x.pth", "http://127.0.0.1:1/a b", "http://[::1"])
def test_addresses_of_another_kind_are_refused(url, tmp_path):
    with pytest.raises(FetchError):
        RemoteFile("the weights", url, tmp_path / "w").fetch()
    assert names(tmp_path) == []


def test_a_redirection_away_from_https_is_refused(tmp_path, monkeypatch):
    with serve({"/w.pth": CONTENT}) as server:
        real = transfer.urlopen

        def over_https(request, timeout):  # as if the address had been https
            request.full_url = request.full_url.replace("https", "http")
            return real(request, timeout=timeout)

        monkeypatch.setattr(transfer, "urlopen", over_https)
        with pytest.raises(FetchError, match="which is not https"):
            RemoteFile("the weights", f"{server.url.replace('http', 'https')}/w.pth", tmp_path / "w").fetch()
    assert names(tmp_path) == []


def two_processes(server, file):
    """Fetch by two processes, the second one begun while the first one waits for the server: exit codes and stderr."""
    code = (
        "import sys; from pathlib import Path; from tllib_ext.vision.fetch import RemoteFile, provide\n"
        "from tllib_ext.errors import run_main\n"
        "sys.exit(run_main(lambda: provide([RemoteFile('the weights', sys.argv[1], Path(sys.argv[2]))])))\n"
    )
    words = [sys.executable, "-c", code, f"{server.url}/w.pth", str(file)]
    env = {name: value for name, value in os.environ.items() if name != "TLLIB_EXT_OFFLINE"}
    first = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=env)
    while not server.requests:
        assert first.poll() is None
    second = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=env)
    line = second.stderr.readline()
    server.released.set()
    errors = first.communicate(timeout=60)[1], line + second.communicate(timeout=60)[1]
    return (first.returncode, second.returncode), errors


WAITING = "waiting for another process, which is downloading the weights\n"


def test_of_two_processes_one_downloads(tmp_path):
    with serve({"/w.pth": CONTENT}, [Answer(send=1000, stall=True)]) as server:
        codes, errors = two_processes(server, tmp_path / "w.pth")
    assert codes == (0, 0), errors
    assert errors[1] == WAITING
    assert (tmp_path / "w.pth").read_bytes() == CONTENT and names(tmp_path) == ["w.pth"]


def test_the_second_of_two_processes_says_itself_what_is_wrong(tmp_path):
    with serve({"/w.pth": CONTENT}, [Answer(send=0, stall=True)], default=Answer(status=404)) as server:
        codes, errors = two_processes(server, tmp_path / "deep" / "w.pth")
    assert codes == (2, 2), errors
    assert errors[1].startswith(WAITING) and "the server answered 404" in errors[1] and errors[1].count("\n") == 2
    assert not [name for name in names(tmp_path) if name != "deep"]


def test_a_process_that_was_killed_leaves_no_lock(tmp_path):
    lock = tmp_path / "deep" / ".w.pth.lock"
    with file_lock(lock):
        pass
    assert lock.exists()
    with serve({"/w.pth": CONTENT}) as server:
        remote(server, tmp_path).fetch()
    assert names(tmp_path) == ["deep", "w.pth"]


def test_there_is_a_bar_on_a_terminal_and_none_in_a_file(tmp_path, monkeypatch, capfd):
    with serve({"/w.pth": CONTENT}) as server:
        remote(server, tmp_path).fetch()
        assert capfd.readouterr().err.count("\r") == 0
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
        remote(server, tmp_path / "again").fetch()
    assert "\rw.pth: " in capfd.readouterr().err
