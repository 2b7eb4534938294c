"""`ucxx` for asyncio: the context of a program, its endpoints and its listeners."""
from .application_context import ApplicationContext
from .endpoint import Endpoint
from .listener import Listener

__all__ = ["ApplicationContext", "Endpoint", "Listener"]
