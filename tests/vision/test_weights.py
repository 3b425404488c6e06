"""Pretrained weights of named backbones: fetched into torch's cache when they are absent, and used."""

import hashlib
import importlib.util
import io
import os
from types import SimpleNamespace

import pytest
import torch
from file_server import Answer, serve

from tllib_ext import compat
from tllib_ext.errors import UserError
from tllib_ext.vision import transfer
from tllib_ext.vision.models import BACKBONES
from tllib_ext.vision.models.backbones import build_backbone
from tllib_ext.vision.models.providers import NamedBackbone


def bytes_of(state):
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


@pytest.fixture(scope="module")
def mobilenet():
    """A state dict of torchvision's MobileNetV2 that no other run has, as a file's content."""
    net = compat.torchvision().models.get_model("mobilenet_v2", weights=None)
    return bytes_of({name: value + 1 if value.is_floating_point() else value for name, value in net.state_dict().items()})


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache of torch and of Hugging Face; where torch keeps its files."""
    monkeypatch.delenv("TLLIB_EXT_OFFLINE", raising=False)
    monkeypatch.setattr(transfer, "PAUSE", 0.0)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    if importlib.util.find_spec("huggingface_hub") is not None:  # it comes with timm
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "torch" / "hub" / "checkpoints"


def publish(monkeypatch, server, content, name="mobilenet_v2", digest=None):
    """Serve ``content`` as torchvision's weights under a name with its digest."""
    file = f"{name}-{digest or hashlib.sha256(content).hexdigest()[:8]}.pth"
    server.files[f"/models/{file}"] = content
    weights = SimpleNamespace(IMAGENET1K_V1=SimpleNamespace(url=f"{server.url}/models/{file}"))
    monkeypatch.setattr(compat.torchvision().models, "get_model_weights", lambda _: weights)
    return file


def test_absent_weights_are_fetched_once_and_loaded(cache, mobilenet, monkeypatch, capfd):
    with serve({}) as server:
        file = publish(monkeypatch, server, mobilenet)
        nets = [build_backbone("mobilenet_v2") for _ in range(2)]
        assert len(server.requests) == 1
    assert os.listdir(cache) == [file] and (cache / file).read_bytes() == mobilenet
    expected = torch.load(io.BytesIO(mobilenet), weights_only=True)["features.0.0.weight"]
    assert all(torch.equal(net.net.features[0][0].weight, expected) for net in nets)
    out, err = capfd.readouterr()
    size = f"{len(mobilenet) / 1e6:.1f} MB"
    assert (
        out == ""
        and err == f"downloading the weights of mobilenet_v2, {size}, from {server.url}/models/{file} to {cache / file}\n"
    )


def test_the_digest_in_the_name_is_checked(cache, mobilenet, monkeypatch):
    with serve({}) as server:
        file = publish(monkeypatch, server, mobilenet, digest="0123abcd")
        with pytest.raises(UserError, match="is damaged: its SHA-256 does not begin with 0123abcd; it was removed.*bring .* to"):
            build_backbone("mobilenet_v2")
        assert not cache.exists()
        with pytest.raises(UserError, match="downloads are forbidden") as caught:
            build_backbone("mobilenet_v2", download=False)
    assert f"bring {server.url}/models/{file} to {cache / file} (or give weights=FILE)" in str(caught.value)


def test_another_base_address(cache, mobilenet, monkeypatch):
    with serve({}) as server, serve({}) as publisher:
        file = publish(monkeypatch, publisher, mobilenet)
        server.files[f"/mirror/{file}"] = mobilenet
        monkeypatch.setenv("TLLIB_EXT_WEIGHTS_URL", f"{server.url}/mirror/")
        build_backbone("mobilenet_v2")
        assert server.requests == [(f"/mirror/{file}", None)] and publisher.requests == []


def test_a_file_that_was_brought_needs_no_network(cache, mobilenet, monkeypatch):
    with serve({}) as server:
        file = publish(monkeypatch, server, mobilenet)
    cache.mkdir(parents=True)
    (cache / file).write_bytes(mobilenet)
    monkeypatch.setenv("TLLIB_EXT_OFFLINE", "1")
    build_backbone("mobilenet_v2", download=False)


def test_a_file_of_another_network_is_named(cache, monkeypatch):
    content = bytes_of({"x": torch.zeros(2)})
    with serve({}) as server:
        file = publish(monkeypatch, server, content)
        with pytest.raises(UserError, match=f"cannot load .*{file} into mobilenet_v2: .*remove it, and the same"):
            build_backbone("mobilenet_v2")


@pytest.fixture
def timm_file():
    """A network of timm as the hub has it, and its size."""
    timm = pytest.importorskip("timm")
    from safetensors.torch import save

    net = timm.create_model("test_convnext", num_classes=1000)
    return save({name: value.clone() for name, value in net.state_dict().items()}), net.state_dict()


def test_weights_of_timm_are_fetched_from_the_hub_and_filtered_by_timm(cache, timm_file, monkeypatch):
    content, state = timm_file
    repository = compat.timm().get_pretrained_cfg("test_convnext").hf_hub_id
    with serve({f"/{repository}/resolve/main/model.safetensors": content}, [Answer(send=1000)]) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        net = build_backbone("timm:test_convnext")
        build_backbone("timm:test_convnext", download=False)
        assert [wanted for _, wanted in server.requests] == [None, "bytes=1000-"]
    assert os.listdir(cache) == [f"{repository.replace('/', '--')}--model.safetensors"]
    name = next(name for name in state if name.startswith("stem"))
    assert torch.equal(net.net.state_dict()[name], state[name])


def test_a_mirror_serves_the_files_of_the_cache(cache, timm_file, monkeypatch):
    file = compat.timm().get_pretrained_cfg("test_convnext").hf_hub_id.replace("/", "--") + "--model.safetensors"
    with serve({f"/{file}": timm_file[0]}) as server:
        monkeypatch.setenv("TLLIB_EXT_WEIGHTS_URL", server.url)
        build_backbone("timm:test_convnext")


def test_the_cache_of_the_hub_is_used(cache, timm_file, monkeypatch, tmp_path):
    repository = compat.timm().get_pretrained_cfg("test_convnext").hf_hub_id
    folder = tmp_path / "hub" / f"models--{repository.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("abc")
    (folder / "snapshots" / "abc").mkdir(parents=True)
    (folder / "snapshots" / "abc" / "model.safetensors").write_bytes(timm_file[0])
    monkeypatch.setattr(
        "huggingface_hub.try_to_load_from_cache",
        lambda repo, file: str(folder / "snapshots" / "abc" / file) if repo == repository else None,
    )
    build_backbone("timm:test_convnext", download=False)
    assert not cache.exists()


def test_damaged_weights_of_timm_are_named(cache, timm_file, monkeypatch):
    file = compat.timm().get_pretrained_cfg("test_convnext").hf_hub_id.replace("/", "--") + "--model.safetensors"
    with serve({f"/{file}": timm_file[0][:5000]}) as server:
        monkeypatch.setenv("TLLIB_EXT_WEIGHTS_URL", server.url)
        with pytest.raises(UserError, match="cannot load .*model.safetensors into timm:test_convnext: .*remove it"):
            build_backbone("timm:test_convnext")


@pytest.mark.parametrize("name", ["resnet50", "mobilenet_v2", "wide_resnet50_2", "dinov2-small", "vit-small", "convnext-tiny"])
def test_every_named_backbone_knows_its_file(name, cache):
    if ":" in str(BACKBONES.help().get(name)) or "timm" in BACKBONES.help()[name]:
        pytest.importorskip("timm")
    builder = BACKBONES.get(name)
    assert isinstance(builder, NamedBackbone)
    remote = builder.weights()
    assert remote.url.startswith("https://") and remote.path.parent == cache
    assert remote.path.suffix == ".safetensors" or len(remote.digest) >= 8


def test_a_network_of_timm_without_weights(cache):
    timm = pytest.importorskip("timm")
    name = next(name for name in timm.list_models() if timm.get_pretrained_cfg(name) is None
                or not (timm.get_pretrained_cfg(name).hf_hub_id or timm.get_pretrained_cfg(name).url))  # fmt: skip
    with pytest.raises(UserError, match="has no pretrained weights: give weights"):
        BACKBONES.get(f"timm:{name}").weights()


def test_a_builder_of_others_is_told_whether_it_may_download(cache, monkeypatch):
    asked = []

    def build(pretrained, download):
        asked.append((pretrained, download))
        net = torch.nn.Identity()
        net.out_features = 3
        return net

    monkeypatch.setitem(BACKBONES._entries, "theirs", type(BACKBONES._entries["small_cnn"])(build))
    build_backbone("theirs")
    build_backbone("theirs", download=False)
    monkeypatch.setenv("TLLIB_EXT_OFFLINE", "1")
    build_backbone("theirs", "none")
    assert asked == [(True, True), (True, False), (False, False)]
