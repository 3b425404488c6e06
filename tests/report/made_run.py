"""A run folder as a run leaves it, made by hand, with hostile names."""

import json
import os
from types import SimpleNamespace

import numpy as np
from PIL import Image

from tllib_ext.evaluation.feature_map_file import FeatureMap, write_feature_map
from tllib_ext.evaluation.files import write_predictions
from tllib_ext.evaluation.suspects_file import write_suspects
from tllib_ext.io import write_json
from tllib_ext.labels.audit import audit_labels, audit_quality
from tllib_ext.methods.base import Prediction
from tllib_ext.split import LabelSplit

SPLIT = LabelSplit(
    ["<script>alert('x')</script>", "=cmd|' /C calc'!A0", 'a,b"c'], ["'onload='x", "$m$"], ["</style><img src=x onerror=y>"]
)


def make_run(folder, labelled=True, noise="pair", data="folder", images=True, extras=True, n=60):
    """A run folder as a run leaves it, made by hand."""
    folder.mkdir(parents=True)
    rng, k = np.random.default_rng(0), SPLIT.num_source
    names = [f"<img src=x onerror=alert({i})>" if i % 7 == 0 else f"a,b\"c' {i}" for i in range(n)]
    root = folder.parent / f"pictures of {folder.name}"
    paths = [str(root / f"{name}.png") for name in names]
    if images:
        root.mkdir()
        for path, pixels in zip(paths, rng.integers(0, 255, (60, 140, 130, 3), dtype=np.uint8)):
            Image.fromarray(pixels).save(path)
        for i in range(60, n):
            os.link(paths[i % 50 + 4], paths[i])
        open(paths[3], "wb").write(b"no image")
    config = {"method": "divergence", "data": data, "source_name": "a<b", "target_name": "c&d", "noise": noise, "rate": 0.2,
              "seed": 0, "steps": 9, "root": str(root), "log": None, "split": SPLIT.to_dict(), "hparams": {"eta": 0.05},
              "command": ["my data", "--hp", "a=<b>"]}  # fmt: skip
    write_json(folder / "config.json", config)
    labels = np.where(np.arange(n) < 2 * n // 3, np.arange(n) % 3, SPLIT.unknown)
    probs, score = rng.dirichlet(np.full(k, 0.4), n), rng.normal(size=n) + 2 * (labels == SPLIT.unknown)
    prediction = Prediction(probs, score, score > 1)
    write_predictions(folder / "predictions.csv", prediction, np.arange(n), paths, SPLIT, 1.0, labels if labelled else None)
    results = {"os": 0.5, "realised_rate": 0.2, "realised_transition": np.eye(k).tolist(), "oracle_os": 0.6, "oracle_step": 3}
    if extras:
        clean = rng.integers(0, k, n)
        audit = SimpleNamespace(loss=rng.exponential(size=n), probs=probs, visits=np.ones(n))
        given = np.where(rng.random(n) < 0.2, (clean + 1) % k, clean)
        audit, truth = audit_labels(audit, given), None if noise == "none" else clean
        if data == "folder":  # otherwise the columns of the first releases
            audit = audit._replace(kind=np.full(n, "duplicate", dtype=object), group=np.full(n, -1))
        write_suspects(folder / "suspects.csv", paths, given, audit, SPLIT, truth)
        results.update({} if truth is None else audit_quality(audit, given, truth))
        write_feature_map(folder / "tsne.csv", FeatureMap(np.arange(n) % 3, np.arange(n), rng.normal(size=n), rng.normal(size=n)))
        text = "about 20.0% are wrong, not known exactly (95 %: 9.0% to 41.0%): review the changed labels"
        model = {"rate": 0.2, "rate_std": 0.01, "rate_text": text, "trace": [{"rate": 0.3}, {"rate": 0.2}],
                 "transition": np.eye(k).tolist()}  # fmt: skip
        write_json(folder / "label_model.json", model)
        write_json(folder / "env.json", {"python": "3.<b>", "versions": {"torch": "2", "tllib": None}})
        lines = [{"step": step, "train_loss": 1 / step, "os": 0.1 * step} for step in (1, 2, 3)]
        (folder / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    write_json(folder / "results.json", results)
    return folder
