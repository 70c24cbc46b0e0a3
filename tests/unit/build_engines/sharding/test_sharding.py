# SPDX-License-Identifier: Apache-2.0
"""Shard plans: what each rank holds, what cannot be divided, and that ranks together hold the model."""

import math
import time
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from shard_coverage import Copies, check_coverage

from build_engines.checkpoint.checkpoint_config import read_model_shape
from build_engines.checkpoint.known_models import known_models
from build_engines.checkpoint.model_shape import (
    DenseMlp,
    ExpertMlp,
    GroupedAttention,
    LatentAttention,
    LayerShape,
    ModelShape,
)
from build_engines.checkpoint.weight_formats import WEIGHT_FORMATS, FormatPlan
from build_engines.checkpoint.weight_table import Role, num_parameters, weights_of
from build_engines.sharding.parallel_sizes import EmbeddingSharding, ParallelSizes, can_divide
from build_engines.sharding.shard_plan import ShardPlan, plan_shards
from build_engines.sharding.tensor_pieces import Cut, Piece
from trireme.base.errors import SpecError


def published(name: str, **change: object) -> ModelShape:
    return read_model_shape(known_models()[name].config | change)


def piece_of(plan: ShardPlan, rank: int, name: str) -> Piece:
    (piece,) = (piece for piece in plan.pieces(rank) if piece.weight.name == name)
    return piece


@st.composite
def models(draw: st.DrawFn) -> ModelShape:
    architecture = draw(
        st.sampled_from(
            ["LlamaForCausalLM", "FalconForCausalLM", "Phi3ForCausalLM", "MixtralForCausalLM", "GptOssForCausalLM",
             "DeepseekV3ForCausalLM", "GPTJForCausalLM", "Qwen2MoeForCausalLM"]
        )
    )  # fmt: skip
    small = st.sampled_from([1, 2, 3, 4, 8])
    num_kv_heads = draw(small)
    attention: GroupedAttention | LatentAttention
    if architecture == "DeepseekV3ForCausalLM":
        attention = LatentAttention(num_kv_heads * draw(small), draw(st.sampled_from([None, 6])), 4, 3, 2, 5)
    else:
        attention = GroupedAttention(
            num_kv_heads * draw(small), num_kv_heads, draw(st.sampled_from([1, 4])),
            has_qkv_bias=draw(st.booleans()), has_output_bias=draw(st.booleans()),
            has_qk_norm=architecture == "LlamaForCausalLM", has_sinks=architecture == "GptOssForCausalLM",
        )  # fmt: skip
    is_gated = architecture not in {"FalconForCausalLM", "GPTJForCausalLM"}
    mlp: DenseMlp | ExpertMlp = DenseMlp(draw(st.sampled_from([8, 24])), is_gated, has_bias=draw(st.booleans()))
    layers = [LayerShape(attention, mlp)] * draw(st.integers(1, 3))
    if architecture in {"MixtralForCausalLM", "GptOssForCausalLM", "DeepseekV3ForCausalLM", "Qwen2MoeForCausalLM"}:
        is_shared = architecture in {"DeepseekV3ForCausalLM", "Qwen2MoeForCausalLM"}
        is_joined = architecture == "GptOssForCausalLM"
        experts = ExpertMlp(
            draw(st.sampled_from([2, 4, 6])), 2, draw(st.sampled_from([4, 12])), 8 if is_shared else 0,
            has_shared_gate=architecture == "Qwen2MoeForCausalLM",
            has_router_bias=architecture in {"DeepseekV3ForCausalLM", "GptOssForCausalLM"}, has_bias=is_joined,
        )  # fmt: skip
        # Dense layers before the experts', as in DeepSeek; Mixtral and GPT-OSS have none, and no names for them.
        layers = (layers if is_shared else []) + [LayerShape(attention, experts)] * draw(st.integers(1, 3))
    return ModelShape(
        architecture, draw(st.integers(1, 40)), 12, tuple(layers), is_tied=draw(st.booleans()),
        max_position_embeddings=64, has_head_bias=architecture == "GPTJForCausalLM",
        has_norm_bias=architecture == "FalconForCausalLM",
    )  # fmt: skip


EMBEDDINGS: list[EmbeddingSharding] = ["none", "vocab", "hidden"]
SIZES = [
    ParallelSizes(*each) for each in product((1, 2, 3, 4, 8), (1, 2, 3), (1, 2, 4), (1, 2), (False, True), EMBEDDINGS)
]


@st.composite
def plans(draw: st.DrawFn) -> ShardPlan:
    model = draw(models())
    return ShardPlan(model, draw(st.sampled_from([each for each in SIZES if can_divide(model, each)])))


@settings(max_examples=50)
@given(plans())
def test_ranks_together_hold_every_number(plan: ShardPlan) -> None:
    model, of = plan.model, plan.sizes
    copies = check_coverage(plan)
    repeated = sum((each.times - 1) * math.prod(end - start for start, end in each.box) for each in copies)
    padding = sum(math.prod([piece.padding, *piece.weight.shape[1:]])
                  for rank in range(of.world_size) for piece in plan.pieces(rank))  # fmt: skip
    head = model.vocab_size * model.hidden_size if model.is_tied and not of.shares_head(model) else 0
    held = sum(plan.num_parameters(rank) for rank in range(of.world_size))
    assert held == num_parameters(model) + head + repeated + padding


@pytest.mark.parametrize("name", known_models())
def test_published_models_can_be_divided(name: str) -> None:
    """Divide the first and the last layer of each model: DeepSeek's first has no experts."""
    model = published(name)
    model = replace(model, layers=(model.layers[0], model.layers[-1]))
    # Of Falcon one of its 71 heads each; of Phi-4 two of its 10 KV heads.
    tp_size = {"falcon-7b": 71, "qwen2.5-0.5b": 2, "qwen2.5-1.5b": 4, "qwen2.5-7b": 4, "phi-4": 5}.get(name, 8)
    check_coverage(plan_shards(model, tp_size=tp_size, pp_size=2))


@settings(max_examples=50)
@given(plans(), st.sampled_from(["bf16", "int8_weight_only", "smoothquant", "fp8", "fp8_rowwise"]))
def test_counting_by_kind_equals_counting_every_piece(plan: ShardPlan, name: str) -> None:
    formats = FormatPlan(WEIGHT_FORMATS[name], head=WEIGHT_FORMATS["int8_weight_only"])
    for rank, counted in enumerate(plan.bytes_per_rank(formats)):
        pieces = list(plan.pieces(rank))
        assert counted == sum(formats.num_bytes_of(piece.weight, piece.shape) for piece in pieces)
        assert plan.num_parameters(rank) == sum(piece.size for piece in pieces)


@settings(max_examples=40)
@given(plans())
def test_each_rank_has_the_kv_heads_of_its_query_heads(plan: ShardPlan) -> None:
    model, of = plan.model, plan.sizes
    assume(isinstance(model.attention, GroupedAttention))
    group = model.attention.num_heads // model.num_kv_heads
    for rank in range(of.world_size):
        heads: dict[str, list[int]] = {"query": [], "key": [], "value": []}
        for piece in plan.pieces(rank):
            is_projection = piece.weight.role in {Role.QUERY, Role.KEY, Role.VALUE, Role.QKV}
            if (
                is_projection
                and piece.weight.layer == plan.stages[of.place(rank).pp_rank][0]
                and not piece.weight.is_bias
            ):
                for part, held in held_heads(model, piece).items():
                    heads[part] += held
        assert heads["key"] == heads["value"] == sorted({head // group for head in heads["query"]})
        assert len(heads["query"]) == model.attention.num_heads // of.dense_tp_size


def held_heads(model: ModelShape, piece: Piece) -> dict[str, list[int]]:
    """Return the heads that a piece of queries, keys, values or all three holds, by the rows of the tensor."""
    attention = model.attention
    assert isinstance(attention, GroupedAttention)
    q, kv, d = attention.num_heads, attention.num_kv_heads, attention.head_dim
    queries, keys, values = ([(part, head) for head in range(n) for _ in range(d)]
                             for part, n in (("query", q), ("key", kv), ("value", kv)))  # fmt: skip
    rows = {Role.QUERY: queries, Role.KEY: keys, Role.VALUE: values, Role.QKV: queries + keys + values}[
        piece.weight.role
    ]
    if piece.weight.role is Role.QKV and model.architecture == "FalconForCausalLM":
        # As Hugging Face's Falcon views them: [KV heads, queries of each + 2, head_dim], the last two key and value.
        heads = []
        for group in range(kv):
            heads += [("query", group * q // kv + i) for i in range(q // kv)] + [("key", group), ("value", group)]
        rows = [head for head in heads for _ in range(d)]
    taken = [rows[row] for start, end in piece.ranges(0) for row in range(start, end)]
    held: dict[str, list[int]] = {}
    for (part, head), number in {key: taken.count(key) for key in taken}.items():
        assert number == d  # whole heads
        held.setdefault(part, []).append(head)
    return held


@pytest.mark.parametrize(
    ("architecture", "tp_size", "expected"),
    [
        ("FalconForCausalLM", 2, {0: ([0, 1, 2, 3], [0]), 1: ([4, 5, 6, 7], [1])}),
        ("Phi3ForCausalLM", 2, {0: ([0, 1, 2, 3], [0]), 1: ([4, 5, 6, 7], [1])}),
        ("FalconForCausalLM", 4, {0: ([0, 1], [0]), 1: ([2, 3], [0]), 2: ([4, 5], [1]), 3: ([6, 7], [1])}),
        ("Phi3ForCausalLM", 4, {0: ([0, 1], [0]), 1: ([2, 3], [0]), 2: ([4, 5], [1]), 3: ([6, 7], [1])}),
    ],
)
def test_a_fused_matrix_is_split_part_by_part(
    architecture: str, tp_size: int, expected: dict[int, tuple[list[int], list[int]]]
) -> None:
    layer = LayerShape(GroupedAttention(8, 2, 3, has_qkv_bias=True), DenseMlp(8, is_gated=False))
    model = ModelShape(architecture, 8, 24, (layer,), is_tied=False, max_position_embeddings=8)
    plan = plan_shards(model, tp_size=tp_size)
    for rank, (queries, keys) in expected.items():
        fused = [piece for piece in plan.pieces(rank) if piece.weight.role is Role.QKV]
        assert [piece.weight.is_bias for piece in fused] == [False, True]
        for piece in fused:
            assert held_heads(model, piece) == {"query": queries, "key": keys, "value": keys}


def test_gate_and_up_in_one_matrix_are_split_each_by_itself() -> None:
    plan = plan_shards(published("phi-3-mini"), tp_size=4)
    assert piece_of(plan, 1, "model.layers.0.mlp.gate_up_proj.weight").cuts == (
        Cut(0, ((2048, 4096), (8192 + 2048, 8192 + 4096))),
    )


def test_what_each_rank_holds_of_llama_70b() -> None:
    plan = plan_shards(published("llama-3.1-70b"), tp_size=4, pp_size=3)
    assert [len(stage) for stage in plan.stages] == [27, 27, 26]  # 80 = 3 * 26 + 2
    held = {piece.weight.name: piece for piece in plan.pieces(5)}  # pp_rank 1, tp_rank 1
    assert {piece.weight.layer for piece in held.values()} == set(range(27, 54))
    at = "model.layers.27"
    assert held[f"{at}.self_attn.q_proj.weight"].cuts == (Cut(0, ((2048, 4096),)),)
    assert held[f"{at}.self_attn.k_proj.weight"].cuts == (Cut(0, ((256, 512),)),)  # KV heads 2 and 3 of 8
    assert held[f"{at}.self_attn.o_proj.weight"].cuts == (Cut(1, ((2048, 4096),)),)
    assert held[f"{at}.mlp.down_proj.weight"].shape == (8192, 7168)
    assert held[f"{at}.input_layernorm.weight"].cuts == ()
    assert {piece.weight.role for piece in plan.pieces(0) if piece.weight.layer is None} == {Role.EMBEDDING}
    assert {piece.weight.role for piece in plan.pieces(11) if piece.weight.layer is None} == {Role.NORM, Role.HEAD}


def test_more_ranks_than_kv_heads_hold_the_same_ones() -> None:
    plan = plan_shards(published("llama-3.1-70b"), tp_size=16)
    name = "model.layers.0.self_attn.k_proj.weight"
    assert [piece_of(plan, rank, name).ranges(0)[0][0] // 128 for rank in range(16)] == [
        rank // 2 for rank in range(16)
    ]
    assert Copies(name, Role.KEY, ((0, 128), (0, 8192)), 2) in check_coverage(
        replace(plan, model=replace(plan.model, layers=plan.model.layers[:1]))
    )
    assert plan.kv_heads_per_rank == 1


def test_only_norms_routers_and_the_like_are_held_more_than_once() -> None:
    model = published("deepseek-v3", num_hidden_layers=2, first_k_dense_replace=1, n_routed_experts=16)
    copies = check_coverage(plan_shards(model, tp_size=4, ep_size=2, pp_size=2))
    assert {each.role for each in copies} == {Role.NORM, Role.ROUTER, Role.LATENT_DOWN}
    assert {each.times for each in copies} == {4}


def test_experts_go_by_ep_and_their_matrices_by_the_rest() -> None:
    plan = plan_shards(published("mixtral-8x7b"), tp_size=4, ep_size=2)
    places = [plan.sizes.place(rank) for rank in range(4)]
    assert [(place.moe_tp_rank, place.moe_ep_rank) for place in places] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    experts = [piece for piece in plan.pieces(3) if piece.weight.expert is not None and piece.weight.layer == 0]
    assert {piece.weight.expert for piece in experts} == {4, 5, 6, 7}
    assert {piece.cuts for piece in experts} == {(Cut(0, ((7168, 14336),)),), (Cut(1, ((7168, 14336),)),)}


def test_experts_in_one_tensor_are_cut_along_two_axes() -> None:
    plan = plan_shards(published("gpt-oss-20b"), tp_size=4, ep_size=2)
    at = "model.layers.0.mlp.experts"
    assert piece_of(plan, 3, f"{at}.gate_up_proj").cuts == (Cut(0, ((16, 32),)), Cut(2, ((2880, 5760),)))
    assert piece_of(plan, 3, f"{at}.gate_up_proj_bias").cuts == (Cut(0, ((16, 32),)), Cut(1, ((2880, 5760),)))
    assert piece_of(plan, 3, f"{at}.down_proj").cuts == (Cut(0, ((16, 32),)), Cut(1, ((1440, 2880),)))
    assert piece_of(plan, 3, f"{at}.down_proj_bias").cuts == (Cut(0, ((16, 32),)),)


def test_joined_experts_with_all_gates_before_all_ups_are_split_each_by_itself() -> None:
    plan = plan_shards(published("llama-4-scout"), tp_size=4, ep_size=2)
    at = "language_model.model.layers.0.feed_forward.experts"
    assert piece_of(plan, 3, f"{at}.gate_up_proj").cuts == (
        Cut(0, ((8, 16),)),
        Cut(2, ((4096, 8192), (8192 + 4096, 8192 + 8192))),
    )
    assert piece_of(plan, 3, f"{at}.down_proj").cuts == (Cut(0, ((8, 16),)), Cut(1, ((4096, 8192),)))


def test_ranks_are_counted_tp_first_then_cp_then_pp() -> None:
    places = [ParallelSizes(tp_size=2, pp_size=2, cp_size=2).place(rank) for rank in range(8)]
    assert [(at.pp_rank, at.cp_rank, at.tp_rank) for at in places] == [
        (0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 1), (1, 0, 0), (1, 0, 1), (1, 1, 0), (1, 1, 1),
    ]  # fmt: skip


@given(st.integers(1, 200), st.integers(1, 16))
def test_layers_are_given_out_as_upstream_does(num_layers: int, pp_size: int) -> None:
    assume(pp_size <= num_layers)
    # torch.tensor_split, of which numpy's array_split is the model.
    expected = [list(part) for part in np.array_split(np.arange(num_layers), pp_size)]
    assert [list(stage) for stage in ParallelSizes(pp_size=pp_size).stages(num_layers)] == expected


def test_a_vocabulary_that_does_not_divide_is_padded_with_zeros() -> None:
    model = published("llama-3.1-8b", vocab_size=32003)
    plan = plan_shards(model, tp_size=4)
    heads = [piece_of(plan, rank, "lm_head.weight") for rank in range(4)]
    assert [(head.ranges(0)[0], head.padding) for head in heads] == [
        ((0, 8001), 0), ((8001, 16002), 0), ((16002, 24003), 0), ((24003, 32003), 1),
    ]  # fmt: skip
    assert {head.shape for head in heads} == {(8001, 4096)}


@pytest.mark.parametrize(
    ("embedding", "shape"), [("none", (128256, 4096)), ("vocab", (32064, 4096)), ("hidden", (128256, 1024))]
)
def test_the_embedding_is_split_along_the_chosen_side(embedding: str, shape: tuple[int, int]) -> None:
    plan = plan_shards(published("llama-3.1-8b"), tp_size=4, embedding=embedding)  # type: ignore[arg-type]
    assert piece_of(plan, 2, "model.embed_tokens.weight").shape == shape
    assert piece_of(plan, 2, "lm_head.weight").shape == (32064, 4096)


@pytest.mark.parametrize(
    ("change", "heads"),
    [
        ({}, 0),
        ({"tp_size": 2}, 0),
        ({"tp_size": 2, "embedding": "none"}, 1),
        ({"tp_size": 2, "embedding": "hidden"}, 1),
        ({"pp_size": 2}, 1),
        ({"tp_size": 2, "cp_size": 1, "is_attention_dp": True}, 0),
    ],
)
def test_a_tied_head_is_copied_where_upstream_does_not_share_it(change: dict[str, object], heads: int) -> None:
    plan = plan_shards(published("qwen2.5-0.5b"), **change)  # type: ignore[arg-type]
    found = [piece for piece in plan.pieces(plan.sizes.world_size - 1) if piece.weight.role is Role.HEAD]
    assert len(found) == heads
    assert {piece.weight.name for piece in found} <= {"model.embed_tokens.weight"}


def test_attention_dp_leaves_only_the_experts_divided() -> None:
    model = published("deepseek-v3", num_hidden_layers=4)
    plan = plan_shards(model, tp_size=8, ep_size=8, is_attention_dp=True)
    for piece in plan.pieces(3):
        assert piece.cuts == ()
        assert piece.weight.expert is None or piece.weight.expert // 32 == 3


def test_bytes_of_one_rank_are_the_whole_models() -> None:
    for name in ("llama-3.1-8b", "mixtral-8x7b", "gpt-oss-20b", "qwen2.5-0.5b"):
        model = published(name)
        for linear in WEIGHT_FORMATS.values():
            if name == "gpt-oss-20b" and max(linear.group) > 16:
                continue  # 2880 is no multiple of 128: the next test but one
            formats = FormatPlan(linear)
            assert plan_shards(model).bytes_per_rank(formats) == (formats.num_bytes(weights_of(model)),)


def test_bytes_of_a_rank_are_exact_with_scales() -> None:
    model = published("llama-3.1-70b")
    awq = WEIGHT_FORMATS["int4_awq"]
    plan = plan_shards(model, tp_size=4, pp_size=2)
    first, last = plan.bytes_per_rank(FormatPlan(awq))[0], plan.bytes_per_rank(FormatPlan(awq))[7]
    layer = (
        awq.num_bytes((2048, 8192)) + 2 * awq.num_bytes((256, 8192)) + awq.num_bytes((8192, 2048))
        + 2 * awq.num_bytes((7168, 8192)) + awq.num_bytes((8192, 7168)) + 2 * 8192 * 2
    )  # fmt: skip
    vocabulary = 128256 // 4 * 8192 * 2
    assert first == 40 * layer + vocabulary
    assert last == 40 * layer + vocabulary + 8192 * 2


@pytest.mark.parametrize(
    ("name", "tp_size", "kv_format", "expected"),
    [
        ("llama-3.1-70b", 4, "fp16", 81_920),
        ("llama-3.1-70b", 4, "fp8", 40_960),
        ("llama-3.1-70b", 16, "fp16", 2 * 80 * 1 * 128 * 2),  # 8 KV heads: at least one a rank
        ("deepseek-v3", 8, "bf16", 61 * (512 + 64) * 2),  # latent vectors are not divided
        ("qwen2.5-7b", 4, "nvfp4", 2 * 28 * 1 * 128 * 0.5625),
    ],
)
def test_kv_bytes_per_token_of_a_rank(name: str, tp_size: int, kv_format: str, expected: float) -> None:
    assert plan_shards(published(name), tp_size=tp_size).kv_bytes_per_token(0, kv_format) == expected


@pytest.mark.parametrize(
    ("tp_size", "pp_size", "linear_layers"),
    [(1, 1, [36]), (4, 1, [36]), (2, 3, [12, 12, 12]), (1, 5, [8, 7, 8, 7, 6])],
)
def test_states_of_linear_attention_are_divided_by_heads_and_stages(
    tp_size: int, pp_size: int, linear_layers: list[int]
) -> None:
    plan = plan_shards(published("qwen3-next-80b-a3b"), tp_size=tp_size, pp_size=pp_size)
    layer = 2 * (32 * 128 * 128 + 8192 * 3) // tp_size  # 16 bits
    assert [plan.state_bytes_per_sequence(rank * tp_size) for rank in range(pp_size)] == [
        layer * number for number in linear_layers
    ]
    assert plan.kv_bytes_per_token(0, "fp16") / 1024 == {1: 2, 2: 1, 4: 1}[tp_size] * sum(
        isinstance(plan.model.layers[index].attention, GroupedAttention) for index in plan.stages[0]
    )
    assert plan.kv_heads_per_rank == {1: 2, 2: 1, 4: 1}[tp_size]


def test_stages_divide_the_kv_cache() -> None:
    plan = plan_shards(published("llama-3.1-8b"), pp_size=3)
    assert [plan.kv_bytes_per_token(rank, "fp16") / 4096 for rank in range(3)] == [11, 11, 10]
    assert [plan_shards(published("llama-3.1-8b"), tp_size=2, is_attention_dp=True).kv_heads_per_rank] == [8]


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("llama-3.1-8b", {"tp_size": 0}, "tp_size must be a whole number, at least 1; got 0"),
        (
            "qwen2.5-7b",
            {"tp_size": 8},
            r"num_attention_heads \(28\) is not divisible by tp_size \(8\); tp_size may be 1, 2, 4$",
        ),
        (
            "llama-3.1-8b",
            {"tp_size": 8, "cp_size": 8},
            r"num_attention_heads \(32\) is not divisible by tp_size \* cp_size \(64\)",
        ),
        (
            "mixtral-8x22b",
            {"tp_size": 6, "intermediate_size": 16386},
            r"of num_key_value_heads \(8\) and tp_size \(6\) neither divides the other; tp_size may be 1, 2$",
        ),
        ("llama-3.1-8b", {"pp_size": 33}, r"pp_size \(33\) is more than the model's 32 layers; pp_size may be 1 to 32"),
        (
            "llama-3.1-8b",
            {"tp_size": 2, "ep_size": 2},
            "ep_size is 2, but LlamaForCausalLM has no experts; ep_size may be 1$",
        ),
        (
            "mixtral-8x7b",
            {"tp_size": 2, "ep_size": 4},
            r"ep_size \(4\) does not divide tp_size \(2\), whose ranks share the experts; ep_size may be 1, 2$",
        ),
        (
            "mixtral-8x7b",
            {"tp_size": 16, "ep_size": 16},
            r"the number of experts \(8\) is not divisible by ep_size \(16\); ep_size may be 1, 2, 4, 8$",
        ),
        (
            "mixtral-8x7b",
            {"tp_size": 2, "ep_size": 2, "cp_size": 2},
            "does not run expert parallelism and context parallelism together",
        ),
        (
            "qwen2.5-7b",
            {"tp_size": 28, "embedding": "hidden"},
            r"intermediate_size \(18944\) is not divisible by tp_size \(28\)",
        ),
        (
            "llama-3.1-8b",
            {"tp_size": 32, "embedding": "hidden", "hidden_size": 4104, "head_dim": 128},
            r"the embedding is split, \(4104\) is not divisible by tp_size \(32\); tp_size may be 1, 2, 4, 8$",
        ),
        (
            "mixtral-8x7b",
            {"tp_size": 32, "ep_size": 2, "intermediate_size": 14328},
            r"the experts' intermediate_size \(14328\) is not divisible by tp_size / ep_size \(16\)",
        ),
        (
            "deepseek-v3",
            {"tp_size": 64, "ep_size": 64, "moe_intermediate_size": 2080},
            r"the shared experts' intermediate_size \(2080\) is not divisible by tp_size \(64\)",
        ),
        (
            "qwen3-next-80b-a3b",
            {"tp_size": 16, "linear_num_key_heads": 8},
            r"linear_num_key_heads \(8\) is not divisible by tp_size \(16\); tp_size may be 1, 2, 4, 8$",
        ),
        (
            "qwen3-next-80b-a3b",
            {"cp_size": 2},
            "cp_size is 2, but its linear attention keeps one state .* cp_size may be 1$",
        ),
    ],
)
def test_what_does_not_divide_is_refused_with_a_way_out(name: str, change: dict[str, Any], words: str) -> None:
    sizes = {key: change[key] for key in change if key in {"tp_size", "pp_size", "ep_size", "cp_size", "embedding"}}
    model = published(name, **{key: value for key, value in change.items() if key not in sizes})
    with pytest.raises(SpecError, match=words):
        plan_shards(model, **sizes)


def test_a_rank_that_does_not_exist_is_refused() -> None:
    with pytest.raises(SpecError, match="rank 4 does not exist; with a world size of 4 there are 0 to 3"):
        next(plan_shards(published("llama-3.1-8b"), tp_size=4).pieces(4))


@pytest.mark.parametrize(
    ("name", "sizes", "linear", "words"),
    [
        ("qwen2.5-7b", {"tp_size": 4}, "int4_awq", None),  # 18944 / 4 = 37 * 128
        (
            "llama-2-7b",
            {"tp_size": 4},
            "int4_awq",
            r"int4_awq has one scale for 128 weights, .* down \[4096, 11008\] is \[4096, 2752\]",
        ),
        (
            "qwen3-30b-a3b",
            {"tp_size": 4},
            "fp8_block",
            r"fp8_block has one scale for 128 weights, .* \[768, 2048\] is \[192, 2048\]",
        ),
        ("qwen3-30b-a3b", {"tp_size": 4, "ep_size": 4}, "fp8_block", None),
        ("gpt-oss-20b", {"tp_size": 2}, "nvfp4", None),
        (
            "gpt-oss-20b",
            {"tp_size": 8},
            "nvfp4",
            r"nvfp4 has one scale for 16 weights, .* down \[32, 2880, 2880\] is \[32, 360, 2880\]",
        ),
        ("llama-2-7b", {"tp_size": 4}, "int8_weight_only", None),
    ],
)
def test_a_group_that_would_lie_on_two_ranks_is_refused(
    name: str, sizes: dict[str, int], linear: str, words: str | None
) -> None:
    plan = plan_shards(published(name), **sizes)  # type: ignore[arg-type]
    formats = FormatPlan(WEIGHT_FORMATS[linear])
    if words is None:
        assert len(plan.bytes_per_rank(formats)) == sizes["tp_size"]
    else:
        with pytest.raises(SpecError, match=words):
            plan.bytes_per_rank(formats)


def test_a_plan_with_a_hole_or_beyond_the_end_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_shards(published("llama-3.1-8b", num_hidden_layers=1), tp_size=2)
    whole = {rank: list(plan.pieces(rank)) for rank in range(2)}
    for wrong, words in (((0, 2000), "numbers of .*q_proj.weight are held"), ((0, 4097), "goes beyond its end")):
        spoilt = [
            Piece(piece.weight, (Cut(0, (wrong,)),)) if piece.weight.role is Role.QUERY else piece for piece in whole[0]
        ]
        monkeypatch.setattr(ShardPlan, "pieces", lambda _, rank, first=spoilt: first if rank == 0 else whole[1])
        with pytest.raises(AssertionError, match=words):
            check_coverage(plan)


def test_no_size_may_do() -> None:
    model = published("mixtral-8x7b", num_attention_heads=7, num_key_value_heads=7, head_dim=128)
    with pytest.raises(SpecError, match=r"not divisible by tp_size \(64\); no tp_size up to 64 would do"):
        plan_shards(model, tp_size=64, ep_size=8)


def test_counting_a_candidate_is_cheap() -> None:
    model = published("deepseek-v3")  # 45,000 tensors
    formats = [FormatPlan(WEIGHT_FORMATS[name]) for name in ("bf16", "fp8_block", "nvfp4")]
    plan_shards(model, tp_size=2).bytes_per_rank(formats[0])  # the tensors of its layers, once
    start = time.perf_counter()
    for tp_size in (1, 2, 4, 8):
        for ep_size in (1, tp_size):
            for each in formats:
                plan_shards(model, tp_size=tp_size, pp_size=2, ep_size=ep_size).bytes_per_rank(each)
    assert time.perf_counter() - start < 24 * 0.01  # 0.6 ms each, measured
