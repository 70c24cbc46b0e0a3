# SPDX-License-Identifier: Apache-2.0
"""The refusals of every engine before it takes a request: parameters not honoured, requests that could never finish.

Ranges of single values are left to `serving.requests.engine_request`.
"""

import functools

import msgspec

from ensemble_configs.releases.kv_capacity import WholeSequence
from serving.engines.seam.base import EngineInfo, GenerationRequest, SamplingParams
from trireme.base.errors import RequestError, SpecError

_MAX_SHOWN_CHARS = 60


def refuse_unservable(request: GenerationRequest, info: EngineInfo) -> None:
    """Check a request against what the engine is.

    Raises:
        RequestError: a sampling parameter that the engine does not honour, an empty prompt, or more tokens than a
            prompt, a sequence or the whole KV cache may hold.
    """
    _refuse_unsupported(request.sampling, info)
    if not request.input_ids:
        raise RequestError("input_ids is empty; send at least one token", field="input_ids")
    _refuse_length(len(request.input_ids), request.sampling.max_tokens, info)


def refuse_other_ends(sampling: SamplingParams, info: EngineInfo) -> None:
    """Check that a request with a guide leaves its end to the guide and the model's own end token.

    Raises:
        RequestError: another `end_id`, `min_tokens`, or a model without an end token.
    """
    if not info.end_ids:
        message = "guided decoding needs a model with an end token, and this one names none in generation_config.json"
        raise RequestError(message, field="guided_decoding_guide_type", provider=info.provider)
    for field, value, is_neutral in (
        ("end_id", sampling.end_id, sampling.end_id is None or sampling.end_id in info.end_ids),
        ("min_tokens", sampling.min_tokens, sampling.min_tokens == 0),
    ):
        if not is_neutral:
            raise RequestError(
                f"{field} ({value}) does not go with guided decoding on the provider {info.provider!r}: the guide and "
                "the model's own end token say where the output ends; leave it out",
                field=field,
                value=value,
                provider=info.provider,
            )


def refuse_short_cache(whole_sequence: WholeSequence, info: EngineInfo) -> None:
    """Check that an engine's KV cache, as large as it turned out, holds the longest sequence that is promised.

    Raises:
        SpecError: the cache is too small.
    """
    why = whole_sequence.why_cut(num_blocks=info.num_kv_blocks, block_tokens=info.kv_block_tokens)
    if why is not None:
        raise SpecError(
            f"engine.max_seq_len ({whole_sequence.max_seq_len}) is more than the memory left for the KV cache holds: "
            f"{why}. Lower engine.max_seq_len or engine.max_beam_width, or leave the GPU more free memory",
            field="engine.max_seq_len",
            value=whole_sequence.max_seq_len,
            num_kv_blocks=info.num_kv_blocks,
        )


def unsupported_error(field: str, value: object, info: EngineInfo, *, name: str | None = None) -> RequestError:
    """Return the refusal of a sampling parameter that the provider does not honour, with its reason where it has one.

    A value is shown if it is a single one: lists of ids and packed arrays are mostly not what the client has sent.

    Args:
        field: of `SamplingParams`.
        value: what the request has in it.
        info: the engine's facts.
        name: the client's name of the parameter, if not the field's.
    """
    why_not = info.why_not.get(field, "leave it out")
    short = value if isinstance(value, bool | int | float | str) and len(str(value)) <= _MAX_SHOWN_CHARS else None
    name = name or field
    shown = name if short is None else f"{name} ({short})"
    return RequestError(
        f"{shown} is not supported by the provider {info.provider!r}; {why_not}",
        field=name,
        value=short,
        provider=info.provider,
    )


def _refuse_unsupported(sampling: SamplingParams, info: EngineInfo) -> None:
    unsupported = [name for name in sampling.__struct_fields__ if name not in info.supported]
    if not unsupported:
        return
    defaults = _defaults_of(type(sampling))
    for name in unsupported:
        value = getattr(sampling, name)
        if value != defaults[name]:
            raise unsupported_error(name, value, info)


@functools.cache  # msgspec works the fields out anew each time: 0.3 ms, for every request
def _defaults_of(struct: type[msgspec.Struct]) -> dict[str, object]:
    return {field.name: field.default for field in msgspec.structs.fields(struct)}


def _refuse_length(num_prompt_tokens: int, max_tokens: int, info: EngineInfo) -> None:
    wanted = f"{num_prompt_tokens} prompt tokens + max_tokens {max_tokens}"
    num_tokens = num_prompt_tokens + max_tokens
    if num_tokens > info.max_seq_len:
        raise RequestError(
            f"{wanted} > max_seq_len {info.max_seq_len}; shorten the prompt or ask for fewer tokens",
            field="max_tokens",
            value=max_tokens,
            max_seq_len=info.max_seq_len,
        )
    if info.max_prompt_tokens is not None and num_prompt_tokens > info.max_prompt_tokens:
        raise RequestError(
            f"{num_prompt_tokens} prompt tokens > {info.max_prompt_tokens}, which this engine prefills in one step, "
            "without chunks; shorten the prompt",
            field="input_ids",
            value=num_prompt_tokens,
            max_prompt_tokens=info.max_prompt_tokens,
        )
    num_kv_tokens = info.num_kv_blocks * info.kv_block_tokens
    if num_tokens - 1 > num_kv_tokens:  # the last token is never fed back
        raise RequestError(
            f"{wanted} cannot fit the KV cache of {num_kv_tokens} tokens; ask for less or raise engine.num_kv_blocks",
            field="max_tokens",
            value=max_tokens,
            num_kv_blocks=info.num_kv_blocks,
        )
