"""Run a function in several processes that find each other as torchrun's do."""

import multiprocessing
import os
import queue
import socket
import sys
import time
import traceback

PRELOAD = [
    "torch",
    "tllib_ext.training.build",
    "tllib_ext.training.trainer",
    "tllib_ext.cli.parser",
    "tllib_ext.methods.divergence",
]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def _child(environment, rank, world, port, answers, function, args):
    os.environ.update(environment)  # of the test: the server that forked this process may be older
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1",
                      MASTER_PORT=str(port), OMP_NUM_THREADS="1")  # fmt: skip
    import torch

    torch.set_num_threads(1)
    try:
        if world > 1:
            from tllib_ext.distributed import start

            start("cpu")
        answers.put((rank, True, function(*args)))
    except BaseException:
        answers.put((rank, False, traceback.format_exc()))
        sys.exit(1)
    finally:
        answers.close()
        answers.join_thread()


class Together:
    """``function(*args)`` in ``world`` processes; :meth:`results` is what they returned, in the order of their ranks."""

    def __init__(self, world, function, *args):
        # A server that has imported everything and computed nothing: its children start at once, and clean.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOAD)
        self._answers, port = context.Queue(), free_port()
        self.processes = [
            context.Process(target=_child, args=(dict(os.environ), rank, world, port, self._answers, function, args))
            for rank in range(world)
        ]
        for process in self.processes:
            process.start()

    def results(self, timeout=600):
        got, deadline = {}, time.monotonic() + timeout
        try:
            while len(got) < len(self.processes):
                rank, ok, value = self._answers.get(timeout=max(0.1, deadline - time.monotonic()))
                assert ok, f"rank {rank}:\n{value}"
                got[rank] = value
        except queue.Empty:
            raise AssertionError(f"no answer after {timeout} s from ranks {set(range(len(self.processes))) - set(got)}") from None
        finally:
            self.end()
        return [got[rank] for rank in sorted(got)]

    def end(self):
        for process in self.processes:
            process.join(10)
            if process.is_alive():
                process.kill()
