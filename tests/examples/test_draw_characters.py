"""The domains of characters: folders, repeatable, and what sets the domains apart."""

import numpy as np
from conftest import load_example
from PIL import Image

characters = load_example("draw_characters")


def test_two_domains_of_62_classes(tmp_path, monkeypatch, capsys):
    for name in ("a", "b"):
        monkeypatch.setattr("sys.argv", ["draw_characters.py", str(tmp_path / name), "--per-class", "1"])
        characters.main()
    files = sorted(path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*.png"))
    assert len(files) == 124 and {str(file.parent.parent) for file in files} == {"printed", "coloured"}
    assert all((tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes() for file in files)
    assert "124 images of 62 characters" in capsys.readouterr().out
    printed = np.asarray(Image.open(tmp_path / "a" / "printed" / "10" / "000.png"))
    assert (printed[0, 0] == 255).all() and printed.min() == 0 and (printed[..., 0] == printed[..., 2]).all()
