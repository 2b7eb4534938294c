"""Commands in README.md, the guide and the manual pages are as they stand there: the README's programs are compiled by its own lines against an
installed tree and run, and every option that a page gives to `weft` is one that the command has.

The guide's longer sessions are run whole by tests/tools and tests/python.
"""
# ctest: timeout=300
import glob
import os
import re
import shlex
import socket
import subprocess
import sys
import time

from lib import checks

BLOCKS = re.compile(r"^```(\w+)\n(.*?)^```", re.M | re.S)
LINE = re.compile(r"^\s*(?:\$ )?(?:[A-Z_]+=\S+ )*weft ((?:[a-z]+ ?)+[^\n]*)$", re.M)

folder = None  # the scratch folder


def readme(language, word):
    """The block of that language in README.md that has the word in it."""
    return next(text for kind, text in BLOCKS.findall(checks.read(checks.SOURCE, "README.md")) if kind == language and word in text)


def installed():
    prefix = os.path.join(folder, "prefix")
    if not os.path.isdir(prefix):
        checks.built("libweft.so")
        checks.must([checks.CMAKE, "--install", checks.BUILD, "--prefix", prefix])
    lib = os.path.dirname(glob.glob(os.path.join(prefix, "**", "libweft.so"), recursive=True)[0])
    env = {k: v for k, v in os.environ.items() if not k.startswith("WEFT_")}
    return {**env, "PATH": os.path.join(prefix, "bin") + ":" + env["PATH"], "LD_LIBRARY_PATH": lib,
            "PKG_CONFIG_PATH": os.path.join(lib, "pkgconfig")}


def commands(block):
    """Its lines without comments, but what is done once for the machine."""
    lines = [line.split("#")[0].strip() for line in block.splitlines()]
    return [line for line in lines if line and not line.startswith(("make ", "pip "))]


def await_listener(port):
    """Until something listens there: the first program was started in the background."""
    until = time.monotonic() + 30
    while time.monotonic() < until:
        with open("/proc/net/tcp", encoding="ascii") as f:
            if any(line.split()[1].endswith(f":{port:04X}") and line.split()[3] == "0A" for line in list(f)[1:]):
                return
        time.sleep(0.02)
    raise AssertionError(f"nothing listens at port {port}")


def taken(port):
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", port)) == 0


def session(lines, env, expected):
    """Run lines of a shell one after the other, one that ends in & beside the others; what the latter printed has to be as expected."""
    if taken(13337):
        raise checks.Skip("something else listens at port 13337")
    for line in lines:
        if line.endswith("&"):
            first = subprocess.Popen(line.rstrip("& "), shell=True, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            await_listener(13337)
        else:
            checks.must(["sh", "-c", line], cwd=folder, env=env)
    out, _ = first.communicate(timeout=30)
    assert first.returncode == 0 and expected in out, f"{first.returncode}: {out}"


def the_programs_of_the_readme_are_the_examples():
    for language, name in (("c", "greet.c"), ("python", "greet.py")):
        example = checks.read(checks.SOURCE, "examples/greet/" + name)
        assert readme(language, "weft").strip() == example.split("\n", 1)[1].strip(), f"README.md and examples/greet/{name} differ"


def the_readme_s_c_program_compiles_and_runs_as_it_says():
    checks.write_tree(folder, {"greet.c": readme("c", "weft")})
    session(commands(readme("sh", "cc greet.c")), installed(), "received: hello from C")


def the_readme_s_python_program_runs_as_it_says():
    package = os.path.join(checks.BUILD, "python")
    if not os.path.exists(os.path.join(package, "weft", "_core.abi3.so")):
        raise checks.Skip("the Python package is not built")
    checks.write_tree(folder, {"greet.py": readme("python", "weft")})
    env = {**installed(), "PYTHONPATH": package}
    session([line.replace("python3", sys.executable) for line in commands(readme("sh", "greet.py"))], env, "received: hello from Python")


def words_of(line):
    """The words of a command up to a pipe, a redirection or the next command."""
    try:
        words = shlex.split(line, comments=True)
    except ValueError:
        words = line.split("#")[0].split()
    end = next((i for i, word in enumerate(words) if word in ("|", "||", ">", "&", "&&", ";", "<")), len(words))
    return words[:end]


def every_option_in_the_pages_is_one_of_the_command():
    weft = checks.built("weft")
    wrong, helps, checked = [], {}, 0
    pages = ["README.md", *checks.files(checks.SOURCE, "docs/guide", ".md"), *checks.files(checks.SOURCE, "docs/man", ".1")]
    for page in pages:
        if page.endswith("from-0.1.md"):
            continue
        for line in LINE.findall(checks.read(checks.SOURCE, page).replace("\\-", "-")):
            words = words_of(line)
            command = words[:2] if words[:1] in (["mem"], ["element"], ["key"], ["policy"]) else words[:1]
            if not all(re.fullmatch("[a-z]+", word) for word in command):
                continue
            if tuple(command) not in helps:
                done = checks.run([weft, *command, "--help"])
                helps[tuple(command)] = done.stdout if done.returncode == 0 else None
            text = helps[tuple(command)]
            if text is None:
                wrong.append(f"{page}: weft {' '.join(command)}: there is no such command")
                continue
            options = [word.split("=")[0] for word in words if re.match(r"--[a-z]", word)]
            wrong += [f"{page}: weft {' '.join(command)} has no {option}" for option in options if option not in text]
            checked += 1
    assert not wrong, "\n".join(wrong)
    assert checked > 40, f"only {checked} commands were found in the pages"


with checks.scratch() as folder:
    checks.main(the_programs_of_the_readme_are_the_examples, the_readme_s_c_program_compiles_and_runs_as_it_says,
                the_readme_s_python_program_runs_as_it_says, every_option_in_the_pages_is_one_of_the_command)
