"""Hosts of a test's own, on one machine: each has its own network, processes, shared memory and temporary folder.

    with hosts.Hosts(2) as (a, b):
        server = b.start("weft", "perf", "--listen", f"tcp://{b.address}:0")

A host is a set of namespaces that an init process holds: when that ends, the kernel ends all that runs there. The hosts hang on a bridge in a
network namespace of its own, so nothing of theirs reaches any other network. Files are those of the machine, but for `folder`, where each host has
something else under the same name, and /dev/shm. Needs root; Unavailable says what is missing.
"""
import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time

INIT = """
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs "$1"
hostname "$2"
echo ready
exec sleep 100000
"""


SSHD = r"""
set -e
mkdir -p "$1/home/.ssh"
cp "$2" "$1/home/.ssh/authorized_keys"
awk -F: -v OFS=: -v home="$1/home" '$3 == 0 {$6 = home; $7 = "/bin/sh"} {print}' /etc/passwd > "$1/passwd"
mount --bind "$1/passwd" /etc/passwd
dropbearkey -t ed25519 -f "$1/hostkey" >/dev/null 2>&1
exec dropbear -F -E -e -s -r "$1/hostkey" -p 22 -P "$1/pid"
"""


class Unavailable(Exception):
    """Namespaces cannot be made here."""


def call(*args):
    done = subprocess.run(args, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        raise Unavailable(f"hosts of one's own cannot be made here ({' '.join(args[:3])}: {done.stdout.strip()[-200:]})")


class Host:
    """One of them. `address` is where others reach it, `folder` its temporary folder."""

    def __init__(self, net, name, address, folder):
        self.net, self.name, self.address, self.folder = net, name, address, folder
        self.init = subprocess.Popen(
            ["ip", "netns", "exec", net, "unshare", "--mount", "--pid", "--ipc", "--uts", "--fork", "--mount-proc", "--kill-child", "sh", "-c",
             INIT, "sh", folder, name], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if self.init.stdout.readline() != "ready\n":
            said = self.init.stderr.read()
            self.close()
            raise Unavailable(f"hosts of one's own cannot be made here ({said.strip()[-200:]})")
        self.pid = next(p for p in pids() if parent_of(p) == self.init.pid)

    def command(self, *args):
        """What runs this on the host."""
        return ["nsenter", "--target", str(self.pid), "--mount", "--pid", "--ipc", "--uts", "--net", "--", *args]

    def start(self, *args, env=None, **kw):
        """A process on the host. Killing it kills only what entered the host: processes() has the others."""
        return subprocess.Popen(self.command(*args), env=dict(env or os.environ, TMPDIR=self.folder), stdin=subprocess.DEVNULL, **kw)

    def run(self, *args, env=None, timeout=120, **kw):
        """A process on the host, to its end."""
        return subprocess.run(self.command(*args), env=dict(env or os.environ, TMPDIR=self.folder), stdin=subprocess.DEVNULL, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=timeout, check=False, **kw)

    def processes(self, word=""):
        """The processes on the host with that word among their arguments, by their numbers here."""
        ours = os.stat(f"/proc/{self.pid}/ns/pid").st_ino
        found = []
        for pid in pids():
            try:
                if pid != self.pid and os.stat(f"/proc/{pid}/ns/pid").st_ino == ours and state_of(pid) != "Z":
                    with open(f"/proc/{pid}/cmdline", "rb") as f:
                        if word.encode() in f.read():
                            found.append(pid)
            except OSError:
                continue  # it has ended
        return found

    def files(self):
        """What is in its temporary folder."""
        return os.listdir(f"/proc/{self.pid}/root{self.folder}")

    def cut(self, away=True):
        """Take its network away, or give it back."""
        call("ip", "-n", self.net, "link", "set", "eth0", "down" if away else "up")

    def close(self):
        self.init.kill()
        self.init.wait()
        self.init.stdout.close()
        self.init.stderr.close()


class Hosts:
    """So many of them, on one network."""

    def __init__(self, n):
        self.n, self.hosts, self.nets = n, [], []
        self.temp = tempfile.TemporaryDirectory(prefix="weft-hosts-")

    def _net(self, name):
        call("ip", "netns", "add", name)
        self.nets.append(name)
        call("ip", "-n", name, "link", "set", "lo", "up")
        return name

    def __enter__(self):
        prefix = f"weft{os.getpid()}"
        try:
            switch = self._net(f"{prefix}-switch")
            call("ip", "-n", switch, "link", "add", "br0", "type", "bridge")
            call("ip", "-n", switch, "link", "set", "br0", "up")
            for i in range(self.n):
                net = self._net(f"{prefix}-{i}")
                call("ip", "-n", switch, "link", "add", f"p{i}", "type", "veth", "peer", "name", "eth0", "netns", net)
                call("ip", "-n", switch, "link", "set", f"p{i}", "master", "br0", "up")
                call("ip", "-n", net, "addr", "add", f"10.97.0.{i + 1}/24", "dev", "eth0")
                call("ip", "-n", net, "link", "set", "eth0", "up")
                self.hosts.append(Host(net, f"host{i}", f"10.97.0.{i + 1}", self.temp.name))
        except BaseException as error:
            self.close()
            if isinstance(error, FileNotFoundError):
                raise Unavailable(f"hosts of one's own cannot be made here ({error.filename} is missing)") from None
            raise
        return self.hosts

    def __exit__(self, *error):
        self.close()

    def close(self):
        for host in self.hosts:
            host.close()
        for net in self.nets:
            with contextlib.suppress(Unavailable):
                call("ip", "netns", "del", net)
        self.temp.cleanup()


def ssh(folder, client, servers, env=None):
    """Let `client` log in to `servers`, with a key that is made in `folder`: the command that does so. Each serves with this environment."""
    for tool in ("ssh", "ssh-keygen", "dropbear"):
        if not shutil.which(tool):
            raise Unavailable(f"there is no {tool} here")
    key = os.path.join(folder, "id")
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    command = f"ssh -i {key} -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"
    for host in servers:
        host.start("sh", "-c", SSHD, "sh", host.folder, key + ".pub", env=env, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 60
    for host in servers:
        while client.run(*command.split(), f"root@{host.address}", "true").returncode:
            assert time.monotonic() < until, "sshd does not come up"
            time.sleep(0.05)
    return command


def pids():
    return [int(p) for p in os.listdir("/proc") if p.isdigit()]


def stat_of(pid):
    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as f:
        return f.read().rpartition(")")[2].split()


def state_of(pid):
    return stat_of(pid)[0]


def parent_of(pid):
    try:
        return int(stat_of(pid)[1])
    except OSError:
        return 0


def stop(pids_):
    """Stop processes, and return when they are."""
    for pid in pids_:
        os.kill(pid, signal.SIGSTOP)
    until = time.monotonic() + 20
    while any(os.path.exists(f"/proc/{pid}") and state_of(pid) not in "TZX" for pid in pids_):
        assert time.monotonic() < until, "they do not stop"
        time.sleep(0.005)
