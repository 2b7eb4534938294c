"""limits: cpu without a cgroup: elements are pinned to processors, those of one run to different ones, and other runs to others."""
import json
import os
import subprocess

from lib import elements, weft

CPUS = len(os.sched_getaffinity(0))
NO_CGROUPS = ["unshare", "--mount", "--", "sh", "-c", 'mount -t tmpfs -o ro none /sys/fs/cgroup && exec "$@"', "sh"]
PINNED = """
#@ limits: {cpu: 1}
#@ parallelism: 2
import os, time
def main(params, action):
    open(os.path.join(params["where"], os.environ["__OW_PAR"]), "w").close()
    while len(os.listdir(params["where"])) < 2:
        time.sleep(0.01)
    return sorted(os.sched_getaffinity(0))
"""


def without_cgroups():
    with elements.directory({"a.o.py": "#@ limits: {cpu: 1}\ndef main(params, action):\n    return 1\n"}) as (folder, python):
        if elements.results(folder, *python)["limits_by"]["cpu"] == "pinning":
            return []
    if subprocess.run([*NO_CGROUPS, "true"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode:
        raise weft.Skip("there are cgroups, and they cannot be hidden")
    return NO_CGROUPS


def pinned_to(before):
    with elements.directory({"a.o.py": PINNED}) as (folder, python), weft.scratch() as where:
        args = weft.elsewhere(("run", folder, *python, "--json", "--jobs", "2", "--param", f'where="{where}"'))
        done = subprocess.run([*before, weft.command(), *args], env=elements.environment(folder), stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
        elements.nothing_left(folder)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["results"]["a"]


def runs_do_not_all_begin_with_the_first_processor():
    """Several agents of one machine were all at the first ones."""
    if CPUS < 2:
        raise weft.Skip("there is one processor")
    before, seen = without_cgroups(), set()
    for _ in range(60):  # each begins anywhere
        one, two = pinned_to(before)
        assert len(one) == len(two) == 1 and one != two, (one, two)
        seen.add(one[0])
        if len(seen) > 1:
            return
    raise AssertionError(f"all runs took {seen}")


weft.main(runs_do_not_all_begin_with_the_first_processor)
