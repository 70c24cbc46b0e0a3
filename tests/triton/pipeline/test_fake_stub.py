# SPDX-License-Identifier: Apache-2.0
"""The fake stub of the unit tests is honest: a request gets the same responses from it and from the real server."""

from collections.abc import Iterator

import numpy as np
import pytest
from ensemble_by_hand import AdapterError, EnsembleByHand
from raw_calls import Array, StreamFailed, arrays, engine_request, stream
from running_server import RunningServer

ASK: dict[str, object] = {
    "text_input": "What is the capital of France?",
    "max_tokens": 12,
    "exclude_input_in_output": True,
}
EVERYTHING = {"return_finish_reason": True, "return_num_input_tokens": True, "return_num_output_tokens": True}

CASES: dict[str, dict[str, object]] = {
    "plain": {},
    "with the prompt": {"exclude_input_in_output": False},
    "everything that can be asked for": {**EVERYTHING},
    "stop strings": {**EVERYTHING, "stop_words": ["a", "e", "in"]},
    "sampled": {"top_p": 0.9, "seed": 7},
    "one token": {"max_tokens": 1},
    "characters of several tokens": {"text_input": "😀 🎉 法国的首都"},
}
BAD: dict[str, dict[str, object]] = {
    "out of range": {"top_p": 1.5},
    "empty prompt": {"text_input": ""},
    "not UTF-8": {"text_input": b"\xff"},
    "does not go together": {"messages": '[{"role": "user", "content": "Hi"}]'},
    "of a model": {"return_context_logits": True},
    "too long": {"max_tokens": 4000},
}
ONE_MODEL: dict[str, tuple[str, dict[str, object]]] = {
    "preprocessing": ("preprocessing", {"QUERY": "hello", "REQUEST_OUTPUT_LEN": 3, "STOP_WORDS_DICT": ["a", "b c"]}),
    "engine": ("tensorrt_llm", engine_request([20, 21], 5, streaming=False, **EVERYTHING)),
    "postprocessing": ("postprocessing", {"TOKENS_BATCH": np.array([[[300, 301, 302]]], dtype=np.int32)}),
}


@pytest.fixture(scope="module")
def by_hand(simulated: RunningServer) -> Iterator[EnsembleByHand]:
    """Yield the repository that the running server has loaded, a second time."""
    ensemble = EnsembleByHand(simulated.folder / "build" / "simulated" / "model_repository")
    yield ensemble
    ensemble.close()


def shown(responses: list[dict[str, Array]]) -> list[dict[str, tuple[str, list[int], object]]]:
    """Return type, shape and values of everything, to compare, but not the stream's name, which is new each time."""
    return [
        {
            name: (str(array.dtype), list(array.shape), array.tolist())
            for name, array in response.items()
            if name != "STREAM_CONTEXT"
        }
        for response in responses
    ]


@pytest.mark.parametrize("case", CASES)
def test_a_whole_response_is_the_same(simulated: RunningServer, by_hand: EnsembleByHand, model: str, case: str) -> None:
    asked = ASK | CASES[case]
    assert shown(by_hand.ask(arrays(asked), model)) == shown(list(stream(simulated.url, model, asked)))


@pytest.mark.parametrize("case", CASES)
def test_a_stream_joins_to_the_same(simulated: RunningServer, by_hand: EnsembleByHand, model: str, case: str) -> None:
    asked = ASK | CASES[case] | {"stream": True}
    fake, real = by_hand.ask(arrays(asked), model), list(stream(simulated.url, model, asked))
    assert {name for response in fake for name in response} == {name for response in real for name in response}
    texts = [b"".join(response["text_output"][0] for response in responses) for responses in (fake, real)]
    assert texts[0] == texts[1]


@pytest.mark.parametrize("case", BAD)
def test_an_error_is_the_same(simulated: RunningServer, by_hand: EnsembleByHand, model: str, case: str) -> None:
    asked = ASK | BAD[case]
    with pytest.raises(AdapterError) as fake:
        by_hand.ask(arrays(asked), model)
    with pytest.raises(StreamFailed) as real:
        list(stream(simulated.url, model, asked))
    assert str(real.value).endswith(str(fake.value))


@pytest.mark.parametrize("case", ONE_MODEL)
def test_each_model_alone_is_the_same(simulated: RunningServer, by_hand: EnsembleByHand, case: str) -> None:
    model, asked = ONE_MODEL[case]
    assert shown(by_hand.ask_model(model, arrays(asked))) == shown(list(stream(simulated.url, model, asked)))
