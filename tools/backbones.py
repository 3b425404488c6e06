"""Measure the backbones that have short names, without weights: sizes and operations, for docs/backbones.md.

    python tools/backbones.py --write docs/backbones.md

Networks are built on torch's meta device, which has shapes and no numbers; operations are those of torch's FLOP counter
for one image (a multiplication and an addition are two). What follows from them by division is no measurement.
"""

import argparse
from pathlib import Path
from typing import List, NamedTuple

import torch
from torch.utils.flop_counter import FlopCounterMode

from tllib_ext.io import write_between_marks
from tllib_ext.vision.models import BACKBONES, SHORTCUTS
from tllib_ext.vision.models.backbones import build_backbone
from tllib_ext.vision.models.inputs import image_input

__all__ = ["NAMES", "Measured", "measure", "table"]

#: every short name, and torchvision's networks that are most used
NAMES = ("mobilenet_v2", "resnet18", "resnet50", "resnet101", *SHORTCUTS)
#: operations per second that the two columns of time divide by: two cores of a laptop, and a small GPU
CPU, GPU = 50e9, 5e12
#: images that those columns are for
IMAGES = 10_000


class Measured(NamedTuple):
    """Sizes of a backbone and the operations of one image."""

    name: str
    help: str
    side: int
    features: int
    parameters: int
    operations: int

    @property
    def machine(self) -> str:
        """Where the features of 10,000 images take less than an hour, by the operations alone."""
        return "CPU" if IMAGES * self.operations / CPU < 3600 else "GPU" if IMAGES * self.operations / GPU < 3600 else "large GPU"


def measure(name: str) -> Measured:
    """Build a backbone without weights on the meta device and count."""
    side = image_input(name).size
    with torch.device("meta"):
        net = build_backbone(name, None).eval().requires_grad_(False)
    with FlopCounterMode(display=False) as counter:
        out = net(torch.zeros(1, 3, side, side, device="meta"))
    assert tuple(out.shape) == (1, net.out_features), name
    parameters = sum(p.numel() for p in net.parameters())
    return Measured(name, BACKBONES.help()[name], side, int(net.out_features), parameters, int(counter.get_total_flops()))  # type: ignore[arg-type]


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 60 else f"{seconds / 60:.0f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"


def table(rows: List[Measured]) -> str:
    """A Markdown table, the fewest operations first."""
    lines = ["| `-a` | network | image | features | parameters | weights | operations | CPU | GPU | machine |", "|---" * 10 + "|"]
    for r in sorted(rows, key=lambda row: row.operations):
        times = (_minutes(IMAGES * r.operations / speed) for speed in (CPU, GPU))
        network = r.help.removesuffix(" (timm)").removesuffix(" (torchvision)")
        millions = r.parameters / 1e6
        cells = (f"`{r.name}`", network, r.side, r.features, f"{millions:.0f} M", f"{4 * millions:.0f} MB",
                 f"{r.operations / 1e9:.1f} G", *times, r.machine)  # fmt: skip
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n" + "\n".join(lines) + "\n"


def main() -> None:
    """Print the table, or write it into a page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, metavar="PAGE", help="a page with marks around its table")
    args = parser.parse_args()
    text = table([measure(name) for name in NAMES])
    print(text) if args.write is None else write_between_marks(args.write, text)


if __name__ == "__main__":
    main()
