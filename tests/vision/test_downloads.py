"""The known data sets: fetched as a whole into an absent or empty folder, from wherever the process broke off."""

import os

import pytest
from drawn_data import drawn_archives
from file_server import Answer, serve

from tllib_ext.errors import UserError
from tllib_ext.vision import transfer
from tllib_ext.vision.datasets import DATASETS, downloads
from tllib_ext.vision.datasets.builder import DatasetBuilder
from tllib_ext.vision.datasets.catalog import open_data, recognise
from tllib_ext.vision.datasets.downloads import ARCHIVES, lacking_data, named_like
from tllib_ext.vision.datasets.imagelist import ImageList

#: domains of each data set as tllib's letters
TASKS = {"Office31": ("A", "D"), "OfficeHome": ("Ar", "Rw"), "VisDA2017": ("Synthetic", "Real"), "DomainNet": ("r", "s")}


@pytest.fixture
def mirror(monkeypatch):
    """``mirror(name)``: a server of small archives of that data set, which the environment names."""
    monkeypatch.delenv("TLLIB_EXT_OFFLINE", raising=False)
    monkeypatch.setattr(transfer, "PAUSE", 0.0)
    monkeypatch.setattr(transfer, "TIMEOUT", 5.0)
    servers = []

    def start(name="Office31", **more):
        context = serve({f"/{name}/{file}": content for file, content in drawn_archives(name).items()}, **more)
        servers.append(context)
        server = context.__enter__()
        monkeypatch.setenv("TLLIB_EXT_DATA_URL", f"{server.url}/")
        return server

    yield start
    for context in servers:
        context.__exit__(None, None, None)


def tree(root):
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


@pytest.mark.parametrize("name", ARCHIVES)
def test_an_absent_folder_is_filled_and_read(name, mirror, tmp_path, capfd):
    server, root = mirror(name), tmp_path / "deep" / f"{name.lower()}"
    data = open_data(str(root), "auto", *TASKS[name])
    assert data.name == name and len(data.source.samples) == len(data.source.classes)
    assert all(os.path.exists(path) for path, _ in (*data.source.samples, *data.target.samples))
    files = [archive.file for archive in ARCHIVES[name]]
    assert [path for path, _ in server.requests] == [f"/{name}/{file}" for file in files]
    assert sorted(os.listdir(root)) == sorted(archive.folder for archive in ARCHIVES[name])
    out, err = capfd.readouterr()
    assert out == "" and len(err.splitlines()) == len(files) + 1 and err.splitlines()[-1] == f"{name} is complete in {root}"
    open_data(str(root), "auto", *TASKS[name], download=False)
    assert len(server.requests) == len(files)


def test_the_names_are_those_of_the_readers():
    for name, archives in ARCHIVES.items():
        builder = DATASETS.get(name)
        assert isinstance(builder, DatasetBuilder) and builder.name == name
        assert archives[-1].folder == "image_list" and len({archive.url for archive in archives}) == len(archives)


def test_an_empty_folder_of_any_name_is_filled_if_the_data_set_is_named(mirror, tmp_path):
    mirror()
    (tmp_path / "photos").mkdir()
    assert recognise(str(tmp_path / "photos")) == "folder"
    assert len(open_data(str(tmp_path / "photos"), "Office31", "A", "D").source.samples) == 31


def test_a_folder_with_something_in_it_is_left_alone(mirror, tmp_path):
    server, root = mirror(), tmp_path / "office31"
    (root / "amazon" / "mug").mkdir(parents=True)
    assert recognise(str(root)) == "folder" and lacking_data("Office31", root) is None
    with pytest.raises(UserError, match="cannot read the image list"):
        open_data(str(root), "Office31", "A", "D")
    assert server.requests == [] and os.listdir(root) == ["amazon"]


def test_a_wrong_domain_is_an_error_before_anything_is_fetched(mirror, tmp_path):
    server = mirror()
    with pytest.raises(UserError, match="unknown domain 'X'"):
        open_data(str(tmp_path / "office31"), "auto", "A", "X")
    assert server.requests == [] and not os.listdir(tmp_path)


def test_the_same_call_goes_on_where_the_server_stopped(mirror, tmp_path):
    root = tmp_path / "office31"
    server = mirror(plan=[Answer(), Answer(send=1000)], default=Answer(status=404))
    with pytest.raises(UserError, match="answered 404.*1.0 kB are kept, the same command continues") as caught:
        open_data(str(root), "auto", "A", "D")
    assert "dslr.tgz from" in str(caught.value) and "amazon.tgz" not in str(caught.value)
    assert os.listdir(root) == [".download"]  # nothing that a reader could take for the data set
    assert sorted(os.listdir(root / ".download")) == ["amazon", "dslr.tgz.part"]
    server.requests.clear()
    server.default = Answer()
    assert recognise(str(root)) == "Office31"
    assert len(open_data(str(root), "auto", "A", "D").target.samples) == 31
    assert server.requests[0] == ("/Office31/dslr.tgz", "bytes=1000-")
    assert sorted(os.listdir(root)) == ["amazon", "dslr", "image_list", "webcam"]


@pytest.mark.parametrize("calls", range(0, 4))
def test_a_process_that_is_killed_while_it_moves_is_continued(calls, mirror, tmp_path, monkeypatch):
    server, root, real, done = mirror(), tmp_path / "office31", os.rename, []

    def rename(source, target):
        if os.path.dirname(target) == str(root):
            if len(done) == calls:
                raise KeyboardInterrupt
            done.append(target)
        real(source, target)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(downloads.os, "rename", rename)
        open_data(str(root), "auto", "A", "D")
    server.requests.clear()
    assert recognise(str(root)) == "Office31"
    open_data(str(root), "auto", "A", "D")
    assert server.requests == [] and sorted(os.listdir(root)) == ["amazon", "dslr", "image_list", "webcam"]


def test_a_hostile_archive_leaves_nothing_outside_and_is_fetched_anew(mirror, tmp_path):
    server, root, good = mirror(), tmp_path / "office31", drawn_archives("Office31")
    for bad in (drawn_archives("Office31", outside=True)["dslr.tgz"], good["dslr.tgz"][:-9], good["webcam.tgz"], b"no archive"):
        server.files["/Office31/dslr.tgz"] = bad
        with pytest.raises(UserError, match="dslr.tgz.*it was removed, try again; without a network: put the archives") as caught:
            open_data(str(root), "auto", "A", "D")
        assert "\n" not in str(caught.value)
        assert os.listdir(tmp_path) == ["office31"] and os.listdir(root / ".download") == ["amazon"]
    server.files["/Office31/dslr.tgz"] = good["dslr.tgz"]
    open_data(str(root), "auto", "A", "D")
    assert sorted(os.listdir(root)) == ["amazon", "dslr", "image_list", "webcam"]


def test_without_a_network_one_line_names_the_archives(mirror, tmp_path, monkeypatch):
    monkeypatch.setenv("TLLIB_EXT_OFFLINE", "1")
    root = tmp_path / "deep" / "office31"
    with pytest.raises(UserError) as caught:
        open_data(str(root), "auto", "A", "D")
    text = str(caught.value)
    assert all(archive.file in text and archive.url in text for archive in ARCHIVES["Office31"])
    assert f"into {root}" in text and "\n" not in text and os.listdir(tmp_path) == []


def test_archives_that_a_person_brought_need_no_network(mirror, tmp_path, monkeypatch):
    monkeypatch.setenv("TLLIB_EXT_OFFLINE", "1")
    root, archives = tmp_path / "office31", drawn_archives("Office31")
    root.mkdir()
    for file in list(archives)[:2]:
        (root / file).write_bytes(archives[file])
    with pytest.raises(UserError, match="forbidden") as caught:
        open_data(str(root), "auto", "A", "D")
    assert "webcam.tgz" in str(caught.value) and "amazon.tgz" not in str(caught.value)
    for file, content in archives.items():
        (root / file).write_bytes(content)
    assert len(open_data(str(root), "auto", "A", "D").source.samples) == 31
    assert set(archives) < set(os.listdir(root))  # they are the person's


def test_a_brought_archive_that_is_damaged_stays(tmp_path):
    root, archives = tmp_path / "office31", drawn_archives("Office31")
    root.mkdir()
    for file, content in archives.items():
        (root / file).write_bytes(content)
    (root / "webcam.tgz").write_bytes(b"no archive")
    with pytest.raises(UserError, match="webcam.tgz is damaged or no archive.*replace .*webcam.tgz"):
        open_data(str(root), "auto", "A", "D")
    assert (root / "webcam.tgz").exists() and not (root / "webcam").exists()


def test_domainnet_reads_train_and_test_lists(tmp_path):
    for file, content in drawn_archives("DomainNet").items():
        (tmp_path / "domainnet").mkdir(exist_ok=True)
        (tmp_path / "domainnet" / file).write_bytes(content)
    root = str(tmp_path / "domainnet")
    both, train, test = (open_data(root, "auto", name, "sketch") for name in ("real", "r_train", "real_test"))
    assert (both.source_name, train.source_name, test.source_name) == ("real", "real_train", "real_test")
    assert both.source.samples == train.source.samples + test.source.samples
    assert 0 < len(test.source) < len(train.source) and isinstance(both.source, ImageList)
    assert str(both.split) == "150/50/145" and both.split.scenario == "universal"
    assert both.split.shared[0] == "aircraft_carrier" and both.split.target_private[-1] == "zigzag"
    label = dict((os.path.basename(os.path.dirname(path)), label) for path, label in both.source.samples)
    assert label["zigzag"] == 344 and label["The_Eiffel_Tower"] == both.source.classes.index("The_Eiffel_Tower")
    assert [open_data(root, "DomainNet", a, b).split for a, b in (("c", "i"), ("p", "q"))] == [both.split] * 2
    with pytest.raises(UserError, match="unknown domain"):
        open_data(root, "auto", "real", "x_test")


def test_names_of_folders():
    assert [named_like(name) for name in ("Office31", "a/office-31/", "VISDA2017", "DomainNet")] == list(
        map(named_like, ("office31", "office_31", "visda-2017", "domainnet"))
    )
    assert named_like(".") is None and named_like("office31_resnet50") is None


def test_a_file_in_the_place_of_the_folder(tmp_path):
    (tmp_path / "office31").write_text("x")
    with pytest.raises(UserError, match="no data folder"):
        open_data(str(tmp_path / "office31"), "auto", "A", "D")
