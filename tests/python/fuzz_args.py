"""The program that test_fuzz_args.py runs: every entry point of the extension, called with whatever there is, for a while.

    python fuzz_args.py SEED SECONDS KIND

KIND is loop, threads (a loop whose objects another thread calls too) or blocking. What is called is found by looking: the
functions and types of weft._core, and every attribute of every object of those types that a call ever gave. Ends with status 0; 3
for a SystemError, which is what the interpreter says of an extension that broke its rules; 1 from faulthandler where it hangs,
after a line for each call under way; a signal where it crashes. WEFT_FUZZ_TRACE=1 prints each call before it is made.
"""
import asyncio
import ctypes
import faulthandler
import gc
import os
import random
import re
import resource
import sys
import threading
import time
import traceback
import warnings

import weft
import weft.blocking
from weft import _core

try:
    import numpy
except ImportError:
    numpy = None

HANG = 60
EPISODE_CALLS = 250
# what is longer is made and let go of: going through gigabytes again and again is no hang, and takes as long as one
BIG = 64 << 20
# attributes are set to anything, this one too: what ends an episode is not looked up in what was called
CLOSE = _core.Runtime._close
TRACE = bool(os.environ.get("WEFT_FUZZ_TRACE"))
TYPES = tuple(t for t in vars(_core).values() if isinstance(t, type))
KINDS = tuple(t for t in TYPES if not issubclass(t, BaseException))
# of every object: what the interpreter does by itself, and nothing of ours
PLAIN = set(dir(object)) - {"__init__", "__repr__", "__str__", "__new__", "__hash__", "__eq__", "__reduce__", "__sizeof__",
                            "__dir__", "__class__"}

# seldom, or there is little left to call
ENDS = {"close", "_close", "abort", "release", "__exit__", "__aexit__", "__del__", "clear"}


def broken(what, error):
    """The extension broke a rule of the interpreter's."""
    print("fuzz:", what, flush=True)
    traceback.print_exception(error)
    sys.stderr.flush()
    os._exit(3)


def hook(unraisable):
    if isinstance(unraisable.exc_value, SystemError):
        broken(repr(unraisable.object), unraisable.exc_value)


sys.unraisablehook = hook
threading.excepthook = lambda args: broken("a thread", args.exc_value) if isinstance(args.exc_value, SystemError) else None


under_way = {}  # (thread, depth): the call


def tell(began):
    """Say what is under way shortly before faulthandler ends a process that hangs: it knows the line, not the call."""
    while True:
        time.sleep(1)
        if time.monotonic() - began[0] > HANG - 5:
            for (thread, depth), call in sorted(under_way.items()):
                print(f"fuzz: under way in thread {thread:#x}, {depth}:", *call, flush=True)
            time.sleep(HANG)


class World:
    """What one episode has: objects of the extension to call, and values to call them with."""

    def __init__(self, rng, runtime_class):
        self.rng, self.runtime_class = rng, runtime_class
        self.pool, self.depth, self.names = [_core], 0, set()
        self.limit = 400

    def keep(self, thing):
        if isinstance(thing, KINDS) and len(self.pool) < self.limit and not self.big(thing):
            self.pool.append(thing)
        elif isinstance(thing, (list, tuple)):
            for one in thing[:10]:
                self.keep(one)
        return thing

    def big(self, thing):
        try:
            return isinstance(n := getattr(thing, "nbytes", 0), int) and n > BIG
        except Exception as error:
            self.look("nbytes", error)
            return False

    # --- values ---

    def evil(self):
        """Something that raises, closes, calls again or collects when it is asked for a number, a length, a name, ..."""
        world, rng = self, self.rng
        acts = [world.raise_it, world.close_one, world.call_one, gc.collect, lambda: time.sleep(0), lambda: None]
        act, answer = rng.choice(acts), rng.choice([0, 1, 7, -1, 2**64, "text", b"bytes", None, [], 1.5])

        class Evil(rng.choice([object, bytearray, list, dict])):
            def _do(self, *args, **kw):
                act()
                return answer
            __index__ = __int__ = __float__ = __bool__ = __len__ = __iter__ = __next__ = __getitem__ = __call__ = __bytes__ = _do
            __buffer__ = __repr__ = __str__ = __fspath__ = __aiter__ = __anext__ = __await__ = __enter__ = __exit__ = __contains__ = _do

            def __eq__(self, other):
                act()
                return bool(answer)

            def __hash__(self):
                act()
                return 1

            def __del__(self):
                act()
        if rng.random() < 0.3:
            Evil.__getattr__ = lambda self, name: self._do()
        return Evil()

    def raise_it(self):
        raise self.rng.choice([RuntimeError, KeyError, StopIteration, MemoryError, asyncio.CancelledError, weft.ClosedError,
                               OSError])("evil")

    def close_one(self):
        for thing in self.rng.sample(self.pool, min(4, len(self.pool))):
            for name in ("_close", "abort", "close", "release", "cancel"):
                if self.rng.random() < 0.5 and hasattr(thing, name):
                    try:
                        self.keep(getattr(thing, name)())
                    except (Exception, asyncio.CancelledError) as error:
                        self.look(name, error)
                    return

    def buffer(self):
        rng, n = self.rng, self.rng.choice([0, 1, 8, 100, 5000, 100_000])
        released = memoryview(bytearray(n or 1))
        released.release()
        choices = [bytes(n), bytearray(n), memoryview(bytearray(n)), memoryview(bytes(n)), memoryview(bytearray(n + 4))[::2],
                   released,
                   (ctypes.c_char * n)(), (ctypes.c_int * 3)(), (ctypes.py_object * 2)(),
                   memoryview(bytearray(24)).cast("B", (2, 3, 4))]
        if numpy:
            choices += [numpy.zeros(n), numpy.zeros((3, 4))[:, 1], numpy.empty(3, dtype=object), numpy.zeros(3, "M8[s]"),
                        numpy.broadcast_to(numpy.zeros(1), (5,)), numpy.zeros(4).reshape(2, 2, order="F")]
        return rng.choice(choices)

    def number(self):
        return self.rng.choice([0, 1, 2, 3, 7, 12345, -1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**30, 10**5000,
                                True, 1.5, -0.5,
                                1e-9, 1e308, float("nan"), float("inf"), float("-inf"), self.rng.getrandbits(64)])

    def text(self):
        return self.rng.choice(["", "text", "tcp://127.0.0.1:0", "tcp://127.0.0.1:1", "unix://@weft-fuzz", "\ud800", "a\0b",
                                "é" * 300,
                                "tcp://" + "9" * 300, ",,", "tcp://[::1]:0", "loop", "caller", "nonsense", "x" * 100_000, "i32",
                                "(str) -> str", "host", "__name__", "mem", "late", "rdma", "mem;rdma_tcp;",
                                "late;rdma_local;size,64;"])

    def value(self):
        rng = self.rng
        kind = rng.randrange(12)
        if kind < 3:
            return self.number()
        if kind < 5:
            return self.buffer()
        if kind == 5:
            return self.text()
        if kind == 6:
            return self.evil()
        if kind == 7:
            return rng.choice(self.pool)
        if kind == 8:
            return [self.value() for _ in range(rng.randrange(4))]
        if kind == 9:
            return rng.choice([print, len, lambda *a, **k: None, lambda *a: self.call_one(), int, object(), ..., range(3), {}, (),
                               {"a": 1}])
        if kind == 10:
            return rng.choice([0.001, 0.01, 0])  # which is often a timeout
        return None

    # --- calls ---

    def look(self, what, error):
        if isinstance(error, SystemError):
            broken(what, error)

    def keywords(self, thing):
        for name in re.findall(r"(\w+)\s*[=,:)]", getattr(thing, "__doc__", None) or ""):
            self.names.add(name)
        return sorted(self.names) or ["tag"]

    def fitting(self, name):
        """A value that may well be meant by an argument of this name."""
        rng = self.rng
        if rng.random() < 0.3:
            return self.value()
        if "buffer" in name or name in ("header", "key", "into", "data", "values", "address"):
            buffers = [self.buffer() for _ in range(rng.randrange(3))]
            return rng.choice([buffers, tuple(buffers)]) if name.endswith("s") else self.buffer()
        if name == "timeout":
            return rng.choice([None, 0.001, 0.01, 0, self.evil()])
        if name in ("uri", "source", "name", "address"):
            return rng.choice([self.text(), *(thing.uri for thing in self.pool
                                              if isinstance(thing, (_core.Listener, _core.BlockingListener)))])
        if name in ("handler", "callback", "fn", "function"):
            return rng.choice([None, lambda *a: None, lambda *a: self.call_one(), self.evil(), print])
        return rng.choice([0, 1, 1, 2, 5, 7, None, True, self.evil(), self.number()])

    def arguments(self, thing):
        rng, doc = self.rng, getattr(thing, "__doc__", None) or ""
        names = self.keywords(thing)
        signature = re.match(r"\w+\(([^)]*)\)", doc)
        if not signature or rng.random() < 0.3:
            return [self.value() for _ in range(rng.choice([0, 0, 1, 1, 2, 2, 3, 4, 20]))], \
                {rng.choice(names): self.value() for _ in range(rng.choice([0, 0, 0, 1, 1, 2, 3]))}
        args, kw, named = [], {}, False
        for word in signature.group(1).split(","):
            name, _, default = word.strip().partition("=")
            if name in ("*", "/", ""):
                named = named or name == "*"
            elif default and rng.random() < 0.5:
                named = True
            elif named:
                kw[name] = self.fitting(name)
            else:
                args.append(self.fitting(name))
        return args, kw

    def call_one(self):
        """One random call; whatever comes of it is an exception of the interpreter's or ours."""
        if self.depth > 3:
            return
        self.depth += 1
        rng = self.rng
        what = "?"
        try:
            kind = rng.choice(sorted({type(thing) for thing in self.pool}, key=str))  # else there would be little but operations
            owner = rng.choice([thing for thing in self.pool if type(thing) is kind])
            if rng.random() < 0.05:
                owner = rng.choice(TYPES)
            names = [n for n in dir(owner) if n not in PLAIN]
            own = [n for n in names if not n.startswith("__")]
            name = rng.choice(own if own and rng.random() < 0.8 else names)
            if name in ENDS and rng.random() < 0.8:
                return
            what = f"{type(owner).__name__}.{name}"
            if TRACE:
                print(what, flush=True)
            if rng.random() < 0.05:
                if rng.random() < 0.5:
                    setattr(owner, name, self.value()) if owner is not _core else None
                elif owner is not _core:
                    delattr(owner, name)
                return
            thing = getattr(owner, name)
            self.keep(thing)
            if callable(thing) and not (isinstance(thing, type) and issubclass(thing, BaseException) and rng.random() < 0.9):
                args, kw = self.arguments(thing)
                if name == "_attach" and rng.random() < 0.9:
                    return  # a runtime that nobody drives any more is a short episode
                if TRACE:
                    print(" ", [type(a).__name__ for a in args], {k: type(v).__name__ for k, v in kw.items()}, flush=True)
                under_way[threading.get_ident(), self.depth] = what, [type(a).__name__ for a in args], {k: type(v).__name__ for k,
                                                                                                        v in kw.items()}
                self.keep(thing(*args, **kw))
        except (Exception, asyncio.CancelledError) as error:
            self.look(what, error)
        finally:
            under_way.pop((threading.get_ident(), self.depth), None)
            self.depth -= 1

    def end(self):
        for thing in self.pool:
            try:
                if isinstance(thing, _core.Runtime):
                    CLOSE(thing)
            except (Exception, asyncio.CancelledError) as error:
                self.look("_close", error)


def offer(world, runtime):
    """A service whose requests are among what is called."""
    service = _core.Service(runtime, "fuzz")
    service.add("both(a: i64, b: tensor, c: string, d: [f64]) -> (i64, tensor)", world.keep, peer=True)
    service.add("own(b: tensor) -> i64", world.keep, fetch=True)
    service.add("talk(v: stream i64) -> stream [u8]", world.keep)
    return service


def elements(left, right):
    """A memory element and an action whose transports lead to it, to nothing, and to memory of their own."""
    memory = _core.MemoryElement(right, "mem", 4096)
    action = _core.Action(left, "fuzz")
    for durl in (memory.durl, "late;rdma_tcp;", "own;rdma_local;size,64;", "server;rdma_tcp_server;size,64;"):
        action.add(durl)
    transports = [_core.Transport(action, name, "rdma_server" if name == "server" else "rdma")
                  for name in ("mem", "late", "own", "server")]
    for trans in transports[:3]:
        trans.reg(128)
    return [memory, action, *transports]


def ask(client):
    """A call that nobody answers but by chance."""
    kind = random.randrange(3)
    if kind == 0:
        return client.both(1, bytes(random.choice([10, 100_000])), "text", [1.5, 2.5])
    return client.own(bytes(200_000)) if kind == 1 else client.talk.stream()


async def loop_episode(rng, threads):
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: World.look(None, str(context), context.get("exception")))
    world = World(rng, weft.Runtime)
    options = {"close_timeout": 0.2, "connect_timeout": 0.2}
    left, right = weft.Runtime(**options), weft.Runtime(**options)
    listener = right.listen("tcp://127.0.0.1:0")
    accepting = listener.accept()
    a, b = await left.connect(listener.uri, timeout=HANG), await accepting
    await a.am_send(1, b"small", header=b"head")
    sending = a.am_send(1, bytes(1 << 20), header=b"head")
    m, n = await b.am_recv(), await b.am_recv()
    right.am_handler(5, lambda message: world.keep(message))
    cancelled = b.recv(tag=77)
    cancelled.cancel()
    for thing in (left, right, listener, accepting, a, b, m, n, sending, cancelled, b.recv(tag=1),
                  b.recv_into(bytearray(100), tag=2), right.listen("tcp://127.0.0.1:0", world.keep)):
        world.keep(thing)
    for thing in elements(left, right):
        world.keep(thing)
    service, client = offer(world, right), None
    try:
        client = left.client(service.listen("tcp://127.0.0.1:0"), service="fuzz", timeout=HANG)
        await client.ready()
        calls = [ask(client) for _ in range(4)]
        for thing in (service, client, *calls):
            world.keep(thing)
    except weft.WeftError as error:
        world.look("calls", error)
    server = right.store_server(1 << 20)
    store = await a.store()
    region = right.region(4096, name="fuzz", rights="rwa")
    for thing in (server, store, await store.alloc(1000, "fuzz"), await left.mirror("mirror", [store], size=1000, write=True),
                  region, await a.find("fuzz")):
        world.keep(thing)
    stop = threading.Event()

    def other():
        mine = World(random.Random(rng.random()), weft.Runtime)
        mine.pool = world.pool
        while not stop.is_set():
            mine.call_one()
    thread = threading.Thread(target=other)
    if threads:
        thread.start()
    try:
        for i in range(EPISODE_CALLS):
            world.call_one()
            if i % 10 == 0:
                await asyncio.sleep(0)
            if i % 25 == 0:
                ops = [thing for thing in world.pool if isinstance(thing, _core.Op)]
                for op in rng.sample(ops, min(3, len(ops))):
                    try:
                        async with asyncio.timeout(0.005):
                            await op
                    except (Exception, asyncio.CancelledError) as error:
                        world.look("await", error)
    finally:
        stop.set()
        if threads:
            thread.join()
    if rng.random() < 0.8:
        world.end()
    await asyncio.sleep(0)


def blocking_episode(rng):
    world = World(rng, weft.blocking.Runtime)
    options = {"close_timeout": 0.2, "connect_timeout": 0.2}
    left, right = weft.blocking.Runtime(**options), weft.blocking.Runtime(**options)
    listener = right.listen("tcp://127.0.0.1:0")
    a = left.connect(listener.uri, timeout=HANG)
    b = listener.accept(timeout=HANG)
    a.am_send(1, b"small", header=b"head")
    m = b.am_recv(timeout=HANG)
    service = offer(world, right)
    client = left.client(service.listen("tcp://127.0.0.1:0"), service="fuzz", timeout=0.05)
    server = right.store_server(1 << 20)
    store = a.store(timeout=HANG)
    region = right.region(4096, name="fuzz", rights="rwa")
    for thing in (left, right, listener, a, b, m, service, client, *elements(left, right), server, store,
                  store.alloc(1000, "fuzz", timeout=HANG),
                  left.mirror("mirror", [store], size=1000, write=True, timeout=HANG), region, a.find("fuzz", timeout=HANG)):
        world.keep(thing)

    def asks():
        """Calls of which a few become requests, taken here and answered by nobody but by chance."""
        for _ in range(3):
            try:
                world.keep(ask(client))
            except (Exception, asyncio.CancelledError) as error:
                world.look("ask", error)

    def takes():
        try:
            while (taken := service.take()) is not None:
                world.keep(taken[1])
        except Exception as error:
            world.look("take", error)

    def calls(seed):
        mine = World(random.Random(seed), weft.blocking.Runtime)
        mine.pool = world.pool
        for _ in range(EPISODE_CALLS // 2):
            mine.call_one()
    threads = [threading.Thread(target=calls, args=(rng.random(),)) for _ in range(3)]
    threads += [threading.Thread(target=asks), threading.Thread(target=takes)]
    for thread in threads:
        thread.start()
    until = time.monotonic() + rng.choice([0.05, 0.2, 0.5])
    # calls wait as they should: closing is what ends them, also in runtimes that calls have made
    while any(thread.is_alive() for thread in threads):
        if time.monotonic() > until:
            world.end()
        time.sleep(0.005)
    world.end()


def main():
    seed, seconds, kind = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
    faulthandler.enable()
    warnings.simplefilter("ignore")
    sys.setswitchinterval(1e-5)
    if "asan" not in os.environ.get("LD_PRELOAD", ""):
        resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))
    rng = random.Random(seed)
    end = time.monotonic() + seconds
    episodes = 0
    began = [time.monotonic()]
    threading.Thread(target=tell, args=(began,), daemon=True).start()
    while time.monotonic() < end:
        faulthandler.dump_traceback_later(HANG, exit=True)
        began[0] = time.monotonic()
        if kind == "blocking":
            blocking_episode(rng)
        else:
            with asyncio.Runner(debug=False) as runner:
                try:
                    runner.run(loop_episode(rng, kind == "threads"))
                except (Exception, asyncio.CancelledError) as error:
                    if isinstance(error, SystemError):
                        broken("episode", error)
        gc.collect()
        episodes += 1
    print(f"fuzz: {episodes} episodes", flush=True)
    faulthandler.dump_traceback_later(HANG, exit=True)


main()
