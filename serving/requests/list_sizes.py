# SPDX-License-Identifier: Apache-2.0
"""The number of values that a list of a request may have; checked before Python makes an object of each value."""

from serving.requests.word_lists import MAX_LISTED_IDS
from trireme.base.errors import RequestError

# Values for tokens of a sequence: there are no more of them than the engine takes.
_OF_TOKENS = frozenset(
    {
        "continued_ids",
        "decoder_input_ids",
        "draft_input_ids",
        "input_ids",
        "prompt_table_extra_ids",
        "retention_token_range_starts",
        "retention_token_range_ends",
        "retention_token_range_priorities",
        "retention_token_range_durations_ms",
        "tokens",
    }
)
# Ids of all words together, of which none is longer than a thousand characters.
_OF_WORDS = frozenset({"bad_words", "stop_words_list"})
_MAX_ADAPTER_ROWS = 65_536  # modules times layers


def check_list_size(name: str, field: str, size: int, *, max_seq_len: int) -> None:
    """Check the number of values in a list: its last dimension, or the first dimension of an adapter's configuration.

    Args:
        name: name of the tensor.
        field: field that the tensor is read into; a field that is no list passes.
        size: number of values, as sent.
        max_seq_len: tokens that a sequence of the engine may have.

    Raises:
        RequestError: the list has more values than allowed.
    """
    if field == "input_ids":
        if size >= max_seq_len:
            raise RequestError(
                f"the prompt has {size} tokens, but prompt and output together may have {max_seq_len}; "
                "shorten the prompt",
                field=name,
                value=size,
                max=max_seq_len - 1,
            )
    elif field in _OF_TOKENS:
        if size > max_seq_len:
            why = f"prompt and output together may have {max_seq_len} tokens"
            raise _too_many(name, size, max_seq_len, why)
    elif field in _OF_WORDS and size > MAX_LISTED_IDS:
        raise _too_many(name, size, MAX_LISTED_IDS, "of all its words together")
    elif field == "lora_config" and size > _MAX_ADAPTER_ROWS:
        raise _too_many(name, size, _MAX_ADAPTER_ROWS, "a row for each module of each layer")


def _too_many(name: str, size: int, most: int, why: str) -> RequestError:
    return RequestError(f"{name} has {size} values; send at most {most}: {why}", field=name, value=size, max=most)
