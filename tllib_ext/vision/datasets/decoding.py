"""Threads that read or decode files ahead of their consumer, the only ones of this package; there are no such processes.

Pillow decodes without the interpreter's lock. Threads have no signals of their own, cannot outlive the run and leave
nothing to be joined: whatever happens to the consumer, they end with the image in hand.
"""

import time
from collections import deque
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Event, Thread
from typing import Callable, Deque, Iterator, List, Optional, Sequence, Tuple, TypeVar

from tqdm import tqdm

__all__ = ["in_chunks", "work_ahead"]

T = TypeVar("T")
U = TypeVar("U")
#: items that a thread takes at a time in :func:`in_chunks`
CHUNK = 8
#: seconds that the end waits for images in hand; a thread that hangs in a file system is left behind
PATIENCE = 1.0

Task = Tuple[U, "Future[T]"]


def work_ahead(work: Callable[[U], T], items: Sequence[U], threads: int) -> Iterator[T]:
    """``work(item)`` for all ``items``, in their order, computed in ``threads`` threads ahead of the consumer.

    The first error, in the order of the items, is raised; after it, or when the generator is closed, no item is begun.
    With ``threads=0`` the consumer's thread works.

    Examples::

        >>> list(work_ahead(lambda x: x**2, [1, 2, 3], threads=2))
        [1, 4, 9]
    """
    if threads < 1:
        yield from map(work, items)
        return
    tasks: "SimpleQueue[Optional[Task[U, T]]]" = SimpleQueue()
    waiting: "Deque[Future[T]]" = deque()

    ended = Event()  # what is still in the queue then comes after the error

    def serve() -> None:
        # looked at before a task is taken: one that was taken and dropped would leave the consumer waiting for it
        while not ended.is_set() and (task := tasks.get()) is not None:
            item, future = task
            try:
                future.set_result(work(item))
            except BaseException as error:
                ended.set()
                future.set_exception(error)

    # daemon: an interpreter that ends does not wait for a thread that hangs
    workers = [Thread(target=serve, daemon=True, name=f"decode-{number}") for number in range(threads)]
    for worker in workers:
        worker.start()
    try:
        for item in items:
            future: "Future[T]" = Future()
            tasks.put((item, future))
            waiting.append(future)
            if len(waiting) > 2 * threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        ended.set()
        for _ in workers:
            tasks.put(None)
        deadline = time.monotonic() + PATIENCE
        for worker in workers:
            worker.join(max(0.0, deadline - time.monotonic()))


def in_chunks(work: Callable[[int], T], total: int, threads: int, title: str) -> Iterator[T]:
    """``work(index)`` for ``range(total)``, in order, in threads, with a progress bar; the first error stops all."""
    chunks = [range(start, min(start + CHUNK, total)) for start in range(0, total, CHUNK)]

    def work_on(chunk: range) -> List[T]:
        return [work(index) for index in chunk]

    with tqdm(desc=title, total=total, unit="img", leave=False, disable=None) as bar:
        for made in work_ahead(work_on, chunks, max(1, threads)):
            bar.update(len(made))
            yield from made
