"""RunConfig: one list of settings for Python, the command line, YAML and JSON."""

import dataclasses
import json
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tllib_ext.cli.parser import Parser, add_run_arguments, parse_run
from tllib_ext.cli.yaml_file import read_yaml
from tllib_ext.errors import UserError
from tllib_ext.split import LabelSplit
from tllib_ext.training.config import RunConfig
from tllib_ext.training.earlier import upgrade
from tllib_ext.training.run_dir import differences
from tllib_ext.training.setting import COUNT, FLAG, HPARAMS, RATE, SEED, SPLIT, settings_of

PARSER = Parser()
add_run_arguments(PARSER)
WORD = st.text("abcdefghijklmnopqrstuvwxyz0123456789_./", min_size=1, max_size=8).filter(lambda text: not text.startswith("-"))
WORDS = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def values_of(known):
    """Values that a setting may have, as the command line can write them."""
    if known.kind is FLAG:
        return st.booleans()
    if known.kind.choices:
        return st.sampled_from(known.kind.choices)
    if known.kind is HPARAMS:
        return st.dictionaries(WORD.map(lambda text: text.replace(".", "_")), WORD, max_size=3)
    if known.kind in (COUNT, SEED):
        return st.integers(1, 10**9)
    if known.kind is SPLIT:
        return st.sampled_from(["3/2/1", "Office31", "Office31:10/21/0"])
    if known.kind.expected.startswith("a whole"):
        return st.integers(1, 256)
    if "number" in known.kind.expected:
        return st.floats(0.001, 0.999)
    return WORD


CONFIGS = st.fixed_dictionaries({}, optional={name: values_of(known) for name, known in settings_of(RunConfig).items()}).map(
    lambda values: RunConfig(**values)
)


@WORDS
@given(CONFIGS)
def test_words_and_json_give_the_configuration_back(config):
    assert parse_run(PARSER, config.words()) == config
    record = json.loads(json.dumps(config.to_dict()))
    assert RunConfig.from_dict(record) == RunConfig.from_record({**record, "lists": "found"}) == config


@WORDS
@given(CONFIGS)
def test_yaml_gives_the_configuration_back(tmp_path_factory, config):
    import yaml

    file = tmp_path_factory.getbasetemp() / "config.yaml"
    known = settings_of(RunConfig)
    values = {name: value for name, value in config.changed().items() if known[name].in_files}
    file.write_text(yaml.safe_dump(values or {"seed": 0}))
    assert RunConfig(**read_yaml(str(file), known)) == RunConfig(**values)


def test_it_is_frozen_and_checked():
    config = RunConfig()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.steps = 3
    for name, value in {"rate": 1.5, "steps": 0, "batch_size": 2.5, "lr": float("nan"), "scratch": 1, "precision": "fp64",
                        "seed": -1, "workers": 257, "momentum": 1.0, "weight_decay": -1, "heads": True}.items():  # fmt: skip
        with pytest.raises(UserError, match=f"^{name}={re.escape(repr(value))}: expected "):
            RunConfig(**{name: value})
    given = {"n": 2}
    config = RunConfig(hparams=given)
    given["n"] = 3
    assert config.hparams == {"n": 2}


def test_unknown_and_old_names():
    with pytest.raises(UserError, match="did you mean 'rate'"):
        RunConfig.from_dict({"ratee": 0.2})
    with pytest.raises(UserError, match="bottleneck is called bottleneck_dim now"):
        RunConfig.from_dict({"bottleneck": 16})
    with pytest.raises(TypeError):
        RunConfig(bottleneck=16)


def test_resolving_makes_a_new_one_that_resolves_to_itself(feature_root):
    config = RunConfig(root=feature_root, source="alpha", target="be", hparams={"n": "2"}, scratch=True)
    before = dataclasses.replace(config)
    whole = config.resolve()
    assert config == before and whole is not config
    assert (whole.data, whole.target, whole.steps, whole.noise, whole.eval_every) == ("features", "beta", 1000, "none", 100)
    assert whole.hparams["n"] == 2 and "eta" in whole.hparams and isinstance(whole.split, LabelSplit)
    assert whole.resolve() == whole == RunConfig.from_record(json.loads(json.dumps(whole.to_dict())))


def test_image_size_is_the_crop_of_a_larger_square(image_root):
    from tllib_ext.training.resolve import open_run_data

    config = RunConfig(root=image_root, source="photo", target="sketch", image_size=112)
    data = open_run_data(config)
    assert (data.resize, data.crop) == (128, 112) and config.resolve(data).image_size == 112
    usual = open_run_data(dataclasses.replace(config, image_size=None))
    assert (usual.resize, usual.crop) == (256, 224) and config.resolve(usual).image_size == 224
    assert RunConfig().resolve().image_size is None  # glyphs have a size of their own


def test_every_setting_is_explained():
    for name, known in settings_of(RunConfig).items():
        assert known.help and known.group and known.flags, name
    assert 10 <= sum(known.basic for known in settings_of(RunConfig).values()) <= 15
    assert RATE.expected in str(pytest.raises(UserError, RunConfig, rate=2).value)


def test_records_of_the_last_release_are_understood():
    old = {"bottleneck": 16, "hp": ["n=2"], "hparams": {"n": 2, "delta": "official"}, "preset": None, "batch_norm": None,
           "quiet": False, "command": ["x"], "lr": 0.02, "drop_rate": "0.1", "root": "data"}  # fmt: skip
    config = RunConfig.from_record(old)
    assert (config.bottleneck_dim, config.drop_rate, config.batch_norm) == (16, 0.1, "global")
    assert config.hparams == {"n": 2, "delta": "code"}
    assert upgrade({"hp": ["n=2"], "preset": "official"}) == {"hparams": {"n": "2"}, "preset": "default"}
    new = {**config.to_dict(), "command": ["y"], "workers": 7}
    assert differences(old, {**new, "drop_rate": "0.1"}) == []
    assert differences(old, {**new, "drop_rate": "0.1", "momentum": 0.5}) == ["momentum 0.9 -> 0.5"]
