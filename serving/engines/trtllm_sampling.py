# SPDX-License-Identifier: Apache-2.0
"""Our sampling parameters in TensorRT-LLM's words, and which of them an engine honours.

`top_k` 0 and `top_p` 0 mean unset to both sides, and greedy is where neither is set.
"""

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from ensemble_configs.engine_specs import EagleSpec, PyTorchEngineSpec
from ensemble_configs.errors import RequestError
from serving.engines.base import GenerationRequest, SamplingParams
from serving.engines.request_limits import NO_DRAFT_LOGITS
from serving.engines.trtllm_arguments import LOOKAHEAD, TrtLlmSpec
from serving.engines.trtllm_upstream import Upstream


class _Row(NamedTuple):
    field: str  # of SamplingParams
    argument: str  # of upstream's SamplingParams
    unset: object = None  # the value that leaves upstream's own default, which means the same
    is_for_greedy: bool = True
    needs_trtllm_sampler: bool = False  # in PyTorch: TorchSampler of 1.2 does not read it


_ROWS = (
    _Row("max_tokens", "max_tokens"),
    _Row("min_tokens", "min_tokens", unset=0),
    _Row("temperature", "temperature", is_for_greedy=False),
    _Row("top_k", "top_k", unset=0, is_for_greedy=False),
    _Row("top_p", "top_p", unset=0.0, is_for_greedy=False),
    _Row("seed", "seed", is_for_greedy=False, needs_trtllm_sampler=True),
    _Row("top_p_min", "top_p_min", unset=0.0, is_for_greedy=False, needs_trtllm_sampler=True),
    _Row("top_p_decay", "top_p_decay", unset=1.0, is_for_greedy=False, needs_trtllm_sampler=True),
    _Row("top_p_reset_id", "top_p_reset_ids", is_for_greedy=False, needs_trtllm_sampler=True),
    _Row("repetition_penalty", "repetition_penalty", unset=1.0, needs_trtllm_sampler=True),
    _Row("presence_penalty", "presence_penalty", unset=0.0, needs_trtllm_sampler=True),
    _Row("frequency_penalty", "frequency_penalty", unset=0.0, needs_trtllm_sampler=True),
)

# Fields that take more than a name, by the argument that they need; the methods of SamplingWords below make it.
_MADE = {
    "end_id": "end_id",
    "bad_words": "bad_token_ids",
    "embedding_bias": "embedding_bias",
    "return_log_probs": "logprobs",
    "guide_type": "guided_decoding",
    "guide": "guided_decoding",
    "lookahead_window_size": "lookahead_config",
    "lookahead_ngram_size": "lookahead_config",
    "lookahead_verification_set_size": "lookahead_config",
}

# Arguments of generate_async itself; which of them there are depends on the version (`priority` came with 1.3).
_CALL = {"lora_task_id": "lora_request", "priority": "priority"}

_NO_CHANNEL = "the seam carries one sequence of tokens and their log probabilities, nothing else"
REFUSED = {
    "return_context_logits": _NO_CHANNEL,
    "return_generation_logits": _NO_CHANNEL,
    "beam_width": _NO_CHANNEL,
    "length_penalty": "it is of beams",
    "early_stopping": "it is of beams",
    "beam_search_diversity_rate": "it is of beams",
    "draft_input_ids": "the LLM API takes no drafts from outside; the executor's own bindings did",
    "use_draft_logits": NO_DRAFT_LOGITS,
    "num_draft_tokens": "the LLM API takes a draft's length when it loads a model: engine.speculation; leave it out",
}

_LOOKAHEAD_FIELDS = {f"lookahead_{row.field}": row.argument for row in LOOKAHEAD}
_GUIDES: dict[str, tuple[str, bool]] = {  # by our guide_type: upstream's argument, and whether it takes the guide
    "json": ("json_object", False),
    "json_schema": ("json", True),
    "regex": ("regex", True),
    "ebnf_grammar": ("grammar", True),
    "structural_tag": ("structural_tag", True),
}


class SamplingWords:
    """Translates for one engine."""

    def __init__(self, spec: TrtLlmSpec, upstream: Upstream, *, end_ids: tuple[int, ...], vocab_size: int) -> None:
        self._spec = spec
        self._upstream = upstream
        self._end_ids = end_ids
        self._vocab_size = vocab_size
        self.supported = self._supported()

    def _supported(self) -> frozenset[str]:
        spec, upstream = self._spec, self._upstream
        is_torch_sampler = isinstance(spec, PyTorchEngineSpec) and spec.sampler == "torch"
        arguments = {row.field: row.argument for row in _ROWS if not (is_torch_sampler and row.needs_trtllm_sampler)}
        arguments |= _MADE
        missing = {field for field, argument in arguments.items() if argument not in upstream.sampling_arguments}
        if is_torch_sampler:
            missing.add("bad_words")
        if not isinstance(spec, PyTorchEngineSpec) and not spec.is_gathering_generation_logits:
            missing.add("return_log_probs")
        if spec.guided_decoding_backend is None:
            missing |= {"guide_type", "guide"}
        if spec.speculation is None or spec.speculation.method != "lookahead":
            missing |= set(_LOOKAHEAD_FIELDS)
        calls = {field for field, argument in _CALL.items() if argument in upstream.call_arguments}
        if spec.lora is None:
            calls.discard("lora_task_id")
        return frozenset(arguments.keys() - missing | calls)

    def end_ids_of(self, sampling: SamplingParams) -> tuple[int, ...]:
        """The tokens that end this request."""
        ids = self._end_ids if sampling.end_id is None else (sampling.end_id,)
        return tuple(token_id for token_id in ids if 0 <= token_id < self._vocab_size)

    def call_arguments(self, request: GenerationRequest) -> dict[str, object]:
        """What `generate_async` is called with.

        Raises:
            RequestError: a value that upstream cannot honour, though it honours the parameter.
        """
        sampling = request.sampling
        self._refuse_sampling_beside_greedy_drafts(sampling)
        params = self._row_arguments(sampling) | self._end_arguments(sampling) | self._made_arguments(sampling)
        arguments: dict[str, object] = {
            "inputs": {"prompt_token_ids": request.input_ids},
            "sampling_params": self._checked(lambda: self._upstream.make_sampling_params(**params)),
            "streaming": True,
        }
        if sampling.lora_task_id is not None:
            arguments["lora_request"] = self._lora_request(sampling.lora_task_id)
        if "priority" in self.supported and hasattr(sampling, "priority"):
            arguments["priority"] = sampling.priority
        return arguments

    def _refuse_sampling_beside_greedy_drafts(self, sampling: SamplingParams) -> None:
        speculation = self._spec.speculation
        if isinstance(speculation, EagleSpec) and speculation.is_greedy_sampling and not sampling.is_greedy:
            field = "top_p" if sampling.top_p > 0 else "top_k"
            allowed = "greedy decoding; the engine's speculation.is_greedy_sampling is set"
            raise self._refusal(field, getattr(sampling, field), allowed)

    def _checked(self, make: Callable[[], object]) -> object:
        try:
            return make()
        except (TypeError, ValueError) as exc:
            raise RequestError(
                f"TensorRT-LLM refuses the sampling parameters: {' '.join(str(exc).split())}",
                provider=self._spec.provider,
            ) from exc

    def _row_arguments(self, sampling: SamplingParams) -> dict[str, object]:
        is_greedy = sampling.is_greedy
        arguments: dict[str, object] = {}
        for row in _ROWS:
            value = getattr(sampling, row.field)
            if value != row.unset and (row.is_for_greedy or not is_greedy):
                arguments[row.argument] = value
        arguments |= {"detokenize": False, "return_perf_metrics": True}
        if "min_tokens" in arguments:
            arguments["min_tokens"] = min(sampling.min_tokens, sampling.max_tokens)
        if is_greedy:
            arguments["top_k"] = 1
        elif sampling.seed is None and "seed" in self.supported:
            arguments["seed"] = secrets.randbits(63)  # its default is the same for every request
        return arguments

    def _end_arguments(self, sampling: SamplingParams) -> dict[str, object]:
        end_ids = self.end_ids_of(sampling)
        if not end_ids:
            return {"end_id": -1, "pad_id": 0, "ignore_eos": True}
        arguments: dict[str, object] = {"end_id": end_ids[0], "pad_id": end_ids[0]}
        if len(end_ids) > 1:
            arguments |= {"stop_token_ids": list(end_ids[1:]), "include_stop_str_in_output": True}
        return arguments

    def _made_arguments(self, sampling: SamplingParams) -> dict[str, object]:
        arguments: dict[str, object] = {}
        if sampling.return_log_probs:
            arguments["logprobs"] = 1  # 0 gives none on an engine; with 1 the chosen token is always among them
        if sampling.bad_words:
            arguments["bad_token_ids"] = self._bad_token_ids(sampling.bad_words)
        if sampling.embedding_bias is not None:
            arguments["embedding_bias"] = self._bias_tensor(sampling.embedding_bias)
        if sampling.guide_type is not None or sampling.guide is not None:
            arguments["guided_decoding"] = self._guide(sampling)
        lookahead = {name: getattr(sampling, name) for name in _LOOKAHEAD_FIELDS}
        if any(value is not None for value in lookahead.values()):
            arguments["lookahead_config"] = self._lookahead(lookahead)
        return arguments

    def _bad_token_ids(self, words: tuple[tuple[int, ...], ...]) -> list[int]:
        for word in words:
            if len(word) != 1:
                raise self._refusal("bad_words", list(word), "only words of one token; it knows no longer ones by ids")
        return [word[0] for word in words]

    def _bias_tensor(self, bias: dict[int, float]) -> object:
        """``[vocab_size] float32``."""
        for token_id in bias:
            if not 0 <= token_id < self._vocab_size:
                raise self._refusal("embedding_bias", token_id, f"token ids of 0 to {self._vocab_size - 1}")
        return self._upstream.make_tensor([bias.get(i, 0.0) for i in range(self._vocab_size)])

    def _guide(self, sampling: SamplingParams) -> object:
        guide_type, guide = sampling.guide_type, sampling.guide
        allowed = [name for name in _GUIDES if name != "structural_tag" or self._spec.provider == "pytorch"]
        if guide_type not in allowed:
            raise self._refusal("guide_type", guide_type, ", ".join(allowed))
        argument, takes_guide = _GUIDES[guide_type]
        if takes_guide != (guide is not None):
            raise self._refusal("guide", guide, f"{'a guide' if takes_guide else 'none'} with guide_type {guide_type}")
        value = guide if takes_guide else True
        return self._checked(lambda: self._upstream.make_guided_decoding_params(**{argument: value}))

    def _lookahead(self, values: dict[str, int | None]) -> object:
        for name, value in values.items():
            if value is None:
                raise self._refusal(name, value, "a value, as the other two of lookahead")
            limit = getattr(self._spec.speculation, name.removeprefix("lookahead_"))
            if value > limit:
                raise self._refusal(name, value, f"at most {limit}, the engine's")
        arguments = {_LOOKAHEAD_FIELDS[name]: value for name, value in values.items()}
        return self._upstream.make_config("LookaheadDecodingConfig", **arguments)

    def _lora_request(self, task_id: int) -> object:
        assert self._spec.lora is not None, "without adapters lora_task_id is not supported"
        folder: Path = self._spec.lora.dir / str(task_id)
        if not folder.is_dir():
            raise self._refusal("lora_task_id", task_id, "the number of a folder in engine.lora.dir")
        return self._upstream.make_lora_request(lora_name=str(task_id), lora_int_id=task_id, lora_path=str(folder))

    def _refusal(self, field: str, value: object, allowed: str) -> RequestError:
        provider = self._spec.provider
        return RequestError(
            f"{field} ({value}) cannot be honoured by the provider {provider!r}; allowed: {allowed}",
            field=field,
            value=value,
            provider=provider,
        )
