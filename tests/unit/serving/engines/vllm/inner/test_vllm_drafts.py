# SPDX-License-Identifier: Apache-2.0
"""Tests of speculative decoding on vLLM's real CPU build: the answers with drafts beside those without."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from demo_adapters import write_demo_adapter
from tokenizers import Tokenizer
from vllm_environment import DRAFT, EAGLE_HEAD, TARGET, vllm_spec
from vllm_runs import Answer, Run, running

from serving.engines.seam.base import FinishReason
from trireme.base.errors import RequestError, SpecError

TOKENIZER = Tokenizer.from_file(str(TARGET / "tokenizer.json"))
# The last repeats itself, so that n-grams are found.
STORIES = [
    "Once upon a time there was a little girl who",
    "12 + 7 =",
    "Tom had a red ball and a dog. Tom had a red ball and a dog. Tom had a red ball and a dog. Tom had",
]
PROMPTS = [TOKENIZER.encode(story, add_special_tokens=False).ids for story in STORIES]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lora")
    for seed in range(2):
        write_demo_adapter(folder / f"style-{seed}", seed=seed)
    return folder


def write_speculator(folder: Path) -> Path:
    """Write the demo model's head in the form of `speculators`, by which heads are trained for vLLM."""
    (folder / "model.safetensors").symlink_to(EAGLE_HEAD / "model.safetensors")
    layer = json.loads((EAGLE_HEAD / "config.json").read_text())
    own = {name: layer.pop(name) for name in ("draft_vocab_size", "eagle_aux_hidden_state_layer_ids")}
    layer["architectures"] = ["LlamaForCausalLM"]
    method = {"proposal_type": "greedy", "speculative_tokens": 3}
    verifier = {"architectures": ["LlamaForCausalLM"], "name_or_path": str(TARGET)}
    config = own | {
        "architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3", "speculators_version": "0.3.0",
        "norm_before_residual": False, "transformer_layer_config": layer, "tie_word_embeddings": False,
        "speculators_config": {
            "algorithm": "eagle3", "default_proposal_method": "greedy", "proposal_methods": [method],
            "verifier": verifier,
        },
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def plain(folder: Path) -> Iterator[Run]:
    with running(lora={"dir": folder, "max_rank": 8}) as made:
        yield made


METHODS: dict[str, dict[str, Any]] = {
    "draft_target": {"method": "draft_target", "dir": DRAFT, "max_draft_len": 3},
    "eagle3": {"method": "eagle3", "dir": EAGLE_HEAD, "max_draft_len": 3},
    # The last: vLLM 0.32's CPU build cannot load another engine in a process that has loaded numba, which this does.
    "ngram": {"method": "ngram", "max_draft_len": 4, "max_matching_ngram_size": 3, "min_matching_ngram_size": 1},
}


@pytest.fixture(scope="module", params=METHODS)
def drafting(request: pytest.FixtureRequest, plain: Run, folder: Path, tmp_path_factory: Any) -> Iterator[Run]:
    assert plain, "loaded before"
    speculation = METHODS[request.param]
    lora: dict[str, Any] | None = {"dir": folder, "max_rank": 8}
    if request.param == "eagle3":
        speculation = speculation | {"dir": write_speculator(tmp_path_factory.mktemp("eagle3"))}
        lora = None  # the spec refuses adapters beside it
    with running(speculation=speculation, lora=lora) as made:
        made.method = request.param
        yield made


def asked(run: Run, **sampling: Any) -> list[Answer]:
    """Return the answers to all prompts, asked at once."""
    keys = [run.add(prompt, **sampling) for prompt in PROMPTS]
    answers = run.drain()
    return [answers[key] for key in keys]


GREEDY: dict[str, dict[str, Any]] = {
    "no more": {},
    "a repetition penalty": {"repetition_penalty": 1.3},
    "a presence and a frequency penalty": {"presence_penalty": 1.5, "frequency_penalty": 0.7},
    "a least number of tokens": {"min_tokens": 20, "end_id": 11},
    "an end token": {"end_id": 11},
    "a single token": {"max_tokens": 1},
    "two tokens": {"max_tokens": 2},
    "a regular expression": {"guide_type": "regex", "guide": "[a-f]{3}[0-9]{12}", "end_id": None},
    "JSON": {"guide_type": "json_schema", "guide": '{"type":"object","properties":{"a":{"type":"integer"}}}',
             "end_id": None},
}  # fmt: skip


@pytest.mark.parametrize("sampling", GREEDY.values(), ids=GREEDY)
def test_greedy_answers_are_those_without_drafts(drafting: Run, plain: Run, sampling: dict[str, Any]) -> None:
    sampling = {"max_tokens": 60} | sampling
    expected, found = asked(plain, **sampling), asked(drafting, **sampling)
    assert [answer.token_ids for answer in found] == [answer.token_ids for answer in expected]
    assert [answer.finish_reason for answer in found] == [answer.finish_reason for answer in expected]


def test_bad_words_of_one_and_several_tokens_stay_out(drafting: Run, plain: Run) -> None:
    usual = asked(plain, max_tokens=60)
    for prompt_number, answer in enumerate(usual):
        tokens = answer.token_ids
        words = ((tokens[20],), tuple(tokens[5:7]), tuple(tokens[30:33]))
        expected, found = (asked(run, max_tokens=60, bad_words=words) for run in (plain, drafting))
        assert found[prompt_number].token_ids != tokens
        assert [one.token_ids for one in found] == [one.token_ids for one in expected]


def test_requests_with_other_parameters_in_one_batch_keep_each_its_own(drafting: Run, plain: Run) -> None:
    kinds = [*GREEDY.values(), {"bad_words": ((50,), (60, 61))}]
    expected = [plain.ask(PROMPTS[2], **({"max_tokens": 40} | kind)).token_ids for kind in kinds]
    keys = [drafting.add(PROMPTS[2], **({"max_tokens": 40} | kind)) for kind in kinds]
    answers = drafting.drain()
    assert [answers[key].token_ids for key in keys] == expected


def test_log_probabilities_are_those_without_drafts(drafting: Run, plain: Run) -> None:
    for sampling in ({}, {"repetition_penalty": 1.3}):
        expected = asked(plain, max_tokens=40, return_log_probs=True, **sampling)
        found = asked(drafting, max_tokens=40, return_log_probs=True, **sampling)
        for one, other in zip(found, expected, strict=True):
            assert len(one.log_probs) == len(one.token_ids) == 40
            assert one.log_probs == pytest.approx(other.log_probs, abs=2e-3)


def test_adapters_beside_drafts_answer_as_they_do_without(drafting: Run, plain: Run) -> None:
    names: tuple[dict[str, str], ...] = ({"lora_name": "style-0"}, {}, {"lora_name": "style-1"})
    if drafting.method == "eagle3":
        with pytest.raises(RequestError, match=r"lora_name.*no engine\.lora"):
            drafting.add(PROMPTS[0], **names[0])
        return
    expected = [plain.ask(prompt, max_tokens=40, **name).token_ids for name in names for prompt in PROMPTS]
    keys = [drafting.add(prompt, max_tokens=40, **name) for name in names for prompt in PROMPTS]
    answers = drafting.drain()
    assert [answers[key].token_ids for key in keys] == expected
    assert len({tuple(tokens) for tokens in expected}) == len(expected)


def test_a_bias_on_logits_is_refused_by_name(drafting: Run) -> None:
    with pytest.raises(RequestError, match=r"embedding_bias.*verifies the drafts of engine\.speculation") as refused:
        drafting.add(PROMPTS[0], embedding_bias={5: 1.0})
    assert refused.value.facts["field"] == "embedding_bias"


@pytest.mark.parametrize("sampling", [{"top_k": 3}, {"top_p": 0.5, "seed": 3}], ids=["top_k", "top_p"])
def test_a_sampled_request_is_refused_on_a_cpu_and_the_others_go_on(
    drafting: Run, plain: Run, sampling: dict[str, Any]
) -> None:
    key = drafting.add(PROMPTS[2], max_tokens=40)
    drafting.engine.step()
    with pytest.raises(RequestError, match=r"does not go with engine\.speculation on a CPU") as refused:
        drafting.add(PROMPTS[0], temperature=0.8, **sampling)
    assert refused.value.facts["field"] == next(iter(sampling))
    drafting.drain()
    for greedy in ({"top_k": 1}, {"top_p": 0.5, "temperature": 0.0}):
        assert drafting.ask(PROMPTS[2], **greedy).token_ids == plain.ask(PROMPTS[2]).token_ids
    assert key


def test_drafts_are_counted_for_each_request(drafting: Run, plain: Run) -> None:
    for answer in asked(plain, max_tokens=60):
        assert answer.perf is not None
        assert (answer.perf.total_draft_tokens, answer.perf.total_accepted_draft_tokens) == (0, 0)
    before = drafting.engine.stats().num_steps
    answer = drafting.ask(PROMPTS[2], max_tokens=200)
    num_steps = drafting.engine.stats().num_steps - before
    assert answer.perf is not None
    accepted, drafted = answer.perf.total_accepted_draft_tokens, answer.perf.total_draft_tokens
    assert drafted is not None
    assert accepted is not None
    assert drafted >= accepted >= 0
    assert drafted > 0
    assert answer.finish_reason == FinishReason.LENGTH
    assert accepted > 5
    assert num_steps < 200, "several tokens in some steps"


def test_what_was_trained_to_draft_drafts_most_of_a_story(drafting: Run, plain: Run) -> None:
    prompt = TOKENIZER.encode("<|bos|>Once upon a time there was a little fox", add_special_tokens=False).ids
    before = drafting.engine.stats().num_steps
    answer = drafting.ask(prompt, max_tokens=120)
    num_steps = drafting.engine.stats().num_steps - before
    assert answer.token_ids == plain.ask(prompt, max_tokens=120).token_ids
    assert answer.perf is not None
    accepted, drafted = answer.perf.total_accepted_draft_tokens, answer.perf.total_draft_tokens
    assert accepted is not None
    assert drafted is not None
    assert (accepted > drafted / 2) == (drafting.method in ("draft_target", "eagle3"))
    assert num_steps == pytest.approx(120 - accepted, abs=6)


def test_no_step_gives_more_than_the_drafts_and_one_token(drafting: Run) -> None:
    speculation = METHODS[drafting.method]
    limit = vllm_spec(speculation=speculation).max_tokens_per_step
    assert limit == speculation["max_draft_len"] + 1
    drafting.add(PROMPTS[2], max_tokens=60)
    sizes = []
    while drafting.engine.has_work:
        sizes += [len(chunk.token_ids) for chunk in drafting.engine.step()]
    assert max(sizes) <= limit


def test_requests_that_fill_the_sequence_and_the_cache_end(drafting: Run) -> None:
    info = drafting.engine.info
    prompt = [30 + number % 50 for number in range(info.max_seq_len - 40)]
    keys = [drafting.add(prompt[number:], max_tokens=40) for number in range(8)]
    answers = drafting.drain()
    assert [len(answers[key].token_ids) for key in keys] == [40] * 8
    assert drafting.engine.stats().num_used_kv_blocks == 0


def test_a_cancelled_request_frees_its_blocks(drafting: Run) -> None:
    keys = [drafting.add(prompt, max_tokens=200) for prompt in PROMPTS]
    for _ in range(3):
        drafting.engine.step()
    for key in keys:
        drafting.engine.cancel(key)
    assert drafting.drain() == {}
    assert drafting.engine.stats().num_used_kv_blocks == 0


def test_a_draft_model_that_is_not_there_or_of_another_vocabulary_is_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(SpecError, match=r"engine\.speculation\.dir"),
        running(speculation=METHODS["draft_target"] | {"dir": tmp_path / "none"}),
    ):
        pass
    config = json.loads((DRAFT / "config.json").read_text()) | {"vocab_size": 2048}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with (
        pytest.raises(SpecError, match="has 2048 tokens and the model 4096"),
        running(speculation=METHODS["draft_target"] | {"dir": tmp_path}),
    ):
        pass
