# SPDX-License-Identifier: Apache-2.0
"""A `CostSpec` without a file, of one replica at a utilisation or for a request rate; and changes to single values."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import yaml

from build_engines.cost.bench_report import BenchedReplica, load_bench_report
from build_engines.cost.cost_spec import CostSpec, Fleet, changed
from build_engines.cost.engine_rates import rates_of
from ensemble_configs.spec.strict_yaml import load_yaml
from ensemble_configs.spec.validation import validate
from trireme.base.errors import SpecError

_COMMAND_LINE = Path("the command line")
_TOKENS = 1000.0  # of a prompt and of an answer, where nothing is said; as trireme plan


class Quick(NamedTuple):
    """The command-line options that replace a file; tokens/s are of one replica at saturation."""

    usd_per_gpu_hour: float | None = None
    num_gpus: int | None = None
    input_tokens_per_s: float | None = None
    output_tokens_per_s: float | None = None
    output_weight: float | None = None
    report: Path | None = None
    run: str | None = None
    model: str | None = None
    gpu: str | None = None
    weight_format: str | None = None
    isl: float | None = None
    osl: float | None = None
    utilisation: float | None = None
    rate: float | None = None

    @property
    def given(self) -> dict[str, object]:
        """Return the values that are set, by option."""
        names = {"num_gpus": "gpus", "weight_format": "format"}
        options = {names.get(name, name.replace("_", "-")): value for name, value in self._asdict().items()}
        return {f"--{name}": value for name, value in options.items() if value is not None}


def quick_spec(quick: Quick) -> CostSpec:
    """Return the fleet that the options describe; without --rate one replica, busy --utilisation (1) of the time.

    Raises:
        SpecError: the price or the throughput is missing, or two options say different things.
    """
    if quick.usd_per_gpu_hour is None:
        raise SpecError("give --usd-per-gpu-hour, or a file with all assumptions", field="usd-per-gpu-hour")
    if quick.rate is not None and quick.utilisation is not None:
        raise SpecError("--rate sizes a fleet and --utilisation is of one replica; give one", field="utilisation")
    replica = _replica(quick)
    traffic = {"isl": replica.isl, "osl": replica.osl, "cached_fraction": replica.cached_fraction}
    data = {
        "name": quick.model or "one replica",
        "engine": replica.engine,
        "prices": {"on_demand_usd_per_gpu_hour": quick.usd_per_gpu_hour},
        "traffic": {"requests_per_s": 1.0 if quick.rate is None else quick.rate, **traffic},
    }
    spec = validate(CostSpec, data, source=_COMMAND_LINE)
    if quick.rate is not None:
        return spec
    request_s = rates_of(spec.engine, spec.traffic).seconds(spec.traffic.prefilled, spec.traffic.osl)
    busy = {"traffic.requests_per_s": (1.0 if quick.utilisation is None else quick.utilisation) / request_s}
    return changed(spec, {**busy, "fleet": Fleet(target_utilisation=1.0, spare_replicas=0)})


def _replica(quick: Quick) -> BenchedReplica:
    """Return the engine and the tokens of a request; a measured engine comes with the measurement's tokens."""
    if quick.run is not None and quick.report is None:
        raise SpecError(f"--run {quick.run} is of a report; give --report, too", field="run", value=quick.run)
    if quick.model is not None:
        for name in ("--input-tokens-per-s", "--output-tokens-per-s", "--report", "--output-weight", "--gpus"):
            if name in quick.given:
                raise SpecError(f"{name} is measured and --model is planned; give one of the two", field=name[2:])
        formats = {} if quick.weight_format is None else {"weight_format": quick.weight_format}
        engine = {"kind": "planned", "model": quick.model, "gpu": quick.gpu or "h100", **formats}
        return BenchedReplica(engine, quick.isl or _TOKENS, quick.osl or _TOKENS)
    for name in ("--gpu", "--format"):
        if name in quick.given:
            raise SpecError(f"{name} is a question to the planner, which needs --model, too", field=name[2:])
    if quick.isl is not None:
        raise SpecError(
            "--isl: what was measured has its mix of input and output; plan another one with --model, or give prefill "
            "and decode rates apart in a file (engine.kind: rates)",
            field="isl",
        )
    found = _measured(quick)
    if found.engine["kind"] == "rates":
        return found
    if quick.report is not None and quick.output_weight is None:
        raise SpecError(
            f"--report {quick.report}: its run does not tell prefill from decode (no step metrics of the server, or no "
            "step without a prompt); give --output-weight (GPU time of an output token over an input token's), or "
            "measure with --metrics and longer answers",
            field="output-weight",
        )
    return found._replace(engine={**found.engine, "output_weight": quick.output_weight})


def _measured(quick: Quick) -> BenchedReplica:
    given, made = quick.input_tokens_per_s or 0.0, quick.output_tokens_per_s
    if quick.report is not None:
        for name in ("--output-tokens-per-s", "--input-tokens-per-s", "--osl"):
            if name in quick.given:
                raise SpecError(f"{name} stands in --report, too; leave it out", field=name[2:])
        return load_bench_report(quick.report, quick.run, num_gpus=quick.num_gpus)
    if made is None:
        raise SpecError(
            "nothing says how fast a replica is; give --output-tokens-per-s (measured), --report (of trireme bench "
            "report), --model (the planner predicts it), or a file with all assumptions",
            field="output-tokens-per-s",
        )
    osl = quick.osl or _TOKENS
    rates = {"input_tokens_per_s": given, "output_tokens_per_s": made}
    return BenchedReplica({"kind": "measured", "gpus": quick.num_gpus or 1, **rates}, osl * given / made, osl)


def with_changes(spec: CostSpec, changes: Sequence[str]) -> CostSpec:
    """Return the spec with changes such as `prices.spot_fraction=0.5` applied, checked again as a whole.

    Raises:
        SpecError: no `=`, a path that leads nowhere, or a value that is not allowed there.
    """
    if not changes:
        return spec
    data = spec.model_dump(mode="json", exclude_unset=True)
    for change in changes:
        path, equals, text = change.partition("=")
        if not equals or not path:
            raise SpecError(f"--set {change!r}: write KEY=VALUE, such as prices.spot_fraction=0.5", field="set")
        *parents, name = path.split(".")
        at = data
        for parent in parents:
            at = at.setdefault(parent, {})
            if not isinstance(at, dict):
                raise SpecError(f"--set {change!r}: {parent} has no keys of its own", field="set")
        try:
            at[name] = load_yaml(text)
        except yaml.YAMLError as exc:
            raise SpecError(f"--set {change!r}: the value is not YAML", field="set") from exc
    return validate(CostSpec, data, source=Path("--set"))
