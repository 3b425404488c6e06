"""Make the weights that come with ``small_cnn``: learn to tell 59 glyphs apart, none of them a class of Glyphs.

What ImageNet is to Office-31: other classes, all styles mixed. Also left out is whatever could be taken for one of the
31 classes after a hand or a camera had its way with it: 0 1 5 6 8 (O I S G B), the small letters c f g i j k l m o p q
s t u v w x y z, Greek and Cyrillic letters that share or mirror a Latin shape or a digit (such as Theta, Lambda,
Sigma, beta, rho, omega, Ya, I, E, Sha, Che), brackets, bars and currency signs.

    python examples/pretrain_small_cnn.py --out small_cnn.safetensors
"""

import argparse
import sys
from pathlib import Path
from typing import Tuple

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm import tqdm

from tllib_ext.errors import UserError
from tllib_ext.vision.datasets.glyph_render import STYLES, render
from tllib_ext.vision.datasets.glyphs import CROP, RESIZE
from tllib_ext.vision.models.small_cnn import WEIGHTS, SmallCNN

#: 59 glyphs: 9 small letters, 16 Greek, 6 Cyrillic, 28 signs.
OTHERS = "abdehnræðΔΞΠΦΨΩαδζηλμξπσψЖЦЮЫДЛ&@%#?*+={}∞∂∇√≈≠±÷⊕⊗≤≥←→↑↓↔⇒"

#: ImageNet's, as everywhere else in the package.
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def draw(per_style: int, seed: int, part: int) -> Tuple[Tensor, Tensor]:
    """``per_style`` pictures of every glyph in every style, as (N, 3, S, S) bytes, and their labels."""
    pictures, labels = [], []
    for label, char in enumerate(tqdm(OTHERS, desc=("training", "held-out")[part] + " pictures", unit="glyph")):
        for number, style in enumerate(STYLES):
            for i in range(per_style):
                pictures.append(np.asarray(render(char, style, (seed, 1 + part, number, label, i))))
                labels.append(label)
    return torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).contiguous(), torch.tensor(labels)


def normalise(x: Tensor) -> Tensor:
    """Bytes to what the network expects."""
    return (x.float() / 255 - torch.tensor(MEAN).view(1, 3, 1, 1)) / torch.tensor(STD).view(1, 3, 1, 1)


def crop(x: Tensor, generator: torch.Generator) -> Tensor:
    """One random window per picture."""
    at = torch.randint(RESIZE - CROP + 1, (len(x), 2), generator=generator).tolist()
    return torch.stack([picture[:, i : i + CROP, j : j + CROP] for picture, (i, j) in zip(x, at)])


@torch.no_grad()
def accuracy(net: nn.Module, x: Tensor, y: Tensor) -> float:
    """Share of pictures named rightly, seen through the middle window."""
    net.eval()
    edge = (RESIZE - CROP) // 2
    middle = x[:, :, edge : edge + CROP, edge : edge + CROP]
    return torch.cat([net(normalise(part)).argmax(1) for part in middle.split(500)]).eq(y).float().mean().item()


def main(args: argparse.Namespace) -> None:
    if args.out.suffix != ".safetensors" or not args.out.parent.is_dir():
        raise UserError(f"--out {args.out}: expected a .safetensors file in a folder that exists")
    torch.manual_seed(args.seed)  # the first weights
    generator = torch.Generator().manual_seed(args.seed)  # batches and crops
    x, y = draw(args.per_style, args.seed, part=0)
    x_test, y_test = draw(max(1, args.per_style // 6), args.seed, part=1)
    backbone = SmallCNN()
    net = nn.Sequential(backbone, nn.Linear(backbone.out_features, len(OTHERS)))
    optimizer = torch.optim.SGD(net.parameters(), lr=args.lr, momentum=0.9, nesterov=True, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)
    bar = tqdm(range(args.steps), desc="pretraining", unit="step")
    for _ in bar:
        net.train()
        chosen = torch.randint(len(x), (args.batch_size,), generator=generator)
        loss = F.cross_entropy(net(normalise(crop(x[chosen], generator))), y[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        bar.set_postfix(loss=f"{loss.item():.3f}", refresh=False)
    held_out = accuracy(net, x_test, y_test)
    about = {"classes": OTHERS, "held_out": f"{held_out:.4f}", "steps": str(args.steps), "seed": str(args.seed)}
    save_file({name: value.contiguous() for name, value in backbone.state_dict().items()}, args.out, metadata=about)
    print(f"{len(OTHERS)} glyphs, {len(x)} pictures: held-out accuracy {held_out:.3f}; wrote {args.out}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=WEIGHTS, help="where the weights go (default: the package's own)")
    parser.add_argument("--steps", type=int, default=3000, help="(default: %(default)s)")
    parser.add_argument("-b", "--batch-size", type=int, default=128, help="(default: %(default)s)")
    parser.add_argument("--lr", type=float, default=0.1, help="start of a cosine (default: %(default)s)")
    parser.add_argument("--per-style", type=int, default=60, help="pictures per glyph and style (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="(default: %(default)s)")
    try:
        main(parser.parse_args())
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
