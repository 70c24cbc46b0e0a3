# SPDX-License-Identifier: Apache-2.0
"""A side of a comparison on vLLM: what it answers, how likely it finds a text, and how its failures read."""

from pathlib import Path

import numpy as np
import pytest
from vllm_environment import TARGET, WHY_NOT, is_there, vllm_spec

from build_engines.evaluation import vllm_side
from build_engines.evaluation.contestant import load_contestant
from build_engines.evaluation.vllm_side import VllmSide
from build_engines.migration.checkpoint_import import import_checkpoint
from ensemble_configs.spec.engine.vllm_spec import VllmEngineSpec
from serving.text.tokenizer_files import load_tokenizer
from trireme.base.errors import ServerError, SpecError

NEEDED = pytest.mark.skipif(not is_there(), reason=WHY_NOT)


def test_without_vllm_it_is_said_which_option_names_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release = tmp_path / "release"
    import_checkpoint(TARGET, out=tmp_path / "x.yaml", release_dir=release)
    monkeypatch.setattr(vllm_side, "_CHECKOUTS", tmp_path / "nowhere")
    with pytest.raises(SpecError, match="--vllm-venv DIR"):
        load_contestant(release)


@NEEDED
def test_a_release_is_run_as_the_installed_vllm_was_built(tmp_path: Path) -> None:
    release = tmp_path / "release"
    import_checkpoint(TARGET, out=tmp_path / "x.yaml", release_dir=release)
    spec = load_contestant(release).spec
    assert isinstance(spec, VllmEngineSpec)
    assert (spec.device, spec.max_seq_len, spec.dir) == ("cpu", 2048, release / "engine")
    assert (spec.kv_cache_bytes or 0) >= 2048 * 2560  # a whole sequence of 5 layers of 2 heads of 64


@NEEDED
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_texts_are_as_likely_as_their_tokens_one_by_one() -> None:
    tokenizer = load_tokenizer(TARGET)
    ids = np.array(tokenizer.encode("The capital of France is Paris. 23 + 45 = 68").ids, dtype=np.int64)
    with VllmSide(vllm_spec()) as side:
        scores = side.log_probs(ids)
        shorter = side.log_probs(ids[:5])
    assert scores.shape == (len(ids), 4096)
    assert scores.dtype == np.float32
    np.testing.assert_allclose(np.exp(scores.astype(np.float64)).sum(axis=1), 1.0, atol=1e-4)
    np.testing.assert_allclose(scores[:5], shorter, atol=1e-3)  # what comes later changes nothing before
    chosen = scores[np.arange(4, len(ids) - 1), ids[5:]]
    assert chosen.mean() > -4.0  # of 4,096 tokens at random: -8.3


@NEEDED
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_engine_that_cannot_be_loaded_says_why(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"vocab_size": 16, "max_position_embeddings": 512, "model_type": "llama"}')
    with VllmSide(vllm_spec(dir=tmp_path)) as side, pytest.raises(ServerError, match="cannot load"):
        side.answers([[1, 2]], [4])
