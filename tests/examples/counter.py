"""An object for a worker process, in a module that imports nothing."""


class Counter:
    """Adds up."""

    def __init__(self, start=0):
        self.value = start

    def add(self, number):
        self.value += number
        return self.value

    def fail(self):
        raise ValueError("raised in the worker")
