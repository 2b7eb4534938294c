"""The first generation of UCX-Py on Weft: programs written for `ucp_py` run as they are.

    ucp_py.init()
    ep = ucp_py.get_endpoint(b"192.0.2.7", 13337)
    ep.send_msg(b"hello", 5).result()
    print(ucp_py.get_obj_from_msg(ep.recv_msg(None, 0).result()))
    ucp_py.destroy_ep(ep)
    ucp_py.fin()

Whatever takes time is under way when it is returned: `done()` asks, `result()` waits and drives everything meanwhile, and `await`
waits in asyncio; futures call a function when they are over (`add_done_callback()`). What was open in the original has an answer
here:

- whether `py_func` is a coroutine function is seen by itself; `is_coroutine` is still taken;
- `get_endpoint()` takes `max_timeout`;
- `stop_server()` ends the listening and nothing else: endpoints and what is under way on them go on;
- `destroy_ep()` lets everything that was sent arrive; receives that are still under way end with `weft.ClosedError`.

Objects go as bytes with a note of their type (bytes, bytearray, str, int, float, arrays); the memory of the interpreter is never
sent, nothing is pickled, and what else there is has to be made bytes by the program. The wire is Weft's: both sides need it.
tests/python/test_ucp_py.py, test_ucp_py_server.py and test_ucp_py_memory.py hold us to all of it.
"""
from weft._replaced import refuse_beside

refuse_beside("ucx-py", "ucp_py", "weft-ucx-py")

from ._core import fin, init, progress, set_cuda_dev
from ._endpoint import CommFuture, destroy_ep, get_endpoint, get_obj_from_msg, ucp_comm_request, ucp_py_ep
from ._memory import buffer_region, ucp_msg
from ._server import ListenerFuture, ServerFuture, start_listener, start_server, stop_listener, stop_server

__all__ = ["CommFuture", "ListenerFuture", "ServerFuture", "buffer_region", "destroy_ep", "fin", "get_endpoint",
           "get_obj_from_msg", "init",
           "progress", "set_cuda_dev", "start_listener", "start_server", "stop_listener", "stop_server", "ucp_comm_request",
           "ucp_msg", "ucp_py_ep"]
