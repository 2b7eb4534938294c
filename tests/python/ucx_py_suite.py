#!/usr/bin/env python3
"""UCX-Py's own suites on our `ucp`: tests/python/ucx_py_suite.py CHECKOUT [--runs N] [--suite NAME] [-k WORDS].

CHECKOUT is a checkout of github.com/rapidsai/ucx-py, branch-0.45. Nothing of it is kept here: its two folders of tests are copied to
a temporary folder, without the package beside them, and run there by pytest in an environment of their own (build/ucx-py-suite)
with PYTHONPATH=build/dev/python. They are not changed. Numbers are those that UCX-Py itself comes to on a machine without a GPU;
with one, more tests run, and only a failure counts.

Not in `make test`, since there is no checkout: what it finds is also in test_ucp_*.py and test_ucx_*.py. With --control PYTHON it
runs them by that interpreter, with what is installed there instead of our packages: UCX-Py itself.
"""
import argparse
import collections
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PACKAGES = ["pytest==7.*", "pytest-asyncio<0.24", "pytest-rerunfailures", "pytest-timeout", "numpy", "cloudpickle",
            "distributed"]
BOUND = 1800  # seconds for one suite
TEST_BOUND = 120  # and for one test

Suite = collections.namedtuple("Suite", "name folder passed skipped")
Count = collections.namedtuple("Count", "passed failed skipped")
SUITES = [Suite("tests", "tests", 188, 87), Suite("_libs", "ucp/_libs/tests", 218, 31)]


def environment_of_tests():
    """The interpreter of an environment with what the suites import."""
    venv = os.path.join(ROOT, "build", "ucx-py-suite")
    mark, python = os.path.join(venv, "complete"), os.path.join(venv, "bin", "python")
    if not os.path.exists(mark):
        shutil.rmtree(venv, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *PACKAGES], check=True)
        open(mark, "w").close()
    return python


def end_group(process):
    """A test that failed leaves processes behind, for which pytest would wait at its end."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def run_suite(suite, where, python, packages, more):
    """One run of one suite: how many passed, failed and were skipped, and the words of those that failed."""
    report, log = os.path.join(where, suite.name + ".xml"), os.path.join(where, suite.name + ".log")
    if os.path.exists(report):
        os.unlink(report)
    env = {k: v for k, v in os.environ.items() if not k.startswith(("UCX", "WEFT_", "PYTHONPATH"))}
    env["PYTHONDONTWRITEBYTECODE"] = "1"
    if packages:
        env["PYTHONPATH"] = packages
    bound = [f"--timeout={TEST_BOUND}"] if packages else []  # a control may have no pytest-timeout
    with open(log, "w") as out:
        process = subprocess.Popen([python, "-m", "pytest", "-p", "no:cacheprovider", "-W", "ignore", "-q", "--tb=short", "-rfE",
                                    *bound, f"--junitxml={report}", *more, os.path.join(where, suite.name)],
                                   cwd=where, env=env, stdout=out, stderr=out, start_new_session=True)
        end = time.monotonic() + BOUND
        try:  # the report is written at the end of the last test; what comes after it may wait for processes that hang
            while process.poll() is None and not os.path.exists(report) and time.monotonic() < end:
                time.sleep(0.1)
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            pass
        finally:
            end_group(process)
    text = open(log).read()
    if not os.path.exists(report):
        return Count(0, 1, 0), f"it did not end within {BOUND} s, or did not begin:\n{text[-4000:]}"
    passed = failed = skipped = 0
    for case in xml.etree.ElementTree.parse(report).iter("testcase"):
        kinds = {child.tag for child in case}
        if kinds & {"failure", "error"}:
            failed += 1
        elif "skipped" in kinds:
            skipped += 1
        else:
            passed += 1
    return Count(passed, failed, skipped), text


def main():
    parser = argparse.ArgumentParser(description="UCX-Py's own tests on our ucp.")
    parser.add_argument("checkout", help="a checkout of github.com/rapidsai/ucx-py")
    parser.add_argument("--runs", type=int, default=1, metavar="N", help="how often (default: once)")
    parser.add_argument("--suite", choices=[s.name for s in SUITES], help="only this one")
    parser.add_argument("-k", metavar="WORDS", help="only tests with these words, as pytest takes them: numbers are not compared")
    parser.add_argument("--packages", default=os.path.join(ROOT, "build", "dev", "python"), metavar="FOLDER",
                        help="where ucp is (default: build/dev/python)")
    parser.add_argument("--control", metavar="PYTHON", help="run them by this interpreter, with the ucp that is installed there")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended
    suites = [s for s in SUITES if args.suite in (None, s.name)]
    for suite in suites:
        if not os.path.isdir(os.path.join(args.checkout, suite.folder)):
            parser.error(f"{args.checkout} has no folder {suite.folder}: give a checkout of github.com/rapidsai/ucx-py")
    gpu = os.path.exists("/dev/nvidia0")
    python = args.control or environment_of_tests()
    good = bad = left = 0
    for n in range(args.runs):
        with tempfile.TemporaryDirectory() as where:
            for suite in suites:
                shutil.copytree(os.path.join(args.checkout, suite.folder), os.path.join(where, suite.name))
                began = time.monotonic()
                count, text = run_suite(suite, where, python, None if args.control else args.packages,
                                        ["-k", args.k] if args.k else [])
                print(f"run {n + 1} of {args.runs}: {suite.name}: {count.passed} passed, {count.failed} failed, "
                      f"{count.skipped} skipped in {time.monotonic() - began:.0f} s", flush=True)
                wrong = count.failed
                if not args.k and not gpu and (count.passed, count.skipped) != (suite.passed, suite.skipped):
                    print(f"UCX-Py itself comes to {suite.passed} passed and {suite.skipped} skipped")
                    wrong = max(wrong, 1)
                if wrong:
                    print(text, flush=True)
                good, bad, left = good + count.passed, bad + wrong, left + count.skipped
    print(f"{good} passed, {bad} failed, {left} skipped")
    return bad > 0


if __name__ == "__main__":
    sys.exit(main())
