# SPDX-License-Identifier: Apache-2.0
"""The reasons for which a checkpoint is refused, and what is let through."""

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tiny_checkpoints import TINY, Config, random_tensors, safetensors_bytes, write_checkpoint

from build_engines.checkpoint import finite_weights
from build_engines.checkpoint.checkpoint_check import check_checkpoint
from build_engines.checkpoint.checkpoint_files import stored_tensors
from build_engines.checkpoint.finite_weights import check_finite
from ensemble_configs.releases.safetensors_file import read_header
from trireme.base.errors import SpecError
from trireme.base.project_files import CODE_ROOT

DEMO = CODE_ROOT / "examples/demo_model/target"
CONFIG = TINY["mixtral"]
DOWN = "model.layers.1.self_attn.o_proj.weight"

Tensors = dict[str, npt.NDArray[Any]]


def write(folder: Path, config: Config | None = None, change: Callable[[Tensors], object] = lambda _: None) -> Path:
    """Write a checkpoint that would pass, but for what `change` does to its tensors."""
    config = CONFIG if config is None else config
    tensors: Tensors = dict(random_tensors(config))
    change(tensors)
    write_checkpoint(folder, config, tensors)
    vocab = {f"t{index}": index for index in range(48)}
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"type": "BPE", "vocab": vocab}}))
    return folder


def write_parts(folder: Path, change: Callable[[dict[str, str]], object] = lambda _: None) -> Path:
    """Write a checkpoint in two files and an index, which `change` may spoil."""
    write(folder)
    tensors = random_tensors(CONFIG)
    (folder / "model.safetensors").unlink()
    weight_map = {name: f"part-{1 + index % 2}.safetensors" for index, name in enumerate(tensors)}
    for file in set(weight_map.values()):
        part = {name: tensors[name] for name in tensors if weight_map[name] == file}
        (folder / file).write_bytes(safetensors_bytes(part))
    change(weight_map)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


def test_the_demo_model_passes() -> None:
    seen: list[tuple[int, int]] = []
    checked = check_checkpoint(DEMO, on_progress=lambda done, total: seen.append((done, total)))
    assert (checked.unused, checked.is_quantized) == ((), False)
    assert seen[-1] == (2 * 4_983_552, 2 * 4_983_552)
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})


@pytest.mark.parametrize("name", TINY)
def test_every_kind_of_checkpoint_passes(tmp_path: Path, name: str) -> None:
    assert len(check_checkpoint(write(tmp_path, TINY[name])).tensors) == len(random_tensors(TINY[name]))


def test_one_in_parts_passes(tmp_path: Path) -> None:
    checked = check_checkpoint(write_parts(tmp_path))
    assert {tensor.file.name for tensor in checked.tensors.values()} == {"part-1.safetensors", "part-2.safetensors"}


def test_what_the_model_does_not_need_is_let_through_and_named(tmp_path: Path) -> None:
    zeros = np.zeros((2, 2), np.float32)
    config = TINY["deepseek"] | {"num_nextn_predict_layers": 1}
    extra = ["model.layers.0.self_attn.rotary_emb.inv_freq", "model.layers.3.eh_proj.weight"]
    checked = check_checkpoint(
        write(tmp_path / "a", config, lambda tensors: tensors.update(dict.fromkeys(extra, zeros)))
    )
    assert checked.unused == tuple(extra)
    further = "mtp.layers.0.self_attn.q_proj.weight"
    hybrid = check_checkpoint(write(tmp_path / "c", TINY["qwen3-next"], lambda it: it.update({further: zeros})))
    assert hybrid.unused == (further,)
    tied = check_checkpoint(write(tmp_path / "b", TINY["qwen2-mqa"], lambda it: it.update({"lm_head.weight": zeros})))
    assert tied.unused == ("lm_head.weight",)


@pytest.mark.parametrize(
    ("config", "change", "words"),
    [
        ({"architectures": ["MambaForCausalLM"]}, {}, "config.json: architecture 'MambaForCausalLM' is not known here"),
        ({"auto_map": {"AutoModel": "modeling.Model"}}, {}, r"config.json wants remote code \(auto_map\).*delete it"),
        ({}, {DOWN: None}, rf"lacks 1 of the model's 60 tensors: {DOWN}; download"),
        (
            {}, {"model.layers.0.mlp.secret": np.zeros(1, np.float32)},
            "holds 1 tensors that no MixtralForCausalLM .* has: model.layers.0.mlp.secret; see",
        ),
        (
            {"num_hidden_layers": 4}, {},
            r"lacks 19 of the model's 79 tensors: model.layers.3.input_layernorm.weight, .* and 16 more",
        ),
        ({"num_hidden_layers": 2}, {}, r"holds 19 tensors that no MixtralForCausalLM with .*: model.layers.2.input"),
        (
            {}, {DOWN: np.zeros((32, 31), np.float32)},
            rf"model.safetensors: {DOWN} has the shape \[32, 31\], config.json makes it \[32, 32\]",
        ),
        ({}, {DOWN: np.zeros((32, 32), np.int8)}, f"{DOWN} is stored as I8, but config.json has no quant"),
    ],
)  # fmt: skip
def test_what_is_refused_for_its_config_or_tensors(
    tmp_path: Path, config: Config, change: dict[str, Any], words: str
) -> None:
    def spoil(tensors: Tensors) -> None:
        for name, values in change.items():
            if values is None:
                del tensors[name]
            else:
                tensors[name] = values

    write(tmp_path, change=spoil)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | config))
    with pytest.raises(SpecError, match=words):
        check_checkpoint(tmp_path)


@pytest.mark.parametrize("suffix", [".bin", ".pt", ".pth"])
def test_pickled_weights_are_refused_without_being_opened(tmp_path: Path, suffix: str) -> None:
    write(tmp_path)
    (tmp_path / f"pytorch_model{suffix}").write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    check_checkpoint(tmp_path)  # beside safetensors it is not used
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(
        SpecError, match=rf"has pickled weights only \(pytorch_model{suffix}\).*safe_serialization=True"
    ):
        check_checkpoint(tmp_path)


def test_code_beside_the_weights_is_refused(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"auto_map": {}}')
    with pytest.raises(SpecError, match=r"tokenizer_config.json wants remote code"):
        check_checkpoint(tmp_path)
    (tmp_path / "modeling_own.py").write_text("raise SystemExit")
    with pytest.raises(SpecError, match=r"brings code with it \(modeling_own.py\), which is never run here"):
        check_checkpoint(tmp_path)


def test_a_folder_without_weights_or_with_too_many_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="none is no folder"):
        check_checkpoint(tmp_path / "none")
    folder = write(tmp_path / "a")
    (folder / "consolidated.safetensors").write_bytes(b"")
    with pytest.raises(
        SpecError, match=r"has 2 files of weights \(consolidated.safetensors, model.safetensors\) and no"
    ):
        check_checkpoint(folder)
    for file in folder.glob("*.safetensors"):
        file.unlink()
    with pytest.raises(SpecError, match=r"has no \*.safetensors; name the folder of a checkpoint"):
        check_checkpoint(folder)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({DOWN: "part-3.safetensors"}, "names part-3.safetensors, which is not there; download it too"),
        ({DOWN: "../part-1.safetensors"}, r"names '../part-1.safetensors', which is no \*.safetensors file of this"),
        ({DOWN: "/etc/passwd"}, "names '/etc/passwd', which is no"),
        ({DOWN: "..\\part-1.safetensors"}, "which is no"),
        ({DOWN: "pytorch_model.bin"}, "names 'pytorch_model.bin', which is no"),
        ({DOWN: "x" * 5000 + ".safetensors"}, "which is no"),
        ({DOWN: "\ud800.safetensors"}, "which is no"),
        ({DOWN: 3}, "has no weight_map of tensors and files"),
        ({"another.weight": "part-1.safetensors"}, "says that part-1.safetensors holds another.weight, but"),
        (dict.fromkeys(["model.norm.weight", DOWN], "part-1.safetensors"), "knows nothing or says that another"),
    ],
)  # fmt: skip
def test_an_index_that_lies_is_refused(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    write_parts(tmp_path / "a", lambda weight_map: weight_map.update(change))
    with pytest.raises(SpecError, match=words):
        check_checkpoint(tmp_path / "a")


def test_a_tensor_that_the_index_does_not_know_is_refused(tmp_path: Path) -> None:
    write_parts(tmp_path, lambda weight_map: weight_map.pop(DOWN))
    with pytest.raises(SpecError, match=rf"holds {DOWN}, of which .*index.json knows nothing"):
        check_checkpoint(tmp_path)


def test_an_index_beside_a_whole_file_is_refused(tmp_path: Path) -> None:
    write_parts(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(safetensors_bytes({}))
    with pytest.raises(SpecError, match=r"has both model.safetensors and model.safetensors.index.json"):
        check_checkpoint(tmp_path)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_link_out_of_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    write(tmp_path / "a")
    (tmp_path / "a" / name).rename(tmp_path / "elsewhere")
    (tmp_path / "a" / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(
        SpecError, match=f"{name} is a link out of the checkpoint, to {tmp_path}/elsewhere; copy .* cp -rL"
    ):
        check_checkpoint(tmp_path / "a")
    (tmp_path / "elsewhere").rename(tmp_path / "a" / "blob")
    (tmp_path / "a" / name).unlink()
    (tmp_path / "a" / name).symlink_to("blob")
    check_checkpoint(tmp_path / "a")  # within the folder it may be


TOO_MANY = {f"t{index}": index for index in range(51)}


@pytest.mark.parametrize(
    ("tokenizer", "words"),
    [
        (
            {"model": {"vocab": TOO_MANY}},
            r"has token ids up to 50, the model's vocab_size is 50; take the tokenizer that",
        ),
        ({"model": {"vocab": {"a": 0}}, "added_tokens": [{"id": 50, "content": "<x>"}]}, "has token ids up to 50"),
        ({"model": {"vocab": [["a", -1.0]] * 51}}, "has token ids up to 50"),
        ({"model": {}}, "has no vocabulary; save the tokenizer anew"),
        ([], "holds no object of keys and values"),
        (None, "tokenizer.json is missing, which turns text into token ids"),
    ],
)
def test_a_tokenizer_that_does_not_fit_is_refused(tmp_path: Path, tokenizer: object, words: str) -> None:
    write(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    if tokenizer is not None:
        (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(SpecError, match=words):
        check_checkpoint(tmp_path)


def test_a_tokenizer_may_lie_elsewhere(tmp_path: Path) -> None:
    write(tmp_path / "a")
    (tmp_path / "a/tokenizer.json").unlink()
    with pytest.raises(SpecError, match="token ids up to 4,095, the model's vocab_size is 50"):
        check_checkpoint(tmp_path / "a", tokenizer_dir=DEMO)


def spoilt(value: float, dtype: str) -> Callable[[Tensors], None]:
    def spoil(tensors: Tensors) -> None:
        wide = tensors[DOWN].astype(np.float32)
        wide[3, 7] = wide[31, 31] = value
        if dtype == "bf16":
            tensors[DOWN] = (wide.view(np.uint32) >> 16).astype(np.uint16)
        else:
            tensors[DOWN] = wide.astype(dtype)

    return spoil


@pytest.mark.parametrize("dtype", ["bf16", "float16", "float32", "float64"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_not_finite_are_refused(tmp_path: Path, dtype: str, value: float) -> None:
    write(tmp_path / "good", change=spoilt(-1.5, dtype))
    check_checkpoint(tmp_path / "good")
    write(tmp_path / "bad", change=spoilt(value, dtype))
    with pytest.raises(
        SpecError, match=rf"{DOWN} has 2 weights that are NaN or infinite, the first at \[3, 7\]; no release is made"
    ):
        check_checkpoint(tmp_path / "bad")


def test_the_largest_finite_weights_pass(tmp_path: Path) -> None:
    path = tmp_path / "x"
    largest = np.array([np.finfo(np.float32).max, -np.finfo(np.float32).max, 1e-45], np.float32)
    path.write_bytes(safetensors_bytes({"a": largest, "b": np.array([65504.0, -65504.0], np.float16)}))
    assert check_finite(read_header(path).values()) == 16


@pytest.mark.parametrize(
    ("dtype", "good", "bad"),
    [("F8_E4M3", 0xFE, 0xFF), ("F8_E5M2", 0x7B, 0x7C), ("F8_E8M0", 0xFE, 0xFF), ("U8", 0xFF, None)],
)
def test_weights_of_8_bits_have_their_own_patterns(tmp_path: Path, dtype: str, good: int, bad: int | None) -> None:
    path = tmp_path / "x"
    for byte in (good, bad):
        header = json.dumps({"a": {"dtype": dtype, "shape": [2], "data_offsets": [0, 2]}}).encode()
        path.write_bytes(len(header).to_bytes(8, "little") + header + bytes([0, byte or 0]))
        if byte is good or bad is None:
            check_finite(read_header(path).values())
        else:
            with pytest.raises(SpecError, match=r"a has 1 weights that are NaN or infinite, the first at \[1\]"):
                check_finite(read_header(path).values())


def test_the_scan_goes_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finite_weights, "CHUNK_BYTES", 2**16)
    values = np.zeros((1024, 2048), np.float32)  # 8 MiB, 128 parts
    values[1000, 3] = np.nan
    path = tmp_path / "x"
    path.write_bytes(safetensors_bytes({"a": values}))
    stored = read_header(path)
    seen: list[int] = []
    tracemalloc.start()
    with pytest.raises(SpecError, match=r"a has 1 weights .* the first at \[1000, 3\]"):
        check_finite(stored.values(), lambda done, _: seen.append(done))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert seen == [2**16 * (index + 1) for index in range(128)]
    assert peak < 2**20


def test_a_file_that_shrinks_under_the_scan_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(safetensors_bytes({"a": np.zeros(100, np.float32)}))
    stored = read_header(path)
    with path.open("r+b") as file:
        file.truncate(200)
    with pytest.raises(SpecError, match="became shorter while it was read"):
        check_finite(stored.values())


QUANTIZED = CONFIG | {"quantization_config": {"quant_method": "some"}}
FLOAT = np.ones((1,), np.float32)


def quantized(name: str, parts: dict[str, npt.NDArray[Any]]) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        del tensors[name]
        base = name.removesuffix(".weight")
        tensors.update({base + suffix: values for suffix, values in parts.items()})

    return change


@pytest.mark.parametrize(
    "parts",
    [
        {".qweight": np.zeros((32, 4), np.int32), ".qzeros": np.zeros((1, 4), np.int32), ".scales": FLOAT},  # AWQ
        {".qweight": np.zeros((4, 32), np.int32), ".qzeros": np.zeros((1, 4), np.int32), ".scales": FLOAT,
         ".g_idx": np.zeros(32, np.int32), ".bias": FLOAT},  # GPTQ
        {".weight_packed": np.zeros((32, 4), np.int32), ".weight_scale": FLOAT, ".weight_shape": np.zeros(2, np.int32)},
        {".weight": np.zeros((32, 32), np.int8), ".weight_scale": FLOAT, ".input_scale": FLOAT},
        {".weight": np.zeros((32, 16), np.uint8), ".weight_scale": FLOAT, ".weight_scale_2": FLOAT},  # NVFP4
        {".weight": np.zeros((32, 32), np.uint8), ".weight_scale_inv": FLOAT, ".pre_quant_scale": FLOAT},
        {".weight": np.zeros((32, 32), np.float32), ".k_scale": FLOAT},
    ],
)  # fmt: skip
def test_a_quantized_checkpoint_passes(tmp_path: Path, parts: dict[str, npt.NDArray[Any]]) -> None:
    write(tmp_path / "a", QUANTIZED, quantized(DOWN, parts))
    assert check_checkpoint(tmp_path / "a").is_quantized
    write(tmp_path / "b", CONFIG, quantized(DOWN, parts))
    with pytest.raises(SpecError, match="o_proj"):  # without the config's word for it
        check_checkpoint(tmp_path / "b")
    (tmp_path / "b/hf_quant_config.json").write_text("{}")
    assert check_checkpoint(tmp_path / "b").is_quantized


def test_a_quantized_checkpoint_is_no_excuse(tmp_path: Path) -> None:
    scales_alone = quantized(DOWN, {".weight_scale": FLOAT})
    for index, (change, words) in enumerate(
        [
            (scales_alone, "lacks 1 of the model's 60 tensors"),
            (quantized("model.norm.weight", {".qweight": FLOAT}), "lacks 1 of .* model.norm.weight"),
            (quantized(DOWN, {".weight": np.zeros((31, 16), np.uint8)}), r"has the shape \[31, 16\]"),
            (quantized(DOWN, {".qweight": FLOAT, ".secret": FLOAT}), "holds 1 tensors that no .*o_proj.secret"),
        ]
    ):
        with pytest.raises(SpecError, match=words):
            check_checkpoint(write(tmp_path / str(index), QUANTIZED, change))


def test_names_from_the_checkpoint_cannot_write_to_the_terminal(tmp_path: Path) -> None:
    write(tmp_path, change=lambda tensors: tensors.update({"\x1b[2J\nfine": FLOAT}))
    with pytest.raises(SpecError) as error:
        check_checkpoint(tmp_path)
    assert str(error.value).isprintable()


def test_one_file_of_any_name_will_do(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "weights.safetensors")
    assert len(stored_tensors(tmp_path)) == 60
