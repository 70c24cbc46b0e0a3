# SPDX-License-Identifier: Apache-2.0
"""Disaggregated serving for the engine without a model: what the prefill's server hands to the decode's.

MessagePack of the prompt's digest and the first tokens; there are no keys and values that could travel.
"""

import msgspec

from serving.engines.seam.base import GenerationRequest
from serving.engines.simulated.fake_hash import digest
from trireme.base.errors import RequestError

_FIELD = "context_phase_params"


class _ContextPhase(msgspec.Struct, frozen=True, array_like=True):
    prompt_digest: int
    first_token_ids: list[int]


_decoder = msgspec.msgpack.Decoder(_ContextPhase)


def context_phase_of(input_ids: list[int], first_token_ids: list[int]) -> bytes:
    """Return the context phase for the request that goes on after this prefill."""
    return msgspec.msgpack.encode(_ContextPhase(digest((), input_ids), first_token_ids))


def check_context_phase(request: GenerationRequest) -> None:
    """Check what a request brings from the prefill's server, if it brings something.

    Raises:
        RequestError: the bytes are of no such server, or of another prompt.
    """
    packed = request.sampling.context_phase_params
    if packed is None:
        return
    try:
        phase = _decoder.decode(packed)
    except msgspec.DecodeError as exc:
        raise RequestError(f"{_FIELD} is not what a context-only request was answered", field=_FIELD) from exc
    if phase.prompt_digest != digest((), request.input_ids):
        raise RequestError(f"{_FIELD} is of another prompt; send the same input_ids", field=_FIELD)
