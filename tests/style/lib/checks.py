"""What the style tests share: where the tree and the build are, and a count in the form every test of this project ends with."""
import os
import shutil
import signal
import subprocess
import sys
import tempfile

SOURCE = os.environ.get("SOURCE_DIR") or os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
BUILD = os.environ.get("BUILD_DIR") or os.path.join(SOURCE, "build", "dev")
CC = os.environ.get("CC") or "cc"
CXX = os.environ.get("CXX") or "c++"
CMAKE = os.environ.get("CMAKE") or "cmake"


class Skip(Exception):
    """Raised with the reason by a test that cannot run here."""


def compilers(*names):
    """Those of them that are here."""
    found = [n for n in names if shutil.which(n)]
    if not found:
        raise Skip(f"none of {', '.join(names)} is here")
    return found


def run(args, timeout=120, input=None, **kw):
    """The finished process; its output, both streams, is text in stdout. At the time limit its children end with it."""
    args = [str(a) for a in args]
    with subprocess.Popen(args, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                          start_new_session=True, **kw) as process:
        try:
            out, _ = process.communicate(input, timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, _ = process.communicate()
            raise AssertionError(f"{' '.join(args)}: no end after {timeout} s\n{out}") from None
        return subprocess.CompletedProcess(args, process.returncode, out)


def must(args, **kw):
    done = run(args, **kw)
    assert done.returncode == 0, f"{' '.join(str(a) for a in args)}: exit status {done.returncode}\n{done.stdout}"
    return done.stdout


def files(root, top, *ends):
    """Paths under root/top that end in one of `ends`, relative to root, sorted; build folders and hidden ones left out."""
    found = []
    for folder, folders, names in os.walk(os.path.join(root, top)):
        folders[:] = sorted(d for d in folders if not d.startswith(".") and d not in ("build", "__pycache__"))
        found += [os.path.relpath(os.path.join(folder, n), root) for n in names if n.endswith(ends)]
    return sorted(found)


def read(root, path):
    with open(os.path.join(root, path), encoding="utf-8", errors="surrogateescape") as f:
        return f.read()


def built(name):
    """A file of the build; where no build was named and there is none, the test is skipped."""
    path = os.path.join(BUILD, name)
    if not os.path.exists(path):
        assert not os.environ.get("BUILD_DIR"), f"{path} is not built"
        raise Skip(f"{path} is not built")
    return path


def write_tree(root, tree):
    """Make {path: text} under root."""
    for path, text in tree.items():
        full = os.path.join(root, path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        with open(full, "w", encoding="utf-8") as f:
            f.write(text)


def scratch():
    return tempfile.TemporaryDirectory(prefix="weft-style-")


def main(*tests):
    """Run test functions; each raises AssertionError with what is wrong."""
    passed = failed = skipped = 0
    for test in tests:
        try:
            test()
            passed += 1
            print(f"ok   {test.__name__}")
        except Skip as why:
            skipped += 1
            print(f"# skipped: {why}\nskip {test.__name__}")
        except AssertionError as why:
            failed += 1
            print(f"{why}\nFAIL {test.__name__}")
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    sys.exit(1 if failed else 77 if skipped and not passed else 0)
