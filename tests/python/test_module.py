"""What the module says of the library and of its failures."""
import os
import re
import subprocess
import sys

import pytest

import weft
from weft import _core


def test_every_status_has_a_class_of_its_own():
    classes = [c for c in vars(_core).values() if isinstance(c, type) and issubclass(c, weft.WeftError)
               and c is not weft.WeftError]
    assert sorted(c.status for c in classes) == list(range(-29, 0))
    assert len({c.__name__ for c in classes}) == 29
    for c in classes:
        assert c.__module__ == "weft" and c.status_name.startswith("WEFT_ERR_") and getattr(weft, c.__name__) is c


@pytest.mark.parametrize("ours, pythons", [("TimeoutError", TimeoutError), ("PeerError", ConnectionResetError),
                                           ("RefusedError", ConnectionRefusedError),
                                           ("ClosedError", ConnectionError), ("InvalidError", ValueError),
                                           ("NoMemoryError", MemoryError),
                                           ("AddressError", OSError), ("NotFoundError", LookupError),
                                           ("AuthError", PermissionError)])
def test_failures_are_what_python_calls_them(ours, pythons):
    assert issubclass(getattr(weft, ours), pythons)
    with pytest.raises(pythons):
        raise getattr(weft, ours)("words")


def test_the_version_and_the_configuration_are_the_librarys():
    assert re.fullmatch(r"\d+\.\d+\.\d+", weft.__version__)
    assert weft.config()["WEFT_HEARTBEAT"][1] == "default"
    assert weft.info()["version"] == weft.__version__


def test_nothing_private_is_offered():
    assert not [name for name in weft.__all__ if name.startswith("_") and name != "__version__"]
    for name in weft.__all__:
        assert hasattr(weft, name)


@pytest.mark.parametrize("name", ["Op", "Endpoint", "Listener", "Message", "BlockingEndpoint", "BlockingListener"])
def test_what_only_the_library_makes_cannot_be_made(name):
    with pytest.raises(TypeError):
        getattr(_core, name)()


def test_programs_without_an_event_loop_do_not_load_asyncio():
    said = subprocess.run([sys.executable, "-c", "import sys, weft; weft._core.Runtime(progress='thread')._close(); "
                                                 "print('asyncio' in sys.modules);"
                           "weft.Service, weft.codes; print(all(hasattr(weft, n) for n in weft.__all__), set(weft.__all__) <= "
                           "set(dir(weft)))"],
                          capture_output=True, text=True, timeout=60, check=True,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}).stdout
    assert said.split() == ["False", "True", "True"]
