# SPDX-License-Identifier: Apache-2.0
"""The checks that the parts of a request's model inputs fit together, for any engine."""

from serving.engines.seam.base import SamplingParams
from serving.engines.seam.kv_retention import retained_ranges
from serving.requests.number_ranges import out_of_range
from trireme.base.errors import RequestError


def check_model_inputs(sampling: SamplingParams, *, vocab_size: int) -> None:
    """Check that the parts of each model input are complete and fit together.

    Raises:
        RequestError: a part is missing, two parts differ in size, or an id is outside the vocabulary.
    """
    _check_prompt_table(sampling)
    _check_drafts(sampling, vocab_size)
    _check_decoder_prompt(sampling, vocab_size)
    _require_together(sampling, "lora_weights", "lora_config")
    _require(sampling, "lora_weights", "lora_task_id")
    if sampling.lora_name is not None and sampling.lora_task_id is not None:
        raise out_of_range("lora_name", sampling.lora_name, "left out beside lora_task_id: each names an adapter")
    _require(sampling, "draft_acceptance_threshold", "draft_logits")
    _require(sampling, "prompt_vocab_size", "prompt_embedding_table")
    _require_together(sampling, "mrope_rotary_cos_sin", "mrope_position_deltas")
    for name in ("encoder_output_lengths", "cross_attention_mask", "skip_cross_attn_blocks"):
        _require(sampling, name, "encoder_input_features")
    retained_ranges(sampling)


def num_virtual_tokens(sampling: SamplingParams) -> int:
    """Return the number of ids behind the vocabulary that stand for rows of the prompt's own embedding table."""
    table = sampling.prompt_embedding_table
    return 0 if table is None else table.shape[0]


def _check_prompt_table(sampling: SamplingParams) -> None:
    size, rows = sampling.prompt_vocab_size, num_virtual_tokens(sampling)
    if sampling.prompt_embedding_table is not None and size is not None and size != rows:
        raise out_of_range("prompt_vocab_size", size, f"{rows}, the rows of prompt_embedding_table")


def _check_drafts(sampling: SamplingParams, vocab_size: int) -> None:
    _check_ids("draft_input_ids", sampling.draft_input_ids, vocab_size)
    if sampling.use_draft_logits and not sampling.num_draft_tokens:
        raise RequestError(
            "use_draft_logits needs num_draft_tokens; send it too, or leave use_draft_logits out",
            field="use_draft_logits",
        )
    logits, shape = sampling.draft_logits, (len(sampling.draft_input_ids), vocab_size)
    if logits is not None and logits.shape != shape:
        raise out_of_range(
            "draft_logits", list(logits.shape), f"of shape {list(shape)}, a row for each of draft_input_ids"
        )


def _check_decoder_prompt(sampling: SamplingParams, vocab_size: int) -> None:
    ids, length = sampling.decoder_input_ids, sampling.decoder_input_lengths
    _check_ids("decoder_input_ids", ids, vocab_size)
    if length is not None and length != len(ids):
        raise out_of_range("decoder_input_lengths", length, f"{len(ids)}, the number of decoder_input_ids")


def _check_ids(name: str, ids: tuple[int, ...], vocab_size: int) -> None:
    if ids and not 0 <= min(ids) <= max(ids) < vocab_size:
        token_id = next(token_id for token_id in ids if not 0 <= token_id < vocab_size)
        raise out_of_range(name, token_id, f"0 to {vocab_size - 1}, the model's vocabulary")


def _require_together(sampling: SamplingParams, first: str, second: str) -> None:
    _require(sampling, first, second)
    _require(sampling, second, first)


def _require(sampling: SamplingParams, name: str, needed: str) -> None:
    if getattr(sampling, name) not in (None, False) and getattr(sampling, needed) is None:
        raise RequestError(f"{name} needs {needed}; send it too, or leave {name} out", field=name)
