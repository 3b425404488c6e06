"""Run one of tllib's example scripts, unmodified, also with noisy labels and unknown classes.

    python -m tllib_ext.tllib [flags] SCRIPT [its arguments …]

    python -m tllib_ext.tllib Transfer-Learning-Library/examples/domain_adaptation/image_classification/dann.py \\
        data/office31 -d Office31 -s A -t D -a resnet18 --scratch --epochs 1
    python -m tllib_ext.tllib --noise pair --rate 0.2 --universal \\
        Transfer-Learning-Library/examples/domain_adaptation/image_classification/dann.py \\
        data/office31 -d Office31 -s A -t D -a resnet18 --scratch --epochs 1

flags, before SCRIPT:
    --no-download     fetch neither pretrained weights nor data that are not on this machine
    --noise KIND      label noise of the source (tllib-ext list noises, or a file with a transition matrix)
    --rate RATE       expected share of wrong labels (default: 0.2)
    --noise-seed N    of the draw (default: 0)
    --universal       source: shared and source-private classes; target: shared classes and unknown ones
    --split a/b/c     shared/source private/target private classes, in place of the benchmark's; implies --universal

tllib is taken from the Python path, or from the checkout that SCRIPT lies in; what it needs and current
PyTorch and numpy no longer have is supplied. Its registries also get our data and backbones: ``-d Glyphs``
(domains print, hand, scene; drawn into the root at the first use), ``-d folder`` (root/domain/class/image)
and ``-a small_cnn`` or ``mobilenet_v2``. Glyphs and small_cnn are made for small pictures that are not
mirrored:

    … dann.py data/glyphs -d Glyphs -s print -t hand -a small_cnn --no-hflip \\
        --train-resizing res. --val-resizing res. --resize-size 32

With --noise or --universal the last checkpoint (tllib's latest.pth, not its best on target labels) is
evaluated at the end: unknown by the entropy rule, by the target model, and by the script's own class for it
if it has one (osbp.py). The numbers are printed as ``tllib-ext compare`` prints them, and written to
open_set.json in the script's --log folder.
"""

import argparse
import sys
from typing import NoReturn, Optional, Sequence

from tllib_ext.errors import UserError

__all__ = ["main"]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; python -m tllib_ext.tllib --help shows the flags")


def main(argv: Optional[Sequence[str]] = None) -> int:
    """The command line."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help"):
        print(__doc__)
        return 0
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("--no-download", action="store_false", dest="download")
    parser.add_argument("--download", action="store_true", dest="needless")
    parser.add_argument("--noise")
    parser.add_argument("--rate", type=float, default=0.2)
    parser.add_argument("--noise-seed", type=int, default=0)
    parser.add_argument("--universal", action="store_true")
    parser.add_argument("--split")
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    stderr = sys.stderr
    try:
        args = parser.parse_args(words)
        if args.needless:
            print("--download is no longer needed: what is absent is downloaded; --no-download forbids it", file=stderr)
        from tllib_ext.tllib.factories import Noise
        from tllib_ext.tllib.launcher import run
        from tllib_ext.tllib.scenario import Scenario

        noise = Noise(args.noise, args.rate, args.noise_seed) if args.noise else None
        scenario = Scenario(noise, args.universal or args.split is not None, args.split)
        run(args.script, args.arguments, args.download, scenario if noise or scenario.universal else None)
    except UserError as error:
        print(f"error: {error}", file=stderr)
        sys.exit(error.exit_code)
    return 0


if __name__ == "__main__":
    sys.exit(main())
