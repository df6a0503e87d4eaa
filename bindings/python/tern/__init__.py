"""Language models in the same process: the C library of tern.

    import tern

    with tern.Model("model.gguf") as m:
        print(m.generate("Tell me a story.", max_tokens=100).text)
        for piece in m.stream("Once upon a time", raw=True):
            print(piece, end="", flush=True)

Requests wait in the model's queue and run batched with all others, from any number of threads and asyncio tasks.
"""
from ._errors import (CancelledError, ConcurrencyError, ContextError, DamagedError, DeadlineError, DeniedError,
                      DeviceError, DeviceMemoryError, FormatError, InternalError, InvalidError, LoadingError,
                      MemoryLimitError, NotFoundError, OutOfMemoryError, QueueFullError, RateError, ShutdownError,
                      TernError, TernIOError, UnsupportedError)
from ._library import LIBRARY_PATH, library_version
from ._model import Counts, Model, ModelInfo, Runtime, Usage
from ._session import Session
from ._request import AsyncStream, Completion, Logprob, Stats, Stream, Token

__version__ = "0.1.0"
__all__ = [
    "AsyncStream", "Completion", "Counts", "Logprob", "Model", "ModelInfo", "Runtime", "Session", "Stats", "Stream", "Token",
    "Usage", "LIBRARY_PATH", "library_version",
    "TernError", "CancelledError", "ConcurrencyError", "ContextError", "DamagedError", "DeadlineError", "DeniedError",
    "DeviceError", "DeviceMemoryError", "FormatError", "InternalError", "InvalidError", "LoadingError",
    "MemoryLimitError", "NotFoundError", "OutOfMemoryError", "QueueFullError", "RateError", "ShutdownError",
    "TernIOError", "UnsupportedError",
]
