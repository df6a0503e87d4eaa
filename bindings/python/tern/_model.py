"""Runtimes and models."""
from __future__ import annotations

import asyncio
import ctypes
import os
import time
import weakref
from collections import deque
from ctypes import byref, c_char_p, c_int32, c_size_t, c_void_p, sizeof
from dataclasses import dataclass
from typing import Any, Callable, Deque, List, Literal, Optional, Sequence, Union, overload

from . import _request
from ._errors import QueueFullError, TernError
from ._library import (AGAIN, STATES, Info, ModelCounts, Options, RuntimeOptions, RuntimeUsage, check, encode, lib,
                       id_array, optional, set_integer, set_seconds)
from ._request import AsyncStream, Completion, Messages, Prompt, Request, Stream, make_settings
from ._session import Session

_TEXTS = ("device", "chat_template", "isa", "numa", "verify_manifest", "model_key_file", "model_key_command", "place")
_NUMBERS = ("threads", "context", "batch", "sequences", "gpu_layers", "n_cpu_moe", "kv_tokens", "queue")
_SWITCHES = ("reference", "vram_only", "cpu_moe", "allow_nan", "pinned")


@dataclass(frozen=True)
class Usage:
    """Memory of a runtime: `bytes` of all loaded models, as counted against `memory_limit` (0: the machine's memory)."""
    n_models: int
    n_loaded: int
    bytes: int
    memory_limit: int


@dataclass(frozen=True)
class Counts:
    """What a model's engine has counted, and its queue now."""
    n_submitted: int
    n_finished: int
    n_cancelled: int
    n_failed: int
    n_rejected: int
    prompt_tokens: int
    cached_tokens: int
    tokens: int
    waiting: int
    running: int
    queue_peak: int
    kv_blocks: int
    kv_blocks_used: int
    block_tokens: int


@dataclass(frozen=True)
class ModelInfo:
    """Facts of a model. `state` is "unloaded", "loading", "ready", "draining" or "failed"; the memory is what the model
    has now."""
    name: str
    arch: str
    device: str
    dtype: str
    n_params: int
    weight_bytes: int
    kv_bytes: int
    scratch_bytes: int
    context: int
    vocab: int
    has_chat: bool
    load_ms: float
    pack_ms: float
    id: str
    path: str
    state: str
    progress: int
    embedding: int
    sequences: int
    mapped_bytes: int
    device_bytes: int
    resident_bytes: int
    n_loads: int
    n_evictions: int


def _fields(s: ctypes.Structure) -> List[Any]:
    values = (getattr(s, name) for name, *_ in s._fields_)
    return [v.decode("utf-8", "replace") if isinstance(v, bytes) else v for v in values]


def _make_options(given: dict[str, Any]) -> Options:
    o = Options()
    lib.tern_options_init_sized(byref(o), sizeof(o))
    for name, value in given.items():
        if value is None:
            continue
        if name in _TEXTS:
            setattr(o, name, optional(os.fspath(value)))
        elif name in _NUMBERS:
            set_integer(o, name, value)
        elif name in _SWITCHES:
            setattr(o, name, int(bool(value)))
        else:
            raise TypeError(f"unknown option {name!r}; the options are {', '.join(_TEXTS + _NUMBERS + _SWITCHES)}")
    return o


class Runtime:
    """Several models by name, with one memory limit. A model that nobody uses is evicted when another one needs its memory,
    and loaded again by the next request for it.

    memory_limit: bytes; 0: what the machine has. models_max: models that are loaded at a time; 0: as many as fit.
    keep_alive: seconds without use after which a model is unloaded; None: it stays."""

    def __init__(self, *, memory_limit: int = 0, models_max: int = 0, keep_alive: Optional[float] = None) -> None:
        o, handle = RuntimeOptions(), c_void_p()
        lib.tern_runtime_options_init_sized(byref(o), sizeof(o))
        set_integer(o, "memory_limit", memory_limit)
        set_integer(o, "models_max", models_max)
        if keep_alive is not None:
            set_seconds(o, "keep_alive_ms", keep_alive)
        check(lib.tern_runtime_open(byref(handle), byref(o)))
        self._handle: Optional[int] = handle.value
        self._finalizer = weakref.finalize(self, lib.tern_runtime_close, handle.value)

    @property
    def handle(self) -> int:
        if self._handle is None:
            raise ValueError("the runtime is closed")
        return self._handle

    def load(self, path: Union[str, "os.PathLike[str]"], name: Optional[str] = None, **options: Any) -> "Model":
        """Loads a model; if it is there with the same path and options, finds it."""
        return Model(path, runtime=self, name=name, **options)

    def get(self, name: str) -> "Model":
        """The model of this name; NotFoundError: there is none."""
        handle = c_void_p()
        check(lib.tern_find(byref(handle), self.handle, encode(name)))
        return Model._of(self, handle)

    __getitem__ = get

    def names(self) -> List[str]:
        names, n = ctypes.POINTER(c_char_p)(), c_size_t()
        check(lib.tern_list(self.handle, byref(names), byref(n)))
        try:
            return [(names[i] or b"").decode("utf-8", "replace") for i in range(n.value)]
        finally:
            lib.tern_free(names)

    def unload(self, name: str, timeout: Optional[float] = None) -> bool:
        """The name is gone at once. True: its memory is given back; False: requests still used it when the time (seconds;
        None: no limit) had passed."""
        data, left = encode(name), timeout
        model = self.get(name)  # waits are sliced by its state
        try:
            rc = check(lib.tern_unload(self.handle, data, 0))
            while rc == AGAIN and (left is None or left > 0):
                if model.info.state in ("unloaded", "failed"):
                    return True
                step = 0.02 if left is None else min(left, 0.02)
                time.sleep(step)
                left = None if left is None else left - step
            return rc != AGAIN or model.info.state in ("unloaded", "failed")
        finally:
            model.close()

    @property
    def usage(self) -> Usage:
        u = RuntimeUsage()
        check(lib.tern_runtime_usage_sized(self.handle, byref(u), sizeof(u)))
        return Usage(*_fields(u))

    def close(self) -> None:
        """Models and streams that are still open keep the runtime alive."""
        self._handle = None
        self._finalizer()

    def __enter__(self) -> "Runtime":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Model:
    """A model: a GGUF file, a Hugging Face folder or an ONNX model.

    Options: device ("cpu", "cuda", "cuda:1"), threads, context, batch, sequences (running at once), kv_tokens, queue,
    gpu_layers, vram_only, cpu_moe, n_cpu_moe, place, chat_template (a file), isa, numa, reference, allow_nan, pinned. Without `runtime` the model has
    one of its own.

    generate and stream take the parameters max_tokens, temperature, top_p, top_k, min_p, typical, repeat_penalty,
    repeat_last, frequency_penalty, presence_penalty, seed, stop, ignore_eos, raw, json_schema, grammar, logprobs, deadline
    (seconds) and priority. What is not given is as the model's files recommend. A prompt is a text or a list of token ids.
    A chat model receives a text as a user message; with raw=True every model continues it."""

    _own: Optional[Runtime] = None
    _handle: Optional[int] = None

    def __init__(self, path: Union[str, "os.PathLike[str]"], *, runtime: Optional[Runtime] = None,
                 name: Optional[str] = None, **options: Any) -> None:
        o = _make_options(options)
        o.background = 1  # waited for below, where Ctrl-C is handled
        own = None if runtime is not None else Runtime(models_max=1)
        rt = runtime if runtime is not None else own
        assert rt is not None
        handle = c_void_p()
        try:
            check(lib.tern_load(byref(handle), rt.handle, None if name is None else encode(name), os.fsencode(path),
                                byref(o)))
            self._take(handle, own)
            self._wait_loaded(rt)
        except BaseException:  # also Ctrl-C
            if self._handle is not None:
                self.close()
            if own is not None:
                own.close()
            raise

    @classmethod
    def _of(cls, runtime: Runtime, handle: c_void_p) -> "Model":
        m = cls.__new__(cls)
        m._take(handle, None)
        return m

    def _take(self, handle: c_void_p, own: Optional[Runtime]) -> None:
        self._handle = handle.value
        self._finalizer = weakref.finalize(self, lib.tern_close, handle.value)
        self._own = own

    def _wait_loaded(self, rt: Runtime) -> None:
        """A model that cannot be loaded leaves no name behind."""
        try:
            while check(lib.tern_wait(self.handle, _request.SLICE_MS)) == AGAIN:
                pass
        except TernError:
            lib.tern_unload(rt.handle, encode(self.info.id), 0)
            raise

    @property
    def handle(self) -> int:
        if self._handle is None:
            raise ValueError("the model is closed")
        return self._handle

    def close(self) -> None:
        """Streams that are open go on. The model of a runtime stays loaded there."""
        self._handle = None
        self._finalizer()
        if self._own is not None:
            self._own.close()

    def __enter__(self) -> "Model":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # ---- facts ----

    @property
    def info(self) -> ModelInfo:
        i = Info()
        check(lib.tern_info_sized(self.handle, byref(i), sizeof(i)))
        values = dict(zip((f[0] for f in Info._fields_), _fields(i)))
        values["state"] = STATES[values["state"]]
        values["has_chat"] = bool(values["has_chat"])
        return ModelInfo(**values)

    @property
    def counts(self) -> Counts:
        c = ModelCounts()
        check(lib.tern_model_counts_sized(self.handle, byref(c), sizeof(c)))
        return Counts(*_fields(c))

    def tokenize(self, text: str, special: bool = False) -> List[int]:
        """special: BOS and EOS as the tokenizer adds them, and names of special tokens are matched."""
        data, ids, n = encode(text), ctypes.POINTER(c_int32)(), c_size_t()
        check(lib.tern_tokenize(self.handle, data, len(data), int(special), byref(ids), byref(n)))
        try:
            return ids[:n.value]
        finally:
            lib.tern_free(ids)

    def detokenize(self, ids: Sequence[int]) -> str:
        array, text, n = id_array(ids), c_void_p(), c_size_t()
        check(lib.tern_detokenize(self.handle, array, len(ids), byref(text), byref(n)))
        try:
            return ctypes.string_at(text.value or 0, n.value).decode("utf-8", "replace") if n.value else ""
        finally:
            lib.tern_free(text)

    # ---- requests ----

    def generate(self, prompt: Prompt, **params: Any) -> Completion:
        """The whole completion."""
        return _request.read_all(_request.submit_prompt(self, prompt, make_settings(self.handle, params)))

    def stream(self, prompt: Prompt, **params: Any) -> Stream:
        """Pieces of the completion as they are generated."""
        return Stream(_request.submit_prompt(self, prompt, make_settings(self.handle, params)))

    @overload
    def chat(self, messages: Messages, *, stream: Literal[False] = False, **params: Any) -> Completion: ...

    @overload
    def chat(self, messages: Messages, *, stream: Literal[True], **params: Any) -> Stream: ...

    def chat(self, messages: Messages, *, stream: bool = False, **params: Any) -> Union[Completion, Stream]:
        """The answer to a conversation: a list of {"role": …, "content": …}, or the text of one user message."""
        r = _request.submit_chat(self, messages, make_settings(self.handle, params))
        return Stream(r) if stream else _request.read_all(r)

    def session(self, system: Optional[str] = None, **params: Any) -> Session:
        """A conversation that keeps its messages. Parameters are those of each of its requests."""
        return Session(self, system, params)

    @overload
    def embed(self, texts: str, **params: Any) -> List[float]: ...

    @overload
    def embed(self, texts: Sequence[str], **params: Any) -> List[List[float]]: ...

    def embed(self, texts: Union[str, Sequence[str]], **params: Any) -> Union[List[float], List[List[float]]]:
        """The embedding of a text, or of each text of a list. Parameters: deadline, priority."""
        many = [texts] if isinstance(texts, str) else list(texts)
        settings = make_settings(self.handle, params)
        pending: Deque[Request] = deque()
        vectors: List[List[float]] = []
        try:
            for text in many:
                self._submit_embedding(text, settings, pending, vectors)
            while pending:
                vectors.append(_read_vector(pending))
        finally:
            for r in pending:
                r.close()
        return vectors[0] if isinstance(texts, str) else vectors

    def _submit_embedding(self, text: str, settings: Any, pending: Deque[Request], vectors: List[List[float]]) -> None:
        """With a full queue, the oldest of this call is waited for first."""
        while True:
            try:
                pending.append(_request.submit_embedding(self, text, settings))
                return
            except QueueFullError:
                if not pending:
                    raise
            vectors.append(_read_vector(pending))

    # ---- asyncio ----

    async def _submit_async(self, call: Callable[[], Request]) -> Request:
        """At once if the model is loaded; otherwise on a thread of the loop's pool, which waits for the load."""
        if check(lib.tern_wait(self.handle, 0)) != AGAIN:
            return call()
        done = asyncio.get_running_loop().run_in_executor(None, call)
        try:
            return await asyncio.shield(done)
        except asyncio.CancelledError:
            done.add_done_callback(_close_result)
            raise

    async def agenerate(self, prompt: Prompt, **params: Any) -> Completion:
        settings = make_settings(self.handle, params)
        r = await self._submit_async(lambda: _request.submit_prompt(self, prompt, settings))
        return await _request.read_all_async(r)

    def astream(self, prompt: Prompt, **params: Any) -> AsyncStream:
        """`async for piece in m.astream(...)`. The request is submitted when the first piece is asked for."""
        settings = make_settings(self.handle, params)
        return AsyncStream(lambda: self._submit_async(lambda: _request.submit_prompt(self, prompt, settings)))

    async def achat(self, messages: Messages, **params: Any) -> Completion:
        settings = make_settings(self.handle, params)
        r = await self._submit_async(lambda: _request.submit_chat(self, messages, settings))
        return await _request.read_all_async(r)

    def achat_stream(self, messages: Messages, **params: Any) -> AsyncStream:
        settings = make_settings(self.handle, params)
        return AsyncStream(lambda: self._submit_async(lambda: _request.submit_chat(self, messages, settings)))

    async def aembed(self, texts: Union[str, Sequence[str]], **params: Any) -> Union[List[float], List[List[float]]]:
        many = [texts] if isinstance(texts, str) else list(texts)
        settings = make_settings(self.handle, params)
        pending: Deque[Request] = deque()
        vectors: List[List[float]] = []
        try:
            for text in many:
                while True:
                    try:
                        pending.append(await self._submit_async(
                            lambda text=text: _request.submit_embedding(self, text, settings)))
                        break
                    except QueueFullError:
                        if not pending:
                            raise
                    vectors.append(await _read_vector_async(pending))
            while pending:
                vectors.append(await _read_vector_async(pending))
        finally:
            for r in pending:
                r.close()
        return vectors[0] if isinstance(texts, str) else vectors


def _read_vector(pending: Deque[Request]) -> List[float]:
    r = pending.popleft()
    try:
        while r.finish is None:
            r.wait()
        return r.vector()
    finally:
        r.close()


async def _read_vector_async(pending: Deque[Request]) -> List[float]:
    r = pending.popleft()
    try:
        while r.finish is None:
            await _request.next_text(r)
        return r.vector()
    finally:
        r.close()


def _close_result(done: "asyncio.Future[Request]") -> None:
    if not done.cancelled() and done.exception() is None:
        done.result().close()
