"""UCXX's interface to UCX, on Weft: contexts, workers, endpoints, listeners, and requests that are asked or awaited.

    ctx = UCXContext()
    worker = UCXWorker(ctx)
    worker.start_progress_thread()
    ep = UCXEndpoint.create(worker, "10.0.0.1", 13337, endpoint_error_handling=True)
    request = ep.tag_send(Array(b"hello"), UCXXTag(1))
    while not request.completed:
        pass
    request.check_error()
"""
from ucp._libs.objects import Feature

from ..exceptions import *  # noqa: F403
from ..exceptions import __all__ as _exceptions
from .context import UCXAddress, UCXConfig, UCXContext, get_current_options, get_ucx_version
from .endpoint import UCXEndpoint, UCXListener
from .multi import UCXBufferRequest, UCXBufferRequests
from .probe import TagProbeResult
from .request import UCXRequest
from .tag import UCXXTag, UCXXTagMask, UCXXTagMaskFull
from .worker import UCXWorker

__all__ = ["Feature", "TagProbeResult", "UCXAddress", "UCXBufferRequest", "UCXBufferRequests", "UCXConfig", "UCXContext",
           "UCXEndpoint",
           "UCXListener", "UCXRequest", "UCXWorker", "UCXXTag", "UCXXTagMask", "UCXXTagMaskFull", "get_current_options",
           "get_ucx_version"]
__all__ += _exceptions
