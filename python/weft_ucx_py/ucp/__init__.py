"""UCX-Py's package on Weft: programs written for `ucp` run as they are.

    async def echo_server(ep):
        await ep.send_obj(await ep.recv_obj())

    listener = ucp.create_listener(echo_server, port)
    ep = await ucp.create_endpoint(address, port)

The interface is UCX-Py's, the wire is Weft's: both sides need this package. docs/guide/coming-from-ucx-py.md says what is better
and what differs.
"""
from weft import __version__ as __weft_version__
from weft._replaced import refuse_beside

refuse_beside("ucx-py", "ucp", "weft-ucx-py")

from . import comm, core, exceptions, utils  # noqa: E402, F401
from ._version import __git_commit__, __version__
from .core import (Endpoint, Listener, continuous_ucx_progress, create_endpoint, create_endpoint_from_worker_address,
                   create_listener, fence, flush,
                   get_active_transports, get_config, get_ucp_context_info, get_ucp_worker, get_ucp_worker_info,
                   get_ucx_address_from_buffer,
                   get_ucx_version, get_worker_address, init, progress, recv, register_am_allocator, reset)
from .utils import get_address, get_ucxpy_logger

__ucx_min_version__ = "1.13.0"
__ucx_version__ = ".".join(map(str, get_ucx_version()))

__all__ = ["Endpoint", "Listener", "__git_commit__", "__ucx_min_version__", "__ucx_version__", "__version__", "__weft_version__",
           "continuous_ucx_progress", "create_endpoint", "create_endpoint_from_worker_address", "create_listener", "fence",
           "flush",
           "get_active_transports", "get_address", "get_config", "get_ucp_context_info", "get_ucp_worker", "get_ucp_worker_info",
           "get_ucx_address_from_buffer", "get_ucx_version", "get_ucxpy_logger", "get_worker_address", "init", "progress", "recv",
           "register_am_allocator", "reset"]
