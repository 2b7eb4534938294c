"""OpenSSL's own client and server shake hands with a server and a caller of ours, by the certificates of `weft key cluster`, as far as they
should: what they may not have they are refused, and what is said in the clear is none of Weft."""
import os
import re
import shutil
import subprocess
import threading

from lib import weft

TIMEOUT = 60


def openssl(*args):
    """Run it with nothing to say, to its end; what it says."""
    done = subprocess.run(["openssl", *args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          errors="replace", timeout=TIMEOUT, check=False)
    return done.returncode, done.stdout


class Cluster:
    """Certificates of one authority for `server` and `desk`; of another one for `stranger`."""

    def __init__(self, folder):
        if not shutil.which("openssl"):
            raise weft.Skip("there is no openssl command")
        self.folder = folder
        for place, names in (("certs", ["server=127.0.0.1,localhost", "desk"]), ("other", ["stranger=127.0.0.1"])):
            done = weft.run("key", "cluster", os.path.join(folder, place), *names, timeout=20)
            if done.returncode and "OpenSSL" in done.stderr:
                raise weft.Skip(done.stderr.strip())
            assert done.returncode == 0, done.stderr

    def file(self, name, end="crt"):
        return os.path.join(self.folder, "other" if name == "stranger" else "certs", f"{name}.{end}")

    def ours(self, name):
        return ["--tls-cert", self.file(name), "--tls-key", self.file(name, "key"), "--tls-ca", self.file("ca")]

    def theirs(self, name):
        return ["-cert", self.file(name), "-key", self.file(name, "key"), "-CAfile", self.file("ca")]


def the_files_are_what_openssl_wants():
    with weft.scratch() as folder:
        c = Cluster(folder)
        for name, purpose in (("server", "sslserver"), ("server", "sslclient"), ("desk", "sslclient")):
            status, said = openssl("verify", "-x509_strict", "-purpose", purpose, "-CAfile", c.file("ca"), c.file(name))
            assert status == 0, said
        assert openssl("verify", "-CAfile", c.file("ca"), c.file("stranger"))[0] != 0
        said = openssl("x509", "-in", c.file("server"), "-noout", "-ext", "subjectAltName")[1]
        assert "127.0.0.1" in said and "DNS:localhost" in said, said


def its_client_at_our_listener():
    with weft.scratch() as folder:
        c = Cluster(folder)
        process, said = weft.serve_calls("--no-registry", "--listen", "tls://127.0.0.1:0", *c.ours("server"))
        try:
            uri = said["listening"][0]
            where = ["s_client", "-connect", uri.partition("://")[2], "-verify_return_error", "-verify_hostname", "localhost"]
            met = [*where, *c.theirs("desk")]
            kept = os.path.join(folder, "session")
            status, said = openssl(*met, "-tls1_3")
            assert "Verify return code: 0 (ok)" in said and re.search(r"New, TLSv1\.3, Cipher is TLS_\w+_GCM", said), said
            assert "X25519" in said, said  # the key exchange

            refusals = (("an older version", [*met, "-tls1_2"], "protocol version"),
                        ("a weak key exchange", [*met, "-groups", "ffdhe2048"], "handshake failure"),
                        ("no certificate", [*where, "-CAfile", c.file("ca")], "certificate required"),
                        ("another authority's", [*where, "-cert", c.file("stranger"), "-key", c.file("stranger", "key"), "-CAfile", c.file("ca")],
                         "unknown ca"))
            for what, args, alert in refusals:
                status, said = talk(args, b"x" * 100)
                assert status != 0 and alert in said, f"{what}: {status}\n{said}"

            # renegotiation is gone with TLS 1.3; new keys are not, and the listener wants a hello of ours all the same
            for command in (b"R\n", b"K\n", b"k\n", b"nothing of Weft\n"):
                status, said = talk([*met, "-tls1_3"], command)
                assert "Verify return code: 0 (ok)" in said and "calc" not in said, f"{command}: {said}"

            # what it keeps of us leads to a short handshake, and takes no early data
            talk([*met, "-tls1_3", "-sess_out", kept], b"x\n")
            early = os.path.join(folder, "early")
            with open(early, "w", encoding="ascii") as f:
                f.write("early")
            said = talk([*met, "-tls1_3", "-sess_in", kept, "-early_data", early], b"x\n")[1]
            assert "Reused, TLSv1.3" in said and "Early data was not sent" in said, said
            assert weft.must("call", uri + "/calc/add", "25", "17", *c.ours("desk")) == "42\n"
        finally:
            weft.end(process)


def talk(args, says):
    """The same, and it says that, and when its new keys are made something more: until the other side ends the connection."""
    # without a buffer, which would be written once more when the other side has gone
    with subprocess.Popen(["openssl", *args], bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        timer = threading.Timer(TIMEOUT, process.kill)
        timer.start()
        out = b""
        try:
            process.stdin.write(says)
            for line in process.stdout:
                out += line
                if line.startswith(b"KEYUPDATE"):
                    process.stdin.write(b"nothing of Weft\n")
        except BrokenPipeError:
            out += process.stdout.read()
        finally:
            timer.cancel()
        process.wait()
        return process.returncode, out.decode(errors="replace")


def its_server_for_our_caller():
    with weft.scratch() as folder:
        c = Cluster(folder)
        table = (("both believe each other", "server", ["-tls1_3"], "desk", "127.0.0.1", None),
                 ("by the other name of the host", "server", ["-tls1_3"], "desk", "localhost", None),
                 ("an older version", "server", ["-tls1_2"], "desk", "127.0.0.1", "break the protocol"),
                 ("a host that is not in it", "desk", ["-tls1_3"], "desk", "127.0.0.1", "another host"),
                 ("another authority's", "stranger", ["-tls1_3"], "desk", "127.0.0.1", "not accepted"),
                 ("no key exchange that we have", "server", ["-tls1_3", "-groups", "ffdhe2048"], "desk", "127.0.0.1", "refuses us"))
        for what, theirs, how, ours, host, refusal in table:
            with subprocess.Popen(["openssl", "s_server", "-accept", "127.0.0.1:0", "-naccept", "1", "-Verify", "3", "-verify_return_error",
                                   *c.theirs(theirs), *how], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT) as server:
                timer = threading.Timer(TIMEOUT, server.kill)
                timer.start()
                try:
                    port = None
                    for line in server.stdout:
                        found = re.match(rb"ACCEPT .*:(\d+)", line)
                        if found:
                            port = int(found[1])
                            break
                    assert port, "it does not say where it listens"
                    done = weft.run("call", f"tls://{host}:{port}/calc/add", "1", "2", "--timeout", "300ms", *c.ours(ours), timeout=TIMEOUT)
                    assert done.returncode and not done.stdout, f"{what}: {done.stdout}"
                    server.kill()
                    said = server.stdout.read()
                finally:
                    server.kill()
                    timer.cancel()
                if refusal:
                    assert refusal in done.stderr, f"{what}: {done.stderr}"
                    assert b"Cipher is TLS" not in said and b"WEFT" not in said.upper(), f"{what}: {said}"
                else:  # the handshake was good: its server has read the first words of our hello, and says nothing that we understand
                    assert b"depth=0" in said and b"verify return:1" in said, f"{what}: {said}"
                    assert "does not speak TLS" not in done.stderr and "not accepted" not in done.stderr, f"{what}: {done.stderr}"


weft.main(the_files_are_what_openssl_wants, its_client_at_our_listener, its_server_for_our_caller)
