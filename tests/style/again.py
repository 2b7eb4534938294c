"""What scripts/test does with tests that failed: a few that came to their end run once more, alone; crashes, hangs and what a sanitizer found do not,
and neither do many at once. What passes alone is counted and named."""
import importlib.machinery
import importlib.util
import os
import sys
import xml.etree.ElementTree as ElementTree

from lib import checks

sys.dont_write_bytecode = True
PATH = os.path.join(checks.SOURCE, "scripts", "test")


def script():
    loader = importlib.machinery.SourceFileLoader("scripts_test", PATH)
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("scripts_test", loader))
    loader.exec_module(module)
    return module


def case(name, status, out):
    made = ElementTree.Element("testcase", name=name, status=status)
    ElementTree.SubElement(made, "system-out").text = out
    return made


def results(**programs):
    return {name: case(name, status, out) for name, (status, out) in programs.items()}


GOOD = ("run", "ok   it\n3 passed, 0 failed, 0 skipped\n")
BAD = ("fail", "x.c:9: f is false\nFAIL it\n2 passed, 1 failed, 0 skipped\n")


def after(first, second):
    """What is counted and named, and what was asked again, if these came of the first run and those of the second."""
    module, asked = script(), []

    def fake(stage, junit, jobs, extra):
        asked.append((jobs, extra))
        return results(**second)
    module.ctest = fake
    all_of_it = results(**first)
    unsteady = module.once_more("dev", all_of_it)
    return module.count(all_of_it)[0], unsteady, asked


def one_that_passes_alone_is_named():
    figures, unsteady, asked = after({"a": GOOD, "b": BAD}, {"b": GOOD})
    assert (figures, unsteady) == ([6, 0, 0], ["b"]) and asked == [(1, ["-R", "^(b)$"])], (figures, unsteady, asked)


def one_that_fails_again_has_failed():
    figures, unsteady, asked = after({"a": GOOD, "b": BAD}, {"b": BAD})
    assert (figures, unsteady, len(asked)) == ([5, 1, 0], [], 1), (figures, unsteady, asked)
    figures, unsteady, asked = after({"b": BAD}, {})
    assert (figures, unsteady) == ([2, 1, 0], []), (figures, unsteady)


def defects_are_not_asked_again():
    for out in ("", "ok   it\n",  # it was killed, or ran out of time
                "it: killed by signal 11 (Segmentation fault)\n2 passed, 1 failed, 0 skipped\n",
                "WARNING: ThreadSanitizer: data race (pid=1)\n2 passed, 1 failed, 0 skipped\n",
                "==1==ERROR: AddressSanitizer: heap-use-after-free\n2 passed, 1 failed, 0 skipped\n",
                "a.c:1:2: runtime error: signed integer overflow\n2 passed, 1 failed, 0 skipped\n",
                "Fatal Python error: Aborted\n2 passed, 1 failed, 0 skipped\n",
                "it: no end after 180 s\nFAIL it\n2 passed, 1 failed, 0 skipped\n",
                "seed 4: a batch does not end\n0 passed, 1 failed, 0 skipped\n"):
        figures, unsteady, asked = after({"a": BAD, "b": ("fail", out)}, {"a": GOOD, "b": GOOD})
        assert not unsteady and not asked and figures[1] == 2, (out, figures)


def many_are_no_accident():
    figures, unsteady, asked = after({"a": BAD, "b": BAD, "c": BAD, "d": BAD}, {"a": GOOD})
    assert (figures, unsteady, asked) == ([8, 4, 0], [], []), (figures, unsteady, asked)


def what_passed_is_left_alone():
    assert after({"a": GOOD}, {}) == ([3, 0, 0], [], [])


checks.main(one_that_passes_alone_is_named, one_that_fails_again_has_failed, defects_are_not_asked_again, many_are_no_accident,
            what_passed_is_left_alone)
