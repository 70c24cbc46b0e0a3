# SPDX-License-Identifier: Apache-2.0
"""A built release of the demo model, of real files: the committed engine and tokenizer, sealed."""

import json
import shutil
from importlib.metadata import version
from pathlib import Path

from ensemble_configs.releases.file_hashes import hash_file
from ensemble_configs.releases.release_manifest import ReleaseManifest, hash_recipe, seal
from ensemble_configs.releases.release_parts import ModelIdentity, ReleaseLimits

DEMO_MODEL = Path(__file__).resolve().parent.parent.parent / "examples" / "demo_model"
NUM_PARAMETERS = 4_983_552
VOCAB_SIZE = 4096
# 2 * 5 layers * 2 heads * 64 * 2 bytes
KV_BYTES_PER_TOKEN = 2560


def demo_manifest(**changes: object) -> ReleaseManifest:
    """Return the manifest of the demo's release before it is sealed; `changes` go over its fields."""
    recipe = {"name": "demo", "format": "int8"}
    fields: dict[str, object] = {
        "name": "demo-int8",
        "model": ModelIdentity(
            architecture="LlamaForCausalLM", num_parameters=NUM_PARAMETERS, source="examples/demo_model"
        ),
        "weights_sha256": hash_file(DEMO_MODEL / "target" / "model.safetensors"),
        "tokenizer_sha256": hash_file(DEMO_MODEL / "target" / "tokenizer.json"),
        "recipe_sha256": hash_recipe(dict(recipe)),
        "recipe": recipe,
        "provider": "openvino",
        "versions": {name: version(name) for name in ("openvino", "openvino_genai")},
        "limits": ReleaseLimits(max_seq_len=2048),
        "weight_bytes_per_rank": NUM_PARAMETERS,
        "kv_bytes_per_token": KV_BYTES_PER_TOKEN,
        "vocab_size": VOCAB_SIZE,
    }
    return ReleaseManifest.model_validate(fields | changes)


def copy_tokenizer(folder: Path) -> None:
    """Put the demo's tokenizer into a release that is being made."""
    (folder / "tokenizer").mkdir(parents=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(DEMO_MODEL / "target" / name, folder / "tokenizer" / name)


def write_demo_release(folder: Path, **changes: object) -> Path:
    """Make `folder` a sealed release of the demo model on OpenVINO."""
    shutil.copytree(DEMO_MODEL / "openvino" / "target", folder / "engine")
    if changes.get("draft") is not None:
        shutil.copytree(DEMO_MODEL / "openvino" / "draft", folder / "draft")
    copy_tokenizer(folder)
    seal(folder, demo_manifest(**changes))
    return folder


def write_gpu_release(folder: Path, **changes: object) -> Path:
    """Write a release with files that only look like a compiled engine of `world_size` ranks; nothing can load it."""
    versions = {"tensorrt_llm": "1.2.1", "tensorrt": "10.14.1.48"}
    manifest = demo_manifest(**{"provider": "tensorrt", "sm": 90, "versions": versions} | changes)
    (folder / "engine").mkdir(parents=True)
    limits = manifest.limits
    build = {name: getattr(limits, name) for name in ("max_seq_len", "max_beam_width")}
    build |= {"max_input_len": limits.max_seq_len - 1, "max_batch_size": limits.max_batch_size or 64}
    build["max_num_tokens"] = limits.max_num_tokens or 8192
    mapping = {name: getattr(manifest, name) for name in ("tp_size", "pp_size", "world_size")}
    engine = {"pretrained_config": {"vocab_size": VOCAB_SIZE, "mapping": mapping}, "build_config": build}
    (folder / "engine" / "config.json").write_text(json.dumps(engine))
    for rank in range(manifest.world_size):
        (folder / "engine" / f"rank{rank}.engine").write_bytes(f"rank {rank}".encode())
    copy_tokenizer(folder)
    seal(folder, manifest)
    return folder


def alter_a_byte(file: Path) -> None:
    """Change a file without a change of its size."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
