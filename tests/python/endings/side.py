"""One of the two processes of an ending: it does what it is told, a line of JSON a command, and answers with what it saw.

It needs nothing but `import ucp` and asyncio, so that UCX-Py and our `ucp` run it alike. Commands come on standard input; answers
go to what was standard output, which then is standard error's: UCX logs there.

An outcome is a text:

    data, done        a receive gave the message that was sent, whole; another call returned
    no data           a receive returned, and its buffer is as it was
    returned Class    a receive returned an exception in place of a message
    nothing           it still waits after the bound
    Class: text       it raised this; numbers that differ from run to run are left out

Whoever asks sees two more: `blocked`, if the process does not answer, and `died: SIGABRT` if it is gone.
"""
import asyncio
import ctypes
import gc
import json
import os
import re
import signal
import sys

import ucp

SMALL, LARGE = 8, 16 << 20
BETWEEN = 0.02  # seconds between two looks at an endpoint

_NUMBERS = ((re.compile(r"0x[0-9a-f]+"), "0x_"), (re.compile(r"#\d+"), "#_"), (re.compile(r"nbytes: \d+"), "nbytes: _"),
            (re.compile(r" \(.*\)$"), " (_)"))  # the last is what is said for people, with names and addresses


def plain(text):
    """What a program could look for in the words of an exception: the first line, without numbers of this run."""
    text = text.split("\n", 1)[0].strip()
    for number, instead in _NUMBERS:
        text = number.sub(instead, text)
    return text


async def outcome(task, bound):
    """What became of a task, as a text; its exception is not kept, since that would hold the endpoint."""
    await asyncio.wait({task}, timeout=bound)
    if not task.done():
        return "nothing"
    if task.cancelled():
        return "CancelledError"
    error = task.exception()
    if error is None:
        return task.result()
    text = plain(str(error))
    if type(error).__name__ == "UCXCanceled":  # UCX-Py says what was cancelled, and no more
        text = re.sub(r"^(<\[Recv .*>:).*", r"\1", text)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


class Side:
    """The endpoint, what is under way on it, and the commands."""

    def __init__(self, options):
        self.options = options
        self.ep = self.listener = self.posted = None
        self.accepted = asyncio.Event()
        self.called = []  # by the close callback
        self.unfinished = set()

    # --- operations: coroutines that hold the endpoint, as those of a program do

    async def send(self, ep, size):
        message = self.options["letter"].encode() * size
        await (ep.am_send(message) if self.options["kind"] == "am" else ep.send(message))
        return "done"

    async def recv(self, ep, size):
        if self.options["kind"] == "am":
            message = await ep.am_recv()
        else:
            message = bytearray(size)
            await ep.recv(message)
        if isinstance(message, BaseException):
            return f"returned {type(message).__name__}: {plain(str(message))}"
        if bytes(message) == self.options["peer"].encode() * size:
            return "data"
        return "wrong data" if any(message) else "no data"

    def start(self, op, size):
        task = asyncio.ensure_future(self.send(self.ep, size) if op == "send" else self.recv(self.ep, size))
        self.unfinished.add(task)
        task.add_done_callback(self.unfinished.discard)
        return task

    # --- commands

    async def listen(self):
        def accept(ep):
            self.ep = ep
            self.accepted.set()
        self.listener = ucp.create_listener(accept, endpoint_error_handling=self.options["errors"] == "on")
        return self.listener.port

    async def connect(self, port):
        self.ep = await ucp.create_endpoint("127.0.0.1", port, endpoint_error_handling=self.options["errors"] == "on")
        return "done"

    async def warm(self, first):
        """One small message each way: from here on both know each other."""
        if self.listener is not None:
            await self.accepted.wait()
        for op in ("send", "recv") if first else ("recv", "send"):
            await self.start(op, SMALL)
        self.ep.set_close_callback(lambda: self.called.append(1))
        return "done"

    async def post(self, op, size):
        """Begin an operation."""
        self.posted = self.start(op, size)
        await asyncio.sleep(BETWEEN)
        return "done"

    async def waits(self, bound):
        """Whether it still waits after the bound."""
        await asyncio.wait({self.posted}, timeout=bound)
        return "done" if self.posted.done() else "waits"

    async def pending(self, bound):
        """What became of the operation that was begun."""
        posted, self.posted = self.posted, None
        return await outcome(posted, bound)

    async def call(self, op, size, bound):
        return await outcome(self.start(op, size), bound)

    async def end(self, how, bound):
        """End the connection. `exit` has no answer but the end of the process."""
        if how == "abort":
            return await outcome(asyncio.ensure_future(self.abort()), bound)
        if how == "close":
            return await self.close(bound)
        self.listener = None
        if how == "drop":
            self.ep = None
        gc.collect()
        return await outcome(asyncio.ensure_future(self.reset()), bound)

    async def abort(self):
        self.ep.abort()
        return "done"

    async def reset(self):
        ucp.reset()
        return "done"

    async def close(self, bound):
        async def close(ep):
            await ep.close()
            return "done"
        task = asyncio.ensure_future(close(self.ep))
        self.unfinished.add(task)
        task.add_done_callback(self.unfinished.discard)
        return await outcome(task, bound)

    async def settle(self, bound):
        """Wait until the endpoint counts as closed here and its callback was called, or for the bound; which of both."""
        clock = asyncio.get_running_loop().time
        end = clock() + bound
        while clock() < end and not ((self.ep is None or self.ep.closed()) and self.called):
            await asyncio.sleep(BETWEEN)
        return [None if self.ep is None else self.ep.closed(), len(self.called)]


async def main(options, out):
    global side
    loop, reader = asyncio.get_running_loop(), asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    ucp.init(blocking_progress_mode=options["progress"] == "blocking")
    side = Side(options)
    while line := await reader.readline():
        name, *args = json.loads(line)
        if name == "exit":  # as a program that closes nothing: the loop ends what waits, and the interpreter the rest
            return
        if name == "quit":
            os._exit(0)
        print(json.dumps(await getattr(side, name)(*args)), file=out, flush=True)


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # it may be in a loop that never reads: it ends with whoever started it
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    asyncio.run(main(json.loads(sys.argv[1]), answers))
