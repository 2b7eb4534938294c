"""A command line that is not understood gets one sentence that says what is wrong and what would be right, and exit status 2."""
from lib import weft


def refused(*args, says):
    done = weft.run(*args, timeout=20)
    assert done.returncode == 2, f"weft {' '.join(args)}: exit status {done.returncode}, not 2\n{done.stdout}{done.stderr}"
    lines = done.stderr.splitlines()
    assert len(lines) == 1, f"weft {' '.join(args)}: {len(lines)} lines instead of one sentence\n{done.stderr}"
    for word in says:
        assert word in lines[0], f"weft {' '.join(args)}: \"{word}\" is not in: {lines[0]}"
    assert not done.stdout, f"weft {' '.join(args)}: something on stdout\n{done.stdout}"


def an_unknown_command_gets_the_nearest_name():
    refused("pref", says=['"pref"', '"perf"'])
    refused("inf", says=['"info"'])
    refused("zzzzzz", says=['"zzzzzz"', "--help"])
    refused("help", "prf", says=['"perf"'])


def an_unknown_option_gets_the_nearest_name():
    refused("perf", "--szie", "8", says=["--szie", "--size"])
    refused("perf", "--endpoint=3", says=["--endpoints"])
    refused("info", "--jsno", says=["--json"])
    refused("perf", "--qqqqqqqq", says=["--qqqqqqqq", "--help"])
    refused("perf", "8", says=['"8"'])


def a_wrong_value_is_named():
    fork = ("perf", "--fork")
    refused(*fork, "--size", "8,banana", says=["banana", "4k"])
    refused(*fork, "--size", "", says=["--size"])
    refused(*fork, "--size", "1M-8", says=["1M-8"])
    refused(*fork, "--size", "-8", says=["-8"])
    refused(*fork, "--size", "99999999999999999999", says=["99999999999999999999"])
    refused(*fork, "--test", "tag_lta", says=["tag_lta", "tag_lat"])
    refused(*fork, "--window", "0", says=["--window", "0"])
    refused(*fork, "--window", "many", says=["many"])
    refused(*fork, "--window", says=["--window"])
    refused(*fork, "--mode", "both", says=["both", "caller", "thread"])
    refused(*fork, "--seconds", "2 weeks", says=["2 weeks"])
    refused(*fork, "--heartbeat", "1ns", says=["--heartbeat", "1ns"])
    refused(*fork, "--endpoints", "1000000000", says=["1000000000"])
    refused(*fork, "--json=yes", says=["--json", "yes"])
    refused(*fork, "--test", "am_lta", says=["am_lta", "am_lat"])
    refused(*fork, "--memory", "pol", says=["pol", "pool"])
    refused(*fork, "--memory", "host,banana", says=["banana", "cuda-managed", "cuda-async", "cuda-vmm", "cuda-fd"])
    refused(*fork, "--memory", "host,huge,pool", says=["host,huge,pool", "two"])
    refused(*fork, "--memory", "host,", says=["--memory", "host"])
    refused(*fork, "--test", "rma_gte", says=["rma_gte", "rma_get"])
    refused(*fork, "--test", "rma_get", "--path", "mappd", says=["mappd", "mapped"])
    refused(*fork, "--test", "rma_batch", "--batch", "65537", says=["--batch", "65536"])
    refused(*fork, "--test", "rma_get", "--region", "much", says=["--region", "much"])
    refused(*fork, "--test", "rma_get,rma_fadd", "--size", "8,16", says=["rma_fadd", "--size 8"])
    refused(*fork, "--test", "rma_put_lat", "--size", "0", says=["rma_put_lat", "--size"])
    refused(*fork, "--test", "am_lat", "--answer", "some", says=["--answer", "some"])
    refused(*fork, "--test", "am_lat", "--header", "8193", says=["--header", "8192"])
    refused(*fork, "--stream", "4", says=["--stream 4", "both", "before", "after", "--streams"])
    refused(*fork, "--stream", "--streams", "65", says=["--streams", "64"])


def options_that_do_not_go_together_are_refused():
    refused("perf", says=["--fork", "--listen", "--connect"])
    refused("perf", "--fork", "--connect", "tcp://127.0.0.1:1", says=["exclude"])
    refused("perf", "--fork", "--keep", says=["--keep", "--listen"])
    refused("perf", "--fork", "--warmup", "3", says=["--warmup", "--iters"])
    refused("perf", "--listen", "--clients", "3", says=["--clients", "--fork"])
    refused("perf", "--fork", "--clients", "3", "--test", "rpc_lat,tag_lat", says=["tag_lat", "--clients", "rpc_lat"])
    refused("perf", "--fork", "--clients", "3", "--iters", "3", says=["--iters", "--seconds"])
    for option in (["--view"], ["--kept"], ["--header", "8"]):
        refused("perf", "--fork", *option, says=[option[0], "am_lat"])
        refused("perf", "--fork", "--test", "tag_lat", *option, says=[option[0], "am_lat"])
    for option in (["--path", "checked"], ["--region", "4k"]):
        refused("perf", "--fork", *option, says=[option[0], "rma_get"])
    refused("perf", "--fork", "--test", "rma_get", "--batch", "3", says=["--batch", "rma_batch"])
    refused("perf", "--fork", "--test", "rma_batch", "--batch", "60000", "--window", "100", says=["--batch", "--window"])
    refused("perf", "--fork", "--test", "am_rate", "--answer", "8", says=["--answer", "am_lat"])
    refused("perf", "--fork", "--test", "am_rate", "--shuffle", says=["--shuffle", "tag_rate"])
    refused("perf", "--fork", "--streams", "2", says=["--streams", "--stream"])
    for test in ("rpc_lat", "tag_lat,rpc_tensor", "idle"):
        refused("perf", "--fork", "--stream", "--test", test, says=["--stream", test.split(",")[-1]])
    refused("perf", "--fork", "--stream", "--idle", "1s", says=["--stream", "idle"])
    refused("perf", "--fork", "--stream", "--test", "am_lat", "--view", says=["--stream", "--view"])
    refused("perf", "--fork", "--stream", "--streams", "2", "--window", "1025", says=["512", "--window", "--streams"])
    refused("perf", "--fork", "--stream", "--outstanding", "513", says=["512", "--outstanding"])


def an_address_without_a_port_gets_one():
    for args in (("perf", "--connect", "tcp://nowhere"), ("perf", "--listen", "tcp://nowhere"), ("mem", "ls", "--server", "tcp://nowhere"),
                 ("call", "tcp://nowhere/calc/add", "1", "2")):
        refused(*args, says=["add a port: tcp://nowhere:13337"])
    refused("serve", "--listen", "tcp://localhost", "--no-registry", says=["add a port: tcp://localhost:13337"])
    refused("perf", "tcp://nowhere:1", says=["--connect tcp://nowhere:1"])
    refused("serve", "tcp://nowhere:1", says=["--listen tcp://nowhere:1"])


def a_value_that_only_the_library_understands_is_refused_the_same_way():
    for command in (("perf", "--fork"), ("perf", "--listen", "tcp://127.0.0.1:0"), ("call", "weft://calc/add", "1", "2"), ("serve",),
                    ("mem", "ls", "--server", "tcp://127.0.0.1:1"), ("mem", "serve", "--size", "1M", "--listen", "tcp://127.0.0.1:0"),
                    ("element", "memory", "--size", "1M")):
        refused(*command, "--transports", "nope", says=['"nope"'])
        done = weft.run(*command, env=weft.environment(WEFT_TRANSPORTS="nope"), timeout=20)
        assert done.returncode == 1 and '"nope"' in done.stderr, f"{command}: {done.returncode} {done.stderr}"
    for command in (("perf",), ("serve",), ("mem", "serve", "--size", "1M"), ("element", "memory", "--size", "1M")):
        refused(*command, "--listen", "nonsense", says=["nonsense"])
    refused("serve", "--name", "a b", "--no-registry", says=["a b"])
    refused("serve", "--registry", "pigeons://coop", says=["pigeons"])


def the_old_name_of_transports_works_and_warns():
    warning = "--tls is now --transports; it will go in 0.3\n"
    for given in (("--tls", "tcp"), ("--tls=tcp",)):
        done = weft.run("perf", "--fork", "--test", "tag_lat", "--size", "8", "--iters", "10", "--json", *given)
        assert done.returncode == 0 and done.stderr == "weft perf: " + warning, f"{given}: {done.returncode} {done.stderr}"
        line, = weft.json_lines(done.stdout)
        assert line["transports"] == "tcp" and line["transport"] == "tcp", line
    for command in (("perf", "--fork"), ("call", "weft://calc/add"), ("serve",), ("mem", "ls", "--server", "tcp://127.0.0.1:1"),
                    ("mem", "serve", "--size", "1M", "--listen", "tcp://127.0.0.1:0"), ("element", "memory", "--size", "1M")):
        done = weft.run(*command, "--tls", "nope", timeout=20)
        lines = done.stderr.splitlines(keepends=True)
        assert done.returncode == 2 and len(lines) == 2, f"{command}: {done.returncode} {done.stderr}"
        assert lines[0].endswith(": " + warning) and '"nope"' in lines[1], f"{command}: {done.stderr}"
        refused(*command, "--tls", says=["--tls needs a value"])
        page = weft.must(command[0], *command[1:2] * (command[0] in ("mem", "element")), "--help")
        assert "--tls " not in page and "--tls\n" not in page, page


def an_option_is_written_out_and_has_a_value_of_its_own():
    refused("perf", "--for", says=["--for", "--fork"])
    refused("perf", "--fork", "--wi", "3", says=["--wi", "--window"])
    refused("perf", "--fork", "--size", "--json", says=["--size", "LIST"])
    refused("perf", "--fork", "--", says=['"--" ends the options', "weft perf --help"])
    refused("perf", "--", "more", says=['"--" ends the options'])
    refused("mem", "ls", "-lx", "--server", "tcp://127.0.0.1:1", says=["-lx"])


def help_fits_in_80_columns_or_in_the_terminal():
    commands = ("call", "completion", "element", "element memory", "element serve", "info", "key", "key new", "key cluster", "mem", "mem serve",
                "mem put", "mem get", "mem ls", "mem stat", "mem rm", "perf", "run", "serve")
    for words in ("--help", "help", "perf -h", *("help " + c for c in commands), *(c + " --help" for c in commands)):
        args = words.split()
        text = weft.must(*args)
        wide = [line for line in text.splitlines() if len(line) > 80]
        assert not wide, f"weft {' '.join(args)}: more than 80 columns\n" + "\n".join(wide)
        assert text == weft.must(*args, env=weft.environment(COLUMNS="200")), "the width is that of the terminal, and there is none"
    for columns in (48, 60, 72):
        for words in ("--help", *(c + " --help" for c in commands), "info"):
            status, text = weft.on_a_terminal(*words.split(), columns=columns)
            wide = [line for line in text.splitlines() if len(line) > columns and " " in line.strip()]
            assert not status and not wide, f"weft {words}: more than {columns} columns\n" + "\n".join(wide)


def help_lists_every_option():
    text = weft.must("perf", "--help")
    for name in ("fork", "listen", "connect", "test", "size", "transports", "window", "mode", "json", "seconds", "iters", "warmup",
                 "endpoints", "outstanding", "shuffle", "header", "answer", "batch", "region", "path", "memory", "stream", "streams", "view", "kept",
                 "idle", "no-pin", "keep", "key-file", "heartbeat", "timeout"):
        assert f"--{name}" in text, f"--{name} is not in the help"
    assert "2^20" in text, "the help does not say what MiB are"


def no_command_at_all_shows_the_usage():
    done = weft.run()
    assert done.returncode == 2 and "Usage: weft" in done.stderr, done.stderr
    assert weft.must("--version").startswith("weft "), "the version"


weft.main(an_unknown_command_gets_the_nearest_name, an_unknown_option_gets_the_nearest_name, a_wrong_value_is_named,
          options_that_do_not_go_together_are_refused, an_address_without_a_port_gets_one,
          a_value_that_only_the_library_understands_is_refused_the_same_way, the_old_name_of_transports_works_and_warns,
          an_option_is_written_out_and_has_a_value_of_its_own,
          help_fits_in_80_columns_or_in_the_terminal, help_lists_every_option,
          no_command_at_all_shows_the_usage)
