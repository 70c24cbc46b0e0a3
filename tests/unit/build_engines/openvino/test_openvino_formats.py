# SPDX-License-Identifier: Apache-2.0

import pytest

from build_engines.checkpoint.checkpoint_config import load_model_shape, read_model_shape
from build_engines.checkpoint.known_models import known_models
from build_engines.checkpoint.model_shape import ModelShape
from build_engines.openvino.openvino_formats import (
    group_of,
    ir_formats,
    kv_bytes_per_token,
    linear_bytes,
    openvino_bytes,
)
from build_engines.recipes.recipe import OpenVinoRecipe
from trireme.base.errors import SpecError
from trireme.base.project_files import CODE_ROOT

DEMO_MODEL = CODE_ROOT / "examples" / "demo_model"

# Of the demo model: rows and weights of the layers' matrices (five layers), and of the tied embedding.
ROWS = 5 * (256 + 128 + 128 + 256 + 768 + 768 + 256)
LINEAR = 5 * 256 * (256 + 128 + 128 + 256 + 3 * 768)
EMBEDDING = 4096 * 256
NORMS = 11 * 256 * 4


@pytest.fixture(scope="module")
def demo() -> ModelShape:
    return load_model_shape(DEMO_MODEL / "target")


def recipe(**fields: object) -> OpenVinoRecipe:
    return OpenVinoRecipe.model_validate({"name": "x", "model": "demo", "backend": "openvino", **fields})


def llama(**fields: object) -> ModelShape:
    return read_model_shape(
        {
            "architectures": ["LlamaForCausalLM"], "vocab_size": 512, "hidden_size": 128, "intermediate_size": 688,
            "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, **fields,
        }
    )  # fmt: skip


def test_the_demo_models_arithmetic(demo: ModelShape) -> None:
    fp16 = 2 * (LINEAR + EMBEDDING) + NORMS
    int8 = LINEAR + EMBEDDING + 3 * (ROWS + 4096) + NORMS  # a scale of 2 bytes and a zero point of 1 for each row
    int4 = LINEAR // 2 + 2 * LINEAR // 128 + EMBEDDING + 2 * 4096 + NORMS
    assert openvino_bytes(demo, recipe(format="fp16")) == fp16
    assert openvino_bytes(demo, recipe(format="int8")) == int8
    assert openvino_bytes(demo, recipe(format="int4", group_size=128, is_symmetric=True)) == int4


def test_the_committed_int8_model_is_as_large_as_predicted(demo: ModelShape) -> None:
    size = (DEMO_MODEL / "openvino" / "target" / "openvino_model.bin").stat().st_size
    assert 0 <= size - openvino_bytes(demo, recipe(format="int8")) < 500  # rotary frequencies, shapes, epsilons


def test_linear_weights_shrink_about_two_and_about_four_times(demo: ModelShape) -> None:
    fp16 = linear_bytes(demo, recipe(format="fp16"))
    assert fp16 == 2 * LINEAR
    assert fp16 / linear_bytes(demo, recipe(format="int8")) == pytest.approx(2 / (1 + 3 * ROWS / LINEAR))
    # 16 bits against 4 and a scale of 16 for 128 weights: 16 / 4.125
    assert fp16 / linear_bytes(demo, recipe(format="int4", group_size=128, is_symmetric=True)) == 16 / 4.125


def test_a_ratio_leaves_the_rest_in_int8(demo: ModelShape) -> None:
    int4, int8 = (linear_bytes(demo, recipe(format=form, is_symmetric=True)) for form in ("int4", "int8"))
    assert linear_bytes(demo, recipe(format="int4", is_symmetric=True, ratio=0.75)) == 0.75 * int4 + 0.25 * int8


@pytest.mark.parametrize(
    ("width", "group_size", "group"),
    [(768, 128, 128), (704, 128, 64), (736, 128, 32), (688, 128, None), (688, None, 0), (704, 32, 32)],
)
def test_a_group_divides_the_row_or_the_layer_gets_int8(width: int, group_size: int | None, group: int | None) -> None:
    assert group_of(width, group_size) == group


def test_a_layer_that_no_group_divides_is_counted_in_int8() -> None:
    model = llama()  # the rows of down_proj have 688 weights = 16 * 43
    layer = 128 * (128 + 64 + 64 + 128) + 2 * 688 * 128  # the others
    expected = layer // 2 + 2 * layer // 128 + 128 * 688 + 2 * 128
    assert linear_bytes(model, recipe(format="int4", group_size=128, is_symmetric=True)) == expected


def test_embedding_and_head_have_formats_of_their_own() -> None:
    model = llama(tie_word_embeddings=False)
    auto = openvino_bytes(model, recipe(format="int4", is_symmetric=True))
    named = openvino_bytes(model, recipe(format="int4", is_symmetric=True, embedding_format="fp16", head_format="int4"))
    # [512, 128]: 2 bytes instead of 1 and a scale a row; half a byte instead of 1, with the same scales
    assert named - auto == (2 - 1) * 512 * 128 - 2 * 512 - 512 * 128 // 2


def test_a_tied_head_has_the_format_of_the_embedding(demo: ModelShape) -> None:
    formats = ir_formats(demo, recipe(format="int4", head_format="fp16"))
    assert (formats.linear, formats.embedding, formats.head) == ("int4", "fp16", "fp16")
    with pytest.raises(SpecError, match=r"head_format \(int8\) must be embedding_format \(fp16\)"):
        ir_formats(demo, recipe(format="int4", embedding_format="fp16", head_format="int8"))


def test_a_group_size_without_kernels_is_refused(demo: ModelShape) -> None:
    with pytest.raises(SpecError, match="group_size must be one of 32, 64, 128"):
        openvino_bytes(demo, recipe(format="int4", group_size=96))


@pytest.mark.parametrize(("name", "kind"), [("deepseek-v3", "latent"), ("qwen3-next-80b-a3b", "linear")])
def test_attention_that_openvino_cannot_page_is_refused(name: str, kind: str) -> None:
    model = read_model_shape(known_models()[name].config)
    with pytest.raises(SpecError, match=f"has {kind} attention, which OpenVINO cannot page; take backend pytorch"):
        kv_bytes_per_token(model, recipe(format="fp16", kv_format="fp16"))


def test_the_kv_cache_takes_what_the_engine_reports(demo: ModelShape) -> None:
    # 5 layers of 2 heads of 64: in 16 bits; in 8 with a scale and a zero point of 4 bytes for 32 keys and for a value
    assert kv_bytes_per_token(demo, recipe(format="fp16", kv_format="fp16")) == 5 * 2 * 64 * 2 * 2
    for kv_format in ("auto", "int8"):
        expected = 5 * 2 * ((64 + 64 * 8 / 32) + (64 + 8))
        assert kv_bytes_per_token(demo, recipe(format="fp16", kv_format=kv_format)) == expected
