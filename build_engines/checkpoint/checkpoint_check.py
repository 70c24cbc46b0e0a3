# SPDX-License-Identifier: Apache-2.0
"""Checks that refuse a checkpoint which cannot become a release, before any work is done on it.

A checkpoint is untrusted: no code of it runs, nothing is unpickled, every length is checked
(`build_engines.checkpoint.checkpoint_files`, `ensemble_configs.releases.safetensors_file`). What a checkpoint should
hold follows from its `config.json` (`build_engines.checkpoint.weight_table`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from build_engines.checkpoint.checkpoint_config import read_whole_model_shape
from build_engines.checkpoint.checkpoint_files import check_links, check_no_code, read_json, shortened, stored_tensors
from build_engines.checkpoint.config_values import load_config
from build_engines.checkpoint.finite_weights import Progress, check_finite
from build_engines.checkpoint.model_shape import ModelShape
from build_engines.checkpoint.tensor_names import tensor_names
from build_engines.checkpoint.weight_table import LINEAR_ROLES, Weight, weights_of
from ensemble_configs.releases.safetensors_file import StoredTensor
from trireme.base.errors import SpecError


@dataclass(frozen=True)
class CheckedCheckpoint:
    """A checkpoint that holds what its model needs.

    Attributes:
        tensors: all tensors of its files, by name.
        unused: names of tensors that the model does not need: buffers, a second copy of a tied head, layers predicting
            further tokens.
        is_quantized: its linear layers are stored in few bits already.
    """

    model: ModelShape
    tensors: Mapping[str, StoredTensor]
    unused: tuple[str, ...]
    is_quantized: bool


def check_checkpoint(
    folder: Path, *, tokenizer_dir: Path | None = None, on_progress: Progress | None = None
) -> CheckedCheckpoint:
    """Check files, names, shapes and tokenizer of a checkpoint, and last every weight.

    Args:
        folder: a Hugging Face checkpoint.
        tokenizer_dir: where `tokenizer.json` is, if not in `folder`.
        on_progress: called with bytes looked at and bytes in all, while weights are read.

    Raises:
        SpecError: the checkpoint must not be used; the message names file, tensor and the next step.
    """
    if not folder.is_dir():
        raise SpecError(f"{folder} is no folder; name the folder of a checkpoint", file=folder)
    check_links(folder)
    config = load_config(folder)
    model = read_whole_model_shape(config, source=str(folder / "config.json"))
    check_no_code(folder)
    tensors = stored_tensors(folder)
    is_quantized = "quantization_config" in config or (folder / "hf_quant_config.json").is_file()
    unused = _check_tensors(folder, model, config, tensors, is_quantized=is_quantized)
    _check_tokenizer((tokenizer_dir or folder) / "tokenizer.json", model)
    check_finite(tensors.values(), on_progress)
    return CheckedCheckpoint(model, tensors, unused, is_quantized)


# What quantized checkpoints have in place of a linear layer's `.weight`, and beside it. Sources: the files that
# AutoAWQ and GPTQModel (qweight, ...), compressed-tensors (weight_packed, ...), ModelOpt (weight_scale_2, input_scale,
# pre_quant_scale), DeepSeek (weight_scale_inv) and gpt-oss (_blocks, _scales) write.
_IN_PLACE = (".weight", ".qweight", ".weight_packed", "_blocks")
_BESIDE = (
    ".qzeros", ".scales", ".g_idx", ".weight_scale", ".weight_scale_2", ".weight_scale_inv", ".weight_zero_point",
    ".weight_g_idx", ".weight_shape", ".weight_global_scale", ".input_scale", ".input_global_scale",
    ".input_zero_point", ".pre_quant_scale", ".k_scale", ".v_scale", ".q_scale", ".output_scale", "_scales",
    ".bias",  # GPTQ writes one of zeros
)  # fmt: skip

_PLAIN_TYPES = frozenset({"F16", "BF16", "F32", "F64"})
_PACKED_TYPES = frozenset({"U8", "I8", "I32", "F4"})

# Buffers that old versions of transformers saved with the weights.
_BUFFERS = (".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias", ".attention.bias", ".attention.masked_bias")

# Architectures whose checkpoints have a part of its own that predicts the token after the next.
_WITH_FURTHER_TOKENS = frozenset({"Qwen3NextForCausalLM"})


def _check_tensors(
    folder: Path, model: ModelShape, config: Mapping[str, object], tensors: Mapping[str, StoredTensor], *,
    is_quantized: bool,
) -> tuple[str, ...]:  # fmt: skip
    """Refuse missing, misshapen and unknown tensors; return the names that are known but not needed."""
    weights = weights_of(model)
    packed = {weight.name for weight in weights if is_quantized and weight.role in LINEAR_ROLES and not weight.is_bias}
    missing = [
        weight.name for weight in weights
        if weight.name not in tensors and not (weight.name in packed and _stored_as(weight.name, _IN_PLACE, tensors))
    ]  # fmt: skip
    if missing:
        raise SpecError(
            f"{folder} lacks {len(missing):,} of the model's {len(weights):,} tensors: {shortened(missing)}; download "
            f"the missing files, or mend config.json if it is another model's",
            file=folder,
            field=missing[0],
        )
    _check_shapes(weights, tensors, packed)
    known = {weight.name for weight in weights} | _quantized_names(packed)
    others = [name for name in tensors if name not in known]
    unknown = [name for name in others if not _is_unneeded(name, model, config)]
    if unknown:
        raise SpecError(
            f"{tensors[unknown[0]].file} holds {len(unknown):,} tensors that no {model.architecture} with this "
            f"config.json has: {shortened(unknown)}; see whether its counts of layers and experts are right",
            file=tensors[unknown[0]].file,
            field=shortened(unknown[:1]),
        )
    return tuple(others)


def _check_shapes(weights: Iterable[Weight], tensors: Mapping[str, StoredTensor], packed: set[str]) -> None:
    for weight in weights:
        found = tensors.get(weight.name)
        if found is None:
            continue
        if weight.name not in packed and found.dtype not in _PLAIN_TYPES:
            raise SpecError(
                f"{found.file}: {weight.name} is stored as {found.dtype}, but config.json has no quantization_config "
                f"that says so, or one that leaves this tensor alone; see that config.json belongs to the weights",
                file=found.file,
                field=weight.name,
            )
        # Two or more numbers in a byte: the last side is shorter than the config says.
        is_packed = weight.name in packed and found.dtype in _PACKED_TYPES and found.shape[:-1] == weight.shape[:-1]
        if found.shape != weight.shape and not is_packed:
            raise SpecError(
                f"{found.file}: {weight.name} has the shape {list(found.shape)}, config.json makes it "
                f"{list(weight.shape)}; one of the two is another model's",
                file=found.file,
                field=weight.name,
            )


def _stored_as(name: str, suffixes: Iterable[str], tensors: Mapping[str, StoredTensor]) -> bool:
    base = name.removesuffix(".weight")
    return any(base + suffix in tensors for suffix in suffixes)


def _quantized_names(packed: Iterable[str]) -> set[str]:
    """Return the names that may replace packed tensors or accompany them.

    Scales of the KV cache accompany every tensor of attention.
    """
    names = set()
    for name in packed:
        base = name.removesuffix(".weight")
        names |= {base + suffix for suffix in (*_IN_PLACE, *_BESIDE)}
        names |= {base.rpartition(".")[0] + suffix for suffix in (".k_scale", ".v_scale", ".kv_scale", ".q_scale")}
    return names


def _is_unneeded(name: str, model: ModelShape, config: Mapping[str, object]) -> bool:
    heads = {tensor_names(model.architecture).get("head"), "lm_head.weight"}
    if name.endswith(_BUFFERS) or (model.is_tied and name in heads):
        return True
    if model.architecture in _WITH_FURTHER_TOKENS and name.startswith("mtp."):
        return True
    # DeepSeek-V3 has layers behind the last that predict the token after the next.
    extra = config.get("num_nextn_predict_layers")
    behind = range(model.num_layers, model.num_layers + min(extra if isinstance(extra, int) else 0, 8))
    return any(name.startswith(f"model.layers.{layer}.") for layer in behind)


def _check_tokenizer(path: Path, model: ModelShape) -> None:
    """Refuse a tokenizer with a token that has no row in the embedding."""
    if not path.is_file():
        raise SpecError(
            f"{path} is missing, which turns text into token ids; save it there with "
            f"AutoTokenizer.from_pretrained(...).save_pretrained(folder)",
            file=path,
        )
    ids = list(_token_ids(read_json(path)))
    if not ids:
        raise SpecError(f"{path} has no vocabulary; save the tokenizer anew", file=path)
    if max(ids) >= model.vocab_size:
        raise SpecError(
            f"{path} has token ids up to {max(ids):,}, the model's vocab_size is {model.vocab_size:,}; take the "
            f"tokenizer that belongs to the model",
            file=path,
            field="vocab_size",
            value=model.vocab_size,
        )


def _token_ids(tokenizer: Mapping[str, object]) -> Iterable[int]:
    """Yield the ids of the vocabulary (an object of ids, or a list whose places are the ids) and of added tokens."""
    inner = tokenizer.get("model")
    vocab = inner.get("vocab") if isinstance(inner, dict) else None
    if isinstance(vocab, dict):
        yield from (token_id for token_id in vocab.values() if type(token_id) is int)
    elif isinstance(vocab, list):
        yield from range(len(vocab))
    added = tokenizer.get("added_tokens")
    for token in added if isinstance(added, list) else ():
        if isinstance(token, dict) and type(token.get("id")) is int:
            yield token["id"]
