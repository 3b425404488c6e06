r"""Draw one glyph as it looks in print, by hand, or in a scene.

Pillow draws everything, with the font files of matplotlib (whose folder is looked up; matplotlib is not imported). Random
numbers come from a :class:`numpy.random.RandomState`, whose streams do not change between versions of numpy, and text is
laid out by Pillow's own engine: the pixels depend on the versions of Pillow and of the fonts only.
"""

from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Callable, Dict, List, Sequence, Tuple, TypeVar

import numpy as np
from numpy.random import RandomState
from PIL import Image, ImageChops, ImageDraw, ImageFilter, ImageFont

from tllib_ext.errors import UserError

__all__ = ["SIZE", "STYLES", "font_folder", "glyph_mask", "skeleton", "render"]

T = TypeVar("T")
#: side of a picture in pixels; it is composed at twice this size and then halved, which antialiases it.
SIZE, FINE = 36, 72
#: side of the masks that glyphs are cut from.
MASK = 96

#: faces with Greek, Cyrillic and symbols; one with all letters but few symbols; faces with Latin letters and digits only.
WIDE_FACES = ("DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSansMono", "DejaVuSansMono-Bold",
              "DejaVuSerif", "DejaVuSerif-Bold", "DejaVuSerif-Italic", "STIXGeneral", "STIXGeneralBol")  # fmt: skip
ALPHA_FACES = ("STIXGeneralItalic",)
LATIN_FACES = ("cmr10", "cmb10", "cmss10", "cmtt10")
#: the faces whose middle line looks like a pen's path: no serifs.
PEN_FACES = ("DejaVuSans", "DejaVuSans-Oblique", "DejaVuSansMono", "DejaVuSansMono-Oblique")


def font_folder() -> Path:
    """Where matplotlib keeps its TrueType fonts, found without importing it."""
    spec = find_spec("matplotlib")
    for place in (spec.submodule_search_locations or []) if spec else []:
        folder = Path(place) / "mpl-data" / "fonts" / "ttf"
        if (folder / "DejaVuSans.ttf").is_file():
            return folder
    raise UserError("no fonts to draw glyphs with: expected those that come with matplotlib; pip install matplotlib")


@lru_cache(maxsize=None)
def glyph_mask(char: str, face: str) -> Image.Image:
    """``char`` in ``face``, white on black, as large as fits with its own proportions into a square of ``MASK``."""
    font = ImageFont.truetype(str(font_folder() / f"{face}.ttf"), 2 * MASK, layout_engine=ImageFont.Layout.BASIC)
    left, top, right, bottom = font.getbbox(char)
    width, height = int(right - left), int(bottom - top)
    image = Image.new("L", (width, height))
    ImageDraw.Draw(image).text((-left, -top), char, fill=255, font=font)
    scale = 0.8 * MASK / max(width, height)
    small = image.resize((max(1, round(width * scale)), max(1, round(height * scale))), Image.Resampling.BOX)
    square = Image.new("L", (MASK, MASK))
    square.paste(small, ((MASK - small.width) // 2, (MASK - small.height) // 2))
    return square


@lru_cache(maxsize=None)
def skeleton(char: str, face: str) -> Tuple[np.ndarray, np.ndarray]:
    r"""The middle line of a glyph, by the thinning algorithm of Zhang and Suen (1984).

    Returns points :math:`(P, 2)`, x and y in 0..1, and edges :math:`(E, 2)`, pairs of points to join.
    """
    ink = np.pad(np.asarray(glyph_mask(char, face).reduce(2)) > 110, 1)
    changed = True
    while changed:
        changed = False
        for first in (True, False):
            # The eight neighbours, clockwise from north.
            n = [np.roll(ink, shift, (0, 1)) for shift in
                 ((1, 0), (1, -1), (0, -1), (-1, -1), (-1, 0), (-1, 1), (0, 1), (1, 1))]  # fmt: skip
            count = np.sum(n, axis=0)
            rises = np.sum([~a & b for a, b in zip(n, n[1:] + n[:1])], axis=0)
            north, east, south, west = n[::2]
            inner = east & south & (north | west) if first else north & west & (east | south)
            border = ink & (count >= 2) & (count <= 6) & (rises == 1) & ~inner
            if border.any():
                ink, changed = ink & ~border, True
    rows, columns = np.nonzero(ink)
    number = -np.ones(ink.shape, int)
    number[rows, columns] = np.arange(len(rows))
    pairs: List[Tuple[int, int]] = []
    for down, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
        other = number[rows + down, columns + right]
        pairs += [(a, b) for a, b in enumerate(other.tolist()) if b >= 0]
    points = np.stack([columns, rows], 1) / (MASK // 2)
    edges = np.array(pairs, int).reshape(-1, 2)
    for _ in range(4):  # smooth the corners of the pixel path
        total, degree = points.copy(), np.ones(len(points))
        for a, b in (edges.T, edges.T[::-1]):
            np.add.at(total, a, points[b])
            np.add.at(degree, a, 1)
        free = degree > 2  # the ends of a stroke stay where they are
        points = np.where(free[:, None], total / degree[:, None], points)
    return points, edges


def _uniform(rng: RandomState, low: float, high: float) -> float:
    return low + (high - low) * rng.random_sample()


def _choose(rng: RandomState, items: Sequence[T]) -> T:
    return items[rng.randint(len(items))]


def _faces(char: str) -> Tuple[str, ...]:
    """The faces that have ``char``."""
    return WIDE_FACES + ALPHA_FACES * char.isalnum() + LATIN_FACES * (char.isascii() and char.isalnum())


def _field(rng: RandomState, cells: int) -> Image.Image:
    """Smooth noise of about ``cells`` bumps across."""
    grid = Image.fromarray((rng.random_sample((cells, cells)) * 255).astype(np.uint8))
    return grid.resize((FINE, FINE), Image.Resampling.BICUBIC)


def _place(
    mask: Image.Image, rng: RandomState, scale: Tuple[float, float], shift: float, angle: float, shear: float,
    perspective: float = 0.0,
) -> Image.Image:  # fmt: skip
    """Warp a mask onto the fine canvas: size, place, turn, slant, and a plane seen from the side."""
    turn, size = np.deg2rad(_uniform(rng, -angle, angle)), _uniform(rng, *scale)
    slant = np.array([[1.0, _uniform(rng, -shear, shear)], [0.0, 1.0]])
    cos, sin = np.cos(turn), np.sin(turn)
    matrix = slant @ np.array([[cos, -sin], [sin, cos]]) * (MASK / FINE / size)
    offset = np.array([_uniform(rng, -shift, shift), _uniform(rng, -shift, shift)]) * FINE
    g, h = (_uniform(rng, -perspective, perspective) / FINE for _ in range(2))
    # Output pixel -> mask pixel: (matrix (x - centre - offset) + middle (1 + g x + h y)) / (1 + g x + h y)
    centre, middle = matrix @ (FINE / 2 + offset), MASK / 2
    a, b, c, d = matrix.ravel()
    one = 1 - (g + h) * FINE / 2  # perspective is measured from the centre so that it does not move the glyph
    terms = (a + middle * g, b + middle * h, middle * one - centre[0],
             c + middle * g, d + middle * h, middle * one - centre[1], g, h)  # fmt: skip
    data = [value / one for value in terms]
    return mask.transform((FINE, FINE), Image.Transform.PERSPECTIVE, data, Image.Resampling.BILINEAR)


def _grey(rng: RandomState, low: int, high: int, tint: int) -> Tuple[int, int, int]:
    level = rng.randint(low, high + 1)
    red, green, blue = (min(255, max(0, level + int(shade))) for shade in rng.randint(-tint, tint + 1, 3))
    return red, green, blue


def _grain(image: Image.Image, rng: RandomState, sigma: float) -> Image.Image:
    pixels = np.asarray(image, np.float32) + rng.standard_normal((SIZE, SIZE, 3)).astype(np.float32) * sigma
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def print_style(char: str, rng: RandomState) -> Image.Image:
    """Dark ink on light paper, many type faces, almost straight."""
    mask = glyph_mask(char, _choose(rng, _faces(char)))
    mask = _place(mask, rng, scale=(0.8, 1.05), shift=0.04, angle=3, shear=0.03)
    paper, ink = (Image.new("RGB", mask.size, _grey(rng, *levels)) for levels in ((225, 255, 4), (0, 60, 6)))
    return Image.composite(ink, paper, mask).reduce(2)


def hand_style(char: str, rng: RandomState) -> Image.Image:
    """Pen strokes along a distorted middle line, on plain or ruled paper."""
    points, edges = skeleton(char, _choose(rng, PEN_FACES))
    xy = (points - 0.5) * [_uniform(rng, 0.75, 1.1), _uniform(rng, 0.85, 1.1)]
    for cycles, amount in ((1.0, 0.09), (2.2, 0.035)):  # large bends, then small ones
        wave, phase = rng.standard_normal((2, 2)) * cycles * np.pi, rng.random_sample(2) * 2 * np.pi
        xy = xy + amount * np.sin(xy @ wave + phase)
    turn, slant = np.deg2rad(_uniform(rng, -12, 12)), _uniform(rng, -0.3, 0.15)
    xy = xy @ np.array([[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]]) @ np.array([[1, 0], [slant, 1]])
    xy = xy - (xy.max(0) + xy.min(0)) / 2 + [_uniform(rng, -0.05, 0.05), _uniform(rng, -0.05, 0.05)]
    xy = (xy * _uniform(rng, 0.8, 1.05) + 0.5) * 2 * FINE

    layer = Image.new("L", (2 * FINE, 2 * FINE))
    pen, width = ImageDraw.Draw(layer), _uniform(rng, 4.0, 9.0)
    pressure = 1 + 0.3 * np.sin(xy @ rng.standard_normal(2) * 0.06 + _uniform(rng, 0, 6))
    radius = pressure[:, None] * width / 2
    for corners in np.hstack([xy - radius, xy + radius]).tolist():
        pen.ellipse(corners, fill=255)
    lines = np.hstack([xy[edges[:, 0]], xy[edges[:, 1]]]).tolist()
    for line, a in zip(lines, (width * pressure[edges].min(1)).astype(int).tolist()):
        pen.line(line, fill=255, width=max(1, a))
    mask = layer.reduce(2)

    paper = Image.new("RGB", mask.size, _grey(rng, 225, 252, 10))
    if rng.random_sample() < 0.4:
        rule, step, line = ImageDraw.Draw(paper), rng.randint(14, 26), _choose(rng, ((170, 195, 230), (205, 205, 205)))
        for at in range(rng.randint(step), FINE, step):
            rule.line((0, at, FINE, at), fill=line, width=2)
    ink = _choose(rng, ((25, 35, 130), (30, 30, 35), (150, 30, 40), (85, 85, 90), (20, 90, 60)))
    if rng.random_sample() < 0.3:  # a pencil catches on the paper
        mask = ImageChops.multiply(mask, _field(rng, 36).point(lambda v: min(255, 90 + v)))
    return _grain(Image.composite(Image.new("RGB", mask.size, ink), paper, mask).reduce(2), rng, 3.0)


def _two_colours(rng: RandomState) -> Tuple[np.ndarray, np.ndarray]:
    """Two colours of different brightness, in any order."""
    weights = np.array([0.299, 0.587, 0.114])
    while True:
        colours = rng.random_sample((2, 3)) * 255
        grey = colours @ weights
        if abs(grey[0] - grey[1]) > 60:  # paint is rarely as pure as the corners of the RGB cube
            first, second = grey[:, None] + (colours - grey[:, None]) * _uniform(rng, 0.2, 0.9)
            return first, second


def scene_style(char: str, rng: RandomState) -> Image.Image:
    """A sign in the street: two colours, texture, perspective, neighbours, uneven light, blur and noise."""
    face = _choose(rng, _faces(char))
    mask = _place(glyph_mask(char, face), rng, scale=(0.7, 0.95), shift=0.08, angle=14, shear=0.2, perspective=0.7)
    front, back = _two_colours(rng)
    texture = np.asarray(_field(rng, _choose(rng, (3, 5, 9, 18))), np.float32) / 255 - 0.5
    scene: np.ndarray = np.empty((FINE, FINE, 3), np.float32)
    scene[:] = back + (texture * _uniform(rng, 20, 110))[..., None] * (0.5 + rng.random_sample(3))
    if rng.random_sample() < 0.35:  # planks, blinds, tiles
        y, x = np.mgrid[:FINE, :FINE]
        angle = _uniform(rng, 0, np.pi)
        stripes = np.sin((x * np.cos(angle) + y * np.sin(angle)) * _uniform(rng, 0.25, 0.9)) > _uniform(rng, -0.5, 0.9)
        scene += (stripes * _uniform(rng, -45, 45))[..., None]
    if rng.random_sample() < 0.4:  # a drop shadow
        shadow = np.asarray(ImageChops.offset(mask, rng.randint(2, 6), rng.randint(2, 6)), np.float32)[..., None] / 255
        scene *= 1 - shadow * _uniform(rng, 0.3, 0.7)
    alpha = np.asarray(mask, np.float32)[..., None] / 255
    scene = scene * (1 - alpha) + (front + (texture * _uniform(rng, 0, 50))[..., None]) * alpha
    light = np.asarray(_field(rng, 2), np.float32) / 255
    scene *= (1 - _uniform(rng, 0, 0.6) * light)[..., None]
    image = Image.fromarray(scene.clip(0, 255).astype(np.uint8))
    image = image.filter(ImageFilter.GaussianBlur(_uniform(rng, 0, 2.0))).reduce(2)
    return _grain(image, rng, _uniform(rng, 2, 16))


#: domain -> how a glyph looks there.
STYLES: Dict[str, Callable[[str, RandomState], Image.Image]] = {"print": print_style, "hand": hand_style, "scene": scene_style}


def render(char: str, domain: str, seed: Tuple[int, ...]) -> Image.Image:
    """Picture number ``seed`` (non-negative numbers) of ``char`` in ``domain``, a key of :data:`STYLES`.

    Examples::

        >>> a, b = (render("A", "print", (0, 1)) for _ in range(2))
        >>> a.size, a.mode, a.tobytes() == b.tobytes()
        ((36, 36), 'RGB', True)
    """
    return STYLES[domain](char, RandomState(list(seed)))
