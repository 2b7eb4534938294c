"""Tables of numbers for cudf_merge: made, cut into bins, sent, received and merged; by cudf on a GPU, or by pandas on the host.

A table travels as its columns: a JSON header with their names, types and lengths, and then each as one message. What comes in is
checked before it is a length: the columns are those that this benchmark has, and no longer than they can be.

tests/python/test_ucp_cluster.py holds us to it.
"""
from __future__ import annotations

import asyncio
import importlib.util
import json
import os
from typing import TYPE_CHECKING, Any

from .utils import _wanted

if TYPE_CHECKING:
    from ucp import Endpoint

_TYPES = {"int64"}
_MIX = 0x9E3779B97F4A7C15  # spreads keys that follow one another over all bins


class Frames:
    """The two libraries: `xp` for arrays, `df` for tables."""

    def __init__(self, cpu: bool, pool: int | None = None, most_rows: int = 1 << 31) -> None:
        self.cpu, self.most_rows = cpu, most_rows
        if cpu:
            self.xp, self.df = _wanted("numpy", "--cpu"), _wanted("pandas", "--cpu")
            return
        os.environ["RAPIDS_NO_INITIALIZE"] = "True"  # before cudf is imported: this process has a GPU of its own
        self.xp, self.df, rmm = (_wanted(name, "merging on GPUs (without --cpu)") for name in ("cupy", "cudf", "rmm"))
        rmm.reinitialize(pool_allocator=True, initial_pool_size=pool)
        self.xp.cuda.set_allocator(_wanted("rmm.allocators.cupy", "merging on GPUs").rmm_cupy_allocator)

    def chunk(self, index: int, rows: int, chunks: int, kind: str, fraction: float) -> Any:
        """One table of `rows` rows. "build": its keys are its own. "other": `fraction` of its keys are also keys of "build"
        tables, as many of each of them; the rest are nobody's."""
        xp = self.xp
        if kind == "build":
            keys = xp.arange(rows * index, rows * (index + 1), dtype="int64")
        else:
            part = rows // chunks
            use = max(int(part * fraction), 1)
            xp.random.seed(42)
            parts = [xp.random.permutation(xp.arange(rows * i + part * index, rows * i + part * (index + 1), dtype="int64"))[:use]
                     for i in range(chunks)]
            match = xp.concatenate(parts)[:rows]
            first = rows * chunks + rows * index
            keys = xp.random.permutation(xp.concatenate((match, xp.arange(first, first + rows - len(match), dtype="int64"))))
        return self.df.DataFrame({"key": keys, "payload": xp.arange(rows, dtype="int64")})

    def bins(self, table: Any, n: int) -> list[Any]:
        """The table in `n` parts: rows with the same key are in the same part, whichever table they are of."""
        if not self.cpu:
            return list(table.partition_by_hash(["key"], n))
        where = (table["key"].to_numpy().astype("u8") * self.xp.uint64(_MIX) >> self.xp.uint64(32)) % self.xp.uint64(n)
        return [table[where == i] for i in range(n)]

    def nbytes(self, table: Any) -> int:
        """How much of it travels."""
        return sum(len(table) * dtype.itemsize for dtype in table.dtypes)

    def merged(self, left: Any, right: Any) -> Any:
        """Rows of both that have the same key."""
        return left.merge(right, on="key")

    def joined(self, tables: list[Any]) -> Any:
        """One table of all."""
        return self.df.concat(tables)

    @staticmethod
    def missing(cpu: bool) -> str | None:
        """What is needed and not installed, in a sentence. Nothing is imported: only processes that are forked later may use a
        GPU."""
        wanted = ("numpy", "pandas") if cpu else ("cupy", "cudf", "rmm", "numba")
        names = [name for name in wanted if importlib.util.find_spec(name) is None]
        if not names:
            return None
        how = "pip install " + " ".join(names) if cpu else "see docs.rapids.ai/install; or give --cpu, to merge with pandas"
        return f"{', '.join(names)} cannot be found here, which this needs: {how}"

    async def send(self, ep: Endpoint, table: Any) -> None:
        """Send a table."""
        columns = {name: self.xp.ascontiguousarray(self.xp.asarray(table[name].values)) for name in table.columns}
        await ep.send_obj(json.dumps([[name, str(c.dtype), len(c)] for name, c in columns.items()]).encode())
        for column in columns.values():
            if len(column):
                await ep.send(column)

    async def recv(self, ep: Endpoint) -> Any:
        """Receive a table."""
        columns = {}
        for name, dtype, rows in json.loads(bytes(await ep.recv_obj())):
            if dtype not in _TYPES or not isinstance(rows, int) or not 0 <= rows <= self.most_rows:
                raise ValueError(f"a column of {rows} x {dtype} is none of ours")
            columns[str(name)] = self.xp.empty(rows, dtype=dtype)
            if rows:
                await ep.recv(columns[str(name)])
        return self.df.DataFrame(columns)

    async def exchanged(self, rank: int, eps: dict[int, Endpoint], bins: list[Any]) -> Any:
        """Every worker has a bin for each: give the others theirs, and have one table of ours."""
        async def receive() -> list[Any]:
            return list(await asyncio.gather(*(self.recv(ep) for ep in eps.values())))
        got, *_ = await asyncio.gather(receive(), *(self.send(ep, bins[other]) for other, ep in eps.items()))
        return self.joined([bins[rank], *got])
