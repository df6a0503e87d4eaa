"""libtern.so: where it is, its structs and functions. The declarations are those of include/tern.h."""
from __future__ import annotations

import ctypes
import ctypes.util
import os
from ctypes import (POINTER, Array, Structure, c_char_p, c_double, c_float, c_int, c_int32, c_size_t, c_uint64, c_void_p,
                    sizeof)
from pathlib import Path
from typing import Iterator, Sequence

from ._errors import make_error

ABI = 1
AGAIN = 1
READY = 2
FINISH = (None, "stop", "length", "cancelled")
STATES = ("unloaded", "loading", "ready", "draining", "failed")


def set_integer(s: Structure, name: str, value: int) -> None:
    """ctypes cuts integers to the size of their field without a word."""
    setattr(s, name, int(value))
    if getattr(s, name) != int(value):
        raise ValueError(f"{name} is {value}, which is out of range")


def set_seconds(s: Structure, name: str, seconds: float) -> None:
    """A field in milliseconds; at least one of them, because 0 means no limit."""
    if not 0 <= seconds < 1 << 31:
        raise ValueError(f"{name[:-3]} is {seconds} seconds, which is out of range")
    set_integer(s, name, max(1, int(seconds * 1000)))


def id_array(ids: Sequence[int]) -> Array[c_int32]:
    if any(not -1 << 31 <= i < 1 << 31 for i in ids):
        raise ValueError("a token id is out of range")
    return (c_int32 * len(ids))(*ids)


class Options(Structure):
    _fields_ = [("size", c_size_t), ("device", c_char_p), ("threads", c_int), ("context", c_int), ("batch", c_int),
                ("reference", c_int), ("sequences", c_int), ("gpu_layers", c_int), ("vram_only", c_int),
                ("chat_template", c_char_p), ("allow_nan", c_int), ("isa", c_char_p), ("numa", c_char_p),
                ("kv_tokens", c_int), ("queue", c_int), ("pinned", c_int), ("background", c_int),
                ("verify_manifest", c_char_p), ("model_key_file", c_char_p), ("model_key_command", c_char_p),
                ("on_progress", c_void_p), ("progress_arg", c_void_p), ("cpu_moe", c_int), ("n_cpu_moe", c_int),
                ("place", c_char_p)]


class RuntimeOptions(Structure):
    _fields_ = [("size", c_size_t), ("memory_limit", c_uint64), ("models_max", c_int), ("keep_alive_ms", c_int)]


class Params(Structure):
    _fields_ = [("size", c_size_t), ("max_tokens", c_int), ("temp", c_float), ("top_p", c_float), ("min_p", c_float),
                ("typical", c_float), ("repeat_penalty", c_float), ("freq_penalty", c_float),
                ("presence_penalty", c_float), ("top_k", c_int), ("repeat_last", c_int), ("seed", c_uint64),
                ("raw", c_int), ("ignore_eos", c_int), ("stop", POINTER(c_char_p)), ("grammar", c_char_p),
                ("json_schema", c_char_p), ("deadline_ms", c_int), ("priority", c_int), ("logprobs", c_int),
                ("top_logprobs", c_int)]


class Message(Structure):
    _fields_ = [("role", c_char_p), ("content", c_char_p)]


class Top(Structure):
    _fields_ = [("id", c_int32), ("logprob", c_float)]


class Event(Structure):
    _fields_ = [("text", c_void_p), ("n", c_size_t), ("id", c_int32), ("finish", c_int), ("logprob", c_float),
                ("n_top", c_int), ("top", POINTER(Top))]


class RequestStats(Structure):
    _fields_ = [("prompt_tokens", c_int), ("cached_tokens", c_int), ("tokens", c_int), ("prompt_ms", c_double),
                ("decode_ms", c_double), ("first_token_ms", c_double)]


class Info(Structure):
    _fields_ = [("name", c_char_p), ("arch", c_char_p), ("device", c_char_p), ("dtype", c_char_p),
                ("n_params", c_uint64), ("weight_bytes", c_uint64), ("kv_bytes", c_uint64),
                ("scratch_bytes", c_uint64), ("context", c_int), ("vocab", c_int), ("has_chat", c_int),
                ("load_ms", c_double), ("pack_ms", c_double), ("id", c_char_p), ("path", c_char_p), ("state", c_int),
                ("progress", c_int), ("embedding", c_int), ("sequences", c_int), ("mapped_bytes", c_uint64),
                ("device_bytes", c_uint64), ("resident_bytes", c_uint64), ("n_loads", c_uint64),
                ("n_evictions", c_uint64)]


class ModelCounts(Structure):
    _fields_ = [("n_submitted", c_uint64), ("n_finished", c_uint64), ("n_cancelled", c_uint64),
                ("n_failed", c_uint64), ("n_rejected", c_uint64), ("prompt_tokens", c_uint64),
                ("cached_tokens", c_uint64), ("tokens", c_uint64), ("waiting", c_int), ("running", c_int),
                ("queue_peak", c_int), ("kv_blocks", c_int), ("kv_blocks_used", c_int), ("block_tokens", c_int)]


class RuntimeUsage(Structure):
    _fields_ = [("n_models", c_int), ("n_loaded", c_int), ("bytes", c_uint64), ("memory_limit", c_uint64)]


# Name, result, parameters. Handles are void pointers.
_FUNCTIONS = [
    ("tern_version", c_char_p, []),
    ("tern_abi", c_int, []),
    ("tern_error", c_char_p, []),
    ("tern_code_name", c_char_p, [c_int]),
    ("tern_free", None, [c_void_p]),
    ("tern_options_init_sized", None, [POINTER(Options), c_size_t]),
    ("tern_params_init_sized", None, [POINTER(Params), c_size_t, c_void_p]),
    ("tern_runtime_options_init_sized", None, [POINTER(RuntimeOptions), c_size_t]),
    ("tern_runtime_open", c_int, [POINTER(c_void_p), POINTER(RuntimeOptions)]),
    ("tern_runtime_close", None, [c_void_p]),
    ("tern_runtime_usage_sized", c_int, [c_void_p, POINTER(RuntimeUsage), c_size_t]),
    ("tern_load", c_int, [POINTER(c_void_p), c_void_p, c_char_p, c_char_p, POINTER(Options)]),
    ("tern_find", c_int, [POINTER(c_void_p), c_void_p, c_char_p]),
    ("tern_list", c_int, [c_void_p, POINTER(POINTER(c_char_p)), POINTER(c_size_t)]),
    ("tern_unload", c_int, [c_void_p, c_char_p, c_int]),
    ("tern_wait", c_int, [c_void_p, c_int]),
    ("tern_close", None, [c_void_p]),
    ("tern_info_sized", c_int, [c_void_p, POINTER(Info), c_size_t]),
    ("tern_model_counts_sized", c_int, [c_void_p, POINTER(ModelCounts), c_size_t]),
    ("tern_tokenize", c_int, [c_void_p, c_char_p, c_size_t, c_int, POINTER(POINTER(c_int32)), POINTER(c_size_t)]),
    ("tern_detokenize", c_int, [c_void_p, POINTER(c_int32), c_size_t, POINTER(c_void_p), POINTER(c_size_t)]),
    ("tern_submit", c_int, [POINTER(c_void_p), c_void_p, c_char_p, c_size_t, POINTER(Params)]),
    ("tern_submit_chat", c_int, [POINTER(c_void_p), c_void_p, POINTER(Message), c_size_t, POINTER(Params)]),
    ("tern_submit_ids", c_int, [POINTER(c_void_p), c_void_p, POINTER(c_int32), c_size_t, POINTER(Params)]),
    ("tern_submit_embedding", c_int, [POINTER(c_void_p), c_void_p, c_char_p, c_size_t, POINTER(Params)]),
    ("tern_vector", c_int, [c_void_p, POINTER(POINTER(c_float)), POINTER(c_size_t)]),
    ("tern_next_wait_sized", c_int, [c_void_p, POINTER(Event), c_size_t, c_int]),
    ("tern_fd", c_int, [c_void_p]),
    ("tern_cancel", None, [c_void_p]),
    ("tern_request_stats_sized", c_int, [c_void_p, POINTER(RequestStats), c_size_t]),
    ("tern_request_close", None, [c_void_p]),
]


def _candidates() -> Iterator[str]:
    """TERN_LIBRARY alone if it is set; beside the package; the checkout's build folder; the system."""
    given = os.environ.get("TERN_LIBRARY")
    if given:
        yield given
        return
    here = Path(__file__).resolve().parent
    root = here.parent.parent.parent
    yield str(here / "libtern.so")
    if (root / "include" / "tern.h").is_file():
        yield str(root / "build" / "lib" / "libtern.so")
    for name in (ctypes.util.find_library("tern"), "libtern.so.0", "/usr/local/lib/libtern.so"):
        if name:
            yield name


def _open() -> tuple[ctypes.CDLL, str]:
    tried = []
    for path in _candidates():
        if os.path.isabs(path) and not os.path.exists(path):
            tried.append(f"{path}: there is no such file")
            continue
        try:
            return ctypes.CDLL(path), path
        except OSError as e:
            tried.append(f"{path}: {e}")
    raise ImportError("libtern.so was not found. `make lib` in a checkout of tern builds it, `pip install "
                      "./bindings/python` installs it with the package, TERN_LIBRARY names it. Tried:\n  "
                      + "\n  ".join(tried))


def _declare(lib: ctypes.CDLL, path: str) -> None:
    if not hasattr(lib, "tern_abi") or lib.tern_abi() != ABI:
        raise ImportError(f"{path} has another ABI than this package needs ({ABI}): install both from one checkout")
    for name, result, params in _FUNCTIONS:
        f = getattr(lib, name)
        f.restype, f.argtypes = result, params


lib, LIBRARY_PATH = _open()
_declare(lib, LIBRARY_PATH)


def library_version() -> str:
    return lib.tern_version().decode()


def check(rc: int) -> int:
    """Raises for a negative code; the message is that of the calling thread."""
    if rc < 0:
        raise make_error(rc, lib.tern_error().decode("utf-8", "replace"), lib.tern_code_name(rc).decode())
    return rc


def encode(text: str) -> bytes:
    """UTF-8; a lone surrogate becomes a question mark, as it has no UTF-8 form."""
    return text.encode("utf-8", "replace")


def encode_whole(text: str, name: str) -> bytes:
    """The library reads such a text up to its first NUL."""
    data = encode(text)
    if b"\0" in data:
        raise ValueError(f"{name} contains a NUL character")
    return data


def optional(text: str | None) -> bytes | None:
    return None if text is None else os.fsencode(text)


def params_of(model: c_void_p | int | None) -> Params:
    p = Params()
    lib.tern_params_init_sized(ctypes.byref(p), sizeof(p), model)
    return p
