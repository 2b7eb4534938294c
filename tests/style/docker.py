"""docker/openwhisk/Dockerfile, as far as it can be held to the tree without Docker: what it copies is enough to build from, the packages it
names are Debian 12's, and with those of its last stage every library that the command and the extension need is there."""
import fnmatch
import os
import re
import shlex
import shutil

from lib import checks

FILE = "docker/openwhisk/Dockerfile"
WORDS = {"FROM", "RUN", "COPY", "WORKDIR", "ARG", "USER", "EXPOSE", "CMD"}
NOT_LIBRARIES = {"libc6", "libgcc-s1", "libstdc++6"}  # which every Debian has


def stages(text):
    """The instructions of each stage: (word, rest)."""
    text = re.sub(r"^[ \t]*#.*\n", "", text, flags=re.M).replace("\\\n", " ")
    found = []
    for line in filter(None, map(str.strip, text.splitlines())):
        word, _, rest = line.partition(" ")
        if word == "FROM":
            found.append([])
        found[-1].append((word, " ".join(rest.split())))
    return found


def rest_of(stage, word):
    return [rest for w, rest in stage if w == word]


def packages(stage):
    """What a stage installs, with the default of what can be named at build time."""
    defaults = dict(shlex.split(rest)[0].split("=", 1) for rest in rest_of(stage, "ARG"))
    found = []
    for run in rest_of(stage, "RUN"):
        for command in run.split("&&"):
            words = re.sub(r"\$(\w+)", lambda m: defaults[m.group(1)], command).split()
            if words[:2] == ["apt-get", "install"]:
                found += [w for w in words[2:] if not w.startswith("-")]
    return found


def allowed(root):
    """What .dockerignore lets into the build."""
    lines = [line for line in checks.read(root, ".dockerignore").split() if line and not line.startswith("#")]
    return [line[1:] for line in lines if line.startswith("!")], [line for line in lines if not line.startswith("!")]


def wrong(root):
    """What is wrong with the file by itself."""
    found, all_of_them = [], stages(checks.read(root, FILE))
    last = all_of_them[-1]
    for stage in all_of_them:
        found += [f"{word} is not looked at by this test" for word, _ in stage if word not in WORDS]
        for image in rest_of(stage, "FROM"):
            if not re.fullmatch(r"debian:12-slim( AS \w+)?", image):
                found.append(f"FROM {image} is not Debian 12's ordinary image")
    for run in (run for stage in all_of_them for run in rest_of(stage, "RUN")):
        if "apt-get install" in run and not re.search(r"&& apt-get clean && rm -rf /var/lib/apt/lists/\*$", run):
            found.append("apt's lists and archives stay in a layer of the image")  # Debian's image cleans up by itself, others based on it do not
    if rest_of(last, "USER") in ([], ["root"], ["0"]):
        found.append("it runs as root")
    if rest_of(last, "EXPOSE") != ["8080"]:
        found.append("OpenWhisk asks port 8080")
    if rest_of(last, "CMD") != ['["weft", "element", "serve"]']:
        found.append("CMD is not the action runtime")
    copied = rest_of(all_of_them[0], "COPY")
    keep, drop = allowed(root)
    found += [f"COPY {one}: only the whole tree is looked at by this test" for one in copied if one != ". ."]
    found += [f".dockerignore lets in {name}, which is not there" for name in keep if not os.path.exists(os.path.join(root, name))]
    if "*" not in drop:
        found.append(".dockerignore does not keep out the rest")
    return found


def known(names):
    """Of Debian 12's packages, those that apt knows here."""
    if not shutil.which("apt-cache") or not os.path.exists("/etc/debian_version") or not checks.read("/", "etc/debian_version").startswith("12."):
        raise checks.Skip("this is not Debian 12")
    said = checks.run(["apt-cache", "policy", *names]).stdout
    found = {name for name, candidate in re.findall(r"^(\S+):\n  Installed: .*\n  Candidate: (.*)", said, re.M) if candidate != "(none)"}
    if "python3" not in found:
        raise checks.Skip("apt has no list of packages")
    return found


def the_file_is_as_it_should_be():
    assert not (found := wrong(checks.SOURCE)), "\n".join(found)


def its_packages_are_debians():
    names = [name for stage in stages(checks.read(checks.SOURCE, FILE)) for name in packages(stage)]
    assert len(names) > 15, names
    missing = set(names) - known(names)
    assert not missing, f"Debian 12 has no {', '.join(sorted(missing))}"


def it_installs_what_setup_builds_with():
    """One list of what is needed to build is enough to keep: scripts/setup's."""
    setup = re.search(r'^build="(.*)"', checks.read(checks.SOURCE, "scripts/setup"), re.M).group(1)
    have = packages(stages(checks.read(checks.SOURCE, FILE))[0])
    missing = [choice for choice in setup.split() if not set(choice.split("|")) & set(have)]
    assert not missing, f"the first stage lacks {missing}"


def needed(path):
    return re.findall(r"\(NEEDED\).*\[(.*)\]", checks.must(["readelf", "-d", path]))


def what_is_built_finds_its_libraries_there():
    if not shutil.which("dpkg"):
        raise checks.Skip("there is no dpkg")
    have = set(packages(stages(checks.read(checks.SOURCE, FILE))[-1]))
    names = {name for file in ("weft", "libweft_ucx.so", "python/weft/_core.abi3.so") for name in needed(checks.built(file))}
    assert {"libucp.so.0", "libsodium.so.23"} <= names, names
    for name in sorted(names):
        owner = checks.run(["dpkg", "-S", f"*/{name}"]).stdout
        owners = {line.partition(":")[0] for line in owner.splitlines() if line.endswith(f"/{name}")}
        assert owners & (have | NOT_LIBRARIES), f"{name} is of {owners or 'no package'}, which the last stage does not install"


def what_it_copies_is_enough_to_build_from():
    keep, drop = allowed(checks.SOURCE)
    with checks.scratch() as root:
        for name in keep:
            source, target = os.path.join(checks.SOURCE, name), os.path.join(root, name)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            if os.path.isdir(source):
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "build"))
            else:
                shutil.copy(source, target)
        step = next(r for r in rest_of(stages(checks.read(checks.SOURCE, FILE))[0], "RUN") if r.startswith("cmake "))
        configure = shlex.split(step.split("&&")[0])
        if not shutil.which("ninja"):
            raise checks.Skip("there is no ninja")
        checks.must([checks.CMAKE, *configure[1:]], cwd=root)
        targets = checks.must([checks.CMAKE, "--build", "build/release", "--target", "help"], cwd=root)
        wanted = re.search(r"--target (\w+)", step).group(1)
        assert re.search(rf"^{wanted}: phony", targets, re.M), f"there is no target {wanted}"
        checks.must([checks.CMAKE, "--build", "build/release", "--target", wanted, "--", "-n"], cwd=root)
        project = checks.read(root, "pyproject.toml")
        for path in re.findall(r'"(python/\w+)"', project) + re.findall(r'(?:file|readme|input) = "?([\w.]+)"?', project):
            assert os.path.exists(os.path.join(root, path)), f"pyproject.toml names {path}, which .dockerignore keeps out"
        assert not [p for p in checks.files(root, "", "") if fnmatch.fnmatch(p, "tests/*")]


def each_fault_is_caught():
    good, ignore = checks.read(checks.SOURCE, FILE), "*\n!src\n"
    with checks.scratch() as root:
        for text, ignored, n in ((good, ignore, 0), (good.replace("debian:12", "registry.example/debian:12"), ignore, 2),
                                 (good.replace("USER element\n", ""), ignore, 1), (good.replace("8080", "80"), ignore, 1),
                                 (good.replace('"serve"', '"memory"'), ignore, 1), (good, ignore + "!none\n", 1), (good, "!src\n", 1),
                                 (good + "ADD http://x /\n", ignore, 1), (good.replace("apt-get clean && ", ""), ignore, 2),
                                 (good.replace("COPY . .", "COPY none ."), ignore, 1)):
            checks.write_tree(root, {FILE: text, ".dockerignore": ignored, "src/a": ""})
            assert len(wrong(root)) == n, f"{wrong(root)} is not {n} mistakes"


checks.main(the_file_is_as_it_should_be, its_packages_are_debians, it_installs_what_setup_builds_with, what_is_built_finds_its_libraries_there,
            what_it_copies_is_enough_to_build_from, each_fault_is_caught)
