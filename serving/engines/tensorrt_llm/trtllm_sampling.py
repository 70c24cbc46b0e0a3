# SPDX-License-Identifier: Apache-2.0
"""The translation of sampling parameters into TensorRT-LLM's words, and which of them an engine honours.

`top_k` 0 and `top_p` 0 mean unset to both sides, and greedy is where neither is set.
"""

import pickle
import secrets
from collections.abc import Callable
from typing import cast

from ensemble_configs.spec.llm_argument_rows import LOOKAHEAD
from serving.engines.seam.adapter_folder import AdapterFolder, engine_modules, model_sizes
from serving.engines.seam.base import GenerationRequest, SamplingParams
from serving.engines.seam.scheduling import Priority
from serving.engines.tensorrt_llm.trtllm_arguments import TrtLlmSpec
from serving.engines.tensorrt_llm.trtllm_call_parts import call_parts, comes_at_once
from serving.engines.tensorrt_llm.trtllm_capabilities import why_not_here
from serving.engines.tensorrt_llm.trtllm_guides import GuideCheck
from serving.engines.tensorrt_llm.trtllm_rules import TrtLlmRules
from serving.engines.tensorrt_llm.trtllm_sampling_rows import ARGUMENTS, ROWS
from serving.engines.tensorrt_llm.trtllm_upstream import LoraRequest, Upstream, one_line
from trireme.base.errors import RequestError

_LOOKAHEAD_FIELDS = {f"lookahead_{row.field}": row.argument for row in LOOKAHEAD}
_GUIDES: dict[str, tuple[str, bool]] = {  # by our guide_type: upstream's argument, and whether it takes the guide
    "json": ("json_object", False),
    "json_schema": ("json", True),
    "regex": ("regex", True),
    "ebnf_grammar": ("grammar", True),
    "structural_tag": ("structural_tag", True),
}


# Upstream's are between 0 and 1, the higher the sooner, 0.5 its default; they count where the deployment passes on
# `scheduler_config: {waiting_queue_policy: priority}`.
_PRIORITIES = {Priority.PREMIUM: 1.0, Priority.BATCH: 0.0}


class SamplingWords:
    """The translation for one engine."""

    def __init__(self, spec: TrtLlmSpec, upstream: Upstream, *, end_ids: tuple[int, ...], vocab_size: int) -> None:
        self._spec = spec
        self.rules = TrtLlmRules(spec)
        self._upstream = upstream
        self._end_ids = end_ids
        self._vocab_size = vocab_size
        self._guides = (
            GuideCheck(spec.provider, upstream.grammar) if spec.guided_decoding_backend == "xgrammar" else None
        )
        self._adapters = None
        if spec.lora is not None:
            self._adapters = AdapterFolder(spec.lora, engine_modules(spec.lora), model_sizes(spec.dir))
        known = upstream.sampling_arguments | upstream.call_arguments
        self.why_not = why_not_here(spec, known, upstream.version, has_samplers=upstream.has_samplers)
        self.supported = frozenset(ARGUMENTS) - self.why_not.keys()

    def end_ids_of(self, sampling: SamplingParams) -> tuple[int, ...]:
        """Return the tokens that end this request."""
        ids = self._end_ids if sampling.end_id is None else (sampling.end_id,)
        return tuple(token_id for token_id in ids if 0 <= token_id < self._vocab_size)

    def call_arguments(self, request: GenerationRequest) -> dict[str, object]:
        """Return the arguments for `generate_async`.

        Raises:
            RequestError: a value that upstream cannot honour, though it honours the parameter.
        """
        sampling = request.sampling
        self.rules.refuse(request, self.end_ids_of(sampling))
        params = self._row_arguments(sampling) | self._end_arguments(sampling) | self._made_arguments(sampling)
        arguments: dict[str, object] = {
            "inputs": {"prompt_token_ids": request.input_ids},
            "sampling_params": self._checked(lambda: self._upstream.make_sampling_params(**params)),
            "streaming": not comes_at_once(sampling),
        }
        if sampling.lora_name is not None:
            arguments["lora_request"] = self._lora_request(sampling.lora_name, "lora_name")
        elif sampling.lora_task_id is not None:
            arguments["lora_request"] = self._lora_request(str(sampling.lora_task_id), "lora_task_id")
        arguments |= call_parts(sampling, self._upstream)
        if "priority" in self._upstream.call_arguments and request.scheduling.priority != Priority.STANDARD:
            arguments["priority"] = _PRIORITIES[Priority(request.scheduling.priority)]
        if self._spec.is_cache_salted and request.scheduling.tenant:
            arguments["cache_salt"] = request.scheduling.tenant
        return arguments

    def refusal_of(self, exc: Exception, arguments: dict[str, object]) -> Exception:
        """Return the error of a request that upstream did not take; one that is no fault of the request comes back.

        Args:
            exc: what the call raised.
            arguments: of the call.
        """
        provider = self._spec.provider
        reason = one_line(exc)
        if stuck := [name for name, value in arguments.items() if not _can_be_pickled(value)]:
            return RequestError(
                f"{', '.join(stuck)} cannot be sent to TensorRT-LLM's process: {reason}; leave it out",
                field=stuck[0],
                provider=provider,
            )
        if isinstance(exc, AttributeError | pickle.PicklingError):
            return exc
        return RequestError(f"TensorRT-LLM refuses the request: {reason}", provider=provider)

    def has_adapter_read(self, arguments: dict[str, object]) -> bool:
        """Return whether upstream reads an adapter from the disk: within the call, where this process is the worker."""
        request = _adapter_of(arguments)
        return self._adapters is not None and request is not None and not self._adapters.is_taken(request.lora_int_id)

    def note_taken(self, arguments: dict[str, object]) -> None:
        """Note that upstream has taken a request, and with it the adapter that it names."""
        if self._adapters is not None and (request := _adapter_of(arguments)) is not None:
            self._adapters.note_taken(request.lora_int_id)

    def adapter_refusal(self, exc: Exception, arguments: dict[str, object], sampling: SamplingParams) -> Exception:
        """Return the error of a request whose call raised what a call does not raise but for its adapter's files.

        In the process that is upstream's worker, too, `generate_async` reads them (docs/trtllm_behaviour.md, H2).
        Whatever is of no adapter, and a RuntimeError beside one that was served before, is the engine's: it comes back.
        """
        request = _adapter_of(arguments)
        if self._adapters is None or request is None:
            return exc
        if isinstance(exc, RuntimeError) and self._adapters.is_taken(request.lora_int_id):
            return exc
        field = "lora_task_id" if sampling.lora_name is None else "lora_name"
        reason = " ".join(f"{type(exc).__name__}: {exc}".split())
        return self._adapters.note_failed(request.lora_name, request.lora_int_id, reason, field=field)

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
        for row in ROWS:
            value = getattr(sampling, row.field)
            if value != row.unset and (row.is_for_greedy or not is_greedy):
                arguments[row.argument] = value
        arguments |= {"detokenize": False, "return_perf_metrics": True}
        if sampling.early_stopping is not None:
            arguments["early_stopping"] = int(sampling.early_stopping)
        if sampling.beam_width > 1:
            arguments |= {"use_beam_search": True, "best_of": sampling.beam_width, "n": sampling.beam_width}
        if "min_tokens" in arguments:
            arguments["min_tokens"] = min(sampling.min_tokens, sampling.max_tokens)
        if sampling.is_context_only:
            arguments["max_tokens"] = 1
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
                raise self.rules.refusal(
                    "bad_words", list(word), "only words of one token; it knows no longer ones by ids"
                )
        return [word[0] for word in words]

    def _bias_tensor(self, bias: dict[int, float]) -> object:
        """Return the bias as ``[vocab_size] float32``."""
        for token_id in bias:
            if not 0 <= token_id < self._vocab_size:
                raise self.rules.refusal("embedding_bias", token_id, f"token ids of 0 to {self._vocab_size - 1}")
        return self._upstream.make_tensor([bias.get(i, 0.0) for i in range(self._vocab_size)])

    def _guide(self, sampling: SamplingParams) -> object:
        guide_type, guide = sampling.guide_type, sampling.guide
        # Upstream's compiled engines and its llguidance know no structural tags.
        has_tags = self._spec.provider == "pytorch" and self._spec.guided_decoding_backend == "xgrammar"
        allowed = [name for name in _GUIDES if name != "structural_tag" or has_tags]
        if guide_type not in allowed:
            raise self.rules.refusal("guide_type", guide_type, ", ".join(allowed))
        argument, takes_guide = _GUIDES[guide_type]
        if takes_guide != (guide is not None):
            raise self.rules.refusal(
                "guide", guide, f"{'a guide' if takes_guide else 'none'} with guide_type {guide_type}"
            )
        if self._guides is not None and guide is not None:
            self._guides.refuse(guide_type, guide)
        value = guide if takes_guide else True
        return self._checked(lambda: self._upstream.make_guided_decoding_params(**{argument: value}))

    def _lookahead(self, values: dict[str, int | None]) -> object:
        for name, value in values.items():
            if value is None:
                raise self.rules.refusal(name, value, "a value, as the other two of lookahead")
            limit = getattr(self._spec.speculation, name.removeprefix("lookahead_"))
            if value > limit:
                raise self.rules.refusal(name, value, f"at most {limit}, the engine's")
        arguments = {_LOOKAHEAD_FIELDS[name]: value for name, value in values.items()}
        return self._upstream.make_config("LookaheadDecodingConfig", **arguments)

    def _lora_request(self, name: str, field: str) -> object:
        assert self._adapters is not None, f"without adapters {field} is not supported"
        try:
            adapter = self._adapters.find(name, field=field)
        except RequestError as exc:
            raise RequestError(exc.message, **exc.facts, provider=self._spec.provider) from exc
        try:
            return self._upstream.make_lora_request(
                lora_name=adapter.name, lora_int_id=adapter.number, lora_path=str(adapter.folder)
            )
        except ValueError as exc:  # upstream looks whether the path exists
            message = f"{field} ({name}) has been taken out of engine.lora.dir just now: {exc}"
            raise RequestError(message, field=field, value=name, provider=self._spec.provider) from exc


def _adapter_of(arguments: dict[str, object]) -> LoraRequest | None:
    """Return the adapter that a call names; None: none."""
    return cast("LoraRequest | None", arguments.get("lora_request"))


def _can_be_pickled(value: object) -> bool:
    try:
        pickle.dumps(value)
    except Exception:  # whatever a class's own way to pickle raises
        return False
    return True
