"""Run one of tllib's example scripts, unmodified, on current PyTorch and numpy.

    python -m tllib_ext.tllib SCRIPT [its arguments …]

    python -m tllib_ext.tllib Transfer-Learning-Library/examples/domain_adaptation/image_classification/dann.py \\
        data/office31 -d Office31 -s A -t D -a resnet18 --epochs 1

tllib is taken from the Python path, or from the checkout that SCRIPT lies in. Its registries also get our data set and
backbone: ``-d Glyphs`` (domains P, H, S; drawn into the root at the first use) and ``-a small_cnn``. Both are made for
small pictures that are not mirrored:

    … dann.py data/glyphs -d Glyphs -s P -t H -a small_cnn --no-hflip \\
        --train-resizing res. --val-resizing res. --resize-size 32
"""

import multiprocessing
import runpy
import sys
from pathlib import Path
from typing import Any, List, Optional, Sequence

from torch import Tensor, nn

from tllib_ext import compat
from tllib_ext.errors import UserError, closest
from tllib_ext.vision.datasets import glyphs
from tllib_ext.vision.models.small_cnn import small_cnn

__all__ = ["GlyphsList", "FeatureMap", "register", "run", "main"]


class GlyphsList:
    r"""What makes tllib's ``ImageList`` the Glyphs data set; :func:`register` puts the two together.

    Args:
        root (str): folder of the data set.
        task (str): domain: ``"P"`` (print), ``"H"`` (hand) or ``"S"`` (scene).
        download (bool, optional): draw the pictures into ``root`` if they are not there. Default: True
        kwargs: ``transform`` and ``target_transform``, as tllib's data sets take them.
    """

    CLASSES = list(glyphs.CLASSES)
    image_list = {letter: f"image_list/{name}.txt" for letter, name in glyphs.DOMAINS.items()}

    def __init__(self, root: str, task: str, download: Optional[bool] = True, **kwargs: Any):
        if task not in self.image_list:
            raise UserError(f"no domain {task!r} in Glyphs: {closest(task, self.image_list)}")
        if download:
            glyphs.write_glyphs(root)
        super().__init__(root, self.CLASSES, data_list_file=str(Path(root, self.image_list[task])), **kwargs)

    @classmethod
    def domains(cls) -> List[str]:
        """All domains, by their letters."""
        return list(cls.image_list)


class FeatureMap(nn.Module):
    r"""A backbone of ours as tllib's classifiers expect one: a map, which their pooling layer averages.

    Args:
        net (torch.nn.Module): backbone with ``out_features``.
        num_classes (int, optional): width of a head made by :meth:`copy_head`. Default: 31, as in Glyphs

    Shape:
        - Inputs: what ``net`` takes
        - Outputs: :math:`(N, F, 1, 1)` where ``net`` gives :math:`(N, F)`

    Examples::

        >>> import torch
        >>> FeatureMap(small_cnn(None))(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 128, 1, 1])
    """

    def __init__(self, net: nn.Module, num_classes: int = len(glyphs.CLASSES)):
        super().__init__()
        self.net = net
        self.out_features = net.out_features
        self.num_classes = num_classes

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)[:, :, None, None]

    def copy_head(self) -> nn.Linear:
        """A new linear layer: the weights that come with the package have no head to copy."""
        return nn.Linear(self.out_features, self.num_classes)


def build_small_cnn(pretrained: bool = False, progress: bool = True, **kwargs: Any) -> FeatureMap:
    """``small_cnn`` with the signature of tllib's backbones; ``progress`` is for downloads, and there is none."""
    return FeatureMap(small_cnn("default" if pretrained else None), **kwargs)


def register() -> None:
    """Add ``Glyphs`` to ``tllib.vision.datasets`` and ``small_cnn`` to ``tllib.vision.models``."""
    datasets, models = compat.tllib("vision.datasets"), compat.tllib("vision.models")
    datasets.Glyphs = type("Glyphs", (GlyphsList, datasets.ImageList), {"__module__": datasets.__name__})
    models.small_cnn = build_small_cnn


def run(script: str, arguments: Sequence[str]) -> None:
    """Run ``script`` as ``python script arguments…`` would, with tllib made importable and our names registered."""
    path = Path(script)
    if not path.is_file():
        raise UserError(f"no script {script}: give the path of one of tllib's examples, "
                        "e.g. Transfer-Learning-Library/examples/domain_adaptation/image_classification/dann.py")
    folders = path.resolve().parents
    sys.path.insert(0, str(folders[0]))
    sys.path += [str(folder) for folder in folders if (folder / "tllib" / "__init__.py").is_file()]
    register()
    if "fork" in multiprocessing.get_all_start_methods():
        # a worker that is not a copy of this process would import tllib anew, without the names supplied here
        multiprocessing.set_start_method("fork", force=True)
    streams = sys.stdout, sys.stderr
    sys.argv = [script, *arguments]
    runpy.run_path(script, run_name="__main__")
    # tllib's logger closes stdout and stays in its place; flushing it at exit would turn success into exit code 120
    sys.stdout, sys.stderr = streams


def main(argv: Optional[Sequence[str]] = None) -> None:
    """The command line."""
    script, *arguments = (sys.argv[1:] if argv is None else argv) or ["--help"]
    if script in ("-h", "--help"):
        print(__doc__)
        return
    stderr = sys.stderr
    try:
        run(script, arguments)
    except UserError as error:
        print(f"error: {error}", file=stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
