#!/usr/bin/env python3
"""Two processes hand PyTorch tensors on a GPU over: a KV cache, which "prefill" computes and "decode" uses, layer by layer.

    python3 examples/python/tensors.py [--tokens 32768] [--layers 32] [--rounds 5]

Each layer is first copied into a tensor of the other process, and then lent and read where it is. Without PyTorch the program uses
GPU memory of Weft, and without a GPU memory of the host. docs/guide/tensors.md explains it. Run it where the package is: after
`pip install .`, or with PYTHONPATH=build/release/python.
"""
import argparse
import asyncio
import contextlib
import faulthandler
import sys
import time

import weft

HEADS, DIM = 8, 128
STREAMS = 4       # so many layers are on their way at once
BOUND = 300       # seconds that it takes at most
ORDERS = 1 << 32  # the tag of what decode orders; layers have the tags 0, 1, ...
LENT = 1          # the id of a layer that is lent


class Torch:
    """Tensors of PyTorch. Kernels run in streams, after the call that gives them to the GPU has returned."""

    def __init__(self, torch):
        self.torch, self.name = torch, f"tensors of PyTorch {torch.__version__} on {torch.cuda.get_device_name()}"
        self.streams = [torch.cuda.Stream() for _ in range(STREAMS)]
        self.use, self.synchronize = torch.cuda.stream, torch.cuda.synchronize

    def most(self):  # bytes of a cache
        return self.torch.cuda.mem_get_info()[0] // 3  # both processes have a cache, and something has to be left

    def cache(self, layers, tokens):
        self.shape = (2, HEADS, tokens, DIM)  # keys and values
        cache = list(self.torch.empty((layers, *self.shape), dtype=self.torch.float16, device="cuda"))
        for stream in self.streams:  # CUDA waits for the whole GPU when it loads a kernel, or allocates: have that done now,
            with self.use(stream):   # since later a stream may wait for an operation that this thread has to await
                self.fill(cache[0], 0)
                self.total(cache[0])
        self.synchronize()
        return cache

    def array(self, view):
        return self.torch.from_dlpack(view).view(self.torch.float16).view(self.shape)

    def fill(self, layer, value):  # stands for what prefill computes
        layer.fill_(value)

    def total(self, layer):  # stands for what decode computes: how many elements, and a function that fetches their sum
        return layer.numel(), layer.sum(dtype=self.torch.float64).item


class Bytes:
    """Memory of Weft, of the GPU or of the host, for machines without PyTorch. There are no kernels and no streams."""
    streams = [None] * STREAMS

    def __init__(self, kind, why):
        self.kind, self.name = kind, f"memory of Weft, {kind}: {why}"
        self.use, self.synchronize, self.array = contextlib.nullcontext, lambda: None, lambda view: view

    def most(self):
        return 32 << 20

    def cache(self, layers, tokens):
        return [weft.Memory(2 * 2 * HEADS * tokens * DIM, self.kind) for _ in range(layers)]

    def fill(self, layer, value):
        layer.fill(value % 256)

    def total(self, layer):
        return layer.nbytes, lambda: sum(layer.tobytes())


def memory():
    if "cuda" not in weft.memory_kinds():
        return Bytes("host", "there is no GPU here, or no NVIDIA driver; nothing can be lent")
    try:
        import torch
    except ImportError:
        return Bytes("cuda", "PyTorch is not installed (pip install torch)")
    return Torch(torch) if torch.cuda.is_available() else Bytes("cuda", "this PyTorch is built without CUDA, or finds no GPU")


async def prefill(options):
    """Compute the cache, and hand it over as decode orders it."""
    gpu = memory()
    cache = gpu.cache(options.layers, options.tokens)
    async with await weft.connect(options.uri, timeout=60) as ep:
        while (order := await ep.recv(tag=ORDERS)) != b"end":
            sends = []
            for i, layer in enumerate(cache):
                stream = gpu.streams[i % STREAMS]
                with gpu.use(stream):
                    if order == b"compute":
                        gpu.fill(layer, i + 1)
                    if order == b"lend":  # without stream=: the stream need not wait until decode has given it back
                        sends.append(ep.am_send(LENT, layer))
                    else:  # begins when the stream has come here, and the stream goes on when the tensor may be used again
                        sends.append(ep.send(layer, tag=i, stream=stream))
            await asyncio.gather(*sends)


def check(gpu, totals):
    gpu.synchronize()  # not earlier: a stream that waits for an operation goes on only if this thread awaits it
    for i, (elements, fetch) in enumerate(totals):
        if fetch() != elements * (i + 1):
            raise SystemExit(f"the sum of layer {i} is {fetch()}, and should be {elements * (i + 1)}")


async def copied(gpu, cache, ep, order):
    """Receive every layer into a tensor of our own; how many seconds it took."""
    receives, totals, start = [], [], time.perf_counter()
    await ep.send(order, tag=ORDERS)
    for i, layer in enumerate(cache):
        stream = gpu.streams[i % STREAMS]
        receives.append(ep.recv_into(layer, tag=i, stream=stream))
        if order == b"compute":
            with gpu.use(stream):
                totals.append(gpu.total(layer))  # a kernel that begins when the layer was received
    await asyncio.gather(*receives)
    seconds = time.perf_counter() - start
    check(gpu, totals)
    return seconds


async def lent(gpu, cache, ep):
    """Have every layer where prefill has it; how many seconds that took, and how many it took to read them all there."""
    views, why, start = [], None, time.perf_counter()
    await ep.send(b"lend", tag=ORDERS)
    for layer in cache:
        message = await ep.am_recv(LENT)
        try:
            views.append(await message.view_device())
        except weft.UnsupportedError as error:
            why = error
            await message.read_into(layer)  # it is copied, as above
    if why:
        print("not lent:", why)
        return None
    seconds, totals = time.perf_counter() - start, []
    for i, view in enumerate(views):
        with gpu.use(gpu.streams[i % STREAMS]):
            totals.append(gpu.total(gpu.array(view)))
    check(gpu, totals)  # when it returns, no kernel reads the views any more
    reading = time.perf_counter() - start - seconds
    for view in views:
        view.release()  # now prefill may write to its tensors again
    return seconds, reading


def speed(size, seconds):
    return f"{seconds * 1e3:.2f} ms, {size / seconds / 1e9:.1f} GB/s"


async def decode(options):
    """Start prefill, and take the cache from it."""
    gpu = memory()
    token = options.layers * 2 * 2 * HEADS * DIM  # bytes
    options.tokens = options.tokens or max(64, min(32768, gpu.most() // token // 64 * 64))
    cache, size = gpu.cache(options.layers, options.tokens), token * options.tokens
    print(f"{options.layers} layers of {options.tokens} tokens, {size / 1e9:.3f} GB, in {gpu.name}", flush=True)
    async with weft.listen("tcp://127.0.0.1:0") as listener:
        other = await asyncio.create_subprocess_exec(sys.executable, __file__, "--layers", str(options.layers), "--tokens",
                                                     str(options.tokens), "--uri", listener.uri)
        try:
            accepting, ended = asyncio.ensure_future(listener.accept(timeout=BOUND)), asyncio.ensure_future(other.wait())
            await asyncio.wait({accepting, ended}, return_when=asyncio.FIRST_COMPLETED)
            if not accepting.done():
                raise SystemExit(f"prefill ended with status {other.returncode} before it connected: its message is above")
            async with await accepting as ep:
                for what, order in (("copied, while both compute:", b"compute"), ("copied:", b"copy")):
                    print(what, speed(size, min([await copied(gpu, cache, ep, order) for _ in range(options.rounds)])))
                if first := await lent(gpu, cache, ep):
                    times = [first] + [await lent(gpu, cache, ep) for _ in range(options.rounds - 1)]
                    seconds, reading = map(min, zip(*times))
                    print(f"lent, nothing copied: {seconds * 1e3:.2f} ms; read there: {speed(size, reading)}")
                print({name: n for name, n in ep.runtime.stats().items() if name.startswith("device_") and n})
                await ep.send(b"end", tag=ORDERS)
            if await ended:
                raise SystemExit(f"prefill ended with status {other.returncode}")
        finally:
            if other.returncode is None:
                other.kill()
                await other.wait()
    print("every sum is right")


async def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--tokens", type=int, help="default: as many as there is room for, up to 32768, which is 4.3 GB")
    parser.add_argument("--rounds", type=int, default=5, help="the fastest of so many is shown")
    parser.add_argument("--uri", help=argparse.SUPPRESS)  # for prefill, which decode starts
    options = parser.parse_args()
    faulthandler.dump_traceback_later(BOUND + 10, exit=True)  # if it waits inside a call
    async with asyncio.timeout(BOUND):
        await (prefill if options.uri else decode)(options)


try:
    asyncio.run(main())
except (weft.WeftError, TimeoutError) as error:
    raise SystemExit(f"{type(error).__name__}: {error}") from None
