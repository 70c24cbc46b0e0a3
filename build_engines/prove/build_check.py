# SPDX-License-Identifier: Apache-2.0
"""The build of a small engine for a proof: a recipe for the GPU that is here, and `trireme build` with it."""

import json
import sys
from pathlib import Path

import yaml

from build_engines.checkpoint.checkpoint_folder import CheckpointFiles
from build_engines.checkpoint.gpus import Gpu
from build_engines.prove.check import CheckFailed, LeftOut
from build_engines.prove.child_process import run_child
from build_engines.prove.proof import Built
from build_engines.prove.proof_model import describe_model, format_of
from build_engines.recipes.recipe import TensorRtRecipe, VllmRecipe, load_recipe, recipe_document
from build_engines.recipes.trtllm_versions import FIRST_WITHOUT_ENGINES, LAST_WITH_ENGINES, VERSIONS, numbers
from build_engines.stages.stage_process import last_lines
from ensemble_configs.releases.release_manifest import address
from trireme.base.project_files import CODE_ROOT

MAX_BATCH_SIZE, MAX_NUM_TOKENS, MAX_SEQ_LEN, MAX_BEAM_WIDTH = 64, 8192, 2048, 4


def refuse_version_without_engines(version: str) -> None:
    """Refuse a TensorRT-LLM without compiled engines.

    Raises:
        LeftOut: this version has none.
    """
    if numbers(version) >= FIRST_WITHOUT_ENGINES:
        raise LeftOut(
            f"TensorRT-LLM {version} has no compiled engines; they are proved with {LAST_WITH_ENGINES}, in a container "
            f"tritonserver:{VERSIONS[LAST_WITH_ENGINES].containers}-trtllm-python-py3"
        )


def longest_sequence(checkpoint: CheckpointFiles) -> int:
    """Return the tokens of prompt and output together that proved engines take."""
    return min(MAX_SEQ_LEN, checkpoint.shape.max_position_embeddings)


def proof_recipe(checkpoint: CheckpointFiles, gpu: Gpu, version: str) -> TensorRtRecipe:
    """Return a recipe in the checkpoint's own 16 bits.

    It has what the conformance suite asks for: beams and log probabilities.
    """
    max_seq_len = longest_sequence(checkpoint)
    return TensorRtRecipe(
        backend="tensorrt",
        name=f"prove-{gpu.name}",
        model=describe_model(checkpoint).name,
        gpu=gpu.name,
        tensorrt_llm=".".join(map(str, numbers(version))),
        format="bf16" if format_of(checkpoint) == "bf16" else "fp16",
        max_batch_size=MAX_BATCH_SIZE,
        max_num_tokens=MAX_NUM_TOKENS,
        max_seq_len=max_seq_len,
        max_input_len=max_seq_len - 1,
        max_beam_width=MAX_BEAM_WIDTH,
        is_gathering_generation_logits=True,
    )


def vllm_recipe(checkpoint: CheckpointFiles, gpu: Gpu) -> VllmRecipe:
    """Return a recipe for vLLM in the checkpoint's own 16 bits, which copies and seals it."""
    return VllmRecipe(
        backend="vllm",
        name=f"prove-vllm-{gpu.name}",
        model=describe_model(checkpoint).name,
        format="bf16" if format_of(checkpoint) == "bf16" else "fp16",
        max_batch_size=MAX_BATCH_SIZE,
        max_num_tokens=MAX_NUM_TOKENS,
        max_seq_len=longest_sequence(checkpoint),
    )


def build_release(
    recipe: TensorRtRecipe | VllmRecipe, checkpoint: Path, work: Path, options: list[str], timeout_s: float
) -> Path:
    """Run `trireme build`; the release's folder.

    Args:
        recipe: what is to be built.
        checkpoint: its folder.
        work: gets recipe, release and log.
        options: more for the command line.
        timeout_s: for all stages.

    Raises:
        CheckFailed: the build failed.
    """
    file, out, log = work / "recipe.yaml", work / "releases", work / "logs" / "build.log"
    document = recipe.model_dump(mode="json", exclude_defaults=True) | {"backend": recipe.backend}
    file.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    assert load_recipe(file) == recipe, "what is built is what is recorded"
    argv = [sys.executable, "-m", "trireme", "build", file, "--checkpoint", checkpoint, "--out", out]
    status = run_child([*argv, "--resume", "--json", *options], cwd=CODE_ROOT, log=log, timeout_s=timeout_s)
    lines = last_lines(log)
    if status:
        raise CheckFailed(f"trireme build ended with status {status}: {lines[-1] if lines else 'no word'}", lines)
    return Path(json.loads(lines[-1])["release"])


def describe_release(release: Path, recipe: TensorRtRecipe | VllmRecipe) -> Built:
    """Return the release's facts for the record."""
    weights = (".engine", ".safetensors")
    num_bytes = sum(file.stat().st_size for file in (release / "engine").iterdir() if file.suffix in weights)
    return Built(address=address(release), recipe=dict(recipe_document(recipe)), engine_bytes=num_bytes)
