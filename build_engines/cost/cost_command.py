# SPDX-License-Identifier: Apache-2.0
"""`trireme cost`: the price of a million tokens, a tenant and a lever, and whether a managed API would be cheaper."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from build_engines.cost.cost_spec import CostSpec, load_document
from build_engines.cost.findings import Findings, as_data, find
from build_engines.cost.managed_prices import EXAMPLE, ManagedPrices
from build_engines.cost.quick_spec import Quick, quick_spec, with_changes
from build_engines.cost.report_tables import tables
from build_engines.cost.usage_records import Usage, load_usage
from trireme.base.errors import SpecError
from trireme.base.extras import how_to_install
from trireme.base.project_files import here_or_ours
from trireme.base.text_tables import json_text, print_tables


def cost(
    file: Annotated[Path | None, typer.Argument(help="Assumptions, as docs/cost.md describes them.")] = None,
    *,
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="Change one value, such as prices.spot_fraction=0.5; repeatable.")
    ] = None,
    usage: Annotated[
        Path | None, typer.Option(help="JSONL of requests: the traffic comes from it, and tenants are priced.")
    ] = None,
    managed: Annotated[
        Path | None, typer.Option(help="Your list of managed prices.", show_default="an example list")
    ] = None,
    usd_per_gpu_hour: Annotated[
        float | None, typer.Option(min=0, max=1e6, help="Price of a GPU hour, in US dollars.")
    ] = None,
    num_gpus: Annotated[
        int | None, typer.Option("--gpus", min=1, help="GPUs of the replica that was measured.")
    ] = None,
    output_tokens_per_s: Annotated[
        float | None, typer.Option(min=0.001, max=1e12, help="Measured output tokens/s of one replica at saturation.")
    ] = None,
    input_tokens_per_s: Annotated[
        float | None, typer.Option(min=0, max=1e12, help="Input tokens/s beside the output; needs --output-weight.")
    ] = None,
    output_weight: Annotated[
        float | None, typer.Option(min=0.001, max=1e6, help="GPU time of an output token over an input token's.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option(help="JSON of trireme bench report; the throughput is that of one run.")
    ] = None,
    run: Annotated[
        str | None,
        typer.Option(help="The run of --report to take.", show_default="the knee, or without step metrics the fastest"),
    ] = None,
    model: Annotated[str | None, typer.Option(help="Model to plan: a name or checkpoint, as for trireme plan.")] = None,
    gpu: Annotated[str | None, typer.Option(help="GPU that --model runs on.", show_default="h100")] = None,
    weight_format: Annotated[
        str | None, typer.Option("--format", help="Weights of --model.", show_default="bf16")
    ] = None,
    isl: Annotated[float | None, typer.Option(min=1, help="Tokens of a prompt, with --model; default 1000.")] = None,
    osl: Annotated[float | None, typer.Option(min=1, help="Tokens of an answer; default 1000.")] = None,
    utilisation: Annotated[
        float | None, typer.Option(min=0.001, max=1, help="Mean utilisation of a replica over the day; default 1.")
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(
            min=1e-6, max=1e9, help="Requests/s. Replicas are as many as needed at 0.7 utilisation, and one spare."
        ),
    ] = None,
    sensitivity_percent: Annotated[
        float, typer.Option("--sensitivity", min=0.1, max=99, help="Change of each assumption, in %.")
    ] = 20.0,
    out: Annotated[Path | None, typer.Option(help="Write cost.md, cost.json and pictures here.")] = None,
    is_json: Annotated[bool, typer.Option("--json", help="Print everything as one JSON object.")] = False,
) -> None:
    """Say what serving costs: a million tokens in and out, idle time, tenants, levers, break-even, sensitivity.

    Takes a file of assumptions, or a price and a throughput. Without --model or a planned engine nothing is predicted.

    \b
    Examples:
      trireme cost --usd-per-gpu-hour 2 --output-tokens-per-s 1000
      trireme cost --usd-per-gpu-hour 2 --output-tokens-per-s 1000 --utilisation 0.4
      trireme cost --usd-per-gpu-hour 2.5 --report bench.json --rate 20
      trireme cost --usd-per-gpu-hour 2.5 --model llama-3.1-8b --gpu h100 --isl 1500 --osl 300 --rate 20
      trireme cost examples/cost/halve_500k.yaml --usage requests.jsonl --managed offers.yaml --out report
      trireme cost examples/cost/measured.yaml --set prices.spot_fraction=0.5 --set other.engineers=3 --json

    \b
    Exit codes: 0 done; 2 an assumption is wrong or missing.
    """
    quick = Quick(
        usd_per_gpu_hour, num_gpus, input_tokens_per_s, output_tokens_per_s, output_weight, report, run, model, gpu,
        weight_format, isl, osl, utilisation, rate,
    )  # fmt: skip
    if file is not None and quick.given:
        raise SpecError(f"{next(iter(quick.given))} stands in {file.name} too; change it with --set", field="set")
    spec = with_changes(
        quick_spec(quick) if file is None else load_document(CostSpec, here_or_ours(file)), changes or []
    )
    records = None if usage is None else load_usage(usage)
    found = find(
        spec if records is None else with_traffic_of(spec, records),
        load_document(ManagedPrices, managed or EXAMPLE),
        usage=records,
        # One replica at a utilisation is no fleet that would be sized anew.
        sensitivity_fraction=None if file is None and rate is None else sensitivity_percent / 100,
    )
    if out is not None:
        _write(found, out)
    if is_json:
        sys.stdout.write(json_text(as_data(found)))
    else:
        print_tables(tables(found), title=found.spec.name)


def with_traffic_of(spec: CostSpec, usage: Usage) -> CostSpec:
    """Return the spec with the fleet's traffic as it was recorded.

    The shape of a day stays the file's where less than a day was recorded.

    Raises:
        SpecError: the fleet has two tiers, or the records are not of its one model.
    """
    if spec.tier is not None:
        raise SpecError(
            "--usage: the records' traffic is of one model, and the file has a tier; price each tier's fleet by itself",
            field="tier",
        )
    if usage.models != (spec.engine.model,):
        raise SpecError(
            f"--usage has requests of {', '.join(usage.models)}, and the engine serves {spec.engine.model!r}; leave "
            "the others out, or name the model so (--set engine.model=NAME)",
            field="engine.model",
        )
    found = usage.traffic(spec.engine.model)
    if found.hourly is None:
        day = {"peak_over_mean": spec.traffic.peak_over_mean, "hourly": spec.traffic.hourly}
        found = found.model_copy(update=day)
    return spec.model_copy(update={"traffic": found})


def _write(found: Findings, folder: Path) -> None:
    try:
        from build_engines.cost.cost_plot import pictures  # noqa: PLC0415 - matplotlib takes a second to import
    except ModuleNotFoundError as exc:
        raise SpecError(f"--out draws pictures with matplotlib; {how_to_install('plot')}", field="out") from exc
    folder.mkdir(parents=True, exist_ok=True)
    text = [f"# Cost: {found.spec.name}", *(one.markdown() for one in tables(found))]
    for shown, png in pictures(found).items():
        name = f"{shown.split(',')[0].lower().replace(' ', '_')}.png"
        (folder / name).write_bytes(png)
        text.append(f"![{shown}]({name})")
    (folder / "cost.md").write_text("\n\n".join(text) + "\n", encoding="utf-8")
    (folder / "cost.json").write_text(json_text(as_data(found)), encoding="utf-8")
