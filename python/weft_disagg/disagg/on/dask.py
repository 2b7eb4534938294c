"""The bridge to a Dask cluster, as a program: `weft run --on dask://HOST:PORT DIR` starts it, and says by lines what to run.

Most of the time until the first element runs is the time to load Dask. So that begins before the launcher has said anything,
and without what a bridge has no use for. cluster.py has what it does then. tests/python/test_on_dask.py holds us to it.
"""
from __future__ import annotations

import asyncio
import sys

from .bridge import Failed, Launcher, sentence
from .cluster import Cluster
from .reach import distributed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def be_quick() -> None:
    """Dask loads a third faster without what a bridge does not need: arrays, pictures for notebooks, YAML read by Python."""
    for name in ("numpy", "jinja2"):
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]
    from importlib import import_module
    try:
        yaml = import_module("yaml")
        yaml.SafeLoader = yaml.CSafeLoader  # type: ignore[attr-defined]
    except (ImportError, AttributeError):
        pass


async def begin(launcher: Launcher, cluster: Cluster, opening: list[str]) -> bool:
    """Reach the cluster. False: it cannot be, and the launcher knows."""
    try:
        await cluster.open(opening, launcher.opening.get("weft", ""))
        launcher.say(did="ready", version=cluster.version())
        return True
    except Failed as error:
        launcher.say(did="failed", error=str(error))
    except Exception as error:
        launcher.say(did="failed", error=f"no Dask scheduler answers at {cluster.where or 'this machine'} ({sentence(error)})")
    return False


async def hear(launcher: Launcher, cluster: Cluster, all_said: asyncio.Future[list[str]]) -> None:
    """What the launcher says, to its end."""
    opening: list[str] = []
    async for text, said in launcher.lines():
        if all_said.done():
            cluster.told(text, said)
        elif said.get("do") in ("open", "file"):
            opening.append(text)
            launcher.opening.update(said if said["do"] == "open" else {})
        elif said.get("do") == "begin":
            all_said.set_result(opening)


async def first(awaited: set[asyncio.Future[Any]]) -> None:
    """Until one of them is done."""
    await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)


async def main(where: str) -> None:
    """All of it. A launcher that goes is heard also while the cluster is being reached."""
    launcher = await Launcher.connect()
    cluster = Cluster(launcher, where)
    all_said: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
    hearing = asyncio.ensure_future(hear(launcher, cluster, all_said))
    opening: asyncio.Future[bool] | None = None
    try:
        await first({hearing, all_said})
        if all_said.done() and not hearing.done():
            opening = asyncio.ensure_future(begin(launcher, cluster, all_said.result()))
            await first({hearing, opening})
            if not opening.done():
                opening.cancel()
                await asyncio.wait({opening})
            elif opening.result():
                await hearing
    finally:
        hearing.cancel()
        await cluster.close()
        await launcher.close()


def bridge() -> None:
    """For python -c."""
    import gc
    import logging
    import warnings
    logging.disable(logging.CRITICAL)  # Dask logs every lost connection with a traceback; what is to be known is told by lines
    warnings.simplefilter("ignore")  # of coroutines that Dask did not await when it could not connect, of ports that are taken
    sys.unraisablehook = lambda _what: None  # a client of Dask's that could not connect says so once more when it is deleted
    gc.disable()  # while Dask is loaded, which is most of the time to the first element
    be_quick()
    try:
        distributed()
    except ImportError:
        pass  # the launcher is told when it has said all it has to say
    gc.enable()
    asyncio.run(main(sys.argv[1]))
