"""weft key cluster makes an authority and certificates that OpenSSL accepts, replaces nothing, and commands that have them talk over tls://."""
import json
import os
import re
import signal
import stat
import subprocess

from lib import weft


def needs_it():
    done = weft.run("key", "cluster", "/proc/none", "a", timeout=20)
    if "built without OpenSSL" in done.stderr or "does not load" in done.stderr:
        raise weft.Skip(done.stderr.strip())


def openssl(*args, good=True):
    try:
        done = subprocess.run(["openssl", *args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60,
                              check=False)
    except FileNotFoundError:
        raise weft.Skip("there is no openssl command") from None
    assert (done.returncode == 0) == good, f"openssl {' '.join(args)}: {done.stdout}"
    return done.stdout


def makes(*args):
    return json.loads(weft.must("key", "cluster", *args, "--json"))


def files(name, ca="ca"):
    """The options that name them."""
    return "--tls-cert", name + ".crt", "--tls-key", name + ".key", "--tls-ca", os.path.join(os.path.dirname(name), ca + ".crt")


def what_it_makes_is_what_openssl_accepts():
    needs_it()
    with weft.scratch() as folder:
        at = os.path.join(folder, "certs")
        old = os.umask(0)
        try:
            made = makes(at, "server=127.0.0.1,node1.example,[::1]", "client")
        finally:
            os.umask(old)
        assert sorted(os.listdir(at)) == ["ca.crt", "ca.key", "client.crt", "client.key", "server.crt", "server.key"]
        assert stat.S_IMODE(os.stat(at).st_mode) == 0o700
        for name in os.listdir(at):
            mode = stat.S_IMODE(os.stat(os.path.join(at, name)).st_mode)
            assert mode == (0o600 if name.endswith(".key") else 0o644), f"{name}: {mode:o}"
        ca, server, client = (os.path.join(os.path.realpath(at), name + ".crt") for name in ("ca", "server", "client"))
        assert made["authority"] == {"cert": ca, "key": ca[:-3] + "key", "until": made["authority"]["until"], "new": True}, made
        assert [(m["name"], m["hosts"], m["cert"]) for m in made["certificates"]] == \
            [("server", ["127.0.0.1", "node1.example", "::1"], server), ("client", [], client)], made
        assert made["certificates"][1]["environment"] == \
            {"WEFT_TLS_CERT": client, "WEFT_TLS_KEY": client[:-3] + "key", "WEFT_TLS_CA": ca}, made
        for purpose in ("sslserver", "sslclient"):
            for cert in (server, client):
                openssl("verify", "-x509_strict", "-purpose", purpose, "-CAfile", ca, cert)
        for host in ("server", "node1.example"):
            openssl("verify", "-CAfile", ca, "-verify_hostname", host, server)
        for ip in ("127.0.0.1", "::1"):
            openssl("verify", "-CAfile", ca, "-verify_ip", ip, server)
        openssl("verify", "-CAfile", ca, "-verify_hostname", "node1.example", client, good=False)
        openssl("verify", "-CAfile", ca, "-verify_ip", "127.0.0.1", client, good=False)
        text = openssl("x509", "-in", server, "-noout", "-text")
        for word in ("Version: 3", "prime256v1", "ecdsa-with-SHA256", "CA:FALSE", "Digital Signature", "TLS Web Server Authentication",
                     "TLS Web Client Authentication", "DNS:server, IP Address:127.0.0.1, DNS:node1.example, IP Address:0:0:0:0:0:0:0:1"):
            assert word in text, f"{word} is not in\n{text}"
        text = openssl("x509", "-in", ca, "-noout", "-text")
        for word in ("CA:TRUE, pathlen:0", "Certificate Sign, CRL Sign"):
            assert word in text, f"{word} is not in\n{text}"
        for cert in (ca, server, client):
            assert openssl("x509", "-in", cert, "-noout", "-pubkey") == openssl("pkey", "-in", cert[:-3] + "key", "-pubout")
            openssl("x509", "-in", cert, "-noout", "-checkend", "0")
        serials = [openssl("x509", "-in", cert, "-noout", "-serial") for cert in (ca, server, client)]
        assert len(set(serials)) == 3 and all(re.fullmatch(r"serial=[4-7][0-9A-F]{31}\n", s) for s in serials), serials


def it_says_what_it_made_and_shows_no_key():
    needs_it()
    with weft.scratch() as folder:
        said = weft.must("key", "cluster", os.path.join(folder, "c"), "mill=10.0.0.1")
        at = os.path.join(os.path.realpath(folder), "c")
        for word in (f"{at}/ca.crt", f"{at}/ca.key", f"{at}/mill.crt  for mill, 10.0.0.1, until 20", f"{at}/mill.key",
                     f"export WEFT_TLS_CERT={at}/mill.crt WEFT_TLS_KEY={at}/mill.key WEFT_TLS_CA={at}/ca.crt"):
            assert word in said, f"{word} is not in\n{said}"
        assert "PRIVATE KEY" not in said and len(max(said.split(), key=len)) < 200, said


def days_are_days_and_end_with_the_authority():
    needs_it()
    with weft.scratch() as folder:
        makes(folder, "short", "--days", "2")
        makes(folder, "long", "--days", "3650")
        makes(folder, "year")
        day = 24 * 3600
        for name, days in (("short", 2), ("year", 365), ("long", 3650), ("ca", 3653)):
            cert = os.path.join(folder, name + ".crt")
            openssl("x509", "-in", cert, "-noout", "-checkend", str(days * day - day // 2))
            openssl("x509", "-in", cert, "-noout", "-checkend", str(days * day + day // 2), good=False)
        # an authority of somebody else's, that ends before
        other = os.path.join(folder, "other")
        os.mkdir(other)
        openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-384", "-nodes", "-keyout", other + "/ca.key", "-out",
                other + "/ca.crt", "-days", "3", "-subj", "/CN=ours", "-addext", "keyUsage=critical,keyCertSign")
        made = makes(other, "node")
        assert made["authority"]["new"] is False and made["authority"]["until"] == made["certificates"][0]["until"], made
        openssl("verify", "-CAfile", other + "/ca.crt", other + "/node.crt")
        openssl("x509", "-in", other + "/node.crt", "-noout", "-checkend", str(4 * day), good=False)


def more_certificates_come_from_the_same_authority():
    needs_it()
    with weft.scratch() as folder:
        before = makes(folder, "one")["authority"]
        with open(before["cert"], "rb") as f:
            text = f.read()
        after = makes(folder, "two", "three")["authority"]
        assert after == {**before, "new": False}, after
        with open(before["cert"], "rb") as f:
            assert f.read() == text, "the authority was replaced"
        for name in ("one", "two", "three"):
            openssl("verify", "-CAfile", before["cert"], os.path.join(folder, name + ".crt"))


def fails(*args, says, status=1):
    done = weft.run("key", "cluster", *args, timeout=20)
    assert done.returncode == status, f"weft key cluster {' '.join(args)}: exit status {done.returncode}\n{done.stdout}{done.stderr}"
    assert len(done.stderr.splitlines()) == 1 and not done.stdout, done.stderr
    for word in says:
        assert word in done.stderr, f"\"{word}\" is not in: {done.stderr}"


def nothing_is_replaced():
    needs_it()
    with weft.scratch() as folder:
        makes(folder, "one")
        there = {name: open(os.path.join(folder, name), "rb").read() for name in os.listdir(folder)}
        fails(folder, "two", "one", says=["one.crt is there already", "move it away"])
        assert {name: open(os.path.join(folder, name), "rb").read() for name in os.listdir(folder)} == there
        os.symlink(os.path.join(folder, "elsewhere"), os.path.join(folder, "link.key"))
        fails(folder, "link", says=["link.key is there already"])
        assert not os.path.exists(os.path.join(folder, "elsewhere")) and not os.path.exists(os.path.join(folder, "link.crt"))


def an_authority_that_cannot_be_used_is_named():
    needs_it()
    with weft.scratch() as folder:
        at = os.path.join(folder, "at")
        ca = makes(at, "one")["authority"]
        other = makes(os.path.join(folder, "other"), "one")

        def put(path, text):
            os.unlink(path)
            with open(path, "w", encoding="ascii") as f:
                f.write(text)

        def get(path):
            with open(path, encoding="ascii") as f:
                return f.read()
        key, cert = get(ca["key"]), get(ca["cert"])
        put(ca["key"], get(other["authority"]["key"]))
        fails(at, "two", says=["ca.key is not that of the certificate"])
        put(ca["key"], "nonsense")
        fails(at, "two", says=["ca.key is no private key"])
        os.unlink(ca["key"])
        openssl("ec", "-in", other["authority"]["key"], "-aes128", "-passout", "pass:x", "-out", ca["key"])
        fails(at, "two", says=["ca.key is no private key without a password"])
        put(ca["key"], get(other["certificates"][0]["key"]))
        put(ca["cert"], get(other["certificates"][0]["cert"]))
        fails(at, "two", says=["ca.crt is not that of an authority"])
        put(ca["key"], key)
        put(ca["cert"], "x" * 70000)
        fails(at, "two", says=["ca.crt cannot be read", "too long"])
        put(ca["cert"], cert[:200])
        fails(at, "two", says=["ca.crt is no certificate"])
        os.unlink(ca["cert"])
        fails(at, "two", says=["ca.key is there, and", "ca.crt is not"])
        assert not [name for name in os.listdir(at) if name.startswith("two")]


def half_a_cluster_is_not_left_behind():
    needs_it()

    def few_bytes_for_files():
        import resource
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300))  # a key fits, a certificate does not
    with weft.scratch() as folder:
        at = os.path.join(folder, "at")
        done = subprocess.run([weft.command(), "key", "cluster", at, "one"], env=weft.environment(), stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60, check=False, preexec_fn=few_bytes_for_files)
        assert done.returncode == 1 and "ca.crt cannot be written" in done.stderr, f"{done.returncode}\n{done.stderr}"
        assert not os.path.exists(at), os.listdir(at)
        os.mkdir(at, 0o500)
        if os.getuid():
            fails(at, "one", says=["cannot be made"])
        fails(os.path.join(folder, "no", "such"), "one", says=["No such file"])


def what_is_wrong_is_said():
    fails(says=["weft key cluster DIR NAME"], status=2)
    fails("dir", says=["weft key cluster DIR NAME"], status=2)
    fails("", "a", says=["weft key cluster DIR NAME"], status=2)
    for name in ("", "../x", "a/b", "a b", "-", "*", ".a", "a.", "a..b", "x" * 64, "a\n"):
        fails("dir", "--", name, says=["cannot be the name"], status=2)
    fails("dir", "anonymous=127.0.0.1", says=["stands for everybody without a name"], status=2)
    fails("dir", "CA", says=["that is the authority"], status=2)
    fails("dir", "a", "A=h", says=["A is given twice"], status=2)
    for host in ("", "a,", "a b", "*.example", "1.2.3.4,DNS:x", "999.1.1.1", "10.0.1", "1.2.3.4.5", "[::1", "fe80::1%eth0", "http://x"):
        fails("dir", "a=" + host, says=["no name and no address of a host"], status=2)
    fails("dir", "a=" + ",".join(f"h{i}" for i in range(33)), says=["more than 32"], status=2)
    for days in ("0", "-1", "3651", "x"):
        fails("dir", "a", "--days", days, says=["--days", days], status=2)
    assert not os.path.exists("dir")
    text = weft.must("key", "--help")
    assert "cluster" in text and "--days" in weft.must("key", "cluster", "--help")


def a_call_over_tls_is_answered_and_one_without_a_certificate_is_not():
    needs_it()
    with weft.scratch() as folder:
        makes(folder, "server=127.0.0.1,localhost", "client")
        stranger = os.path.join(folder, "other")
        makes(stranger, "client")
        server, said = weft.serve_calls("--no-registry", "--listen", "tls://127.0.0.1:0", *files(os.path.join(folder, "server")))
        ours = files(os.path.join(folder, "client"))
        try:
            uri = said["listening"][0] + "/calc/add"
            assert uri.startswith("tls://127.0.0.1:"), uri
            assert weft.must("call", uri, "25", "17", *ours) == "42\n"
            assert weft.must("call", uri, "25", "17", "--transports", "tcp", *ours) == "42\n"
            env = weft.environment(**dict(zip(("WEFT_TLS_CERT", "WEFT_TLS_KEY", "WEFT_TLS_CA"), ours[1::2])))
            assert weft.must("call", uri, "25", "17", env=env) == "42\n"
            done = weft.run("call", uri, "25", "17")
            assert done.returncode and not done.stdout and "WEFT_TLS_CERT" in done.stderr, done.stderr
            done = weft.run("call", uri, "25", "17", *ours[:4])
            assert done.returncode and not done.stdout and "WEFT_TLS_CA has none" in done.stderr, done.stderr
            done = weft.run("call", uri, "25", "17", *ours[:4], "--tls-ca", os.path.join(folder, "nowhere"))
            assert done.returncode and not done.stdout and "nowhere" in done.stderr, done.stderr
            done = weft.run("call", uri, "25", "17", *files(os.path.join(stranger, "client")))
            assert done.returncode and not done.stdout and "certificate" in done.stderr, done.stderr
            # one that accepts the server, which does not accept it
            done = weft.run("call", uri, "25", "17", *files(os.path.join(stranger, "client"))[:4], *ours[4:])
            assert done.returncode and not done.stdout and "certificate" in done.stderr, done.stderr
            # a key that one side has beside its certificates, the other needs, too
            key = os.path.join(folder, "key")
            weft.must("key", "new", key)
            done = weft.run("call", uri, "25", "17", "--key-file", key, *ours)
            assert done.returncode and "where one side has a key, the other needs it, too" in done.stderr, done.stderr
            # certificates count as a key where others can connect, unless nothing asks for them there
            done = weft.run("serve", "--no-registry", "--listen", "tcp://0.0.0.0:0", *ours, env=weft.environment(WEFT_TLS="off"), timeout=20)
            assert done.returncode == 2 and "there is no key" in done.stderr and "--tls-cert" in done.stderr, done.stderr
            # plain, to the same port
            done = weft.run("call", uri.replace("tls://", "tcp://"), "25", "17", "--timeout", "5s")
            assert done.returncode and not done.stdout, done.stdout
            assert weft.must("call", uri, "25", "17", *ours) == "42\n"
        finally:
            weft.end(server)


def memory_and_figures_go_over_tls():
    needs_it()
    with weft.scratch() as folder:
        makes(folder, "server=127.0.0.1", "client")
        ours, theirs = files(os.path.join(folder, "client")), files(os.path.join(folder, "server"))
        server, uri = weft.serve_memory(*theirs, size="16M", listen="tls://127.0.0.1:0")
        try:
            assert uri.startswith("tls://"), uri
            path = os.path.join(folder, "text")
            with open(path, "w", encoding="ascii") as f:
                f.write("some text")
            weft.must("mem", "put", path, "words", "--server", uri, *ours)
            assert weft.must("mem", "get", "words", "-", "--server", uri, *ours) == "some text"
            done = weft.run("mem", "ls", "--server", uri)
            assert done.returncode and "WEFT_TLS_CERT" in done.stderr, done.stderr
        finally:
            weft.end(server)
        for transports in ("tcp", "all"):
            said = weft.must("perf", "--fork", "--listen", "tls://127.0.0.1:0", "--test", "tag_lat", "--size", "8", "--iters", "100", "--json",
                             "--transports", transports, *theirs)
            figures = weft.json_lines(said)[0]
            assert figures["iterations"] == 100 and figures["cipher"].startswith("TLS_"), said


def the_registry_says_by_which_name_a_server_proves_itself():
    needs_it()
    with weft.scratch() as folder:
        certs, key = os.path.join(folder, "certs"), os.path.join(folder, "key")
        makes(certs, "mill-3=127.0.0.1")
        weft.must("key", "new", key, "--name", "batch")
        named = ["--tls-cert", os.path.join(certs, "mill-3.crt"), "--tls-key", os.path.join(certs, "mill-3.key"), "--tls-ca",
                 os.path.join(certs, "ca.crt")]
        ours = weft.environment(WEFT_TLS_CERT=named[1], WEFT_TLS_KEY=named[3], WEFT_TLS_CA=named[5])
        assert 'peers know us as "mill-3"' in " ".join(weft.must("info", env=ours).split())
        bad = weft.environment(WEFT_TLS_CERT=named[1], WEFT_TLS_KEY=key, WEFT_TLS_CA=named[5])
        assert "the certificate cannot be used: the private key" in " ".join(weft.must("info", env=bad).split())
        env = weft.environment(WEFT_REGISTRY="dir://" + os.path.join(folder, "registry"))
        for how, name in ((named, "mill-3"), (["--key-file", key], "batch"), ([], None)):
            server, _ = weft.serve_calls("--listen", "tcp://127.0.0.1:0", *how, env=env)
            try:
                entry, = weft.json_lines(weft.must("call", "--list", "--json", env=env))
                assert entry.get("identity") == name, entry
                shown = weft.must("call", "--list", env=env)
                assert (f"  as {name}" in shown) == bool(name), shown
                listed = weft.json_lines(weft.must("call", "--list", "weft://calc", "--json", env=env))
                assert listed and all(line["signature"].count("(") for line in listed), listed
                assert "identity" not in weft.must("call", "--list", "weft://calc", env=env)
            finally:
                weft.end(server)


weft.main(what_it_makes_is_what_openssl_accepts, it_says_what_it_made_and_shows_no_key, days_are_days_and_end_with_the_authority,
          more_certificates_come_from_the_same_authority, nothing_is_replaced, an_authority_that_cannot_be_used_is_named,
          half_a_cluster_is_not_left_behind, what_is_wrong_is_said, a_call_over_tls_is_answered_and_one_without_a_certificate_is_not,
          memory_and_figures_go_over_tls, the_registry_says_by_which_name_a_server_proves_itself)
