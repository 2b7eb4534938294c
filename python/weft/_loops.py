"""asyncio.Runner, which Python 3.10 does not have: an event loop that runs one coroutine after the other, and is closed at the
end.

tests/python/test_old_python.py holds us to it.
"""
from __future__ import annotations

import sys

if sys.version_info >= (3, 11):
    from asyncio import Runner
else:
    import asyncio
    from collections.abc import Callable, Coroutine
    from typing import Any

    class Runner:
        """Of asyncio's what is used here."""

        def __init__(self, *, loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None) -> None:
            self._loop = (loop_factory or asyncio.new_event_loop)()

        def __enter__(self) -> Runner:
            return self

        def __exit__(self, *error: object) -> None:
            self.close()

        def get_loop(self) -> asyncio.AbstractEventLoop:
            """The loop."""
            return self._loop

        def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
            """Run a coroutine to its end."""
            asyncio.set_event_loop(self._loop)
            try:
                return self._loop.run_until_complete(coroutine)
            finally:
                asyncio.set_event_loop(None)

        def close(self) -> None:
            """End the tasks that are left, and close the loop."""
            if self._loop.is_closed():
                return
            try:
                tasks = asyncio.all_tasks(self._loop)
                for task in tasks:
                    task.cancel()
                if tasks:
                    self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
                self._loop.run_until_complete(self._loop.shutdown_asyncgens())
                self._loop.run_until_complete(self._loop.shutdown_default_executor())
            finally:
                self._loop.close()

__all__ = ["Runner"]
