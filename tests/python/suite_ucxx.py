#!/usr/bin/env python3
"""Runs the tests of UCXX's own Python package, unmodified, on the package `ucxx` here: with the path of a checkout of rapidsai/ucxx.

    git clone https://github.com/rapidsai/ucxx
    PYTHONPATH=build/dev/python python3 tests/python/suite_ucxx.py ucxx [arguments of pytest]

Their folders are copied to a place of their own, since pytest would import the package beside them. It needs pytest, pytest-asyncio,
pytest-rerunfailures and numpy; with cupy, numba or cudf more of the tests run. docs/guide/coming-from-ucxx.md has what is to be expected.
"""
import os
import shutil
import subprocess
import sys
import tempfile

FOLDERS = ("_lib", "_lib_async")


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    package = os.path.join(sys.argv[1], "python", "ucxx", "ucxx")
    if not os.path.isdir(os.path.join(package, FOLDERS[0], "tests")):
        sys.exit(f"{sys.argv[1]} is no checkout of rapidsai/ucxx: it has no python/ucxx/ucxx/{FOLDERS[0]}/tests")
    failed = 0
    with tempfile.TemporaryDirectory(prefix="suite-ucxx-") as place:
        with open(os.path.join(place, "pytest.ini"), "w", encoding="utf-8") as file:
            file.write("[pytest]\nasyncio_mode = auto\n")
        path = os.pathsep.join(os.path.abspath(p) for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p)
        for folder in FOLDERS:
            shutil.copytree(os.path.join(package, folder, "tests"), os.path.join(place, folder))
            failed |= subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore", folder, *sys.argv[2:]],
                                     cwd=place, env={**os.environ, "PYTHONPATH": path}, check=False).returncode
    sys.exit(failed)


if __name__ == "__main__":
    main()
