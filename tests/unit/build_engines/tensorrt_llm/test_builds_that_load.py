# SPDX-License-Identifier: Apache-2.0
"""Recipes with each KV format on each GPU: refused with the rule, or built into an engine that upstream loads.

The rules and the stand-in of the builder are asked of the whole product in this process; `trireme build` with its real
stages of a seeded sample, which is a large one in `make soak`.
"""

import functools
import itertools
import json
import random
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from build_runs import build, write_recipe
from pydantic import ValidationError
from test_context_attention import build_arguments, checkpoint
from test_trtllm_commands import GPU_RECIPES, model_of
from trtllm_builder import engine_config
from trtllm_loader import RuntimeOptions, load, load_checkpoint
from trtllm_tools import write_fake_tools

from build_engines.checkpoint.checkpoint_config import read_model_shape
from build_engines.checkpoint.gpus import gpus
from build_engines.checkpoint.known_models import known_models
from build_engines.migration.compiled_engine import CompiledEngine
from build_engines.recipes.recipe import GpuRecipe, PyTorchRecipe, TensorRtRecipe, load_recipe
from build_engines.recipes.recipe_checks import check_recipe
from build_engines.recipes.recipe_parts import LookaheadRecipe, MedusaRecipe
from build_engines.recipes.trtllm_versions import (
    ENGINE_FORMATS,
    HF_PTQ_FORMATS,
    KV_QUANT_ALGOS,
    PYTORCH_FORMATS,
    QUANT_ALGOS,
)
from build_engines.tensorrt_llm.engine_differences import engine_differences
from build_engines.tensorrt_llm.pytorch_build import launch_settings
from build_engines.tensorrt_llm.trtllm_commands import hf_ptq_argv, trtllm_build_argv
from ensemble_configs.releases.engine_fit import fit_findings
from ensemble_configs.releases.release_manifest import load_manifest
from ensemble_configs.spec.deployment import load_deployment
from ensemble_configs.spec.engine.speculation_specs import LookaheadSpec, MedusaSpec
from ensemble_configs.spec.engine.tensorrt_llm_specs import PyTorchEngineSpec, TensorRtEngineSpec
from trireme.base.project_files import CODE_ROOT

pytestmark = pytest.mark.slow

DEPLOYMENTS = CODE_ROOT / "ensemble_configs/deployments"
KV_FORMATS = ("auto", "fp16", "int8", "fp8", "nvfp4")
MODES = {"lookahead": "lookahead_decoding", "medusa": "medusa", "eagle": "eagle"}
CALIBRATION = {"dataset": "cnn_dailymail", "num_samples": 32}


# Beside those that come with us, one of each back end in each format that it has.
PLAIN = [
    *(f"llama-3.1-8b tensorrt {name}" for name in sorted(ENGINE_FORMATS)),
    *(f"llama-3.1-8b pytorch {name}" for name in sorted(PYTORCH_FORMATS)),
]


def recipe_named(name: str) -> GpuRecipe:
    if name in GPU_RECIPES:
        recipe = load_recipe(name)
        assert isinstance(recipe, TensorRtRecipe | PyTorchRecipe)
        return recipe
    _, backend, form = name.split()
    document = {"name": "plain", "model": "m", "gpu": "h100", "format": form, "max_batch_size": 64, "backend": backend}
    if backend == "pytorch":
        return PyTorchRecipe.model_validate(document)
    return TensorRtRecipe.model_validate(document | {"max_num_tokens": 8192})


def gpu_sample() -> list[str]:
    """Return one GPU of each compute capability, drawn by seed."""
    of_each: dict[int, list[str]] = {}
    for name, gpu in gpus().items():
        of_each.setdefault(gpu.sm, []).append(name)
    chance = random.Random(23)
    return [chance.choice(names) for names in of_each.values()]


def variants(name: str, machines: Iterable[str]) -> Iterator[tuple[str, GpuRecipe]]:
    """Yield a recipe with each KV format on each of the GPUs, as somebody would change it, paged and not paged.

    A calibration set is added where there is none, for a KV cache may need one that the weights did not.
    """
    recipe = recipe_named(name)
    document = recipe.model_dump()
    for kv_format, gpu in itertools.product(KV_FORMATS, machines):
        for is_paged, is_calibrated in itertools.product((True, False), (True, False)):
            changes: dict[str, Any] = {"kv_format": kv_format, "gpu": gpu}
            changes["calibration"] = recipe.calibration or (CALIBRATION if is_calibrated else None)
            if isinstance(recipe, TensorRtRecipe):
                changes["plugins"] = document["plugins"] | {"use_paged_context_fmha": is_paged}
            title = f"{name} kv-{kv_format} {gpu} {'paged' if is_paged else 'not paged'}"
            try:
                yield title, type(recipe).model_validate(document | changes)
            except ValidationError as exc:  # no recipe at all: the back end does not know the KV format
                assert "kv_format" in str(exc), title  # noqa: PT017 - of a product, not of one call


def pretrained_of(recipe: TensorRtRecipe, architecture: str, positions: int) -> dict[str, Any]:
    mapping = {name: getattr(recipe, name) for name in ("tp_size", "pp_size", "cp_size", "world_size")}
    drafts = getattr(recipe.speculation, "max_draft_len", 0) if recipe.speculation else 0
    medusa = {"max_draft_len": drafts} if getattr(recipe.speculation, "method", "") == "medusa" else {}
    return checkpoint(
        QUANT_ALGOS[recipe.format][0], KV_QUANT_ALGOS[recipe.kv_format],
        architecture="MedusaForCausalLM" if medusa else architecture, mapping=mapping,
        max_position_embeddings=positions, **medusa,
    )  # fmt: skip


def serve_and_load(folder: Path, spec: TensorRtEngineSpec, sm: int) -> list[str]:
    """Serve an engine as a deployment says and return the findings about it.

    Without findings upstream loads it unchanged.
    """
    found = [finding.check for finding in fit_findings(spec)]
    if not found:
        options = RuntimeOptions(
            sm=sm,
            max_batch_size=spec.max_num_seqs,
            max_num_tokens=spec.max_num_batched_tokens,
            max_beam_width=spec.max_beam_width,
            enable_chunked_prefill=spec.is_chunked_prefill,
            enable_block_reuse=spec.is_block_reuse,
            has_lora=spec.lora is not None,
            speculation=None if spec.speculation is None else MODES[spec.speculation.method],
        )
        assert load(folder, options, built_for_sm=sm).warnings == []
    return found


def drafts_of(recipe: TensorRtRecipe) -> LookaheadSpec | MedusaSpec | None:
    """Return what the deployment says of the drafts that the engine was built for."""
    match recipe.speculation:
        case None:
            return None
        case LookaheadRecipe() as built:
            return LookaheadSpec.model_validate(built.model_dump())
        case MedusaRecipe() as built:
            return MedusaSpec(method="medusa", max_draft_len=built.max_draft_len, num_heads=built.num_heads)
    raise AssertionError(recipe.speculation)


def deployment_of(folder: Path, recipe: TensorRtRecipe, **changes: Any) -> TensorRtEngineSpec:
    return TensorRtEngineSpec(
        provider="tensorrt", dir=folder, tp_size=recipe.tp_size, pp_size=recipe.pp_size, end_ids=(2,),
        max_seq_len=recipe.max_seq_len, max_num_seqs=recipe.max_batch_size,
        max_num_batched_tokens=recipe.max_num_tokens, max_beam_width=recipe.max_beam_width,
        speculation=drafts_of(recipe), **changes,
    )  # fmt: skip


def check_engine(title: str, recipe: TensorRtRecipe, folder: Path) -> None:
    """Check that an engine with nothing against it is what was asked, and that its loader takes it."""
    config = json.loads((folder / "config.json").read_text())
    engine = CompiledEngine(folder, config["version"], config["pretrained_config"], config["build_config"])
    assert [str(each) for each in engine_differences(engine, recipe) if each.is_fatal] == [], title
    is_paged, sm = recipe.plugins.use_paged_context_fmha, gpus()[recipe.gpu].sm
    own = {"is_chunked_prefill": is_paged, "is_block_reuse": is_paged and not recipe.is_gathering_context_logits}
    assert serve_and_load(folder, deployment_of(folder, recipe, **own), sm) == [], title
    if not is_paged:
        asked = deployment_of(folder, recipe)
        assert serve_and_load(folder, asked, sm) == ["engine.is_chunked_prefill", "engine.is_block_reuse"], title


@pytest.mark.parametrize("machines", [
    pytest.param({*gpu_sample()}, id="one of each kind"), pytest.param({*gpus()}, id="all", marks=pytest.mark.soak),
])  # fmt: skip
@pytest.mark.parametrize("name", [*GPU_RECIPES, *PLAIN])
def test_each_kv_format_on_each_gpu_is_refused_with_the_rule_or_loads(
    name: str, machines: set[str], tmp_path: Path
) -> None:
    model = read_model_shape(known_models()[model_of(name)].config)
    num_refused = num_built = 0
    for title, recipe in variants(name, sorted({*machines, recipe_named(name).gpu})):
        findings = check_recipe(recipe, model, gpus()[recipe.gpu], {"tensorrt_llm": "1.2.1"})
        if findings:
            num_refused += 1
            assert all(finding.check and finding.wanted and finding.next_step for finding in findings), title
            continue
        num_built += 1
        sm = gpus()[recipe.gpu].sm
        if isinstance(recipe, PyTorchRecipe):
            kv_algo = KV_QUANT_ALGOS[recipe.kv_format]
            load_checkpoint(QUANT_ALGOS[recipe.format][0], kv_algo, sm=sm)
            PyTorchEngineSpec.model_validate(launch_settings(recipe))
            if recipe.calibration is not None and recipe.format in HF_PTQ_FORMATS:
                assert hf_ptq_argv(recipe, Path("/x"))
            continue
        args = build_arguments(*trtllm_build_argv(recipe, 1)[1:])
        positions = model.max_position_embeddings
        folder = tmp_path / str(num_built)
        folder.mkdir()
        pretrained = pretrained_of(recipe, model.architecture, positions)
        (folder / "config.json").write_text(json.dumps(engine_config(args, pretrained, sm=sm)))
        for rank in range(recipe.world_size):
            (folder / f"rank{rank}.engine").touch()
        check_engine(title, recipe, folder)
    assert num_refused > 20, "most GPUs and KV types do not fit a recipe"
    assert num_built > 0, "it can be built as it is"


def test_the_deployment_of_ours_is_served_by_the_engine_of_its_recipe(tmp_path: Path) -> None:
    [release] = load_deployment(DEPLOYMENTS / "llama_8b_fp8.yaml").releases
    engine = release.engine
    assert isinstance(engine, TensorRtEngineSpec)
    recipe = recipe_named("llama-3.1-8b-fp8-h100")
    assert isinstance(recipe, TensorRtRecipe)
    args = build_arguments(*trtllm_build_argv(recipe, 1)[1:])
    config = engine_config(args, pretrained_of(recipe, "LlamaForCausalLM", 131_072), sm=90)
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "rank0.engine").touch()
    assert serve_and_load(tmp_path, engine.model_copy(update={"dir": tmp_path}), 90) == []


# Through `trireme build`, on the demo model

_SIZES = {"max_input_len": 512, "max_seq_len": 1024, "max_batch_size": 8, "max_num_tokens": 512, "group_size": 128}
_NOT_OF_THE_DEMO = ("speculation", "quality", "builder", "gptq_file", "ep_size", "tp_size", "pp_size", "model", "name")


def demo_variant(recipe: GpuRecipe) -> dict[str, Any]:
    """Return the recipe for the demo model, which is small, has no experts and no heads."""
    kept = recipe.model_dump(mode="json", exclude=set(_NOT_OF_THE_DEMO), exclude_defaults=True)
    sizes = {name: size for name, size in _SIZES.items() if name in type(recipe).model_fields}
    if isinstance(recipe, TensorRtRecipe):
        plugins = kept.get("plugins", {})
        kept["plugins"] = {
            name: value for name, value in plugins.items() if name not in ("reduce_fusion", "user_buffer")
        }
    own = {"backend": recipe.backend, "name": "demo", "model": "demo", "tp_size": 1, "kv_format": recipe.kv_format}
    kept["calibration"] = None if recipe.calibration is None else CALIBRATION
    return kept | sizes | own


def run_demo(title: str, recipe: GpuRecipe, folder: Path) -> bool:
    """Build with the real stages and fake tools; return True if there is a release, which then loads."""
    gpu = gpus()[recipe.gpu]
    tools = write_fake_tools(folder / "tools", gpu_name=gpu.driver_names[0], sm=gpu.sm)
    document = write_recipe(folder, **{**dict.fromkeys(("max_input_len",)), **demo_variant(recipe)})
    result = build(tools, document, folder / "out", XDG_CACHE_HOME=str(folder / "cache"))
    if result.returncode:
        assert result.returncode == 2, (title, result.stderr)
        assert "cannot be built" in result.stderr, (title, result.stderr)
        return False
    release = Path(result.stdout.split()[0])
    manifest = load_manifest(release)
    assert manifest.sm == gpu.sm
    spec = load_recipe(document)
    if isinstance(spec, TensorRtRecipe):
        check_engine(title, spec, release / "engine")
    return True


@functools.cache
def _variants(name: str) -> list[tuple[str, GpuRecipe]]:
    return list(variants(name, gpus()))


def _sample(number: int) -> list[tuple[str, GpuRecipe]]:
    """Return a seeded sample; the rules have nothing against half of it."""
    chance = random.Random(22)
    names = [name for name in (*GPU_RECIPES, *PLAIN) if "int4_gptq" not in recipe_named(name).format]

    def drawn() -> Iterator[tuple[str, GpuRecipe]]:
        while True:
            yield chance.choice(_variants(chance.choice(names)))

    def is_legal(title: str, recipe: GpuRecipe) -> bool:
        model = read_model_shape(known_models()[model_of(title)].config)
        return not check_recipe(recipe, model, gpus()[recipe.gpu], {})

    legal = (each for each in drawn() if is_legal(*each))
    return [*itertools.islice(legal, number // 2), *itertools.islice(drawn(), number - number // 2)]


def built_of_sample(number: int, folder: Path) -> int:
    """Build a sample, each in a folder of its own; return how many became releases."""
    built = 0
    for index, (title, recipe) in enumerate(_sample(number)):
        own = folder / str(index)
        own.mkdir()
        built += run_demo(title, recipe, own)
        shutil.rmtree(own)
    return built


def test_a_sample_through_the_real_stages_is_refused_or_loads(tmp_path: Path) -> None:
    assert 4 <= built_of_sample(16, tmp_path) < 16


@pytest.mark.soak
def test_a_large_sample_through_the_real_stages_is_refused_or_loads(tmp_path: Path) -> None:
    assert 150 <= built_of_sample(600, tmp_path) < 600
