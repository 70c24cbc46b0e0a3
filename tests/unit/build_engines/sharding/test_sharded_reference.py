# SPDX-License-Identifier: Apache-2.0
"""Models run rank by rank, each with its own pieces, against whole ones and against transformers.

The logits of `tests/data/golden_logits.npz` come from transformers (`tests/data/make_golden_logits.py`). Ours are
computed in 64 bits, those in 32, so they agree to 1e-6 of the largest; ours among each other to 1e-10.
"""

from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from sharded_reference import ARCHITECTURES, sharded_logits
from tiny_checkpoints import TINY, Config, random_tensors, weights_hash, write_checkpoint, write_tiny

from build_engines.checkpoint.checkpoint_config import load_model_shape, read_model_shape
from build_engines.checkpoint.weight_table import Role
from build_engines.sharding.shard_plan import ShardPlan, plan_shards
from build_engines.sharding.tensor_pieces import Cut, Piece
from trireme.base.errors import SpecError
from trireme.base.project_files import CODE_ROOT

DEMO = CODE_ROOT / "examples/demo_model/target"


@cache
def golden() -> dict[str, npt.NDArray[Any]]:
    with np.load(CODE_ROOT / "tests/data/golden_logits.npz") as file:
        return dict(file)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("tiny")
    return {name: write_tiny(folder / name, name) for name in TINY} | {"demo": DEMO}


def logits_of(checkpoint: Path, name: str, **sizes: Any) -> npt.NDArray[np.float64]:
    plan = plan_shards(load_model_shape(checkpoint), **sizes)
    return sharded_logits(checkpoint, plan, golden()[f"{name}.ids"].tolist())


@pytest.mark.parametrize("name", [*TINY, "demo"])
def test_the_whole_model_has_the_logits_of_transformers(checkpoints: dict[str, Path], name: str) -> None:
    assert weights_hash(checkpoints[name]) == str(golden()[f"{name}.sha256"])
    expected = golden()[f"{name}.logits"]
    found = logits_of(checkpoints[name], name)[-len(expected) :]
    assert np.abs(found - expected).max() < 1e-6 * np.abs(expected).max()
    assert np.abs(expected).max() > 2  # there is something to compare


def test_every_architecture_that_is_run_is_compared() -> None:
    compared = {config["architectures"][0] for config in TINY.values()}  # type: ignore[index]
    assert set(ARCHITECTURES) == compared


@pytest.mark.parametrize(("tp_size", "pp_size"), list(product([1, 2, 4], [1, 2, 3])))
def test_the_demo_model_in_parts_has_the_logits_of_the_whole(
    checkpoints: dict[str, Path], tp_size: int, pp_size: int
) -> None:
    """Divide 2 KV heads over 4 ranks, and 5 layers over 2 and 3 stages."""
    whole = logits_of(checkpoints["demo"], "demo")
    found = logits_of(checkpoints["demo"], "demo", tp_size=tp_size, pp_size=pp_size)
    assert np.abs(found - whole).max() < 1e-10


@pytest.mark.parametrize(
    ("name", "tp_size", "ep_size"),
    [
        (name, tp, ep)
        for name in ("mixtral", "qwen2-moe", "qwen3-moe", "qwen3-next", "deepseek")
        for tp in (1, 2, 4)
        for ep in (1, 2, 4)
        if ep <= tp
    ],
)
def test_experts_in_parts_have_the_logits_of_the_whole(
    checkpoints: dict[str, Path], name: str, tp_size: int, ep_size: int
) -> None:
    whole = logits_of(checkpoints[name], name)
    found = logits_of(checkpoints[name], name, tp_size=tp_size, ep_size=ep_size, pp_size=2)
    assert np.abs(found - whole).max() < 1e-10


@pytest.mark.parametrize("embedding", ["none", "vocab", "hidden"])
@pytest.mark.parametrize("name", ["llama-biases", "mistral-window", "qwen2-mqa", "qwen3", "phi3", "deepseek"])
def test_every_way_of_building_a_layer_can_be_divided(checkpoints: dict[str, Path], name: str, embedding: str) -> None:
    """Divide biases, a window, one KV head, norms of heads, fused matrices, latents and odd vocabularies."""
    whole = logits_of(checkpoints[name], name)
    for tp_size, pp_size in ((2, 1), (4, 1), (4, 3)):
        found = logits_of(checkpoints[name], name, tp_size=tp_size, pp_size=pp_size, embedding=embedding)
        assert found.shape == whole.shape
        assert np.abs(found - whole).max() < 1e-10


@pytest.mark.parametrize(
    ("name", "role", "wrong"),
    [
        ("demo", Role.DOWN, Cut(1, ((0, 384),))),  # both ranks the first half
        ("demo", Role.KEY, Cut(0, ((64, 128),))),
        ("phi3", Role.GATE_UP, Cut(0, ((0, 24),))),  # all gates, no ups: not each part by itself
        ("deepseek", Role.LATENT_KV, Cut(0, ((0, 22),))),
        ("qwen3-next", Role.LINEAR_IN, Cut(0, ((0, 80),))),
        ("qwen3-next", Role.LINEAR_GATES, Cut(0, ((0, 8),))),
        ("qwen3-next", Role.DECAY, Cut(0, ((0, 4),))),
        ("qwen3-next", Role.CONV, Cut(0, ((0, 56),))),  # half of all channels, not of each section
    ],
)
def test_a_wrong_plan_gives_other_logits(
    checkpoints: dict[str, Path], monkeypatch: pytest.MonkeyPatch, name: str, role: Role, wrong: Cut
) -> None:
    whole = logits_of(checkpoints[name], name)
    pieces = ShardPlan.pieces
    monkeypatch.setattr(
        ShardPlan,
        "pieces",
        lambda plan, rank: [
            Piece(piece.weight, (wrong,))
            if piece.weight.role is role and piece.weight.expert is None and piece.cuts
            else piece
            for piece in pieces(plan, rank)
        ],
    )
    assert np.abs(logits_of(checkpoints[name], name, tp_size=2) - whole).max() > 0.01


def test_a_rank_reads_no_more_than_its_pieces(checkpoints: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    read: dict[str, int] = {}
    monkeypatch.setattr("sharded_reference.as_floats", lambda tensor, numbers: _counted(read, tensor, numbers))
    logits_of(checkpoints["mixtral"], "mixtral", tp_size=2)
    model = load_model_shape(checkpoints["mixtral"])
    plan = plan_shards(model, tp_size=2)
    expected: dict[str, int] = {}
    for rank in range(2):
        for piece in plan.pieces(rank):
            expected[piece.weight.name] = expected.get(piece.weight.name, 0) + piece.size
    assert read == expected


def _counted(read: dict[str, int], tensor: Any, numbers: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    read[tensor.name] = read.get(tensor.name, 0) + numbers.size
    return numbers.astype(np.float32)


@pytest.mark.parametrize(
    ("change", "sizes", "words"),
    [
        ({"hidden_act": "gelu"}, {}, "hidden_act 'gelu' is not run here; only silu"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, {}, "rope_type 'llama3' is not run here"),
        ({"architectures": ["GemmaForCausalLM"]}, {}, "GemmaForCausalLM is not run here; there are Deep"),
        ({}, {"cp_size": 2}, "context parallelism and attention DP are not run here"),
        ({}, {"tp_size": 2, "is_attention_dp": True}, "context parallelism and attention DP are not run here"),
    ],
)  # fmt: skip
def test_what_is_not_run_is_refused(tmp_path: Path, change: Config, sizes: dict[str, Any], words: str) -> None:
    config = TINY["mistral-window"] | change
    write_checkpoint(tmp_path, config, {})
    with pytest.raises(SpecError, match=words):
        sharded_logits(tmp_path, plan_shards(read_model_shape(config), **sizes), [0])


def test_a_missing_or_misshapen_tensor_is_named(tmp_path: Path) -> None:
    config = TINY["qwen3"]
    tensors = random_tensors(config)
    name = "model.layers.1.self_attn.k_proj.weight"
    for wrong, words in ((None, "is missing"), (tensors[name].T, r"has the shape \[32, 24\]; .* wants \[24, 32\]")):
        changed = {key: value for key, value in tensors.items() if key != name}
        if wrong is not None:
            changed[name] = wrong
        write_checkpoint(tmp_path, config, changed)
        with pytest.raises(SpecError, match=f"{name} {words}"):
            sharded_logits(tmp_path, plan_shards(read_model_shape(config)), [0])
