# SPDX-License-Identifier: Apache-2.0
"""Tests of our sampling parameters in vLLM's words; that vLLM heeds them: test_vllm_conformance."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from serving.engines.seam.base import EngineInfo, SamplingParams
from serving.engines.vllm.vllm_capabilities import CAPABILITIES
from serving.engines.vllm.vllm_sampling import sampling_params
from serving.engines.vllm.vllm_upstream import Upstream
from trireme.base.errors import RequestError

INFO = EngineInfo(
    provider="vllm", vocab_size=100, max_seq_len=64, end_ids=(1, 2), kv_block_tokens=16, num_kv_blocks=8,
    max_num_seqs=4, max_num_batched_tokens=64, supported=CAPABILITIES.supported, why_not=dict(CAPABILITIES.why_not),
)  # fmt: skip


def refuse(params: Any) -> None:
    if params.structured_outputs.grammar == "no grammar":
        raise ValueError("line 1:\n  unexpected end")


def made(**arguments: Any) -> SimpleNamespace:
    return SimpleNamespace(**arguments)


UPSTREAM = Upstream(
    version="0.32.0", device="cpu", make_engine_args=made, make_core=made, make_sampling_params=made,  # type: ignore[arg-type]
    make_structured_outputs=lambda **of: made(**{"grammar": None, "json": None, "json_object": None} | of),
    make_request=made, make_lora_request=made, make_kv_transfer_config=made, request_errors=(TypeError, ValueError),
    check_guide=refuse, transfer_in_steps=lambda: None,
    make_kv_events_config=made,
)  # fmt: skip


def words(**sampling: Any) -> Any:
    return sampling_params(SamplingParams(**{"max_tokens": 8} | sampling), INFO, UPSTREAM)


def test_greedy_is_temperature_zero_and_heeds_nothing_of_sampling() -> None:
    params = words(temperature=0.7, seed=3)
    assert vars(params) == {
        "temperature": 0.0, "max_tokens": 8, "min_tokens": 0, "stop_token_ids": [1, 2], "ignore_eos": True,
        "detokenize": False,
    }  # fmt: skip


def test_what_is_set_is_said_and_a_temperature_that_the_constructor_refuses_all_the_same() -> None:
    params = words(top_p=0.5, top_k=7, temperature=3.5, seed=3, presence_penalty=1.0, min_tokens=20)
    said = {name: getattr(params, name) for name in ("top_p", "top_k", "temperature", "seed", "presence_penalty")}
    assert said == {"top_p": 0.5, "top_k": 7, "temperature": 3.5, "seed": 3, "presence_penalty": 1.0}
    assert params.min_tokens == 8, "no more than max_tokens"


def test_a_temperature_that_vllm_raises_stays_raised() -> None:
    def raising(**arguments: Any) -> SimpleNamespace:
        return made(**arguments | {"temperature": max(arguments["temperature"], 0.01)})

    upstream = dataclasses.replace(UPSTREAM, make_sampling_params=raising)
    params = sampling_params(SamplingParams(max_tokens=8, top_p=0.9, temperature=1e-30), INFO, upstream)
    assert params.temperature == 0.01


@pytest.mark.parametrize(("end_id", "ids"), [(None, [1, 2]), (-1, []), (7, [7])])
def test_the_tokens_that_end_a_request_are_ours_to_say(end_id: int | None, ids: list[int]) -> None:
    assert words(end_id=end_id).stop_token_ids == ids


def test_tokens_are_named_by_their_ids() -> None:
    params = words(bad_words=((3,), (4, 5)), embedding_bias={6: -1.5}, return_log_probs=True)
    assert params._bad_words_token_ids == [[3], [4, 5]]
    assert params.logit_bias == {6: -1.5}
    assert params.logprobs == 0, "of the chosen token alone"


def test_a_guide_goes_to_xgrammar_and_one_that_does_not_compile_is_refused_alone() -> None:
    params = words(guide_type="json_schema", guide="{}")
    assert params.structured_outputs.json == "{}"
    assert params.structured_outputs._backend == "xgrammar"
    assert words(guide_type="json").structured_outputs.json_object
    with pytest.raises(RequestError, match="line 1: unexpected end") as caught:
        words(guide_type="ebnf_grammar", guide="no grammar")
    assert caught.value.facts["field"] == "guided_decoding_guide"


@pytest.mark.parametrize("sampling", [{"end_id": 7}, {"end_id": -1}, {"min_tokens": 2}])
def test_a_guide_ends_where_it_says(sampling: dict[str, int]) -> None:
    with pytest.raises(RequestError, match="does not go with guided decoding"):
        words(guide_type="json", **sampling)
    assert words(guide_type="json", end_id=2).stop_token_ids == [2]
    endless = msgspec.structs.replace(INFO, end_ids=())
    with pytest.raises(RequestError, match="needs a model with an end token"):
        sampling_params(SamplingParams(max_tokens=8, guide_type="json"), endless, UPSTREAM)
