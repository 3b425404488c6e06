"""Which images cannot be used, found before training: every one is decoded, all offenders are listed."""

import copy
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Iterable, List, Optional, Sequence, Tuple

from tqdm import tqdm

__all__ = ["bad_images", "without_images"]


def bad_images(
    paths: Sequence[str], loader: Callable[[str], Any], workers: int = 1, progress: Optional[bool] = None
) -> List[Tuple[str, str]]:
    """Decode every image in ``workers`` threads (Pillow decodes outside of Python's lock).

    Args:
        paths (sequence of str): the images
        loader (callable): path -> image, raises if it cannot
        workers (int): threads
        progress (bool, optional): False hides the bar; None hides it where nobody watches

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


def without_images(dataset: Any, paths: Iterable[str]) -> Any:
    """The same image list without some of its images; ``dataset`` itself stays as it is."""
    left_out, rest = set(paths), copy.copy(dataset)
    rest.samples = [sample for sample in dataset.samples if sample[0] not in left_out]
    return rest
