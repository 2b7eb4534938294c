"""How many compute elements weft run starts at a time, if --jobs does not say: a few while they end, all of them if they wait for each other."""
import os

from lib import elements, weft

CPUS = len(os.sched_getaffinity(0))


def most_at_once(spans):
    return max(sum(a <= t < b for a, b in spans) for t, _ in spans)


def those_that_compute_take_turns():
    """They end quickly, so there is no reason for more than twice as many as processors."""
    files = {"a.o.py": f"#@ parallelism: {8 * CPUS}\nimport time\ndef main(params, action):\n    t = time.monotonic()\n"
                       "    end = time.process_time() + 0.03\n    while time.process_time() < end:\n        pass\n    return [t, time.monotonic()]\n"}
    with elements.directory(files) as (folder, python):
        # on a machine that is busy with other things they may not end in time for that
        tries = [most_at_once(elements.results(folder, *python)["results"]["a"]) for _ in range(3)]
        assert min(tries) <= 4 * CPUS, tries


MEETING = """
#@ parallelism: {copies}
import os, time
def main(params, action):
    where = params["where"]
    open(os.path.join(where, os.environ["__OW_PAR"]), "w").close()
    while len(os.listdir(where)) < {copies}:
        {wait}
    return len(os.listdir(where))
"""


def those_that_wait_for_each_other_all_run():
    """Asleep, or in a loop that looks like work."""
    copies = 12 * CPUS
    for wait in ("time.sleep(0.01)", "pass"):
        with elements.directory({"a.o.py": MEETING.format(copies=copies, wait=wait)}) as (folder, python), weft.scratch() as where:
            said = elements.results(folder, *python, "--param", f'where="{where}"')
            assert said["results"]["a"] == [copies] * copies, said["results"]


def jobs_is_kept_all_the_same():
    files = {"a.o.py": "#@ parallelism: 6\nimport time\ndef main(params, action):\n    t = time.monotonic()\n    time.sleep(0.5)\n"
                       "    return [t, time.monotonic()]\n"}
    with elements.directory(files) as (folder, python):
        assert most_at_once(elements.results(folder, *python, "--jobs", "2")["results"]["a"]) <= 2


weft.main(those_that_compute_take_turns, those_that_wait_for_each_other_all_run, jobs_is_kept_all_the_same)
