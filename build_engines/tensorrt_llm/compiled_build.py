# SPDX-License-Identifier: Apache-2.0
"""The back end `tensorrt`: quantize.py or convert_checkpoint.py, then trtllm-build; one engine file for each rank."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

from pydantic import JsonValue

from build_engines.checkpoint.checkpoint_folder import folder_sha256
from build_engines.migration.compiled_engine import CompiledEngine
from build_engines.recipes.build_route import needs_calibration, route
from build_engines.recipes.recipe import TensorRtRecipe
from build_engines.recipes.recipe_parts import MedusaRecipe
from build_engines.recipes.trtllm_versions import KV_QUANT_ALGOS, LLAMA_SCRIPT, QUANT_ALGOS, QUANTIZE_SCRIPT
from build_engines.stages.build_estimates import (
    RankSizes,
    calibration_estimate,
    compile_bytes,
    compile_estimate,
    conversion_bytes,
    conversion_estimate,
    num_at_once,
    rank_sizes,
)
from build_engines.stages.build_job import SOURCE, BuildJob, BuildPlan
from build_engines.stages.stage_list import Command, Stage
from build_engines.stages.texts_stage import TEXTS, texts_stage
from build_engines.tensorrt_llm.engine_differences import engine_differences
from build_engines.tensorrt_llm.gpu_build import (
    calibration_stage,
    check_gpu_job,
    check_readable,
    describe,
)
from build_engines.tensorrt_llm.trtllm_commands import (
    CALIBRATION,
    CHECKPOINT,
    ENGINE,
    GPTQ_FILE,
    MEDUSA,
    convert_argv,
    quantize_argv,
    trtllm_build_argv,
    without_machine_flags,
)
from ensemble_configs.releases.release_manifest import ReleaseManifest
from ensemble_configs.spec.finding import Finding
from trireme.base.errors import BuildError


def check(job: BuildJob) -> list[Finding]:
    """Return every finding against a job, before any work."""
    recipe = _recipe(job)
    if unreadable := check_readable(job, recipe):
        return unreadable
    findings = check_gpu_job(job, recipe)
    if not job.is_dry_run:
        findings += _check_tools(route(recipe, job.checkpoint.shape.architecture), job.tools.trtllm_examples)
    return findings + _check_links(recipe) + _check_form(job, recipe)


def plan(job: BuildJob) -> BuildPlan:
    """Return the stages: calibration set, checkpoint, engine, texts; without those that the recipe has no need of."""
    recipe, model = _recipe(job), job.checkpoint.shape
    sizes = rank_sizes(recipe, model)
    way = route(recipe, model.architecture)
    stages: list[Stage] = []
    calibration = recipe.calibration
    is_calibrated = needs_calibration(recipe, model.architecture)
    if is_calibrated and calibration is not None and calibration.file is not None:
        stages.append(calibration_stage(CALIBRATION, calibration))
    if way != "prepared":
        after = tuple(stage.name for stage in stages)
        stages.append(_checkpoint_stage(job, recipe, sizes, after, is_calibrated=is_calibrated))
    stages.append(_engine_stage(job, recipe, sizes, is_converted=way != "prepared"))
    stages.append(texts_stage(job))
    return BuildPlan(
        stages=tuple(stages),
        parts={ENGINE: "engine", TEXTS: "."},
        describe=lambda release: _describe(job, recipe, release, sizes),
        links={SOURCE: job.checkpoint.dir, **_links(recipe)},
        notes=_notes(job, recipe),
    )


def _recipe(job: BuildJob) -> TensorRtRecipe:
    assert isinstance(job.recipe, TensorRtRecipe)
    return job.recipe


def _finding(check_: str, found: str, wanted: str, next_step: str) -> Finding:
    return Finding(check=check_, found=found, wanted=wanted, next_step=next_step)


def _check_tools(way: str, examples: Path) -> list[Finding]:
    findings = []
    if shutil.which("trtllm-build") is None:
        findings.append(
            _finding("machine", "no trtllm-build on PATH", "it", "run this where TensorRT-LLM is installed")
        )
    script = examples / (QUANTIZE_SCRIPT if way == "quantize" else LLAMA_SCRIPT)
    if way != "prepared" and not script.is_file():
        findings.append(_finding("--trtllm-examples", f"no {script}", "upstream's examples", "name their folder"))
    return findings


def _links(recipe: TensorRtRecipe) -> dict[str, Path]:
    """Return the paths that a recipe names besides the checkpoint."""
    links = {}
    if isinstance(recipe.speculation, MedusaRecipe):
        links[MEDUSA] = recipe.speculation.dir
    if recipe.gptq_file is not None:
        links[GPTQ_FILE] = recipe.gptq_file
    return links


def _check_links(recipe: TensorRtRecipe) -> list[Finding]:
    fields = {MEDUSA: "speculation.dir", GPTQ_FILE: "gptq_file"}
    return [
        _finding(fields[name], f"nothing at {path}", "what the recipe names", "put it there, or name another place")
        for name, path in _links(recipe).items()
        if not path.exists()
    ]


def _check_form(job: BuildJob, recipe: TensorRtRecipe) -> list[Finding]:
    """Return findings where the checkpoint's form and quantization are not those that the recipe starts from."""
    config, is_converted = job.checkpoint.config, job.checkpoint.is_converted
    wants_converted = recipe.checkpoint_form == "tensorrt_llm"
    if is_converted != wants_converted:
        found = "tensorrt_llm" if is_converted else "hugging_face"
        return [
            _finding(
                "checkpoint_form",
                f"a checkpoint of form {found}",
                recipe.checkpoint_form,
                "name the other, or change it",
            )
        ]
    if is_converted:
        try:
            _check_converted(config, recipe, job.checkpoint.num_ranks)
        except BuildError as exc:
            return [_finding("checkpoint", exc.message, "what the recipe says", "convert it again for this recipe")]
        return []
    return _check_quantization(config, recipe)


def _check_quantization(config: dict[str, object], recipe: TensorRtRecipe) -> list[Finding]:
    quantization = config.get("quantization_config")
    facts = quantization if isinstance(quantization, dict) else {}
    method = facts.get("quant_method")
    if recipe.format == "int4_gptq" and recipe.gptq_file is None:
        wanted = {"quant_method": "gptq", "bits": 4, "group_size": recipe.group_size, "desc_act": False}
        found = {name: facts.get(name, False if name == "desc_act" else None) for name in wanted}
        return [
            _finding(
                f"checkpoint quantization_config.{name}",
                json.dumps(found[name]),
                json.dumps(value),
                "take a GPTQ checkpoint like this, or name its weights by gptq_file",
            )
            for name, value in wanted.items()
            if found[name] != value
        ]
    if method is not None:
        return [
            _finding(
                "checkpoint", f"quantized already ({method})", "weights in 16 bits", f"take those for {recipe.format}"
            )
        ]
    return []


def _checkpoint_stage(
    job: BuildJob, recipe: TensorRtRecipe, sizes: RankSizes, after: tuple[str, ...], *, is_calibrated: bool
) -> Stage:
    model, examples = job.checkpoint.shape, job.tools.trtllm_examples
    if route(recipe, model.architecture) == "quantize":
        argv = quantize_argv(recipe, examples)
        estimate = calibration_estimate(recipe, model, sizes, is_calibrated=is_calibrated)
        title = f"quantize.py: {recipe.format}"
    else:
        num = num_at_once(recipe, job.machine, conversion_bytes(model), is_on_gpus=False, is_dry_run=job.is_dry_run)
        argv = convert_argv(recipe, examples, num)
        estimate = conversion_estimate(recipe, model, sizes, num)
        title = f"convert_checkpoint.py: {recipe.format}"
    # Ranks of context parallelism share a file.
    num_files = recipe.tp_size * recipe.pp_size
    return Stage(
        CHECKPOINT,
        f"{title}, {_ranks(num_files)}",
        Command(tuple(argv)),
        key={**_key(job, argv), "links": _link_hashes(job, recipe)},
        after=after,
        check=_checker(recipe, num_files),
        estimate=estimate,
    )


def _engine_stage(job: BuildJob, recipe: TensorRtRecipe, sizes: RankSizes, *, is_converted: bool) -> Stage:
    bytes_each = compile_bytes(sizes.largest)
    num = num_at_once(recipe, job.machine, bytes_each, is_on_gpus=True, is_dry_run=job.is_dry_run)
    argv = trtllm_build_argv(recipe, num)
    key = _key(job, argv)
    if is_converted:  # it reads what was converted, whose hash is counted, and not the checkpoint itself
        del key["checkpoint"]
    return Stage(
        ENGINE,
        f"trtllm-build: {_ranks(recipe.world_size)}, {num} at once",
        Command(tuple(argv)),
        key=key,
        after=(CHECKPOINT,) if is_converted else (),
        check=lambda folder: _check_engine(folder, recipe),
        estimate=compile_estimate(recipe, sizes, num),
    )


def _ranks(number: int) -> str:
    return "1 rank" if number == 1 else f"{number} ranks"


def _words(argv: list[str]) -> list[JsonValue]:
    return list(without_machine_flags(argv))


def _key(job: BuildJob, argv: list[str]) -> dict[str, JsonValue]:
    return {"argv": _words(argv), "checkpoint": job.checkpoint_sha256, "versions": _versions(job)}


def _versions(job: BuildJob) -> dict[str, JsonValue]:
    """Return the versions of what runs.

    An engine depends on them, and on the kind of GPU that it is made on.
    """
    sms: list[JsonValue] = [*sorted({gpu.sm for gpu in job.machine.gpus})]
    names = ("tensorrt_llm", "tensorrt", "nvidia_modelopt", "transformers")
    return {"sm": sms, **{name: job.machine.packages[name] for name in names if name in job.machine.packages}}


def _link_hashes(job: BuildJob, recipe: TensorRtRecipe) -> JsonValue:
    return {name: "" if job.is_dry_run else folder_sha256(path) for name, path in _links(recipe).items()}


def _checker(recipe: TensorRtRecipe, num_files: int) -> Callable[[Path], None]:
    def check_(folder: Path) -> None:
        _check_files(folder, [f"rank{rank}.safetensors" for rank in range(num_files)])
        _check_converted(_config(folder), recipe, num_files)

    return check_


def _check_converted(config: dict[str, object], recipe: TensorRtRecipe, num_files: int) -> None:
    """Refuse a checkpoint of TensorRT-LLM that is not divided and quantized as the recipe says."""
    _compare_mapping(config, recipe)
    if num_files != recipe.tp_size * recipe.pp_size:
        raise BuildError(f"the checkpoint has {num_files} rank files, for {recipe.tp_size} x {recipe.pp_size} ranks")
    found = config.get("quantization")
    quantization = found if isinstance(found, dict) else {}
    _compare("quantization.quant_algo", quantization.get("quant_algo"), QUANT_ALGOS[recipe.format])
    kv_algo = KV_QUANT_ALGOS[recipe.kv_format]
    _compare("quantization.kv_cache_quant_algo", quantization.get("kv_cache_quant_algo"), (kv_algo,))


def _check_engine(folder: Path, recipe: TensorRtRecipe) -> None:
    """Refuse an engine that is not what was asked for; trtllm-build can end with 0 and a rank missing."""
    _check_files(folder, [f"rank{rank}.engine" for rank in range(recipe.world_size)])
    engine = _compiled(folder)
    _compare_mapping(engine.pretrained, recipe)
    fatal = [difference for difference in engine_differences(engine, recipe) if difference.is_fatal]
    if fatal:
        raise BuildError(
            f"{'; '.join(map(str, fatal))}. trtllm-build changes what it cannot do with a warning; its log says why. "
            "Change the recipe"
        )


def _compiled(folder: Path) -> CompiledEngine:
    config = _config(folder)
    pretrained, build = config.get("pretrained_config"), config.get("build_config")
    if not isinstance(pretrained, dict) or not isinstance(build, dict):
        raise BuildError("config.json of the engine has no pretrained_config and build_config")
    return CompiledEngine(folder / "config.json", str(config.get("version", "")), pretrained, build)


def _describe(job: BuildJob, recipe: TensorRtRecipe, release: Path, sizes: RankSizes) -> ReleaseManifest:
    folder = release / ENGINE
    manifest = describe(job, recipe, release, sizes, _largest_engine(folder))
    differences = tuple(each.recorded for each in engine_differences(_compiled(folder), recipe))
    return manifest.model_copy(update={"engine_differences": differences})


def _compare_mapping(config: dict[str, object], recipe: TensorRtRecipe) -> None:
    found = config.get("mapping")
    mapping = found if isinstance(found, dict) else {}
    for name in ("tp_size", "pp_size", "world_size"):
        _compare(f"mapping.{name}", mapping.get(name, 1), (getattr(recipe, name),))


def _compare(name: str, found: object, wanted: tuple[object, ...]) -> None:
    if found not in wanted:
        raise BuildError(f"config.json says {name} {found!r}, and the recipe {' or '.join(map(repr, wanted))}")


def _check_files(folder: Path, names: list[str]) -> None:
    missing = [name for name in (*names, "config.json") if not (folder / name).is_file()]
    if missing:
        raise BuildError(f"the tool ended without an error and wrote no {', '.join(missing)}")
    if empty := [name for name in names if (folder / name).stat().st_size == 0]:
        raise BuildError(f"the tool ended without an error, and {', '.join(empty)} is empty")


def _config(folder: Path) -> dict[str, object]:
    try:
        config = json.loads((folder / "config.json").read_bytes())
    except ValueError as exc:
        raise BuildError(f"config.json that the tool wrote is not JSON: {exc}") from exc
    return config if isinstance(config, dict) else {}


def _largest_engine(folder: Path) -> int:
    return max(path.stat().st_size for path in folder.glob("rank*.engine"))


def _notes(job: BuildJob, recipe: TensorRtRecipe) -> tuple[str, ...]:
    if not job.is_dry_run or recipe.builder.num_workers or recipe.world_size == 1:
        return ()
    return (
        f"--workers is for a machine with {recipe.world_size} GPUs and the memory named above; with less it is lower, "
        "and builder.num_workers in the recipe bounds it",
    )
