"""Exceptions: one class for each code of tern.h. Where Python has an exception for the same thing, it is a base too."""
from __future__ import annotations

from typing import Dict, Type


class TernError(Exception):
    """A call of the library failed. `code` is negative, as in tern.h; `name` is stable across versions."""

    code: int = -99

    def __init__(self, message: str, code: int | None = None, name: str = "") -> None:
        super().__init__(message)
        if code is not None:
            self.code = code
        self.name = name


class InvalidError(TernError, ValueError):
    """A parameter has a value that is not allowed."""
    code = -1


class TernIOError(TernError, OSError):
    """A file cannot be read."""
    code = -2


class FormatError(TernError, ValueError):
    """A file is malformed."""
    code = -3


class OutOfMemoryError(TernError, MemoryError):
    """An allocation failed."""
    code = -4


class UnsupportedError(TernError):
    """Well-formed input that tern has no code for."""
    code = -5


class NotFoundError(TernError, LookupError):
    """There is no model or file of this name."""
    code = -6


class ContextError(TernError, ValueError):
    """The prompt has more tokens than the context."""
    code = -7


class CancelledError(TernError):
    """The request was cancelled."""
    code = -8


class DeviceError(TernError):
    """A device reported an error while computing."""
    code = -9


class QueueFullError(TernError):
    """The model's queue has its maximum length: try again later."""
    code = -10


class MemoryLimitError(TernError):
    """The model or the request does not fit into the memory that it may take."""
    code = -11


class ConcurrencyError(TernError):
    """A limit of concurrent requests is reached."""
    code = -12


class RateError(TernError):
    """A rate limit is exceeded."""
    code = -13


class ShutdownError(TernError):
    """The runtime is closing."""
    code = -14


class LoadingError(TernError):
    """The model is still being loaded, or was unloaded meanwhile."""
    code = -15


class DeadlineError(TernError, TimeoutError):
    """The deadline of the request has passed."""
    code = -16


class DeniedError(TernError, PermissionError):
    """Access is denied."""
    code = -17


class DamagedError(TernError):
    """The file of a model changed while it was used, or it has NaNs."""
    code = -18


class DeviceMemoryError(TernError, MemoryError):
    """A device has not enough memory."""
    code = -19


class InternalError(TernError):
    """A bug in tern."""
    code = -99


BY_CODE: Dict[int, Type[TernError]] = {c.code: c for c in TernError.__subclasses__()}


def make_error(code: int, message: str, name: str) -> TernError:
    return BY_CODE.get(code, TernError)(message, code, name)
