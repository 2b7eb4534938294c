"""weft key new makes a random key for its owner alone, never replaces a file, and commands that have it talk to each other."""
import os
import re
import resource
import signal
import stat
import subprocess

from lib import weft


def refused(*args, says):
    done = weft.run("key", *args, timeout=20)
    assert done.returncode == 2, f"weft key {' '.join(args)}: exit status {done.returncode}\n{done.stdout}{done.stderr}"
    assert len(done.stderr.splitlines()) == 1 and says in done.stderr, done.stderr


def read(path):
    with open(path, encoding="ascii") as f:
        return f.read()


def a_new_key_is_random_and_its_owners_alone():
    with weft.scratch() as folder:
        keys = []
        for name in ("a", "b"):
            path = os.path.join(folder, name)
            old = os.umask(0)
            try:
                said = weft.must("key", "new", path)
            finally:
                os.umask(old)
            assert path in said and "--key-file" in said, said
            assert stat.S_IMODE(os.stat(path).st_mode) == 0o600, oct(os.stat(path).st_mode)
            text = read(path)
            assert re.fullmatch(r"weft-key-1 [0-9a-f]{64}\n", text), "not the one line it should be"
            assert text[11:-1] not in said, "the key is shown"
            keys.append(text)
        assert keys[0] != keys[1], "twice the same key"


def a_file_that_is_there_is_not_replaced():
    with weft.scratch() as folder:
        path, link = os.path.join(folder, "key"), os.path.join(folder, "link")
        weft.must("key", "new", path)
        before = read(path)
        os.symlink(os.path.join(folder, "elsewhere"), link)
        for there in (path, link):
            done = weft.run("key", "new", there)
            assert done.returncode == 1 and "is there already" in done.stderr and there in done.stderr, done.stderr
        assert read(path) == before and not os.path.exists(os.path.join(folder, "elsewhere"))
        done = weft.run("key", "new", os.path.join(folder, "no", "such", "folder"))
        assert done.returncode == 1 and "No such file" in done.stderr, done.stderr


def a_file_that_cannot_be_written_is_not_left_behind():
    def no_bytes_for_files():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    with weft.scratch() as folder:
        path = os.path.join(folder, "key")
        done = subprocess.run([weft.command(), "key", "new", path], env=weft.environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, timeout=60, check=False, preexec_fn=no_bytes_for_files)
        assert done.returncode == 1 and path in done.stderr, f"exit status {done.returncode}\n{done.stderr}"
        assert not os.path.exists(path), "half a key is left"


def what_is_wrong_is_said():
    refused(says="new, add or cluster")
    refused("new", says="which file")
    refused("add", says="which file")
    refused("nwe", "x", says='"new"')
    refused("new", "a", "b", says='"b"')
    refused("--qqq", says="--qqq")
    assert "weft key new FILE" in weft.must("key", "--help") and "weft key new FILE" in weft.must("help", "key")


def a_key_is_added_with_a_name_and_the_first_stays():
    with weft.scratch() as folder:
        path, typed = os.path.join(folder, "key"), os.path.join(folder, "typed")
        weft.must("key", "new", path, "--name", "mill-3")
        os.chmod(path, 0o640)
        before = read(path)
        assert re.fullmatch(r"weft-key-1 [0-9a-f]{64} mill-3\n", before), "not the one line it should be"
        assert path in weft.must("key", "add", path, "--name", "mill-4")
        weft.must("key", "add", path)
        after = read(path)
        assert after.startswith(before) and re.fullmatch(r"weft-key-1 [0-9a-f]{64} mill-4\nweft-key-1 [0-9a-f]{64}\n", after[len(before):])
        assert len({line[:75] for line in after.splitlines()}) == 3, "twice the same key"
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o640 and os.listdir(folder) == ["key"]
        with open(typed, "w", encoding="ascii") as f:
            f.write("typed by a person")
        os.chmod(typed, 0o600)
        for wrong in (typed, os.path.join(folder, "none")):
            done = weft.run("key", "add", wrong)
            assert done.returncode == 1 and wrong in done.stderr, done.stderr
        assert read(typed) == "typed by a person" and sorted(os.listdir(folder)) == ["key", "typed"]
        refused("add", path, "--name", "of two", says="of two")
        refused("add", path, "--name", "anonymous", says="stands for everybody without a name")
        refused("new", os.path.join(folder, "x"), "--name", "anonymous", says="stands for everybody without a name")
        refused("new", os.path.join(folder, "x"), "--name", "", says="needs a value")
        assert read(path) == after and not os.path.exists(os.path.join(folder, "x"))


def many_add_at_once_and_no_key_is_lost():
    with weft.scratch() as folder:
        path = os.path.join(folder, "key")
        weft.must("key", "new", path, "--name", "first")
        names = [f"n{i}" for i in range(12)]
        adding = [subprocess.Popen([weft.command(), "key", "add", path, "--name", name], env=weft.environment(), stdin=subprocess.DEVNULL,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) for name in names]
        for one in adding:
            said = one.communicate(timeout=60)[1]
            assert one.returncode == 0, said
        lines = [line.split() for line in read(path).splitlines()]
        assert lines[0][2] == "first" and sorted(line[2] for line in lines[1:]) == sorted(names), lines
        assert len({line[1] for line in lines}) == 13 and os.listdir(folder) == ["key"]


def a_link_is_followed_as_processes_do():
    with weft.scratch() as folder:
        path, link = os.path.join(folder, "key"), os.path.join(folder, "link")
        weft.must("key", "new", path)
        os.symlink("key", link)
        before = read(path)
        assert link in weft.must("key", "add", link, "--name", "b")
        assert os.readlink(link) == "key" and not os.path.islink(path) and sorted(os.listdir(folder)) == ["key", "link"]
        assert read(path).startswith(before) and len(read(path).splitlines()) == 2


def a_file_that_processes_refuse_gets_no_key():
    with weft.scratch() as folder:
        path = os.path.join(folder, "key")
        weft.must("key", "new", path)
        os.chmod(path, 0o644)
        before = read(path)
        done = weft.run("key", "add", path)
        assert done.returncode == 1 and "mode 644" in done.stderr and f"chmod o= {path}" in done.stderr and not done.stdout, done.stderr
        assert read(path) == before and os.listdir(folder) == ["key"]
        done = weft.run("key", "add", folder)
        assert done.returncode == 1 and "not a regular file" in done.stderr, done.stderr
        with open(path, "w", encoding="ascii") as f:
            f.writelines(f"weft-key-1 {i:064x}\n" for i in range(256))
        os.chmod(path, 0o600)
        done = weft.run("key", "add", path)
        assert done.returncode == 1 and "at most 256" in done.stderr, done.stderr


def several_keys_are_accepted_and_the_first_is_proved():
    with weft.scratch() as folder:
        both, second, other = (os.path.join(folder, name) for name in ("both", "second", "other"))
        weft.must("key", "new", both, "--name", "a")
        weft.must("key", "add", both, "--name", "b")
        weft.must("key", "new", other)
        with open(second, "w", encoding="ascii") as f:
            f.write("# the second alone\n" + read(both).splitlines()[1] + "\n")
        os.chmod(second, 0o600)
        server, said = weft.serve_calls("--no-registry", "--listen", "tcp://127.0.0.1:0", "--key-file", both)
        try:
            uri = said["listening"][0] + "/calc/add"
            for key in (both, second):
                assert weft.must("call", uri, "25", "17", "--key-file", key) == "42\n"
            assert weft.run("call", uri, "25", "17", "--key-file", other).returncode != 0
        finally:
            weft.end(server)


def with_the_key_a_call_is_answered_and_without_it_is_not():
    with weft.scratch() as folder:
        key, other, typed, half = (os.path.join(folder, name) for name in ("key", "other", "typed", "half"))
        weft.must("key", "new", key)
        weft.must("key", "new", other)
        for path, text in ((typed, "typed by a person"), (half, read(key)[:40])):
            with open(path, "w", encoding="ascii") as f:
                f.write(text)
            os.chmod(path, 0o600)
        for ours, wrong in ((key, other), (typed, key)):
            server, said = weft.serve_calls("--no-registry", "--listen", "tcp://127.0.0.1:0", "--key-file", ours)
            try:
                uri = said["listening"][0] + "/calc/add"
                assert weft.must("call", uri, "25", "17", "--key-file", ours) == "42\n"
                done = weft.run("call", uri, "25", "17", "--key-file", wrong)
                assert done.returncode == 1 and done.stdout == "", done.stdout
                assert "cannot connect to" in done.stderr and "no server answers" not in done.stderr, done.stderr
                done = weft.run("call", uri, "25", "17", "--key-file", half)
                assert done.returncode != 0 and "weft key new" in done.stderr and read(half)[12:] not in done.stderr, done.stderr
            finally:
                weft.end(server)


weft.main(a_new_key_is_random_and_its_owners_alone, a_file_that_is_there_is_not_replaced, a_file_that_cannot_be_written_is_not_left_behind,
          what_is_wrong_is_said, a_key_is_added_with_a_name_and_the_first_stays, many_add_at_once_and_no_key_is_lost,
          a_link_is_followed_as_processes_do, a_file_that_processes_refuse_gets_no_key, several_keys_are_accepted_and_the_first_is_proved,
          with_the_key_a_call_is_answered_and_without_it_is_not)
