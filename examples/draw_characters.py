"""Draw two domains of 62 characters, a benchmark on which ImageNet features are weak: printed, and in random colours.

    python examples/draw_characters.py data/characters
    tllib-ext train data/characters -d folder -s printed -t coloured --split 26/14/22 -a mobilenet_v2 --freeze-backbone -m mixture

``printed`` is black on white, upright; ``coloured`` has random colours, an uneven background, rotation and blur. The fonts are
those that matplotlib brings. Folders are ``domain/class/number.png``; classes are named by their place in 0-9A-Za-z.
"""

import argparse
import string
import sys
from pathlib import Path
from typing import List

import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont

CHARACTERS = string.digits + string.ascii_uppercase + string.ascii_lowercase
FAMILIES = ("DejaVuSans", "DejaVuSerif", "STIXGeneral", "cmr10", "cmss10", "cmtt10")
SIZE = 224


def fonts() -> List[Path]:
    """Text fonts of matplotlib; display, symbol and size variants are left out."""
    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    return sorted(file for file in folder.glob("*.ttf") if file.stem.startswith(FAMILIES) and "Display" not in file.stem)


def draw(character: str, font_file: Path, coloured: bool, rng: np.random.Generator) -> Image.Image:
    """One image of a character."""
    font = ImageFont.truetype(str(font_file), int(rng.integers(110, 170)))
    ink, paper = np.zeros(3), np.full(3, 255.0)
    if coloured:
        ink, paper = rng.integers(0, 256, 3), rng.integers(0, 256, 3)
    image = Image.new("RGB", (SIZE, SIZE), tuple(int(v) for v in paper))
    if coloured:
        patches = Image.fromarray(rng.integers(88, 168, (14, 14, 3)).astype(np.uint8)).resize((SIZE, SIZE))
        uneven = np.asarray(image, dtype=np.int64) + np.asarray(patches, dtype=np.int64) - 128
        image = Image.fromarray(uneven.clip(0, 255).astype(np.uint8))
    place = tuple(int(SIZE // 2 + v) for v in rng.integers(-15, 15, 2))
    ImageDraw.Draw(image).text(place, character, font=font, fill=tuple(int(v) for v in ink), anchor="mm")
    if coloured:
        image = image.rotate(float(rng.normal(0, 10)), fillcolor=tuple(int(v) for v in paper))
        image = image.filter(ImageFilter.GaussianBlur(float(rng.uniform(0, 3))))
    return image


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, metavar="DIR", help="folder to write, must not exist")
    parser.add_argument("--per-class", type=int, default=20, metavar="N", help="images of each class and domain (default: 20)")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    args = parser.parse_args()
    if args.out.exists() or args.per_class < 1:
        sys.exit(f"{args.out} exists: name a new folder" if args.out.exists() else "--per-class: expected 1 or more")
    rng, files = np.random.default_rng(args.seed), fonts()
    for domain in ("printed", "coloured"):
        for index, character in enumerate(CHARACTERS):
            folder = args.out / domain / f"{index:02d}"
            folder.mkdir(parents=True)
            for number in range(args.per_class):
                image = draw(character, files[rng.integers(len(files))], domain == "coloured", rng)
                image.save(folder / f"{number:03d}.png")
    print(f"{2 * len(CHARACTERS) * args.per_class} images of {len(CHARACTERS)} characters in {args.out}")


if __name__ == "__main__":
    main()
