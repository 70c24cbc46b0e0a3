# SPDX-License-Identifier: Apache-2.0
"""Beams, log probabilities and logits through the adapters on the fake stub, from engines that have them."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from ensemble_by_hand import AdapterError, EnsembleByHand
from fake_packages import install_fake
from fake_tensorrt_llm import write_engine
from simulated_release import DEMO_ENGINE, write_release
from test_adapters import PROMPT, array, question, streamed
from test_unary_adapters import PROMPTS, alone, batch

MODELS = ("ensemble", "ensemble_graph", "tensorrt_llm_bls")


@contextlib.contextmanager
def ensemble_of(folder: Path, engine: Mapping[str, object], *, decoupled: bool = True) -> Iterator[EnsembleByHand]:
    """Load a repository; the fake stub knows the models of one."""
    loaded = EnsembleByHand(write_release(folder / "repository", engine, decoupled=decoupled).parent.parent)
    try:
        yield loaded
    finally:
        loaded.close()


def texts_of(response: Mapping[str, npt.NDArray[np.generic]]) -> list[str]:
    return [text.decode() for text in response["text_output"].tolist()]


def test_beams_come_whole_and_side_by_side(tmp_path: Path) -> None:
    more = {"beam_width": array(3, np.int32), "return_log_probs": array(True, np.bool_)}
    with ensemble_of(tmp_path, DEMO_ENGINE) as ensemble:
        for model in MODELS:
            [response] = ensemble.ask(question(**more), model)
            texts = texts_of(response)
            assert response["text_output"].shape == (3,)
            assert len(set(texts)) == 3
            assert response["cum_log_probs"].shape == (1, 3)
            assert response["output_log_probs"].shape[:2] == (1, 3)
            stop = texts[1][-4:]
            [stopped] = ensemble.ask(question(stop_words=array([stop.encode()], np.object_), **more), model)
            assert texts_of(stopped) == [text.partition(stop)[0] for text in texts]
            [two] = ensemble.ask(question(num_return_sequences=array(2, np.int32), **more), model)
            assert texts_of(two) == texts[:2]
            [echoed] = ensemble.ask(question(**more | {"exclude_input_in_output": array(False, np.bool_)}), model)
            assert texts_of(echoed) == [PROMPT + text for text in texts]
            with pytest.raises(AdapterError, match=r"\[INVALID_ARG .*beam_width \(3\) does not go with stream"):
                ensemble.ask(streamed(**more), model)


def test_beams_of_a_batch_are_side_by_side_in_one_response(tmp_path: Path) -> None:
    more = {"beam_width": np.int32(2)}
    with ensemble_of(tmp_path, DEMO_ENGINE, decoupled=False) as unary:
        for model in MODELS:
            [response] = unary.ask(batch(**more), model)
            expected = [text for row in range(3) for text in unary.ask(alone(row, **more), model)[0]["text_output"]]
            assert response["text_output"].tolist() == expected
            assert len(expected) == 2 * len(PROMPTS)


def test_logits_come_in_upstreams_shapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(install_fake(tmp_path / "packages")))
    engine = {
        "provider": "tensorrt",
        "dir": str(write_engine(tmp_path / "model", gather_context_logits=True)),
        "max_seq_len": 2048,
        "is_gathering_generation_logits": True,
        "is_gathering_context_logits": True,
        "is_block_reuse": False,
    }
    more = {f"return_{name}": array(True, np.bool_) for name in ("context_logits", "generation_logits")}
    with ensemble_of(tmp_path, engine) as ensemble:
        for model in MODELS:
            for asked in (streamed(**more), question(**more)):
                [response] = ensemble.ask(asked, model)  # whole, as TensorRT-LLM gives them
                vocab_size = response["generation_logits"].shape[3]
                assert response["generation_logits"].shape == (1, 1, 12, vocab_size)
                assert response["context_logits"].ndim == 3
                assert response["context_logits"].shape[2] == vocab_size
