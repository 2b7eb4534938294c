"""What the tests of calls share: the demo service of the `weft` command, and a service in Python with a function for every
type, as processes."""
import json
import os
import subprocess
import sys

import pytest

import weft
import weft.blocking

COMMAND = os.environ.get("TEST_WEFT_COMMAND") or os.path.join(os.path.dirname(weft.__file__), "..", "..", "weft")

TYPES = ["bool", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "f32", "f64", "string", "tensor"]
TYPES += [f"[{t}]" for t in TYPES if t != "string"]

PROGRAM = """
import asyncio, sys, weft
service = weft.Service("types")
held, cancelled, ran = 0, 0, 0
def name(type):
    return "echo_" + type.replace("[", "s_").replace("]", "")
for t in sys.argv[1].split():
    service.function(signature=f"{name(t)}(x: {t}) -> {t}")(lambda x: x)
@service.function(signature="all(a: bool, b: i64, c: f32, d: string, e: [u16], f: tensor) -> "
                            "(f: tensor, e: [u16], d: string, c: f32, b: i64, a: bool)")
def all_of_them(a, b, c, d, e, f):
    return f, e, d, c, b, a
@service.function(signature="close(timeout: i32) -> i32")
def close(timeout):
    return timeout + 1
@service.function
async def hold() -> None:
    global held, cancelled
    held += 1
    try:
        await asyncio.sleep(1000)
    except asyncio.CancelledError:
        cancelled += 1
        raise
    finally:
        held -= 1
@service.function
async def state() -> tuple[int, int, int]:
    return held, cancelled, ran
@service.function
async def run() -> int:
    global ran
    ran += 1
    return ran
@service.function
async def fail(code: int, message: str) -> int:
    raise weft.CallError(code, message, category=300, value=-7)
@service.function
async def tensors(n: int) -> weft.Tensor:
    return memoryview(bytearray(i % 251 for i in range(n)))
@service.function(signature="words(n: u32) -> stream string")
async def words(n):
    for i in range(n):
        yield f"word {i}"
@service.function(signature="blocks(n: u32, size: u32) -> stream tensor")
async def blocks(n, size):
    for i in range(n):
        yield memoryview(bytes([i % 256]) * size)
@service.function(signature="endless() -> stream u64")
async def endless():
    global held, cancelled
    held += 1
    try:
        i = 0
        while True:
            yield i
            i += 1
    finally:
        cancelled += 1
        held -= 1
@service.function(signature="breaks(after: u32) -> stream u64")
async def breaks(after):
    for i in range(after):
        yield i
    raise weft.CallError("DATA_LOSS", "it broke")
@service.function(signature="join(sep: string, parts: stream string) -> string")
async def join(sep, parts):
    return sep.join([part async for part in parts])
@service.function(signature="doubles(values: stream f64) -> stream f64")
async def doubles(values):
    async for value in values:
        yield 2 * value
async def main():
    async with service.serve("tcp://127.0.0.1:0", threads=0) as server:
        print(server.uri, flush=True)
        await asyncio.sleep(600)
asyncio.run(main())
"""


class Process:
    """A service in a process of its own."""

    def __init__(self, args, env):
        self.process = subprocess.Popen(args, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        text=True)
        self.line = self.process.stdout.readline().strip()
        if not self.line:
            self.process.kill()
            raise AssertionError(f"it does not serve: {self.process.communicate(timeout=60)[1]}")
        self.uri = json.loads(self.line)["listening"][0] if self.line.startswith("{") else self.line

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate(timeout=60)


def environment(**more):
    return {**{k: v for k, v in os.environ.items() if not k.startswith("WEFT_")}, "PYTHONPATH": os.pathsep.join(sys.path), **more}


def serve(*options, **env):
    """The demo service, at an address of its own."""
    if not os.path.exists(COMMAND):
        pytest.skip("the weft command is not built")
    return Process([COMMAND, "serve", "--json", "--listen", "tcp://127.0.0.1:0", *(options or ["--no-registry"])],
                   environment(**env))


@pytest.fixture
def calc():
    service = serve()
    yield service
    service.kill()


@pytest.fixture(scope="module")
def types():
    service = Process([sys.executable, "-c", PROGRAM, " ".join(TYPES)], environment())
    yield service
    service.kill()
