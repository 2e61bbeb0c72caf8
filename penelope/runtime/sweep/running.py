"""Ways to get replays done: in this process, in several, or on Ray.  All give the same rows."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.connection import Connection
from threading import Thread

from penelope.runtime.sweep.grid import Row, Sweep, SweepError, Task

Finished = Generator[tuple[Task, Row]]
"""Rows as they are finished, in any order.  Closing it ends what still runs."""


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run(sweep: Sweep, tasks: Sequence[Task], processes: int) -> Finished:
    """Replay in this process, or in that many of them.

    Raises `SweepError` when one of the processes dies.
    """
    if min(processes, len(tasks)) <= 1:
        for task in tasks:
            yield task, sweep.perform(task)
        return
    # New interpreters: what threads a caller has does not matter to them.
    context = multiprocessing.get_context("spawn")
    # The workers end when the other end of this pipe is closed, also by the death of this process.
    lifeline, held = context.Pipe(duplex=False)
    count = min(processes, len(tasks))
    pool = ProcessPoolExecutor(count, context, _enter, (sweep, lifeline))
    try:
        # Processes that start in here never see Ctrl-C: this one ends them.
        with uninterrupted():
            futures: dict[Future[Row], Task] = {pool.submit(_perform, task): task for task in tasks}
        for future in as_completed(futures):
            yield futures[future], future.result()
        pool.shutdown()
    except BrokenProcessPool as error:
        raise SweepError(
            "a process of the sweep died, perhaps for want of memory: "
            "the same command goes on, with fewer --processes"
        ) from error
    finally:
        held.close()
        pool.shutdown(cancel_futures=True)
        lifeline.close()


_sweep: Sweep | None = None
"""In a worker process: what its tasks are of."""


def _enter(sweep: Sweep, lifeline: Connection) -> None:
    global _sweep  # noqa: PLW0603
    _sweep = sweep
    Thread(target=_end_with, args=(lifeline,), daemon=True).start()


def _end_with(lifeline: Connection) -> None:
    try:
        lifeline.recv_bytes()
    except (EOFError, OSError):
        os._exit(1)


def _perform(task: Task) -> Row:
    assert _sweep is not None
    return _sweep.perform(task)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Ctrl-C waits for the end of this."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def run_on_ray(sweep: Sweep, tasks: Sequence[Task], processes: int | None) -> Finished:
    """Replay on Ray: on the cluster that `RAY_ADDRESS` names, or on this machine.

    Ray must be installed, and Penelope on every node of a cluster.  `processes` limits how many
    run at a time on this machine; None is Ray's choice.  Raises `SweepError` when Ray fails.
    """
    import ray

    _require_answer(os.environ.get("RAY_ADDRESS", ""))
    ours = not ray.is_initialized()
    try:
        if ours:
            cluster = "RAY_ADDRESS" in os.environ
            ray.init(
                num_cpus=None if cluster else processes,
                include_dashboard=None if cluster else False,
                log_to_driver=False,
                logging_level="ERROR",
            )
        held = ray.put(sweep)
        perform = ray.remote(_perform_on_ray)
        pending = {perform.remote(held, task): task for task in tasks}
        while pending:
            (done,), _ = ray.wait(list(pending), num_returns=1)
            yield pending.pop(done), ray.get(done)
    except (ray.exceptions.RayError, ConnectionError) as error:
        raise SweepError(
            f"Ray failed ({str(error).strip().splitlines()[-1]}): the same command goes on"
        ) from error
    finally:
        if ours:
            ray.shutdown()


def _require_answer(address: str) -> None:
    """Ray ends the process that asks an address where nobody is."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not (host and port.isdigit()):
        return
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except (OSError, OverflowError) as error:
        raise SweepError(
            f"no Ray answers at RAY_ADDRESS {address} ({error}): start it, or unset RAY_ADDRESS"
        ) from error


def _perform_on_ray(sweep: Sweep, task: Task) -> Row:
    return sweep.perform(task)
