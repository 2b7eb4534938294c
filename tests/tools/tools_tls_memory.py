"""Memory over TLS, by the command: a memory server and a memory element with certificates, under a policy; who has none, or another
authority's, or another name, does what the table says and nothing else."""
import json
import os
import time

from lib import weft

POLICY = """allow * connect
allow owner all
allow reader mem-read data-*
allow writer mem-allocate data-* 64k
allow writer mem-write data-*
allow writer mem-read data-*
default deny
"""
WORDS = "words that are kept\n"


class Cluster:
    def __init__(self, folder, *names):
        self.folder = folder
        for place, of in (("certs", ("server=127.0.0.1", *names)), ("other", ("owner",))):
            done = weft.run("key", "cluster", os.path.join(folder, place), *of, timeout=20)
            if done.returncode and "OpenSSL" in done.stderr:
                raise weft.Skip(done.stderr.strip())
            assert done.returncode == 0, done.stderr

    def ours(self, name, place="certs"):
        path = os.path.join(self.folder, place)
        return ["--tls-cert", os.path.join(path, name + ".crt"), "--tls-key", os.path.join(path, name + ".key"), "--tls-ca",
                os.path.join(self.folder, "certs", "ca.crt")]

    def write(self, name, text):
        path = os.path.join(self.folder, name)
        with open(path + ".new", "w", encoding="ascii") as f:
            f.write(text)
        os.rename(path + ".new", path)
        return path


def each_may_do_what_the_policy_says():
    with weft.scratch() as folder:
        c = Cluster(folder, "owner", "reader", "writer", "nobody")
        policy, text = c.write("policy", POLICY), c.write("text", WORDS)
        server, uri = weft.serve_memory(*c.ours("server"), size="16M", listen="tls://127.0.0.1:0", env=weft.environment(WEFT_POLICY=policy))
        try:
            assert uri.startswith("tls://"), uri

            def mem(who, *args):
                return weft.run("mem", *args, "--server", uri, *c.ours(who))

            def may(who, *args):
                done = mem(who, *args)
                assert done.returncode in (0, 1) and (not done.returncode or "does not allow" in done.stderr), f"{who}: {args}: {done.stderr}"
                return done.returncode == 0

            for name in ("data-1", "other"):
                assert may("owner", "put", text, name)
            table = ((("get", "data-1", "-"), ("owner", "reader", "writer")),
                     (("get", "other", "-"), ("owner",)),
                     (("put", text, "data-2"), ("owner", "writer")),
                     (("put", text, "new"), ("owner",)),
                     (("rm", "data-3"), ("owner", "writer")),
                     (("rm", "old"), ("owner",)))
            for args, those in table:
                for who in ("owner", "reader", "writer", "nobody"):
                    mem("owner", *(("put", text) if args[0] == "rm" else ("rm",)), args[-1])  # to be removed, or not there yet
                    assert may(who, *args) == (who in those), f"{who}: {args}"
            mem("owner", "rm", "new")
            for who, names in (("owner", {"data-1", "other"}), ("reader", {"data-1"}), ("writer", {"data-1"}), ("nobody", set())):
                done = mem(who, "ls", "--json")
                assert done.returncode == 0, done.stderr
                seen = {line["name"] for line in weft.json_lines(done.stdout) if "name" in line}
                assert seen >= names and not seen & ({"data-1", "other"} - names), f"{who}: {seen}"
            large = c.write("large", "x" * 70000)
            assert mem("writer", "put", large, "data-large").returncode, "it has more than its part"
            assert mem("owner", "get", "data-1", "-").stdout == WORDS

            for who in (c.ours("owner", "other"), []):  # of another authority, and without a certificate
                done = weft.run("mem", "get", "data-1", "-", "--server", uri, *who)
                assert done.returncode and not done.stdout and "tls" in done.stderr, f"{done.returncode} {done.stderr}"
            done = weft.run("mem", "get", "data-1", "-", "--server", uri.replace("tls://", "tcp://"), env=weft.environment(WEFT_TLS="off"))
            assert done.returncode and not done.stdout, done.stderr
        finally:
            weft.end(server)


def a_name_that_is_denied_is_out_within_a_second():
    """A second as the promise; a busy machine gets more."""
    with weft.scratch() as folder:
        c = Cluster(folder, "owner")
        policy = c.write("policy", "default allow\n")
        server, uri = weft.serve_memory(*c.ours("server"), size="16M", listen="tls://127.0.0.1:0", env=weft.environment(WEFT_POLICY=policy))
        text = c.write("text", WORDS)
        try:
            weft.must("mem", "put", text, "a", "--server", uri, *c.ours("owner"))
            c.write("policy", "deny owner connect\ndefault allow\n")
            began = time.monotonic()
            while weft.run("mem", "get", "a", "-", "--server", uri, *c.ours("owner")).returncode == 0:
                assert time.monotonic() < began + 30, "it is still let in"
            print(f"# refused after {time.monotonic() - began:.2f} s")
            done = weft.run("mem", "get", "a", "-", "--server", uri, *c.ours("owner"))
            assert done.returncode and "policy" in done.stderr, done.stderr
        finally:
            weft.end(server)


def a_memory_element_has_tls_in_its_durl():
    with weft.scratch() as folder:
        c = Cluster(folder, "owner")
        p = weft.start("element", "memory", "--size", "1M", "--listen", "tls://127.0.0.1:0", "--json", *c.ours("server"))
        try:
            said = json.loads(p.stdout.readline())
            durl = said["durl"]
            assert "url,tls://127.0.0.1:" in durl, durl
        finally:
            weft.end(p)
        # what others can reach wants something to prove with
        done = weft.run("element", "memory", "--size", "1M", "--listen", "tls://127.0.0.1:0")
        assert done.returncode and "WEFT_TLS_CERT" in done.stderr, done.stderr


weft.main(each_may_do_what_the_policy_says, a_name_that_is_denied_is_out_within_a_second, a_memory_element_has_tls_in_its_durl)
