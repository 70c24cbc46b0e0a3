# SPDX-License-Identifier: Apache-2.0
"""The planner's two estimators side by side on published measurements of TensorRT-LLM.

    make planner-estimators

Both are given the same batch, from our footprint. Errors are of the cells that both can do; what each covers is counted
too. Writes benchmarks/results/planner_estimators_<date>.json, and what `trireme plan` says of the two
(build_engines/planner/estimators/estimator_errors.yaml).
"""

import json
from collections import Counter, defaultdict

import yaml

from benchmarks.support.report import write_result
from build_engines.checkpoint.known_models import known_models
from build_engines.planner.estimators.aisimulate_estimator import AiSimulate
from build_engines.planner.estimators.aisimulate_process import (
    NOT_INSTALLED,
    PYTHON,
    AiSimulateProcess,
    model_folder,
)
from build_engines.planner.estimators.estimator import Load
from build_engines.planner.estimators.estimator_choice import TABLE
from build_engines.planner.estimators.published import (
    Errors,
    Measurement,
    candidate_of,
    errors_by_cell,
    errors_of,
    limits_of,
    predicted,
    scored,
)
from build_engines.planner.roofline.efficiencies import TABLE as EFFICIENCIES
from build_engines.planner.roofline.efficiencies import fitted
from build_engines.planner.roofline.steady_state import Workload


def by_aisimulate(one: Measurement, estimator: AiSimulate) -> float | str:
    """Return AISimulate's figure, in the unit of the measurement; or why it gives none."""
    candidate, limits = candidate_of(one), limits_of(one)
    workload = Workload(int(one.isl or 0), int(one.osl or 1))
    if one.metric == "ttft_bs1" or "batch" in (one.load or {}):
        return _static(one, estimator, workload)
    why_not = estimator.why_not(candidate, workload, limits)
    if why_not is not None:
        return why_not
    rate = (one.load or {}).get("rate")
    load = Load() if rate is None else Load(requests_per_s=float(rate))
    estimate = estimator.estimate(candidate, workload, load, limits)
    if estimate is None:
        return "it says that the rate cannot be kept up with"
    return {
        "ttft_mean": estimate.ttft_ms,
        "itl_mean": estimate.tpot_ms,
        "output_throughput_per_gpu": estimate.output_tokens_per_s / candidate.layout.world_size,
        "output_throughput_total": estimate.output_tokens_per_s,
    }[one.metric]


def _static(one: Measurement, estimator: AiSimulate, workload: Workload) -> float | str:
    candidate, batch = candidate_of(one), int((one.load or {}).get("batch", 1))
    found = estimator.static_batch(candidate, workload, batch)
    if isinstance(found, str):
        return found
    if one.metric == "ttft_bs1":
        return found.ttft_ms
    seconds = (found.ttft_ms + (workload.osl - 1) * found.tpot_ms) / 1000
    return batch * workload.osl / seconds / candidate.layout.world_size


def ask_all(rows: tuple[Measurement, ...]) -> tuple[dict[str, float | str], dict[str, str]]:
    """Return AISimulate's figures by measurement, and by GPU the version of TensorRT-LLM behind them."""
    process, figures, versions = AiSimulateProcess(), {}, {}
    for name in dict.fromkeys(one.model for one in rows):
        with model_folder(known_models()[name].config) as folder:
            estimator = AiSimulate(folder, process)
            for one in (row for row in rows if row.model == name):
                figures[one.id] = by_aisimulate(one, estimator)
                if estimator.version is not None and not isinstance(figures[one.id], str):
                    versions[str(one.gpu)] = estimator.version
            print(f"  {name}: asked", flush=True)
    process.close()
    return figures, versions


def main() -> None:
    """Ask both, compare, write."""
    if not AiSimulateProcess().is_installed:
        raise SystemExit(NOT_INSTALLED)
    rows = scored()
    theirs, versions = ask_all(rows)
    ours = {one.id: predicted(one, fitted()) for one in rows}
    figures = {name: value for name, value in theirs.items() if not isinstance(value, str)}
    both = [one for one in rows if one.id in figures and ours[one.id] is not None]
    errors = {
        "roofline": errors_by_cell((one, ours[one.id]) for one in both),
        "aisimulate": errors_by_cell((one, figures[one.id]) for one in both),
    }
    fit = yaml.safe_load(EFFICIENCIES.read_text(encoding="utf-8"))
    left_out = fit["errors"]
    shared = {name: _rounded(errors_of(cells)) for name, cells in errors.items()}
    if shared["aisimulate"]["num_cells"] != left_out["gpu_left_out"]["num_cells"]:
        raise SystemExit("the two do not cover the same cells: fit on the shared ones before they are compared")
    result: dict[str, object] = {
        "what": "errors as factors on the published cells that both estimators can do; medians of |log error| by cell",
        "versions": {"aisimulate": _aisimulate_version(), "its tables, TensorRT-LLM by GPU": versions},
        "measured_with": dict(Counter(one.group for one in both)),
        "covered": {
            "measurements": {"all": len(rows), "roofline": len(rows) - list(ours.values()).count(None)}
            | {"aisimulate": len(figures), "both": len(both)},
            "cells": {"all": len({one.cell for one in rows}), "both": len(errors["roofline"])},
            "why_aisimulate_has_none": dict(Counter(value for value in theirs.values() if isinstance(value, str))),
        },
        "shared": shared,
        "roofline_on_what_was_left_out_of_its_fit": {
            **{name: left_out[name] for name in ("gpu_left_out", "model_left_out")},
            "by_gpu": fit["errors_by_gpu"],
            "by_model": fit["errors_by_model"],
        },
        "by": {
            kind: {
                group: {name: _rounded(errors_of(cells)) for name, cells in of_group.items()}
                for group, of_group in _grouped(both, ours, figures, kind).items()
            }
            for kind in ("gpu", "model", "group", "metric", "tp_size", "weight_format")
        },
        "cells": {
            cell: {name: _rounded(errors_of({cell: errors[name][cell]})) for name in errors}
            for cell in errors["roofline"]
        },
    }
    write_result("planner_estimators", result)
    header = (
        "# Generated by `make planner-estimators` on the published cells that both can do. Errors are factors: 1.1 is\n"
        "# 10 %. The roofline's are without the GPU in its fit: AISimulate was not fitted to these cells either.\n"
    )
    stated = {"roofline": left_out["gpu_left_out"], "aisimulate": shared["aisimulate"]}
    TABLE.write_text(header + yaml.safe_dump(stated, sort_keys=False), encoding="utf-8")
    for name, cells in errors.items():
        print(f"{name}: {errors_of(cells)}")
    print(f"roofline without the GPU in its fit: {Errors(**left_out['gpu_left_out'])}")
    print(json.dumps(result["covered"], indent=1))


def _grouped(
    rows: list[Measurement], ours: dict[str, float | None], theirs: dict[str, float], kind: str
) -> dict[str, dict[str, dict[str, list[float]]]]:
    groups = defaultdict(list)
    for one in rows:
        groups[str(getattr(one, kind))].append(one)
    return {
        name: {
            "roofline": errors_by_cell((one, ours[one.id]) for one in of_group),
            "aisimulate": errors_by_cell((one, theirs[one.id]) for one in of_group),
        }
        for name, of_group in sorted(groups.items())
    }


def _rounded(errors: Errors) -> dict[str, float]:
    return {name: round(value, 3) for name, value in errors._asdict().items()}


def _aisimulate_version() -> str:
    [found] = PYTHON.parents[1].glob("lib/python3*/site-packages/aisimulate-*.dist-info")
    return found.name.removeprefix("aisimulate-").removesuffix(".dist-info")


if __name__ == "__main__":
    main()
