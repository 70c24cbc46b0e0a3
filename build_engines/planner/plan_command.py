# SPDX-License-Identifier: Apache-2.0
"""`trireme plan`: the memory and speed of a model, before any GPU is rented."""

import sys
from collections.abc import Collection
from pathlib import Path
from typing import Annotated

import typer

from build_engines.checkpoint.checkpoint_config import read_model_shape
from build_engines.checkpoint.config_values import load_config
from build_engines.checkpoint.gpus import gpu_named
from build_engines.checkpoint.known_models import config_of
from build_engines.checkpoint.quantized_checkpoint import quantized_as
from build_engines.checkpoint.weight_formats import FORMAT_PLANS, KV_FORMATS
from build_engines.planner.deployment_report import report_deployment
from build_engines.planner.estimators.estimator import Load
from build_engines.planner.estimators.estimator_choice import Wish, chosen
from build_engines.planner.option import Plan
from build_engines.planner.pareto import Front, fronts
from build_engines.planner.plan_report import plan_as_data, print_plan
from build_engines.planner.question import Question, Targets
from build_engines.planner.ranking import make_plan
from build_engines.planner.roofline.candidates import Machines, Wanted
from build_engines.planner.roofline.serving_limit import MEASURED_RESPONSES_PER_S, ServingLimit
from build_engines.planner.roofline.steady_state import Workload
from trireme.base.errors import SpecError
from trireme.base.extras import how_to_install
from trireme.base.text_tables import json_text

_THINK_TIME_S = 30.0


def plan(
    ctx: typer.Context,
    model: Annotated[
        str | None, typer.Argument(help="A checkpoint's folder, its config.json, or a name: llama-3.1-70b.")
    ] = None,
    *,
    deployment: Annotated[
        Path | None, typer.Option(help="A deployment file; say which of its models fit together.")
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(help="GPU: h200, h100, a100-80, l40s, l4, a10g, b200, ...", show_default="h100; the deployment's"),
    ] = None,
    num_gpus: Annotated[
        int | None,
        typer.Option("--gpus", min=1, max=100_000, help="GPUs over all nodes.", show_default="8; the deployment's"),
    ] = None,
    host_memory_gib: Annotated[
        float | None,
        typer.Option(
            min=0.001, max=1e6, help="Host memory, with --deployment.", show_default="the deployment's, or free here"
        ),
    ] = None,
    num_nodes: Annotated[int, typer.Option("--nodes", min=1, help="Machines that hold the GPUs in equal parts.")] = 1,
    isl: Annotated[int, typer.Option(min=1, help="Tokens of a prompt.")] = 1000,
    osl: Annotated[int, typer.Option(min=1, help="Tokens of an answer.")] = 1000,
    cached_tokens: Annotated[
        int, typer.Option(min=0, help="Prompt tokens in the prefix cache: --isl counts them, prefill skips them.")
    ] = 0,
    concurrency: Annotated[
        float | None, typer.Option(min=1, max=1e9, help="Clients that each wait for their answer.")
    ] = None,
    rate: Annotated[float | None, typer.Option(min=0.001, max=1e9, help="Requests a second.")] = None,
    users: Annotated[
        float | None, typer.Option(min=1, max=1e9, help="People who read an answer before they go on.")
    ] = None,
    think_time_s: Annotated[
        float | None,
        typer.Option(min=0, max=1e6, help="Seconds between an answer and the user's next question; default 30."),
    ] = None,
    slo_ttft_ms: Annotated[float | None, typer.Option(min=0, max=1e9, help="Time to the first token, at most.")] = None,
    slo_tpot_ms: Annotated[
        float | None, typer.Option(min=0, max=1e9, help="Time for each further token, at most.")
    ] = None,
    price_per_gpu_hour: Annotated[
        float | None, typer.Option(min=0, max=1e6, help="Price of a GPU hour, for that of a million tokens.")
    ] = None,
    weight_format: Annotated[
        list[str] | None, typer.Option("--format", help="Only this weight format; repeatable.")
    ] = None,
    kv_format: Annotated[list[str] | None, typer.Option(help="Only this KV cache format; repeatable.")] = None,
    tp_size: Annotated[list[int] | None, typer.Option(min=1, help="Only this tensor parallelism; repeatable.")] = None,
    pp_size: Annotated[
        list[int] | None, typer.Option(min=1, help="Only this pipeline parallelism; repeatable.")
    ] = None,
    max_batch_size: Annotated[
        int, typer.Option(min=1, max=1_000_000, help="Sequences that a replica runs at once.")
    ] = 2048,
    max_num_tokens: Annotated[
        int, typer.Option(min=1, max=10_000_000, help="Tokens of a step; longer prompts are chunked.")
    ] = 8192,
    kv_fraction: Annotated[float, typer.Option(min=0.01, max=1, help="Share of free memory for the KV cache.")] = 0.9,
    serving_responses_per_s: Annotated[
        float,
        typer.Option(
            min=1,
            max=1e9,
            help="Responses/s that the serving host streams; measure with python -m benchmarks.responses.",
        ),
    ] = MEASURED_RESPONSES_PER_S,
    estimator: Annotated[Wish, typer.Option(help="Source of predictions; auto: the smaller error.")] = "auto",
    num_shown: Annotated[int, typer.Option("--top", min=1, help="Options to print.")] = 10,
    plot: Annotated[Path | None, typer.Option(help="Write throughput against latency to this PNG or SVG.")] = None,
    is_json: Annotated[bool, typer.Option("--json", help="Print everything as one JSON object.")] = False,
) -> None:
    """Say what a model needs, which formats and layouts are legal on some GPUs, and how fast each will be.

    Needs no GPU and no weights, only the model's config.json. Without --concurrency, --rate or --users it finds the
    most that each option serves within the targets.

    With --deployment it says which models of the file fit together on the devices that they share, with what KV cache
    each, and whether a second version of each fits beside them.

    \b
    Examples:
      trireme plan --deployment my.yaml --gpu h100 --gpus 2
      trireme plan llama-3.1-70b --gpu h100 --gpus 4
      trireme plan ./checkpoint --gpu l40s --gpus 2 --isl 2000 --osl 300 --rate 3 --slo-ttft-ms 500
      trireme plan ./checkpoint/config.json --gpu h200 --users 1000 --price-per-gpu-hour 3.5 --json
      trireme plan llama-3.1-8b --gpu l4 --gpus 1 --format int4_awq --plot plan.png

    \b
    Exit codes: 0 done; 2 the question is wrong or nothing fits.
    """
    if deployment is not None:
        if model is not None:
            raise SpecError(f"{model!r} and --deployment are two questions; give one", field="deployment")
        _refuse_other_options(ctx)
        report_deployment(deployment, gpu=gpu, num_gpus=num_gpus, host_memory_gib=host_memory_gib, is_json=is_json)
        return
    if model is None:
        raise SpecError("name a model, such as llama-3.1-70b, or a deployment file (--deployment)", field="model")
    if plot is not None:
        _check_plot(plot)
    config = config_of(model)
    shape = read_model_shape(config, source=model)
    workload = Workload(isl, osl, cached_tokens)
    question = Question(
        model=shape,
        machines=Machines(gpu_named(gpu or "h100"), num_gpus or 8, num_nodes),
        workload=workload,
        load=_load(concurrency, rate, users, think_time_s),
        targets=Targets(slo_ttft_ms, slo_tpot_ms),
        price_per_gpu_hour=price_per_gpu_hour,
        wanted=Wanted(
            weight_formats=_known(weight_format, FORMAT_PLANS, "format"),
            kv_formats=_known(kv_format, KV_FORMATS, "kv-format"),
            tp_sizes=tuple(tp_size or ()),
            pp_sizes=tuple(pp_size or ()),
            max_num_tokens=max_num_tokens,
            max_batch_size=max_batch_size,
            kv_fraction=kv_fraction,
        ),
        serving=ServingLimit(serving_responses_per_s),
        quantized=quantized_as(config, modelopt=_modelopt(Path(model)), source=model),
    )
    with chosen(estimator, config) as (estimators, why):
        made = make_plan(question, estimators, why_estimator=why)
        found = fronts(made, estimators) if plot is not None or is_json else ()
    if plot is not None:
        _plot(made, found, plot, name=model)
    if is_json:
        sys.stdout.write(json_text(plan_as_data(made, name=model, fronts=found)))
    else:
        print_plan(made, name=model, num_shown=num_shown)


def _refuse_other_options(ctx: typer.Context) -> None:
    """Refuse options of a question about speed: with --deployment they would change nothing."""
    for name in ctx.params:
        source = ctx.get_parameter_source(name)
        if name not in _OF_DEPLOYMENTS and source is not None and source.name == "COMMANDLINE":
            option = _SHORT_NAMES.get(name, name.replace("_", "-"))
            raise SpecError(
                f"--{option} says nothing about a deployment's memory; with --deployment there are --gpu, --gpus, "
                "--host-memory-gib and --json",
                field=option,
            )


_SHORT_NAMES = {"weight_format": "format", "num_shown": "top", "num_nodes": "nodes"}
_OF_DEPLOYMENTS = {"deployment", "gpu", "num_gpus", "host_memory_gib", "is_json"}


def _check_plot(path: Path) -> None:
    """Refuse a picture that cannot be written, before the plan is made."""
    if path.suffix not in {".png", ".svg", ".pdf"}:
        raise SpecError(f"--plot {path}: name a .png, .svg or .pdf", field="plot", value=str(path))
    if not path.parent.is_dir():
        raise SpecError(f"--plot {path}: {path.parent} is no folder; make it first", field="plot", value=str(path))


def _plot(made: Plan, found: tuple[Front, ...], path: Path, *, name: str) -> None:
    try:
        from build_engines.planner.plan_plot import write_plot  # noqa: PLC0415 - matplotlib takes a second to import
    except ModuleNotFoundError as exc:
        raise SpecError(f"--plot needs matplotlib; {how_to_install('plot')}", field="plot") from exc
    write_plot(made, found, path, name=name)


def _modelopt(path: Path) -> dict[str, object] | None:
    """Return the quantization that ModelOpt wrote beside a `config.json`, or None."""
    beside = (path if path.is_dir() else path.parent) / "hf_quant_config.json"
    return load_config(beside) if path.exists() and beside.exists() else None


def _load(concurrency: float | None, rate: float | None, users: float | None, think_time_s: float | None) -> Load:
    given = [name for name, value in (("concurrency", concurrency), ("rate", rate), ("users", users)) if value]
    if len(given) > 1:
        raise SpecError(f"--{given[0]} and --{given[1]} are two loads; give one", field=given[1])
    if users is None and think_time_s is not None:
        raise SpecError(
            f"--think-time-s {think_time_s:g} is how long --users think, and there are none; give --users, or leave it "
            "out",
            field="think-time-s",
            value=think_time_s,
        )
    return Load(concurrency, rate, users, _THINK_TIME_S if think_time_s is None else think_time_s)


def _known(given: list[str] | None, known: Collection[str], option: str) -> tuple[str, ...]:
    for name in given or ():
        if name not in known:
            raise SpecError(f"--{option} {name!r} is not known; there are {', '.join(known)}", field=option, value=name)
    return tuple(given or ())
