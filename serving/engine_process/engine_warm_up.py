# SPDX-License-Identifier: Apache-2.0
"""The warm-up of an engine: a few tokens made before the engine is called ready.

A first request need not pay then for work that is done once: kernels are compiled, threads started, memory touched. The
tokens are made below all wrappers that count, so they are in no metric, and no admission or stop string sees them.
"""

import itertools
import logging
import time

import msgspec

from serving.engines.seam.base import FIRST_WARM_UP_KEY, Engine, EngineInfo, GenerationRequest
from trireme.base.errors import RequestError, ServerError

_log = logging.getLogger("trireme.engine")

_MOST_PROMPT_TOKENS = 16
_OUTPUT_TOKENS = 2  # the first comes from the prefill, the second from a step that only decodes
_keys = itertools.count(FIRST_WARM_UP_KEY)


def warm_up(engine: Engine) -> None:
    """Generate a few tokens with an engine, within its limits; an engine that refuses stays cold, and the log has it.

    Args:
        engine: engine without other work.

    Raises:
        ServerError: the engine cannot generate.
    """
    begun_s = time.monotonic()
    request = _request(engine)
    if request is None:
        _log.info("the engine has room for one token alone, and is not warmed up")
        return
    _log.info("the engine is being warmed up")
    try:
        engine.add(request)
    except RequestError as exc:
        _log.warning("the engine could not be warmed up, its first request may take longer: %s", exc.message)
        return
    while True:
        for chunk in engine.step():
            if chunk.error is not None:
                raise ServerError(f"the engine failed to generate before it was ready: {chunk.error}")
            if chunk.finish_reason is not None:
                _finish(engine)
                _log.info("the engine is warm after %.2f s", time.monotonic() - begun_s)
                return


def _finish(engine: Engine) -> None:
    """Step the engine until it has no work, so that nothing of the warm-up is left in its stats."""
    while engine.has_work:
        engine.step()


def _request(engine: Engine) -> GenerationRequest | None:
    """Return the request to warm up with; None: there is no room for a prompt and a token."""
    room = _room(engine.info)
    num_prompt_tokens = min(_MOST_PROMPT_TOKENS, room // 2)
    if not num_prompt_tokens:
        return None
    key = next(_keys)
    max_tokens = min(_OUTPUT_TOKENS, room - num_prompt_tokens)
    sampling = msgspec.structs.replace(engine.plain_sampling, max_tokens=max_tokens)
    return GenerationRequest(key=key, input_ids=_prompt(engine.info, num_prompt_tokens, key), sampling=sampling)


def _room(info: EngineInfo) -> int:
    """Return the number of tokens that a sequence may have."""
    longest = info.max_seq_len if info.max_prompt_tokens is None else 2 * info.max_prompt_tokens
    return min(info.max_seq_len, info.num_kv_blocks * info.kv_block_tokens, longest)


def _prompt(info: EngineInfo, num_tokens: int, key: int) -> list[int]:
    """Return ids from the middle of the vocabulary, different ids for each key.

    No request finds such a prompt in the cache: prompts begin with a special token, or with a word.
    """
    first = info.vocab_size // 2 + key % 1024 * num_tokens
    return [(first + index) % info.vocab_size for index in range(num_tokens)]
