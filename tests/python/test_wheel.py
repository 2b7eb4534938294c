"""The wheels: `pip install .` makes one for every CPython from 3.11 on (for 3.10 one of its own: test_old_python.py), with the library
and the command; those of `ucp` and `disagg` are apart."""
# ctest: long computes
import os
import re
import subprocess
import sys
import zipfile

import pytest

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DEBIAN = "/usr/bin/python3"

PROGRAM = """
import asyncio, weft, weft.blocking
async def main():
    async with weft.listen("tcp://127.0.0.1:0") as listener:
        accepting = listener.accept()
        ep = await weft.connect(listener.uri)
        peer = await accepting
        await ep.send(b"through a wheel", tag=1)
        print((await peer.recv(tag=1)).decode(), weft.__version__)
    # what makes Python objects of a length and bytes: a wheel is compiled in another way than the builds that are tested
    async with weft.registry("memory://wheel") as registry:
        await registry.enter("calc", "tcp://127.0.0.1:1", instance="a", data=b"1 f() -> i32")
        assert (await registry.find("calc"))[0].data == b"1 f() -> i32"
    async with weft.Runtime() as left, weft.Runtime() as right:
        listener, server = right.listen("tcp://127.0.0.1:0"), right.store_server(1 << 20)
        accepting = listener.accept()
        ep, peer = await left.connect(listener.uri), await accepting
        async with await ep.store() as store:
            assert store.info["id"] == store.id
asyncio.run(main())
"""


def call(*command, **more):
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=False, **more)
    assert not done.returncode, f"{command}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout


def clean(**more):
    """An environment that knows nothing of the build folder."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL", "WEFT"))}
    return {**env, **more}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    if "san" in os.environ.get("LD_PRELOAD", ""):
        pytest.skip("the wheel has no sanitizer")
    where = tmp_path_factory.mktemp("wheel")
    # the build folder of its own, since a user's build/wheel may be of another compiler
    call(sys.executable, "-m", "pip", "wheel", "-q", "--disable-pip-version-check", "--no-deps", "-w", str(where),
         f"--config-settings=build-dir={where}/build", SOURCE, env=clean())
    names = [name for name in os.listdir(where) if name.endswith(".whl")]
    assert len(names) == 1, names
    return str(where / names[0])


def test_it_is_for_every_interpreter_from_3_11_on(wheel):
    assert "-cp311-abi3-linux_" in wheel


def test_it_holds_the_packages_and_the_library(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    for name in ("weft/__init__.py", "weft/_core.abi3.so", "weft/libweft_ucx.so", "weft/_core.pyi", "weft/py.typed", "weft/blocking.py"):
        assert name in names
    assert not [name for name in names if name.endswith((".c", ".h", ".a", ".txt~")) or "tests" in name]
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"weft"}, "a package of another distribution is in it"


def test_the_library_in_it_shows_none_of_its_names(wheel, tmp_path):
    zipfile.ZipFile(wheel).extract("weft/_core.abi3.so", tmp_path)
    shown = call("nm", "-D", "--defined-only", str(tmp_path / "weft" / "_core.abi3.so"))
    assert "PyInit__core" in shown
    assert " weft_" not in shown and " wefti_" not in shown and "_fini" not in shown


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """A virtual environment with the wheel and both extras, which pip finds by the folders in the wheel's own words."""
    where = tmp_path_factory.mktemp("installed")
    call(DEBIAN if os.path.exists(DEBIAN) else sys.executable, "-m", "venv", str(where / "venv"))
    call(str(where / "venv" / "bin" / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check",
         f"{wheel}[ucx-py,disagg]", env=clean())
    return where / "venv"


def test_in_a_virtual_environment(installed, tmp_path):
    assert call(str(installed / "bin" / "python"), "-c", PROGRAM, env=clean(), cwd=tmp_path).startswith("through a wheel 0.")


def test_it_brings_the_command(installed, tmp_path):
    assert call(str(installed / "bin" / "weft"), "--version", env=clean(), cwd=tmp_path).startswith("weft 0.")


def test_the_command_finds_the_module_for_ucx_and_knows_no_folder_of_the_build(installed, wheel, tmp_path):
    """A folder of the build is gone, and whoever makes it again would have his code in every command."""
    said = call(str(installed / "bin" / "weft"), "info", "--json", env=clean(WEFT_TRANSPORTS="ucx"), cwd=tmp_path)
    assert re.search(r'"ucx_version": ?"[0-9]+\.[0-9]+', said), said
    for name in (str(installed / "bin" / "weft"), *map(str, installed.glob("lib/python*/site-packages/weft/_core.abi3.so"))):
        with open(name, "rb") as f:
            assert b"platlib" not in f.read(), name


def test_the_extras_bring_the_other_packages(installed, tmp_path):
    for module in ("ucp", "ucp.core", "ucp._libs.ucx_api", "ucp_py", "ucxx", "ucxx._lib.libucxx",
                   "ucxx.benchmarks.utils", "disagg", "disagg.element", "disagg.serve"):
        call(str(installed / "bin" / "python"), "-c", f"import {module}", env=clean(), cwd=tmp_path)
    listed = call(str(installed / "bin" / "python"), "-m", "pip", "list", "--disable-pip-version-check", env=clean())
    assert len({line.split()[1] for line in listed.splitlines()
                if line.startswith("weft")}) == 1, f"they differ in their versions: {listed}"


def test_the_command_runs_elements_with_the_interpreter_it_was_installed_with(installed, tmp_path):
    """Without the environment's folder in PATH."""
    done = call(str(installed / "bin" / "weft"), "run", os.path.join(SOURCE, "examples", "wordcount"),
                env=clean(PATH="/usr/bin:/bin"), cwd=tmp_path)
    assert done, "no result was printed"


@pytest.mark.parametrize("theirs, modules", [("ucx_py_cu12-0.45.0", ("ucp", "ucp_py")), ("ucxx_cu12-0.52.0", ("ucxx",))])
def test_they_refuse_beside_the_real_ones(installed, tmp_path, theirs, modules):
    """Its distribution says that it is installed; its files would lie among ours."""
    python = str(installed / "bin" / "python")
    folder = os.path.join(call(python, "-c", "import weft; print(weft.__path__[0])", env=clean(), cwd=tmp_path).strip(), "..",
                          f"{theirs}.dist-info")
    os.mkdir(folder)
    try:
        for module in modules:
            done = subprocess.run([python, "-c", f"import {module}"], capture_output=True, text=True, timeout=60, check=False,
                                  env=clean())
            name = theirs.partition("-")[0].replace("_", "-")
            assert done.returncode and f"pip uninstall {name} weft-ucx-py" in done.stderr
        call(python, "-c", "import weft, disagg", env=clean())
    finally:
        os.rmdir(folder)


def test_with_debians_interpreter(wheel, tmp_path):
    if not os.path.exists(DEBIAN):
        pytest.skip(f"there is no {DEBIAN}")
    call(sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-index", "--target",
         str(tmp_path / "site"), wheel)
    assert call(DEBIAN, "-c", PROGRAM, env=clean(PYTHONPATH=str(tmp_path / "site")),
                cwd=tmp_path).startswith("through a wheel 0.")


def test_where_a_library_is_missing_the_error_says_what_to_install(wheel, tmp_path):
    """As on a machine without libsodium: what it is linked to is renamed in a copy of it, which is as long."""
    zipfile.ZipFile(wheel).extractall(tmp_path)
    core = tmp_path / "weft" / "_core.abi3.so"
    text = core.read_bytes()
    assert b"libucp" not in text
    core.write_bytes(text.replace(b"libsodium.so.", b"libsodiuX.so."))
    done = subprocess.run([sys.executable, "-c", "import weft"], capture_output=True, text=True, timeout=60, check=False,
                          env=clean(PYTHONPATH=str(tmp_path)))
    assert done.returncode and "libsodium23" in done.stderr
