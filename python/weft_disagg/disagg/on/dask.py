"""The bridge to a Dask cluster, as a program: `weft run --on dask://HOST:PORT DIR` starts it, and says by lines what to run.

Most of the time until the first element runs is the time to load Dask. So that begins before the launcher has said anything,
and without what a bridge has no use for. cluster.py has what it does then. tests/python/test_on_dask.py holds us to it.
"""
from __future__ import annotations

import asyncio
import sys

from .bridge import Failed, Launcher
from .cluster import Cluster, distributed

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


async def main(where: str) -> None:
    """All of it."""
    launcher = await Launcher.connect()
    cluster = Cluster(launcher, where)
    opening: list[str] = []
    ready = False
    try:
        async for text, said in launcher.lines():
            if said.get("do") in ("open", "file") and not ready:
                opening.append(text)
                launcher.opening.update(said if said["do"] == "open" else {})
            elif said.get("do") == "begin" and not ready:
                await cluster.open(opening, launcher.opening.get("weft", ""))
                launcher.say(did="ready", version=cluster.version())
                ready = True
            else:
                cluster.told(text, said)
    except Failed as error:
        launcher.say(did="failed", error=str(error))
    finally:
        await cluster.close()
        await launcher.close()


def bridge() -> None:
    """For python -c."""
    import gc
    import logging
    logging.disable(logging.CRITICAL)  # Dask logs every lost connection with a traceback; what is to be known is told by lines
    gc.disable()  # while Dask is loaded, which is most of the time to the first element
    be_quick()
    try:
        distributed()
    except ImportError:
        pass  # the launcher is told when it has said all it has to say
    gc.enable()
    asyncio.run(main(sys.argv[1]))
