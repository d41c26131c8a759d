"""The next batch prepared while a step trains: for images on a disk, which a step would otherwise wait for."""

from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread
from types import TracebackType
from typing import Self

from meanteacher.core import Batch, Stream


class Prefetched:
    """The batches of another stream, in whatever order they are asked for.

    After batch t a thread prepares batch t + 1. A stream's batch is a pure function of (seed, t) that draws from
    generators of its own, so who prepares it, and when, cannot be seen in it. What the thread raises is raised by
    the step that asks for that batch. The thread begins with the first batch, and with as many threads of torch
    as are set by then.

        with Prefetched(stream) as batches:
            train(state, method, optim, batches, ...)
    """

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self._asked: SimpleQueue[tuple[int, Future[Batch]] | None] = SimpleQueue()
        self._ahead: tuple[int, Future[Batch]] | None = None
        # A daemon, so that a run that ends by an exception does not wait for a disk that hangs.
        self._thread = Thread(target=self._prepare, name="prefetch", daemon=True)
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __getitem__(self, step: int) -> Batch:
        if self._closed:
            raise ValueError("The stream is closed: no batch is prepared any more.")
        if self._thread.ident is None:
            self._thread.start()
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead[0] != step:
            ahead[1].cancel()
            ahead = None
        batch = (ahead or self._ask(step))[1].result()
        self._ahead = self._ask(step + 1)
        return batch

    def close(self) -> None:
        """Wait for the batch in preparation, and end the thread."""
        if self._closed:
            return
        self._closed = True
        if self._ahead is not None:
            self._ahead[1].cancel()
        if self._thread.ident is not None:
            self._asked.put(None)
            self._thread.join()

    def _ask(self, step: int) -> tuple[int, Future[Batch]]:
        asked = (step, Future[Batch]())
        self._asked.put(asked)
        return asked

    def _prepare(self) -> None:
        while (asked := self._asked.get()) is not None:
            step, future = asked
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(self.stream[step])
            except BaseException as error:
                future.set_exception(error)
