# SPDX-License-Identifier: Apache-2.0
"""The translation of sampling parameters into vLLM's words.

vLLM takes `top_k` 0 and `top_p` 1 for unset and `temperature` 0 for greedy, where the contract is greedy unless one of
`top_k` and `top_p` is set.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from serving.engines.seam.base import EngineInfo, SamplingParams
from serving.engines.seam.request_limits import refuse_other_ends
from serving.engines.vllm.vllm_arguments import GUIDES
from serving.engines.vllm.vllm_upstream import Upstream, one_line
from trireme.base.errors import RequestError

MAX_TEMPERATURE = 2.0  # that vLLM's constructor takes; its sampler takes any


class Row(NamedTuple):
    """A field that needs no more than a name."""

    field: str  # of our SamplingParams
    argument: str  # of vLLM's
    unset: object = None  # the value that leaves vLLM's default, which means the same
    is_for_greedy: bool = True


ROWS = (
    Row("max_tokens", "max_tokens"),
    Row("temperature", "temperature", is_for_greedy=False),
    Row("top_k", "top_k", unset=0, is_for_greedy=False),
    Row("top_p", "top_p", unset=0.0, is_for_greedy=False),
    Row("seed", "seed", is_for_greedy=False),
    Row("repetition_penalty", "repetition_penalty", unset=1.0),
    Row("presence_penalty", "presence_penalty", unset=0.0),
    Row("frequency_penalty", "frequency_penalty", unset=0.0),
)
# Fields that take more than a name.
MADE = frozenset({"min_tokens", "end_id", "bad_words", "embedding_bias", "return_log_probs", "guide_type", "guide"})
ADAPTERS = frozenset({"lora_name", "lora_task_id"})  # of the request beside its sampling: vllm_lora
_GUIDE_ARGUMENTS = {  # of StructuredOutputsParams, by the contract's guide types
    "json_schema": "json",
    "regex": "regex",
    "ebnf_grammar": "grammar",
    "structural_tag": "structural_tag",
}


def sampling_params(
    sampling: SamplingParams, info: EngineInfo, upstream: Upstream, extra_args: dict[str, Any] | None = None
) -> Any:
    """Return vLLM's sampling parameters for a request.

    Args:
        sampling: the request's.
        info: of the engine.
        upstream: the installed vLLM.
        extra_args: arguments beside sampling, which vLLM takes among its sampling parameters.

    Raises:
        RequestError: a value that vLLM does not take, or a guide that does not compile.
    """
    arguments = _arguments(sampling, info) | ({} if extra_args is None else {"extra_args": extra_args})
    params = _checked(upstream, lambda: upstream.make_sampling_params(**arguments))
    if not sampling.is_greedy and sampling.temperature > MAX_TEMPERATURE:
        params.temperature = sampling.temperature  # one below 0.01 stays as vLLM raises it, or numbers overflow
    if sampling.bad_words:
        params._bad_words_token_ids = [list(word) for word in sampling.bad_words]  # by ids vLLM has no other field
    if sampling.guide_type is not None:
        refuse_other_ends(sampling, info)
        with_guide = functools.partial(_add_guide, params, sampling.guide_type, sampling.guide, upstream)
        _checked(upstream, with_guide, field="guided_decoding_guide")
    return params


def _arguments(sampling: SamplingParams, info: EngineInfo) -> dict[str, Any]:
    is_greedy = sampling.is_greedy
    arguments: dict[str, Any] = {"temperature": 0.0} if is_greedy else {}
    for row in ROWS:
        value = getattr(sampling, row.field)
        if value != row.unset and (row.is_for_greedy or not is_greedy):
            arguments[row.argument] = value
    arguments["temperature"] = min(arguments["temperature"], MAX_TEMPERATURE)
    # The ids that end a request are ours to say: vLLM is told none of the model's own.
    ends = info.end_ids if sampling.end_id is None else (sampling.end_id,)
    arguments |= {
        "stop_token_ids": [token_id for token_id in ends if 0 <= token_id < info.vocab_size],
        "min_tokens": min(sampling.min_tokens, sampling.max_tokens),
        "ignore_eos": True,
        "detokenize": False,
    }
    if sampling.embedding_bias:
        arguments["logit_bias"] = sampling.embedding_bias
    if sampling.return_log_probs:
        arguments["logprobs"] = 0  # of the chosen token alone
    return arguments


def _add_guide(params: Any, guide_type: str, guide: str | None, upstream: Upstream) -> None:
    value: dict[str, Any] = {"json_object": True} if guide_type == "json" else {_GUIDE_ARGUMENTS[guide_type]: guide}
    params.structured_outputs = upstream.make_structured_outputs(**value)
    params.structured_outputs._backend = GUIDES  # what vLLM's own front end notes there
    upstream.check_guide(params)


def _checked(upstream: Upstream, make: Callable[[], Any], field: str | None = None) -> Any:
    try:
        return make()
    except upstream.request_errors as exc:
        facts = {} if field is None else {"field": field}
        raise RequestError(f"vLLM refuses the request: {one_line(exc)}", provider="vllm", **facts) from exc
