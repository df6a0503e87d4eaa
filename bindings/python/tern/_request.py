"""Requests: their parameters, their events, and the ways to read them: whole, as an iterator, with asyncio.

A request is closed when its iterator ends, is closed or is collected; closing cancels what is left of it within one
step. A blocking read waits in slices, so that Ctrl-C is handled between them; an asynchronous one waits for the request's
descriptor on the event loop, without a thread.
"""
from __future__ import annotations

import asyncio
import ctypes
import json
import threading
import weakref
from ctypes import byref, c_char_p, c_float, c_size_t, c_void_p, sizeof
from dataclasses import dataclass, field
from typing import (TYPE_CHECKING, Any, AsyncIterator, Callable, Dict, Iterator, List, Mapping, Optional, Sequence,
                    Tuple, Union)

from ._library import (AGAIN, FINISH, Event, Message, Params, RequestStats, check, encode, id_array, lib, params_of,
                       encode_whole, set_integer, set_seconds)

if TYPE_CHECKING:
    from ._model import Model

SLICE_MS = 100  # of a blocking wait: the longest time until Ctrl-C is handled

Prompt = Union[str, Sequence[int]]
Messages = Union[str, Sequence[Mapping[str, str]]]


@dataclass(frozen=True)
class Logprob:
    """A likely token and its log probability."""
    id: int
    logprob: float


@dataclass(frozen=True)
class Token:
    """A generated token. `text` is what became complete with it, possibly nothing; `logprob` and `top` only if asked for."""
    id: int
    text: str
    logprob: Optional[float] = None
    top: Tuple[Logprob, ...] = ()


@dataclass(frozen=True)
class Stats:
    prompt_tokens: int
    cached_tokens: int
    tokens: int
    prompt_ms: float
    decode_ms: float
    first_token_ms: float


@dataclass(frozen=True)
class Completion:
    """What was generated. `finish` is "stop", "length" or "cancelled"."""
    text: str
    tokens: List[Token]
    finish: str
    stats: Stats
    seed: int

    @property
    def ids(self) -> List[int]:
        return [t.id for t in self.tokens]

    def json(self) -> Any:
        """The text as JSON, for a completion with a schema."""
        return json.loads(self.text)

    def __str__(self) -> str:
        return self.text


# ---- parameters ----

_FIELDS = {  # Python's name → field of tern_params
    "max_tokens": "max_tokens", "temperature": "temp", "top_p": "top_p", "min_p": "min_p", "typical": "typical",
    "top_k": "top_k", "repeat_penalty": "repeat_penalty", "repeat_last": "repeat_last",
    "frequency_penalty": "freq_penalty", "presence_penalty": "presence_penalty", "seed": "seed", "raw": "raw",
    "ignore_eos": "ignore_eos", "priority": "priority",
}
_INTEGERS = {"max_tokens", "top_k", "repeat_last", "seed", "raw", "ignore_eos", "priority"}


@dataclass
class Settings:
    """tern_params, and the memory that it points to."""
    params: Params
    keep: List[Any] = field(default_factory=list)
    wants_logprobs: bool = False


def _set_stop(s: Settings, stop: Union[str, Sequence[str], None]) -> None:
    if not stop:
        return
    texts = [stop] if isinstance(stop, str) else list(stop)
    array = (c_char_p * (len(texts) + 1))(*[encode_whole(t, "stop") for t in texts], None)
    s.keep.append(array)
    s.params.stop = array


def _set_logprobs(s: Settings, logprobs: Union[bool, int, None]) -> None:
    """True: of the generated tokens; a number: and so many most likely ones."""
    if logprobs is None or logprobs is False:
        return
    s.wants_logprobs = True
    s.params.logprobs = 1
    set_integer(s.params, "top_logprobs", 0 if logprobs is True else logprobs)


def make_settings(handle: Any, given: Dict[str, Any]) -> Settings:
    """Defaults of the model, then what is given. None means the default."""
    s = Settings(params_of(handle))
    given = {k: v for k, v in given.items() if v is not None}
    _set_stop(s, given.pop("stop", None))
    _set_logprobs(s, given.pop("logprobs", None))
    schema, grammar, deadline = (given.pop(k, None) for k in ("json_schema", "grammar", "deadline"))
    if schema is not None:
        s.params.json_schema = encode_whole(schema if isinstance(schema, str) else json.dumps(schema), "json_schema")
    if grammar is not None:
        s.params.grammar = encode_whole(grammar, "grammar")
    if deadline is not None:
        set_seconds(s.params, "deadline_ms", deadline)
    for name, value in given.items():
        if name not in _FIELDS:
            raise TypeError(f"unknown parameter {name!r}; the parameters are "
                            f"{', '.join(sorted([*_FIELDS, 'stop', 'logprobs', 'json_schema', 'grammar', 'deadline']))}")
        if name == "seed" and -(1 << 63) <= int(value) < 0:
            s.params.seed = int(value)  # as the server reads it: modulo 2^64
        elif name in _INTEGERS:
            set_integer(s.params, _FIELDS[name], value)
        else:
            setattr(s.params, _FIELDS[name], float(value))
    return s


# ---- one request ----

class Request:
    """The handle of a request. One thread reads; any thread may cancel or close."""

    def __init__(self, handle: int, settings: Settings) -> None:
        self._handle: Optional[int] = handle
        self._lock = threading.Lock()  # held while the library reads the handle
        self._guard = threading.Lock()  # held for a moment: the handle is not freed under a cancel
        self._finalizer = weakref.finalize(self, lib.tern_request_close, handle)
        self._event = Event()
        self.settings = settings
        self.finish: Optional[str] = None
        self.tokens: List[Token] = []
        self.stats: Optional[Stats] = None

    def _read(self, timeout_ms: int) -> Optional[str]:
        """The text of the next event; None: there is none yet. With the lock held."""
        ev = self._event
        if check(lib.tern_next_wait_sized(self._handle, byref(ev), sizeof(ev), timeout_ms)) == AGAIN:
            return None
        text = ctypes.string_at(ev.text, ev.n).decode("utf-8", "replace")
        if ev.id >= 0:
            self.tokens.append(self._token(ev, text))
        if ev.finish:
            self.finish = FINISH[ev.finish]
            self.stats = self._read_stats()
        return text

    def _token(self, ev: Event, text: str) -> Token:
        if not self.settings.wants_logprobs:
            return Token(ev.id, text)
        top = tuple(Logprob(ev.top[i].id, ev.top[i].logprob) for i in range(ev.n_top) if ev.top[i].id >= 0)
        return Token(ev.id, text, ev.logprob, top)

    def _read_stats(self) -> Stats:
        st = RequestStats()
        check(lib.tern_request_stats_sized(self._handle, byref(st), sizeof(st)))
        return Stats(*(getattr(st, name) for name, _ in st._fields_))

    def poll(self) -> Optional[str]:
        with self._lock:
            self._check_open()
            return self._read(0)

    def wait(self) -> Optional[str]:
        """The text of the next event; None: the request was closed by another thread."""
        while True:
            with self._lock:
                if self._handle is None:
                    return None
                text = self._read(SLICE_MS)
            if text is not None:
                return text

    def vector(self) -> List[float]:
        v, n = ctypes.POINTER(c_float)(), c_size_t()
        with self._lock:
            self._check_open()
            check(lib.tern_vector(self._handle, byref(v), byref(n)))
            return v[:n.value]

    def fileno(self) -> int:
        with self._lock:
            self._check_open()
            fd = lib.tern_fd(self._handle)
            if fd < 0:
                check(-2)
            return fd

    def _check_open(self) -> None:
        if self._handle is None:
            raise ValueError("the request is closed")

    def cancel(self) -> None:
        with self._guard:
            if self._handle is not None:
                lib.tern_cancel(self._handle)

    def close(self) -> None:
        """Cancels first: a thread that waits for an event returns within one step."""
        self.cancel()
        with self._lock:
            with self._guard:
                self._handle = None
            self._finalizer()

    def completion(self, text: str) -> Completion:
        assert self.stats is not None and self.finish is not None
        return Completion(text, self.tokens, self.finish, self.stats, self.settings.params.seed)


def _submit(model: "Model", call: Callable[..., int], settings: Settings, *args: Any) -> Request:
    r = c_void_p()
    check(call(byref(r), model.handle, *args, byref(settings.params)))
    assert r.value is not None
    return Request(r.value, settings)


def submit_prompt(model: "Model", prompt: Prompt, settings: Settings) -> Request:
    if isinstance(prompt, str):
        data = encode(prompt)
        return _submit(model, lib.tern_submit, settings, data, len(data))
    ids = list(prompt)
    return _submit(model, lib.tern_submit_ids, settings, id_array(ids), len(ids))


def submit_chat(model: "Model", messages: Messages, settings: Settings) -> Request:
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    if not messages:
        raise ValueError("chat needs at least one message")
    for m in messages:
        if not isinstance(m.get("role"), str) or not isinstance(m.get("content"), str):
            raise ValueError(f"a message has the texts 'role' and 'content', not {str(m)[:100]}")
    pairs = [(encode(m["role"]), encode(m["content"])) for m in messages]
    return _submit(model, lib.tern_submit_chat, settings, (Message * len(pairs))(*pairs), len(pairs))


def submit_embedding(model: "Model", text: str, settings: Settings) -> Request:
    data = encode(text)
    return _submit(model, lib.tern_submit_embedding, settings, data, len(data))


# ---- reading ----

def read_all(r: Request) -> Completion:
    """Waits for the end. Whatever interrupts the wait closes the request."""
    pieces: List[str] = []
    try:
        while r.finish is None:
            text = r.wait()
            if text is None:
                raise ValueError("the request is closed")
            pieces.append(text)
        return r.completion("".join(pieces))
    finally:
        r.close()


class Stream(Iterator[str]):
    """Pieces of text as they are generated. close(), the end of a `with` block, an exception of the loop that drops the
    iterator, or Ctrl-C cancel the request. After the last piece `result` is the whole completion."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._pieces: List[str] = []
        self.result: Optional[Completion] = None

    def __iter__(self) -> "Stream":
        return self

    def __next__(self) -> str:
        while self.result is None:
            try:
                text = self._request.wait()
            except BaseException:  # also Ctrl-C
                self.close()
                raise
            if text is None:
                break
            self._pieces.append(text)
            if self._request.finish is not None:
                self.result = self._request.completion("".join(self._pieces))
                self._request.close()
            if text:
                return text
        raise StopIteration

    @property
    def text(self) -> str:
        """What was read so far."""
        return "".join(self._pieces)

    @property
    def tokens(self) -> List[Token]:
        """The tokens that were read so far."""
        return self._request.tokens

    def cancel(self) -> None:
        """Any thread: the stream ends with the finish "cancelled"."""
        self._request.cancel()

    def close(self) -> None:
        self._request.close()

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


async def next_text(r: Request) -> str:
    """Waits on the event loop for the request's descriptor. Also with an event at hand other tasks have their turn."""
    loop = asyncio.get_running_loop()
    while True:
        text = r.poll()
        if text is not None:
            await asyncio.sleep(0)
            return text
        ready = loop.create_future()
        fd = r.fileno()
        loop.add_reader(fd, _set_ready, ready)
        try:
            await ready
        finally:
            loop.remove_reader(fd)


def _set_ready(ready: "asyncio.Future[None]") -> None:
    if not ready.done():
        ready.set_result(None)


async def read_all_async(r: Request) -> Completion:
    pieces: List[str] = []
    try:
        while r.finish is None:
            pieces.append(await next_text(r))
        return r.completion("".join(pieces))
    finally:
        r.close()


class AsyncStream(AsyncIterator[str]):
    """Like Stream, with `async for`. Cancelling the task that reads, aclose() or dropping it cancels the request."""

    def __init__(self, submit: Callable[[], Any]) -> None:
        self._submit = submit
        self._request: Optional[Request] = None
        self._pieces: List[str] = []
        self._closed = False
        self.result: Optional[Completion] = None

    def __aiter__(self) -> "AsyncStream":
        return self

    async def __anext__(self) -> str:
        try:
            return await self._next()
        except StopAsyncIteration:
            raise
        except BaseException:  # also asyncio.CancelledError
            self._close()
            raise

    async def _next(self) -> str:
        if self._request is None and not self._closed:
            self._request = await self._submit()
        while self.result is None and not self._closed:
            assert self._request is not None
            text = await next_text(self._request)
            self._pieces.append(text)
            if self._request.finish is not None:
                self.result = self._request.completion("".join(self._pieces))
                self._close()
            if text:
                return text
        raise StopAsyncIteration

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    @property
    def tokens(self) -> List[Token]:
        return self._request.tokens if self._request else []

    def _close(self) -> None:
        self._closed = True
        if self._request is not None:
            self._request.close()

    def cancel(self) -> None:
        if self._request is not None:
            self._request.cancel()

    async def aclose(self) -> None:
        self._close()

    async def __aenter__(self) -> "AsyncStream":
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._close()
