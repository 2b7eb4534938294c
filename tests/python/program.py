"""Programs that tests run in processes of their own, and of which they look at every word: in development mode but for asyncio's
part of it, which
tells of whatever took a tenth of a second, as anything does on a busy machine."""
import os
import sys

PYTHON = [sys.executable, "-W", "default", "-X", "faulthandler"]


def environment(**more):
    """This one, where they find what this process finds."""
    return {**os.environ, "PYTHONMALLOC": "debug", "PYTHONPATH": os.pathsep.join(sys.path), **more}
