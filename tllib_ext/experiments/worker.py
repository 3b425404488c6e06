"""A worker process of a grid. Imports little before it watches its parent: a process that starts is not left behind either."""

import os
import signal
import sys
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Sequence

__all__ = ["PATIENCE", "serve"]

#: seconds a worker gets to finish its step and save it when the grid is stopped; then the last checkpoint counts.
PATIENCE = 2.5


def serve(connection: Connection, out: Path, keep: Sequence[str], threads: int, parent: int) -> None:
    """Receive cells, send (error, line), until the connection is closed."""
    os.setpgrp()  # Ctrl-C in the terminal is the parent's; it ends us with one SIGTERM, the run's signal to save
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    import torch

    from tllib_ext.errors import StopRequested
    from tllib_ext.experiments.runner import run_cell
    from tllib_ext.training.allocator import keep_freed_memory

    torch.set_num_threads(threads)
    keep_freed_memory()
    try:
        while True:
            connection.send(run_cell(connection.recv(), out, keep))
    except (EOFError, OSError, StopRequested):
        return


def _watch(parent: int) -> None:
    """A parent that was killed cannot tell its workers: save, and end whatever the main thread does."""
    while os.getppid() == parent:
        time.sleep(0.2)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(PATIENCE)
    os._exit(143)
