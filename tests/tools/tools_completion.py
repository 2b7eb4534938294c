"""The script of weft completion completes commands, options and values in bash, and in zsh where that is installed."""
import os
import shutil
import subprocess

from lib import weft


def complete(*words):
    """What bash offers for the last of these words."""
    script = weft.must("completion", "bash") + '''
COMP_WORDS=(weft "$@")
COMP_CWORD=$#
_weft
printf '%s\\n' "${COMPREPLY[@]}"
'''
    done = subprocess.run(["bash", "-u", "-c", script, "bash", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          timeout=20, check=False)
    assert done.returncode == 0 and not done.stderr, f"{words}: {done.stderr}"
    return done.stdout.split()


def commands_are_completed():
    assert complete("pe") == ["perf"]
    assert complete("mem", "p") == ["put"]
    assert complete("element", "s") == ["serve"]
    assert complete("help", "pe") == ["perf"]
    assert set(complete("")) == {"call", "completion", "element", "info", "key", "mem", "perf", "policy", "run", "serve", "help",
                                 "--version", "--help"}
    assert complete("--") == ["--version", "--help"] and complete("mem", "--") == ["--help"]
    assert complete("completion", "") == ["bash", "zsh"]


def only_names_of_commands_follow_the_word_help():
    assert set(complete("help", "")) == {"call", "completion", "element", "info", "key", "mem", "perf", "policy", "run", "serve"}
    assert set(complete("help", "mem", "")) == set(complete("mem", "help", "")) == {"get", "ls", "put", "rm", "serve", "stat"}
    assert complete("help", "perf", "") == [] and complete("mem", "help", "put", "") == []


def nothing_follows_a_command_that_is_none():
    assert complete("nosuch", "") == [] and complete("nosuch", "--") == [] and complete("mem", "nosuch", "") == []
    assert complete("nosuch", "perf", "--") == [] and complete("--version", "") == []


def options_are_completed():
    assert complete("perf", "--tr") == ["--transports"]
    assert complete("perf", "--fork", "--size", "8", "--tr") == ["--transports"]
    assert complete("mem", "put", "--rep") == ["--replace"]
    assert complete("mem", "ls", "-l", "--serv") == ["--server"]
    assert complete("perf", "--tl") == ["--tls-cert", "--tls-key", "--tls-ca"], "and not the old name of --transports"
    assert complete("info", "") == ["--json", "--help"]


def values_are_completed():
    assert complete("perf", "--mode", "") == ["caller", "thread"]
    assert complete("perf", "--path", "ma") == ["mapped"]
    assert complete("perf", "--stream", "b") == ["both", "before"]
    assert complete("run", "--graph", "d") == ["dot"]
    assert complete("run", "--graph", "--js") == ["--json"], "its value may be missing"
    assert complete("perf", "--size", "") == [] and complete("run", "") == [], "files, which bash completes itself"


def every_option_of_the_help_is_there():
    for command in ("call", "element memory", "element serve", "info", "mem serve", "mem get", "perf", "run", "serve"):
        said = weft.must(*command.split(), "--help")
        names = {line.split()[0] for line in said.splitlines() if line.startswith("  -")}
        assert set(complete(*command.split(), "-")) == names, command


def bash_has_it_for_the_command():
    done = subprocess.run(["bash", "-c", weft.must("completion", "bash") + "complete -p weft"], stdout=subprocess.PIPE,
                          text=True, timeout=20, check=True)
    assert done.stdout.split() == ["complete", "-o", "default", "-F", "_weft", "weft"], done.stdout


def zsh_understands_it():
    if not shutil.which("zsh"):
        raise weft.Skip("there is no zsh")
    with weft.scratch() as folder:
        path = os.path.join(folder, "_weft")
        with open(path, "w", encoding="utf-8") as f:
            f.write(weft.must("completion", "zsh"))
        subprocess.run(["zsh", "-n", path], timeout=20, check=True)


def the_shell_has_to_be_named():
    for words in ((), ("fish",), ("bash", "zsh")):
        done = weft.run("completion", *words)
        assert done.returncode == 2 and "weft completion bash" in done.stderr, done.stderr


weft.main(commands_are_completed, only_names_of_commands_follow_the_word_help, nothing_follows_a_command_that_is_none,
          options_are_completed, values_are_completed, every_option_of_the_help_is_there, bash_has_it_for_the_command,
          zsh_understands_it, the_shell_has_to_be_named)
