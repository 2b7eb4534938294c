"""UCXX's Python package on Weft: programs written for `ucxx` run as they are.

    async def echo_server(ep):
        await ep.send_obj(await ep.recv_obj())

    listener = ucxx.create_listener(echo_server, port)
    ep = await ucxx.create_endpoint(address, port)

The interface is UCXX's, the wire is Weft's: both sides need this package. docs/guide/coming-from-ucxx.md says what differs.
"""
from weft import __version__ as __weft_version__
from weft._replaced import refuse_beside

refuse_beside("ucxx", "ucxx", "weft-ucx-py")

from . import exceptions, testing, types  # noqa: E402
from ._lib import libucxx
from ._version import __git_commit__, __version__
from .core import (continuous_ucx_progress, create_endpoint, create_endpoint_from_worker_address, create_listener,
                   get_active_transports,
                   get_config, get_ucp_context_info, get_ucp_worker, get_ucp_worker_info, get_ucx_address_from_buffer,
                   get_ucx_version,
                   get_ucxx_worker, get_worker_address, init, progress, recv, reset, stop_notifier_thread)
from .utils import get_address, get_ucxpy_logger

__ucx_min_version__ = "1.13.0"
__ucx_version__ = ".".join(map(str, get_ucx_version()))

logger = get_ucxpy_logger()

__all__ = ["__git_commit__", "__ucx_min_version__", "__ucx_version__", "__version__", "__weft_version__",
           "continuous_ucx_progress",
           "create_endpoint", "create_endpoint_from_worker_address", "create_listener", "exceptions", "get_active_transports",
           "get_address",
           "get_config", "get_ucp_context_info", "get_ucp_worker", "get_ucp_worker_info", "get_ucx_address_from_buffer",
           "get_ucx_version",
           "get_ucxpy_logger", "get_ucxx_worker", "get_worker_address", "init", "libucxx", "progress", "recv", "reset",
           "stop_notifier_thread", "testing", "types"]
