"""Find the images that cannot be used before training: decode every one, list all that fail."""

import copy
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Iterable, List, Optional, Sequence, Tuple

from tqdm import tqdm

from tllib_ext.vision.datasets.types import ImageListLike

__all__ = ["bad_images", "without_images"]


def bad_images(
    paths: Sequence[str], loader: Callable[[str], object], workers: int = 1, progress: Optional[bool] = None
) -> List[Tuple[str, str]]:
    """Decode every image in ``workers`` threads (Pillow decodes without the interpreter's lock).

    Args:
        paths (sequence of str): the images
        loader (callable): path -> image, raises if it cannot
        workers (int): threads
        progress (bool, optional): False hides the bar; None hides it without a terminal

    Returns:
        path and reason of each image that cannot be used, in the order of ``paths``

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

    with ThreadPoolExecutor(max(1, workers)) as pool:
        jobs = pool.map(reason, paths)
        disable = None if progress is None else not progress
        reasons = list(tqdm(jobs, "check", len(paths), unit="img", leave=False, disable=disable))
    return [(path, text) for path, text in zip(paths, reasons) if text is not None]


def without_images(dataset: ImageListLike, paths: Iterable[str]) -> ImageListLike:
    """A copy of an image list without some of its images."""
    left_out = set(paths)
    rest: Any = copy.copy(dataset)
    rest.samples = [sample for sample in dataset.samples if sample[0] not in left_out]
    return rest
