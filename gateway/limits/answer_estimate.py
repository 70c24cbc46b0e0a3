# SPDX-License-Identifier: Apache-2.0
"""The tokens that an answer may take, before a tokenizer has seen anything of it.

They are for the reservation alone: what is not taken comes back with the end of the request.
"""

import msgspec

from clients.openai_api.answer_deltas import Usage
from clients.openai_api.asked import Asked
from ensemble_configs.render.tensors import AS_MANY_AS_FIT

CHARS_PER_TOKEN = 4
_USUAL_ANSWER = 512  # of one that may be as long as the model allows


def estimate_of(asked: Asked) -> Usage:
    """Return what the texts of a body may take."""
    num_prompt = num_answer = 0
    for request in asked.requests:
        num_chars = request.num_prompt_chars + (len(msgspec.json.encode(request.tools)) if request.tools else 0)
        num_prompt += num_chars // CHARS_PER_TOKEN
        most = _USUAL_ANSWER if request.max_tokens == AS_MANY_AS_FIT else request.max_tokens
        num_answer += most * asked.n
    return Usage(num_prompt, num_answer)
