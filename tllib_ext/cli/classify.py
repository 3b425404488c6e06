"""Sort new photographs into the classes of labelled ones, find those of no class, and labels that look wrong.

    {prog} my_photos/labelled my_photos/new
    {prog} my_photos/labelled my_photos/new --out runs/mine -a dinov2-small

LABELLED has one folder per class, some labels may be wrong; every image below NEW is classified. Features are those of a
frozen network, whose weights are fetched once; the method is mixture, which is told neither how many labels are wrong
nor which classes are new. Unreadable images are named and left out. The page opens at the end, and the last lines say what
was found and what to type next.
"""

import os
import sys
import webbrowser
from dataclasses import replace
from pathlib import Path
from typing import Optional, Sequence, Tuple

from tllib_ext.cli.parser import Parser, add_settings, output_folder, parse_settings
from tllib_ext.errors import UserError
from tllib_ext.training.config import RunConfig
from tllib_ext.training.setting import settings_of

__all__ = ["main"]

_USED = ("arch", "weights", "image_size", "download", "on_bad_image", "workers", "device", "seed", "overwrite")


def main(argv: Optional[Sequence[str]] = None, prog: str = "tllib-ext classify") -> int:
    """Parse the words, classify, say what was found, open the page."""
    usage = f"{prog} LABELLED NEW [--out FOLDER] [flags]"
    parser = Parser(prog=prog, usage=usage, description=(__doc__ or "").replace("{prog}", prog))
    parser.add_argument("labelled", metavar="LABELLED", help="folder with one folder of images per class")
    parser.add_argument("new", metavar="NEW", help="folder of the images to classify, with or without subfolders")
    parser.add_argument("--out", type=output_folder, metavar="FOLDER", help="folder of the run (default: a new one in runs/)")
    parser.add_argument("--no-open", action="store_true", help="do not open the page in a browser")
    settings = settings_of(RunConfig)
    add_settings(parser, RunConfig, [name for name in settings if name not in _USED], {"on_bad_image": "skip"})
    parser.add_help_all()
    values, args = parse_settings(parser, {name: settings[name] for name in _USED}, argv)
    root, source, target = common_root(args.labelled, args.new)
    from tllib_ext.api import train
    from tllib_ext.report.in_words import findings_in_words
    from tllib_ext.report.run_files import read_run

    config = RunConfig(root=root, data="folder", source=source, target=target, target_unlabelled=True, method="mixture",
                       freeze_backbone=True, log=None if args.out is None else str(args.out))  # fmt: skip
    run = train(replace(config, **{"on_bad_image": "skip", **values}))
    print(*findings_in_words(read_run(run.folder), args.labelled), sep="\n")
    if not args.no_open:
        open_page(run.folder / "report.html")
    return 0


def common_root(labelled: str, new: str) -> Tuple[str, str, str]:
    """The folder above both folders, and both relative to it.

    Examples::

        >>> common_root(".", "..")
        Traceback (most recent call last):
        ...
        tllib_ext.errors.UserError: . lies in ..: expected two separate folders, labelled images and new ones
    """
    folders = [os.path.realpath(folder) for folder in (labelled, new)]
    for name, folder in zip((labelled, new), folders):
        if not os.path.isdir(folder):
            raise UserError(f"there is no folder {name}: expected LABELLED, with one folder per class, and NEW, with images")
    if folders[0] == folders[1]:
        raise UserError(f"{labelled} and {new} are the same folder: expected labelled images and new ones")
    root = os.path.commonpath(folders)
    if root in folders:
        inner, outer = (new, labelled) if root == folders[0] else (labelled, new)
        raise UserError(f"{inner} lies in {outer}: expected two separate folders, labelled images and new ones")
    return root, os.path.relpath(folders[0], root), os.path.relpath(folders[1], root)


def open_page(page: Path) -> None:
    """Show a page where a person looks at the output and there is a screen to show it on."""
    screen = sys.platform == "darwin" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
    if screen and sys.stdout.isatty():
        webbrowser.open(page.absolute().as_uri())
