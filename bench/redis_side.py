"""A Redis server of our own for as long as it is measured: on a Unix socket in a folder of its own, keeping nothing, gone afterwards.

Debian's redis-tools is enough: its redis-check-rdb is the server's program under another name, as /usr/bin/redis-server is in the package
that also installs a service. redis-benchmark measures it."""
import contextlib
import os
import shutil
import subprocess
import tempfile
import time

from common import Failed, clean_env


def program():
    """The server's program, or None."""
    found = shutil.which("redis-server") or shutil.which("redis-check-rdb")
    return found if found and shutil.which("redis-benchmark") else None


@contextlib.contextmanager
def serving(on_core):
    """Run the server on the first core; the path of its socket."""
    with tempfile.TemporaryDirectory(prefix="weft-bench-") as folder:
        path = os.path.join(folder, "redis.sock")
        # the name it is called by decides what it is; it goes when we do, however we go
        command = ["setpriv", "--pdeathsig", "KILL", "bash", "-c", 'exec -a redis-server "$@"', "bash", program(),
                   "--port", "0", "--unixsocket", path, "--save", "",
                   "--appendonly", "no", "--dir", folder, "--daemonize", "no"]
        with subprocess.Popen(on_core(0, command), env=clean_env(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
            try:
                deadline = time.monotonic() + 10
                while not os.path.exists(path):
                    if server.poll() is not None or time.monotonic() > deadline:
                        raise Failed("the Redis server does not come up")
                    time.sleep(0.01)
                yield path
            finally:
                server.kill()


class Redis:
    """Rates of GET and SET."""

    def __init__(self, path, on_core, seconds):
        self.path = path
        self.on_core = on_core
        self.seconds = seconds
        self.counts = {}

    def once(self, size, clients, pipelined, count):
        command = ["redis-benchmark", "-s", self.path, "-d", str(size), "-t", "set,get", "-c", str(clients), "-P", str(pipelined),
                   "-n", str(count), "--csv"]
        try:
            done = subprocess.run(self.on_core(1, command), env=clean_env(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                  timeout=120, check=False)
        except subprocess.TimeoutExpired as e:
            raise Failed("redis-benchmark does not end") from e
        rates = {}
        for line in done.stdout.splitlines():
            cells = [cell.strip('"') for cell in line.split(",")]
            if cells[0] in ("GET", "SET"):
                rates[cells[0]] = float(cells[1])
        if set(rates) != {"GET", "SET"}:
            raise Failed("redis-benchmark: " + (done.stderr.strip().splitlines() or ["no figures"])[-1])
        return {"read_s": rates["GET"], "write_s": rates["SET"]}

    def point(self, size, clients, pipelined):
        """As many requests as fill the time, found by a short run the first time. SET comes first: what GET finds is of that size."""
        key = (size, clients, pipelined)
        if key not in self.counts:
            got = self.once(size, clients, pipelined, 2000)
            self.counts[key] = max(2000, int(self.seconds * min(got.values())))
        return self.once(size, clients, pipelined, self.counts[key])
