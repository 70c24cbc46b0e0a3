# SPDX-License-Identifier: Apache-2.0
"""The continuation of an answer that was begun elsewhere: a request whose prompt has the answer's beginning behind it.

An engine computes the beginning as it computes a prompt, and goes on with the token that would have come next.
"""

import msgspec

from serving.engines.seam.base import GenerationRequest, SamplingParams

_DEFAULTS = {
    field.name: field.default
    for field in msgspec.structs.fields(SamplingParams)
    if field.default is not msgspec.NODEFAULT
}
_EXACT = frozenset(
    {
        "max_tokens",
        "min_tokens",
        "temperature",
        "top_k",
        "top_p",
        "seed",
        "end_id",
        "return_log_probs",
        "embedding_bias",
        "lora_name",
    }
)


def first_inexact(sampling: SamplingParams) -> str | None:
    """Return the first parameter with which an answer does not go on as it would have; None: there is none.

    What looks at the output alone (penalties, guides) begins anew, and so does what is told once or at the end. A seed
    of sampled tokens begins anew, too: what follows has the same distribution, and is not what would have come.
    """
    for name in sampling.__struct_fields__:
        if name not in _EXACT and getattr(sampling, name) != _DEFAULTS[name]:
            return name
    return None


def continued(request: GenerationRequest, output_ids: list[int], *, key: int) -> GenerationRequest:
    """Return the rest of a request, of which some output is known.

    Args:
        output_ids: fewer than the request's `max_tokens`.
        key: of the rest.
    """
    sampling, num_known = request.sampling, len(output_ids)
    rest = msgspec.structs.replace(
        sampling, max_tokens=sampling.max_tokens - num_known, min_tokens=max(0, sampling.min_tokens - num_known)
    )
    return msgspec.structs.replace(
        request,
        key=key,
        input_ids=request.input_ids + output_ids,
        sampling=rest,
        num_output_ids=request.num_output_ids + num_known,
    )
