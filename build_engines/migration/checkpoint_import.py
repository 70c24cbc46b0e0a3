# SPDX-License-Identifier: Apache-2.0
"""An existing checkpoint, quantized or not, as a deployment of provider `vllm`, and as a sealed release.

The checkpoint is looked at as `trireme build` looks at one: no code of it runs, and every tensor is held against its
`config.json`. What it says of its quantization is held against what vLLM 0.32 reads.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from pydantic import JsonValue

from build_engines.checkpoint.checkpoint_check import check_checkpoint
from build_engines.checkpoint.checkpoint_files import read_json
from build_engines.checkpoint.checkpoint_folder import CheckpointFiles
from build_engines.checkpoint.model_shape import ModelShape
from build_engines.checkpoint.quantized_checkpoint import quantized_as
from build_engines.checkpoint.weight_table import LINEAR_ROLES, num_parameters, weights_of
from build_engines.migration.import_report import Entry, Report, carried, implied, nested
from build_engines.migration.importing import Import, name_of, to_text
from build_engines.migration.sealing import TOKENIZER_FILES, check_release_dir, take_files
from build_engines.sharding.shard_plan import plan_shards
from ensemble_configs.releases.file_hashes import hash_file
from ensemble_configs.releases.release_manifest import ReleaseManifest, hash_recipe, seal
from ensemble_configs.releases.release_parts import ModelIdentity, ReleaseLimits
from ensemble_configs.spec.deployment import DeploymentSpec
from ensemble_configs.spec.validation import validate
from trireme.base.errors import SpecError

_MODEL_FILES = (
    "config.json", "generation_config.json", "quantize_config.json", "hf_quant_config.json", "*.safetensors",
    "*.safetensors.index.json",
)  # fmt: skip
# `quant_method` of a checkpoint that vLLM 0.32 reads (QuantizationMethods) and the formats here have a name for, and
# the bits of a weight that its kernels have.
_METHODS: dict[str, tuple[int, ...] | None] = {
    "awq": (4,), "gptq": (2, 3, 4, 8), "compressed-tensors": None, "fp8": None, "fbgemm_fp8": None, "modelopt": None,
    "mxfp4": None,
}  # fmt: skip
_PACKED_BITS = 32  # AWQ packs the weights of several output channels into so many


def is_checkpoint(folder: Path) -> bool:
    """Return True if a folder is a checkpoint of Hugging Face's form, and no model repository."""
    return (folder / "config.json").is_file() and any(folder.glob("*.safetensors"))


def import_checkpoint(
    folder: Path, *, out: Path, release_dir: Path | None = None, tokenizer_dir: Path | None = None
) -> Import:
    """Return a deployment of provider `vllm` for a checkpoint; with a release folder, seal one and deploy that.

    Args:
        folder: config.json and safetensors, in any format that vLLM reads.
        out: where the deployment will be; its name comes from this.
        release_dir: new or empty; gets hard links, or copies on another file system.
        tokenizer_dir: folder of tokenizer.json, if that is not beside the weights.

    Raises:
        SpecError: the checkpoint must not be served, or vLLM does not read its format, or the folder is in use.
    """
    tokenizer = tokenizer_dir or folder
    if release_dir is not None:
        check_release_dir(release_dir, folder, tokenizer)
    files = CheckpointFiles(folder.resolve())
    shape = check_checkpoint(files.dir, tokenizer_dir=tokenizer.resolve()).model
    _refuse_unread(files, shape)
    entries = list(_entries(files, shape, tokenizer.resolve()))
    if release_dir is not None:
        address = _seal(files, shape, tokenizer, release_dir, name=name_of(out))
        entries = [entry for entry in entries if entry.verdict.where not in ("engine.dir", "tokenizer.dir")]
        entries.append(Entry("release", address, carried("release_dir", str(release_dir.resolve()))))
    data = {"name": name_of(out), **nested(entries)}
    ordered: dict[str, object] = {
        key: data[key] for key in ("name", "release_dir", "tokenizer", "engine") if key in data
    }
    return Import(
        deployment=validate(DeploymentSpec, ordered, source=out),
        text=to_text(ordered),
        report=Report(repository=folder, kind="checkpoint", deployment=out, entries=tuple(entries)),
        engine=None,
    )


def _entries(files: CheckpointFiles, shape: ModelShape, tokenizer: Path) -> Iterator[Entry]:
    quantized = quantized_as(files.config, modelopt=_modelopt(files.dir))
    yield Entry("checkpoint", shape.architecture, carried("engine.provider", "vllm"))
    yield Entry("config.json", "", carried("engine.dir", str(files.dir)))
    yield Entry("tokenizer.json", "", carried("tokenizer.dir", str(tokenizer)))
    length = shape.max_position_embeddings
    yield Entry("config.json: max_position_embeddings", str(length), carried("engine.max_seq_len", length))
    told = "16 bits" if quantized is None else quantized.method
    yield Entry("config.json: quantization_config", told, implied("vLLM reads it from the checkpoint"))


def _modelopt(folder: Path) -> Mapping[str, object] | None:
    file = folder / "hf_quant_config.json"
    return read_json(file) if file.is_file() else None


def _refuse_unread(files: CheckpointFiles, shape: ModelShape) -> None:
    """Refuse a quantization that vLLM does not read, or sizes that its format cannot hold.

    Raises:
        SpecError: names what the checkpoint says, and what is allowed.
    """
    facts = files.config.get("quantization_config")
    if not isinstance(facts, Mapping):
        return
    method, bits = str(facts.get("quant_method")), facts.get("bits", facts.get("w_bit"))
    if method not in _METHODS:
        raise SpecError(
            f"{files.dir / 'config.json'}: quantization_config.quant_method is {method!r}; vLLM is served here with "
            f"{', '.join(sorted(_METHODS))}; quantize the original checkpoint with `trireme build`",
            file=files.dir / "config.json",
            field="quantization_config.quant_method",
            value=method,
        )
    known = _METHODS[method]
    if known is not None and bits not in known:
        raise SpecError(
            f"{files.dir / 'config.json'}: quantization_config.bits is {bits!r}; {method} has "
            f"{' or '.join(map(str, known))}; see whether config.json belongs to the weights",
            file=files.dir / "config.json",
            field="quantization_config.bits",
            value=bits,
        )
    group = facts.get("group_size", facts.get("q_group_size"))
    if known is not None and isinstance(group, int) and group > 0:
        _refuse_sizes(files, shape, method, group, packed=_PACKED_BITS // int(str(bits)))


def _refuse_sizes(files: CheckpointFiles, shape: ModelShape, method: str, group: int, *, packed: int) -> None:
    for weight in weights_of(shape):
        if weight.role not in LINEAR_ROLES or weight.is_bias or weight.num_experts > 1:
            continue
        out, width = weight.shape[-2:]
        if width % group or out % packed:
            raise SpecError(
                f"{weight.name} is {out} x {width}: {method} with quantization_config.group_size {group} needs rows "
                f"that {group} divides, and {packed} or a multiple of it of them; one of the two belongs to another "
                "model",
                file=files.dir / "config.json",
                field="quantization_config.group_size",
                value=group,
            )


def _seal(files: CheckpointFiles, shape: ModelShape, tokenizer: Path, folder: Path, *, name: str) -> str:
    recipe: dict[str, JsonValue] = {
        "imported_from": str(files.dir),
        "quantization_config": json.loads(json.dumps(files.config.get("quantization_config"))),
    }
    manifest = ReleaseManifest(
        name=name,
        model=ModelIdentity(
            architecture=shape.architecture,
            num_parameters=num_parameters(shape),
            source=f"imported from {files.dir}",
        ),
        weights_sha256=files.weights_sha256,
        tokenizer_sha256=hash_file(tokenizer / "tokenizer.json"),
        recipe=recipe,
        recipe_sha256=hash_recipe(recipe),
        provider="vllm",
        versions={},
        limits=ReleaseLimits(max_seq_len=shape.max_position_embeddings),
        weight_bytes_per_rank=files.weight_bytes,
        kv_bytes_per_token=round(plan_shards(shape, tp_size=1).kv_bytes_per_token(0, "fp16")),
        kv_block_tokens=16,
        vocab_size=shape.vocab_size,
    )
    take_files(files.dir, folder / "engine", _MODEL_FILES)
    take_files(tokenizer, folder / "engine", TOKENIZER_FILES)  # for guided decoding
    take_files(tokenizer, folder / "tokenizer", TOKENIZER_FILES)
    return seal(folder, manifest)
