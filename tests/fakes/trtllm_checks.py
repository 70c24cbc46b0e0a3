# SPDX-License-Identifier: Apache-2.0
"""The fake's refusals: when an LLM is made, when a request is made, and on the way to the worker."""

import io
import json
import pickle
from pathlib import Path
from typing import Any


class Unlisted:
    """A class that the facts name and do not describe: a test cannot make one by hand."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        if args or kwargs:
            raise TypeError(f"the facts do not say what {type(self).__name__} takes")

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class Unstated:
    """A default that the facts know only in words."""

    def __init__(self, words: str) -> None:
        self._words = words

    def __repr__(self) -> str:
        return self._words


def check_instance(given: dict[str, Any], **classes: type) -> None:
    """Refuse arguments of another class."""
    for name, expected in classes.items():
        if given[name] is not None and not isinstance(given[name], expected):
            raise TypeError(f"{name} must be a {expected.__name__}, got {given[name]!r}")


def config_of(args: Any) -> dict[str, Any]:
    """Return the config.json of the model or engine."""
    config: dict[str, Any] = json.loads((Path(args.model) / "config.json").read_text(encoding="utf-8"))
    return config


def check_args(args: Any, *, backend: str, backends: dict[str, list[str]]) -> None:
    """Make the cross-checks of the facts: what a backend does not decode with, and what an engine has fixed."""
    speculation = args.speculative_config
    if speculation is not None and backend not in backends[type(speculation).__name__]:
        raise ValueError(f"{type(speculation).__name__} is not supported by the backend {backend}")
    if args.guided_decoding_backend is not None and args.skip_tokenizer_init:
        raise ValueError("guided decoding needs a tokenizer")
    if backend != "tensorrt":
        return
    if args.kv_cache_config.dtype != "auto":
        raise ValueError("kv_cache_config.dtype must be auto with an engine")
    if args.guided_decoding_backend not in (None, "xgrammar"):
        raise ValueError("an engine decodes with xgrammar only")
    mapping = config_of(args)["pretrained_config"]["mapping"]
    for ours, theirs in (("tensor_parallel_size", "tp_size"), ("pipeline_parallel_size", "pp_size")):
        if ours in args.model_fields_set and getattr(args, ours) != mapping[theirs]:
            raise ValueError(f"{ours} differs from the engine's {mapping[theirs]}")


def check_request(args: Any, config: dict[str, Any], given: dict[str, Any], *, backend: str) -> None:
    """Refuse what `LLM._check_arguments` refuses, in the caller's thread.

    Source: tensorrt_llm/llmapi/llm.py.
    """
    params, num_tokens = given["sampling_params"], len(given["inputs"]["prompt_token_ids"])
    phase = given["disaggregated_params"]
    if backend == "pytorch":
        is_generation_only = phase is not None and phase.request_type == "generation_only"
        if not args.enable_chunked_prefill and not is_generation_only and num_tokens > (args.max_num_tokens or 8192):
            raise ValueError(
                f"The prompt of {num_tokens} tokens should not exceed max_num_tokens {args.max_num_tokens}"
            )
        return
    build = config["build_config"]
    if not args.enable_chunked_prefill and num_tokens + (params.max_tokens or 0) > build["max_seq_len"]:
        raise ValueError(f"{num_tokens} and max_tokens {params.max_tokens} exceed max_seq_len {build['max_seq_len']}")
    if params.use_beam_search and params.best_of > build.get("max_beam_width", 1):
        raise ValueError(f"n {params.n} cannot exceed max_beam_width when use_beam_search is True")
    if params.logprobs and not args.gather_generation_logits:
        raise ValueError(f"logprobs={params.logprobs} requires gather_generation_logits=True")


class _Pickler(pickle.Pickler):
    """A pickler that names the fake's own classes: a test may have taken their modules away again."""

    def persistent_id(self, obj: object) -> object:
        is_ours = isinstance(obj, type) and obj.__module__.partition(".")[0] in ("tensorrt_llm", "torch")
        return getattr(obj, "__qualname__", None) if is_ours else None


def send(given: dict[str, Any]) -> None:
    """Raise what pickle raises for a request on its way to the worker.

    Source: tensorrt_llm/executor/ipc.py, FusedIpcQueue.put.
    """
    _Pickler(io.BytesIO()).dump(given)
