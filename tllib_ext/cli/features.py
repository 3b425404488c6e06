"""Write the features of a frozen backbone, one .npz file per domain, for -d features.

    {prog} data/office31 --out data/office31_resnet50
    {prog} data/office31 --out data/office31_dinov2 -a dinov2-small
    {prog} my_photos/labelled --out data/mine                one domain: a folder of class folders
    {prog} my_photos --out data/mine -a mobilenet_v2 --weights mobilenet_v2.pth
    {prog} my_photos --out data/moved --run runs/photos
    tllib-ext compare data/office31_resnet50 -d features --tasks A2D,W2A --noise pair:0.2

Images are resized to squares, 8/7 of the side that the backbone expects, and their centre is cropped; nothing is random.
"""

from typing import Optional, Sequence

from tllib_ext.cli.parser import Parser, add_settings, output_folder, parse_settings
from tllib_ext.training.config import RunConfig
from tllib_ext.training.setting import settings_of

__all__ = ["main"]

_USED = ("root", "data", "image_size", "download", "allow_outside", "arch", "weights", "scratch", "batch_size", "workers", "seed",
         "device")  # fmt: skip


def main(argv: Optional[Sequence[str]] = None, prog: str = "tllib-ext features") -> int:
    """Parse the flags, extract, write."""
    parser = Parser(prog=prog, usage=f"{prog} DIR --out FOLDER [flags]", description=(__doc__ or "").replace("{prog}", prog))
    known = {name: setting for name, setting in settings_of(RunConfig).items() if name in _USED}
    add_settings(parser, RunConfig, [name for name in settings_of(RunConfig) if name not in _USED])
    parser.add_argument("--out", required=True, type=output_folder, metavar="FOLDER", help="folder of the files")
    parser.add_argument("--run", metavar="RUN", help="by the trained network of this finished run on images, in place of --arch")
    parser.add_argument("--overwrite", action="store_true", help="replace files that exist")
    parser.add_help_all()
    values, args = parse_settings(parser, known, argv)
    from tllib_ext.training.features import write_features

    write_features(RunConfig(**values), args.out, args.overwrite, run=args.run)
    return 0
