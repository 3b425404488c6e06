"""Find the images that cannot be used before training: decode every one, list all that fail."""

import copy
from typing import Any, Callable, Iterable, List, Optional, Sequence, Tuple

from tllib_ext.vision.datasets.frozen import in_threads
from tllib_ext.vision.datasets.types import ImageListLike

__all__ = ["bad_images", "without_images"]


def bad_images(paths: Sequence[str], loader: Callable[[str], object], workers: int = 1) -> List[Tuple[str, str]]:
    """Path and reason of each image that ``loader`` cannot read, in the order of ``paths``; ``workers`` threads read.

    Examples::

        >>> bad_images(["nowhere.png"], open)
        [('nowhere.png', "[Errno 2] No such file or directory: 'nowhere.png'")]
    """

    def reason(path: str) -> Optional[str]:
        try:
            loader(path)
            return None
        except Exception as error:  # a foreign loader may raise anything
            return str(error) or type(error).__name__

    chunks = in_threads(lambda chunk: [(paths[i], reason(paths[i])) for i in chunk], len(paths), workers, "check")
    return [(path, text) for chunk in chunks for path, text in chunk if text is not None]


def without_images(dataset: ImageListLike, paths: Iterable[str]) -> ImageListLike:
    """A copy of an image list without some of its images."""
    rest: Any = copy.copy(dataset)
    left_out = set(paths)
    rest.samples = [sample for sample in dataset.samples if sample[0] not in left_out]
    return rest
