"""UCX-Py's interface to UCX, on Weft: contexts, workers, endpoints and listeners, driven by hand.

    ctx = UCXContext()
    worker = UCXWorker(ctx)
    ep = UCXEndpoint.create(worker, "10.0.0.1", 13337, endpoint_error_handling=True)
    request = tag_send_nb(ep, Array(b"hello"), 5, tag=1, cb_func=done)
    while request is not None and not request.closed():
        worker.progress()

An operation that completed at once gives None, and its callback is not called; else a UCXRequest, and cb_func(request, exception,
*cb_args, **cb_kwargs) is called from progress(). docs/guide/ucx-api.md has more.
"""
from .address import UCXAddress
from .arr import Array
from .context import UCXContext, get_current_options, get_ucx_version
from .endpoint import UCXConnRequest, UCXEndpoint, UCXListener
from .exceptions import translated
from .objects import AllocatorType, Feature, UCXObject
from .request import UCXRequest, failure
from .remote_memory import UCXIO, RemoteMemory
from .rma import PackedRemoteKey, UCXMemoryHandle, UCXRkey, get_nb, get_nbi, put_nb, put_nbi
from .transfer import am_recv_nb, am_send_nbx, stream_recv_nb, stream_send_nb, tag_recv_nb, tag_send_nb
from .worker import UCXWorker

__all__ = ["AllocatorType", "Array", "Feature", "PackedRemoteKey", "RemoteMemory", "UCXAddress", "UCXConnRequest", "UCXContext",
           "UCXEndpoint",
           "UCXIO", "UCXListener", "UCXMemoryHandle", "UCXObject", "UCXRequest", "UCXRkey", "UCXWorker", "am_recv_nb",
           "am_send_nbx", "failure",
           "get_current_options", "get_nb", "get_nbi", "get_ucx_version", "put_nb", "put_nbi", "stream_recv_nb", "stream_send_nb",
           "tag_recv_nb",
           "tag_send_nb", "translated"]
