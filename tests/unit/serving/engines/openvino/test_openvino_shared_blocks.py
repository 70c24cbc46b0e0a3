# SPDX-License-Identifier: Apache-2.0
"""Requests that share cached tokens answer as each does alone, whatever begins beside what.

Answers are short: later on, in other company, the last bits of a sum may choose between two words.
"""

import random
from collections.abc import Iterator, Sequence

import pytest

from ensemble_configs.spec.engine.openvino_spec import OpenVinoEngineSpec
from ensemble_configs.spec.release_spec import TokenizerSpec
from serving.engines.openvino import openvino_pipeline
from serving.engines.openvino.openvino_shared_blocks import EarlierPrompts
from serving.engines.providers import create_engine
from serving.engines.seam.base import Engine, GenerationRequest, SamplingParams
from serving.text.tokenization import PromptTokenizer
from trireme.base.project_files import CODE_ROOT

pytestmark = pytest.mark.slow

DEMO = CODE_ROOT / "examples/demo_model"
TOKENIZER = PromptTokenizer.from_spec(TokenizerSpec(dir=DEMO / "target"))
STORY = "Once upon a time, there was a clever frog named Lucy."
NEXT = (" Lucy lived", " One day", " The frog", " What is 2 + 3?")
QUESTIONS = ("What is the capital of France?", "Once upon a time")


def spec_of(**changes: object) -> OpenVinoEngineSpec:
    limits = {"max_seq_len": 512, "max_num_seqs": 16, "num_kv_blocks": 128}
    given = {"provider": "openvino", "dir": DEMO / "openvino/target"}
    return OpenVinoEngineSpec.model_validate(given | limits | changes)


def tokens_of(text: str) -> list[int]:
    ids: list[int] = TOKENIZER.encode(text).tolist()
    return ids


class Asker:
    """The greedy answers of one engine."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._last_key = 0

    def ask(self, prompts: Sequence[list[int]], max_tokens: int = 8) -> list[list[int]]:
        """Return the answers to prompts that are all added before the next step."""
        keys = range(self._last_key + 1, self._last_key + 1 + len(prompts))
        self._last_key += len(prompts)
        for key, prompt in zip(keys, prompts, strict=True):
            sampling = SamplingParams(max_tokens=max_tokens)
            self.engine.add(GenerationRequest(key=key, input_ids=prompt, sampling=sampling))
        outputs: dict[int, list[int]] = {key: [] for key in keys}
        while self.engine.has_work:
            for chunk in self.engine.step():
                assert chunk.error is None
                outputs[chunk.key] += chunk.token_ids
        return list(outputs.values())


@pytest.fixture
def sharing() -> Iterator[Asker]:
    engine = create_engine(spec_of())
    yield Asker(engine)
    engine.close()


@pytest.fixture(scope="module")
def plain() -> Iterator[Asker]:
    """Yield the engine that shows what is right: without prefix caching."""
    engine = create_engine(spec_of(is_prefix_caching=False))
    yield Asker(engine)
    engine.close()


def test_the_very_first_requests_of_an_engine_answer_as_each_alone(plain: Asker, sharing: Asker) -> None:
    prompts = [tokens_of(text) for text in QUESTIONS]
    assert sharing.ask(prompts) == [plain.ask([prompt])[0] for prompt in prompts]


def test_several_that_go_on_from_one_earlier_prompt_answer_as_each_alone(plain: Asker, sharing: Asker) -> None:
    sharing.ask([tokens_of(STORY)], max_tokens=1)
    prompts = [tokens_of(STORY + text) for text in NEXT]
    assert sharing.ask(prompts) == [plain.ask([prompt])[0] for prompt in prompts]


def test_sequences_of_one_request_that_goes_on_from_an_earlier_one_are_equal(plain: Asker, sharing: Asker) -> None:
    sharing.ask([tokens_of(STORY)], max_tokens=1)
    prompt = tokens_of(STORY + NEXT[0])
    assert sharing.ask([prompt] * 4) == plain.ask([prompt]) * 4


@pytest.mark.parametrize("num_rounds", [5, pytest.param(12, marks=pytest.mark.soak)])
def test_conversations_that_branch_at_random_answer_as_each_alone(
    plain: Asker, sharing: Asker, num_rounds: int
) -> None:
    rng = random.Random(3)
    known = [tokens_of(text) for text in (*QUESTIONS, STORY)]
    for _ in range(num_rounds):
        prompts = []
        for _ in range(rng.randrange(1, 7)):
            base = rng.choice(known)
            prompts.append(base + tokens_of(rng.choice(NEXT))[1:] if len(base) < 100 and rng.random() < 0.8 else base)
        expected = [plain.ask([prompt])[0] for prompt in prompts]
        assert sharing.ask(prompts) == expected
        known += [prompt + answer for prompt, answer in zip(prompts, expected, strict=True)]


def test_openvino_spoils_what_two_requests_write_into_one_cached_block() -> None:
    pipeline = openvino_pipeline.load_pipeline(spec_of())

    def ask(prompts: list[list[int]], first_id: int, max_tokens: int) -> list[list[int]]:
        config = openvino_pipeline.generation_config(SamplingParams(max_tokens=max_tokens), end_ids=(), vocab_size=4096)
        handles = [
            pipeline.add_request(first_id + index, openvino_pipeline.token_tensor(prompt), config)
            for index, prompt in enumerate(prompts)
        ]
        while pipeline.has_non_finished_requests():
            pipeline.step()
        found = []
        for handle in handles:
            ids: list[int] = []
            while handle.can_read():
                ids += [token for output in handle.read().values() for token in output.generated_ids]
            found.append(ids)
        return found

    ask([tokens_of(STORY)], 1, 1)
    prompts = [tokens_of(STORY + text) for text in NEXT]
    together = ask(prompts, 10, 8)
    alone = [ask([prompt], 20 + index, 8)[0] for index, prompt in enumerate(prompts)]
    assert together != alone


# Which begin side by side.


def continued(earlier: EarlierPrompts, prompt: list[int]) -> frozenset[int]:
    return earlier.lineage_of(prompt).continued


def note(earlier: EarlierPrompts, *prompts: list[int]) -> None:
    for prompt in prompts:
        earlier.note(earlier.lineage_of(prompt))


def test_it_is_told_which_earlier_prompts_a_prompt_goes_on_from() -> None:
    earlier = EarlierPrompts(capacity=10)
    note(earlier, [1, 2, 3], [1, 2, 3, 4])
    assert continued(earlier, [1, 2]) == continued(earlier, [2, 1, 2, 3]) == frozenset()
    assert continued(earlier, [1, 2, 3]) == frozenset(), "the same is no continuation: nothing new is written"
    assert len(continued(earlier, [1, 2, 3, 9])) == 1
    assert len(continued(earlier, [1, 2, 3, 4, 5])) == 2
    assert continued(earlier, [1, 2, 3, 9]) < continued(earlier, [1, 2, 3, 4, 5])


def test_the_oldest_prompts_are_forgotten_and_one_that_came_again_is_not_old() -> None:
    earlier = EarlierPrompts(capacity=2)
    note(earlier, [1], [2], [1], [3])
    assert [bool(continued(earlier, [token, 9])) for token in (1, 2, 3)] == [True, False, True]


def test_one_that_was_cancelled_in_its_prefill_still_holds_up_the_next_of_its_kind(plain: Asker) -> None:
    # A step has room for little: the long one is in its prefill for several of them.
    engine = create_engine(spec_of(max_num_batched_tokens=32))
    asker = Asker(engine)
    asker.ask([tokens_of(STORY)], max_tokens=1)
    prompt = tokens_of(STORY + NEXT[0])
    long_prompt = tokens_of(STORY + NEXT[1] * 30)
    engine.add(GenerationRequest(key=1000, input_ids=long_prompt, sampling=SamplingParams(max_tokens=4)))
    engine.step()
    engine.cancel(1000)
    engine.add(GenerationRequest(key=1001, input_ids=prompt, sampling=SamplingParams(max_tokens=4)))
    engine.step()
    assert engine.stats().num_waiting == 1, "the cancelled one may take part in this step"
    chunks = [chunk for _ in range(20) for chunk in engine.step()]
    assert [token_id for chunk in chunks for token_id in chunk.token_ids] == plain.ask([prompt], max_tokens=4)[0]
    engine.close()
