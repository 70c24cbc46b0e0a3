# SPDX-License-Identifier: Apache-2.0
"""A `CostSpec` without a file: one replica at a utilisation, or what a rate needs; and changes to single values."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import yaml

from build_engines.cost.cost_spec import CostSpec
from build_engines.cost.engine_rates import rates_of
from ensemble_configs.errors import SpecError
from ensemble_configs.strict_yaml import load_yaml
from ensemble_configs.validation import validate

_COMMAND_LINE = Path("the command line")


class Quick(NamedTuple):
    """What the command line gives in place of a file; tokens/s are of one replica at saturation."""

    usd_per_gpu_hour: float | None = None
    num_gpus: int | None = None
    input_tokens_per_s: float | None = None
    output_tokens_per_s: float | None = None
    output_weight: float | None = None
    report: Path | None = None
    model: str | None = None
    gpu: str | None = None
    weight_format: str | None = None
    isl: float | None = None
    osl: float | None = None
    utilisation: float | None = None
    rate: float | None = None

    @property
    def given(self) -> dict[str, object]:
        """What is set, by its option."""
        return {f"--{name.replace('_', '-')}": value for name, value in self._asdict().items() if value is not None}


def quick_spec(quick: Quick) -> CostSpec:
    """The fleet that the options mean; without --rate one replica that is busy --utilisation (1) of the time.

    Raises:
        SpecError: the price or the throughput is missing, or two options say different things.
    """
    if quick.usd_per_gpu_hour is None:
        raise SpecError("give --usd-per-gpu-hour, or a file with all assumptions", field="usd-per-gpu-hour")
    if quick.rate is not None and quick.utilisation is not None:
        raise SpecError("--rate sizes a fleet and --utilisation is of one replica; give one", field="utilisation")
    engine = _engine(quick)
    osl = 1000.0 if quick.osl is None else quick.osl
    traffic = {"requests_per_s": 1.0, "isl": _isl(quick, engine, osl), "osl": osl}
    data = {
        "name": quick.model or "one replica",
        "engine": engine,
        "prices": {"on_demand_usd_per_gpu_hour": quick.usd_per_gpu_hour},
        "traffic": traffic,
    }
    if quick.rate is not None:
        data["traffic"] = {**traffic, "requests_per_s": quick.rate}
        return validate(CostSpec, data, source=_COMMAND_LINE)
    spec = validate(CostSpec, data, source=_COMMAND_LINE)
    request_s = rates_of(spec.engine, spec.traffic).seconds(spec.traffic.isl, spec.traffic.osl)
    utilisation = 1.0 if quick.utilisation is None else quick.utilisation
    data["traffic"] = {**traffic, "requests_per_s": utilisation / request_s}
    data["fleet"] = {"target_utilisation": 1.0, "spare_replicas": 0}
    return validate(CostSpec, data, source=_COMMAND_LINE)


def _engine(quick: Quick) -> dict[str, object]:
    if quick.model is not None:
        for name in ("--output-tokens-per-s", "--report", "--output-weight", "--gpus"):
            if name in quick.given:
                raise SpecError(f"{name} is measured and --model is planned; give one of the two", field=name[2:])
        formats = {} if quick.weight_format is None else {"weight_format": quick.weight_format}
        return {"kind": "planned", "model": quick.model, "gpu": quick.gpu or "h100", **formats}
    for name in ("--gpu", "--weight-format"):
        if name in quick.given:
            raise SpecError(f"{name} is a question to the planner, which needs --model, too", field=name[2:])
    measured: dict[str, object] = {"kind": "measured", "gpus": quick.num_gpus or 1}
    if quick.report is not None:
        if quick.output_tokens_per_s is not None or quick.input_tokens_per_s is not None:
            raise SpecError("--report has the throughput; leave out what else says it", field="report")
        measured |= {**load_throughput(quick.report), "source": quick.report.name}
    elif quick.output_tokens_per_s is not None:
        measured |= {
            "input_tokens_per_s": quick.input_tokens_per_s or 0.0,
            "output_tokens_per_s": quick.output_tokens_per_s,
        }
    else:
        raise SpecError(
            "nothing says how fast a replica is; give --output-tokens-per-s (measured), --report (a benchmark's JSON), "
            "--model (the planner predicts it), or a file with all assumptions",
            field="output-tokens-per-s",
        )
    return measured if quick.output_weight is None else {**measured, "output_weight": quick.output_weight}


def _isl(quick: Quick, engine: Mapping[str, object], osl: float) -> float:
    """Measured, the mix is that of the measurement."""
    if engine["kind"] == "planned":
        return 1000.0 if quick.isl is None else quick.isl
    if quick.isl is not None:
        raise SpecError(
            "--isl: what was measured has its mix of input and output; plan another one with --model, or give prefill "
            "and decode rates apart in a file (engine.kind: rates)",
            field="isl",
        )
    given, made = engine["input_tokens_per_s"], engine["output_tokens_per_s"]
    assert isinstance(given, float)
    assert isinstance(made, float)
    return osl * given / made if made else 0.0


def load_throughput(path: Path) -> dict[str, object]:
    """`input_tokens_per_s` and `output_tokens_per_s` of a benchmark's JSON, over all GPUs of the replica.

    Raises:
        SpecError: it cannot be read or has no throughput.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as exc:
        raise SpecError(f"--report {path}: cannot be read as JSON: {exc}", field="report", file=path) from exc
    found = {}
    for name in ("input_tokens_per_s", "output_tokens_per_s"):
        value = data.get(name) if isinstance(data, dict) else None
        if isinstance(value, dict):  # with its interval
            value = value.get("median")
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
            raise SpecError(
                f"--report {path}: {name} is {json.dumps(value)[:80]}; the file's object needs that number, of one "
                "replica at saturation",
                field=name,
                file=path,
            )
        found[name] = float(value)
    return dict(found)


def with_changes(spec: CostSpec, changes: Sequence[str]) -> CostSpec:
    """`prices.spot_fraction=0.5` and the like, checked again as a whole.

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
