"""The toy problem: the data are as said, the claim holds, the figure shows it, and all of it twice the same."""

import numpy as np
import pytest
import torch
from conftest import load_example
from PIL import Image

toy = load_example("toy")


def test_the_data_are_the_supplements():
    source, target = toy.blobs(seed=0)
    assert source.x.shape == target.x.shape == (900, 2)
    assert [(target.y == k).sum().item() for k in range(4)] == [300, 300, 0, 300]  # orange is the source's alone
    assert (source.given != source.y).float().mean() == pytest.approx(0.2)
    for k, name in enumerate(("red", "blue", "orange")):
        assert torch.allclose(source.x[source.y == k].mean(0), torch.tensor(toy.CENTRES[name]), atol=0.05)
    private = target.x[target.y == 3].mean(0)
    assert torch.cdist(private[None], source.x).min() > 4 * toy.SPREAD  # far from every source point


def test_networks_have_three_layers_each_and_the_method_is_the_packages():
    method = toy.Toy("")
    parts = [method.backbone, *method.heads.each]
    assert [sum(isinstance(m, torch.nn.Linear) for m in part.modules()) for part in parts] == [3, 3, 3]
    assert type(method).update is toy.Divergence.update and type(method).predict is toy.Divergence.predict
    assert method.delta == pytest.approx(np.log(3))


def test_source_only_never_looks_at_the_target():
    source, target = toy.blobs(seed=0)
    elsewhere = toy.Points(target.x + 100, target.y, target.given)
    one, two = (toy.train(toy.VARIANTS["Source Only"], source, points, steps=3) for points in (target, elsewhere))
    assert all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), two.state_dict().values()))


def test_a_claim_that_does_not_hold_is_said():
    good, bad = toy.Score(0.99, 0.98, 0.98), toy.Score(0.97, 0.2, 0.2)
    assert toy.verdict({"divergence w/ KL": bad, "divergence": good}) == (True, [])
    holds, lines = toy.verdict({"divergence w/ KL": good, "divergence": good})
    assert holds and lines[0].startswith("not better than divergence w/ KL")
    assert not toy.verdict({"divergence w/ KL": good, "divergence": bad})[0]


def test_the_whole_script(run_example, tmp_path):
    state = torch.random.get_rng_state()
    code, out, err = run_example("toy", "--out", tmp_path / "toy.png")
    assert code == 0, out + err
    assert all(name in out for name in toy.VARIANTS) and "better than each variant" in out
    assert torch.equal(torch.random.get_rng_state(), state)  # nobody else's chance is touched
    image = Image.open(tmp_path / "toy.png")
    assert image.width >= 900 and (tmp_path / "toy.png").stat().st_size < 150_000
    grey = np.all(np.asarray(image.convert("RGB")) == (0xAD, 0xAD, 0xAD), axis=2)
    third, half = image.width // 3, image.height // 2
    everything, nothing = grey[:half, :third].mean(), grey[:half, 2 * third :].mean()
    assert everything > 0.4 > 0.2 > nothing  # source only calls the plane unknown, without separation hardly any of it


def test_the_same_seed_gives_the_same_networks():
    source, target = toy.blobs(seed=1)
    again, _ = toy.blobs(seed=1)
    assert torch.equal(source.x, again.x) and torch.equal(source.given, again.given)
    one, two = (toy.train("", source, target, seed=1, steps=8) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), two.state_dict().values()))
