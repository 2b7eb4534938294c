"""The optional dependencies of the package, for the build of its wheel: scikit-build-core asks this file.

The packages that replace others are distributions of their own, in folders beside this file. In a clone an extra names its
folder, by a file URL that is known at build time only. With WEFT_RELEASE set it names the distribution as an index has it. The
folders have no "-" in their names: pip takes "weft-disagg" for a name and a version, and keeps the wheel that it once built of
it.
"""
import os
import re
from pathlib import Path

HERE = Path(__file__).resolve().parent
EXTRAS = {"ucx-py": ("weft-ucx-py", ""), "disagg": ("weft-disagg", ""), "openwhisk": ("weft-disagg", "[openwhisk]")}


def _version():
    return re.search(r"project\(weft VERSION ([0-9.]+)", (HERE.parent / "CMakeLists.txt").read_text()).group(1)


def dynamic_metadata(field, settings):
    """The extras that pyproject.toml names, and those with the distributions of this folder."""
    if field != "optional-dependencies":
        raise RuntimeError(f"extras.py gives optional-dependencies, and was asked for {field}")
    extras = {name: list(needs) for name, needs in settings.items()}
    for extra, (name, options) in EXTRAS.items():
        folder = HERE / name.replace("-", "_")
        where = f"=={_version()}" if os.environ.get("WEFT_RELEASE") else f" @ {folder.as_uri()}"
        extras[extra] = [f"{name}{options}{where}"]
    return extras
