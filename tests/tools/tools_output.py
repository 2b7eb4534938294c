"""What a command could not write was not done, and it says so; a standard descriptor that is closed stays closed, and is none of the library's."""
import os
import signal
import subprocess

from lib import weft

SAID = "stdout cannot be written"
# Each says something and ends by itself.
COMMANDS = (("--version",), ("help",), ("help", "info"), ("info",), ("info", "--json"), ("info", "--help"), ("call", "--help"), ("mem", "help"),
            ("mem", "help", "put"), ("element", "--help"), ("run", "--help"), ("key", "--help"), ("serve", "--help"),
            ("perf", "--fork", "--test", "tag_lat", "--size", "8", "--iters", "10", "--no-pin"))


def run(*args, closed=(), **kw):
    """The finished process, started with these descriptors closed."""
    def close():
        for fd in closed:
            os.close(fd)
    return subprocess.run([weft.command(), *args], env=weft.environment(), preexec_fn=close, text=True, timeout=60, check=False,
                          **{"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **kw})


def refuses(done, args):
    assert done.returncode == 1, f"weft {' '.join(args)}: exit status {done.returncode}\n{done.stderr}"
    assert SAID in done.stderr, f"weft {' '.join(args)}: {done.stderr}"


def a_full_disk_is_noticed():
    with open("/dev/full", "wb") as full:
        for args in COMMANDS:
            refuses(run(*args, stdout=full), args)


def a_closed_output_is_noticed():
    for args in COMMANDS:
        refuses(run(*args, closed=(1,)), args)


def a_key_that_was_made_and_not_told_of_is_said_to_be():
    with weft.scratch() as folder, open("/dev/full", "wb") as full:
        refuses(run("key", "new", os.path.join(folder, "key"), stdout=full), ("key", "new"))


def nothing_is_said_where_nothing_was_to_be_written():
    done = run("no-such-command", closed=(1,))
    assert done.returncode == 2 and SAID not in done.stderr, done.stderr


def closed_descriptors_are_none_of_the_librarys():
    server = subprocess.Popen([weft.command(), "serve", "--no-registry", "--listen", "tcp://127.0.0.1:0"], env=weft.environment(), close_fds=True,
                              stderr=subprocess.PIPE, text=True, preexec_fn=lambda: (weft.as_at_a_terminal(), os.close(0), os.close(1)))
    try:
        weft.let_work(server)
        for fd in (0, 1):
            assert os.readlink(f"/proc/{server.pid}/fd/{fd}") == "/dev/null", os.readlink(f"/proc/{server.pid}/fd/{fd}")
    finally:
        server.send_signal(signal.SIGTERM)
        said = server.communicate(timeout=60)[1]
    refuses(subprocess.CompletedProcess((), server.returncode, "", said), ("serve",))


def a_call_and_a_block_do_with_closed_descriptors():
    server, said = weft.serve_calls("--listen", "tcp://127.0.0.1:0", "--no-registry")
    uri = said["listening"][0] + "/calc/add"
    memory, at = weft.serve_memory()
    try:
        done = run("call", uri, "1", "2", closed=(0,))
        assert done.returncode == 0 and done.stdout.strip() == "3", done.stdout + done.stderr
        refuses(run("call", uri, "1", "2", closed=(0, 1)), ("call",))
        with weft.scratch() as folder:
            path = os.path.join(folder, "in")
            with open(path, "wb") as f:
                f.write(bytes(range(256)) * 1024)
            weft.must("mem", "put", path, "block", "--server", at)
            done = run("mem", "get", "block", os.path.join(folder, "out"), "--server", at, closed=(0, 2))
            assert done.returncode == 0, done.stdout
            with open(path, "rb") as f, open(os.path.join(folder, "out"), "rb") as g:
                assert f.read() == g.read(), "other bytes"
            done = run("mem", "get", "block", "-", "--server", at, closed=(1,))
            assert done.returncode == 1 and "Bad file descriptor" in done.stderr, done.stderr
    finally:
        weft.end(server, memory)


weft.main(a_full_disk_is_noticed, a_closed_output_is_noticed, a_key_that_was_made_and_not_told_of_is_said_to_be,
          nothing_is_said_where_nothing_was_to_be_written, closed_descriptors_are_none_of_the_librarys, a_call_and_a_block_do_with_closed_descriptors)
