"""Packages that have the same names as those of another project: they refuse to be imported where that project is installed too.

pip knows no conflicts between distributions: both would write into one folder, and what is imported is a mixture.
tests/python/test_wheel.py holds us to it.
"""
import os
import sys


def refuse_beside(distribution: str, package: str, ours: str) -> None:
    """ImportError if a distribution of that name, or of a variant such as NAME-cu12, is installed."""
    start = distribution.replace("-", "_") + "-", distribution.replace("-", "_") + "_"
    for folder in sys.path:
        try:
            names = os.listdir(folder or ".")
        except OSError:
            continue
        for name in names:
            if name.startswith(start) and name.endswith((".dist-info", ".egg-info")):
                found = name.partition("-")[0].replace("_", "-")
                raise ImportError(f"{found} is installed in {folder}, and has a package {package!r} as {ours} does. Keep one of "
                                  f"them: "
                                  f"`pip uninstall {found} {ours}`, then install the one you want")
