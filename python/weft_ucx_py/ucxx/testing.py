"""For tests of programs that use `ucxx` in several processes: starting them, waiting for them, ending them; and waiting for
requests."""
from __future__ import annotations

import queue as queues
import time
import traceback
from collections.abc import Callable, Iterable
from typing import Any


def run_in_subprocess(target: Callable[..., Any], error_queue: Any, *args: Any, **kwargs: Any) -> None:
    """Call target(*args, **kwargs), as the target of a process. What it raises is put into the queue as text, and raised
    again."""
    try:
        target(*args, **kwargs)
    except Exception:
        error_queue.put(traceback.format_exc())
        raise


def join_processes(processes: Iterable[Any], timeout: float) -> None:
    """Wait for processes to end, all of them together for no longer than `timeout` seconds."""
    until = time.monotonic() + timeout
    for process in processes:
        process.join(timeout=max(until - time.monotonic(), 0))


def terminate_process(process: Any, kill_wait: float = 3.0, error_queue: Any = None) -> None:
    """See to it that a process has ended: kill it if not, and wait for that, `kill_wait` seconds at most.

    RuntimeError if it ended with anything but 0; with what it put into `error_queue`, by run_in_subprocess(). ValueError if it
    has not ended.
    """
    if process.is_alive():
        process.kill()
    until = time.monotonic() + kill_wait
    while time.monotonic() < until and process.is_alive():
        time.sleep(0.001)
    if process.is_alive():
        process.close()  # which raises ValueError
    elif process.exitcode != 0:
        text = f"Process did not exit cleanly (exit code: {process.exitcode})"
        if error_queue is not None:
            try:
                text += f"\n\nSubprocess traceback:\n{error_queue.get_nowait()}"
            except queues.Empty:
                pass
        raise RuntimeError(text)


def wait_requests(worker: Any, progress_mode: str, requests: Any) -> None:
    """Wait until requests are over, and raise what went wrong; with progress_mode "blocking" the worker is driven meanwhile."""
    every = requests if isinstance(requests, list) else [requests]
    while not all(request.completed for request in every):
        if progress_mode == "blocking":
            worker.progress_worker_event()
        else:
            time.sleep(0)
    for request in every:
        request.check_error()


__all__ = ["join_processes", "run_in_subprocess", "terminate_process", "wait_requests"]
