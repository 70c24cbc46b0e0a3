# SPDX-License-Identifier: Apache-2.0
"""The planner's two estimators side by side on published measurements of TensorRT-LLM.

    make planner-estimators

Both are given the same batch, from our footprint. Errors are of the cells that both can do, by stratum; what each
covers is counted too. The roofline's are those without the cell's GPU in its fit, from the newest result of
`make planner-fit`. Writes benchmarks/results/planner_estimators_<date>.json, and what `trireme plan` says of the two
(build_engines/planner/estimators/estimator_errors.yaml).
"""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from benchmarks.support.report import RESULTS, write_result
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
    errors_of_medians,
    in_units_of,
    limits_of,
    scored,
)
from build_engines.planner.estimators.strata import STRATA
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
    load = one.load or {}
    match load:
        case {"rate": rate}:
            asked = Load(requests_per_s=float(rate))
        case {"concurrency": clients}:
            asked = Load(concurrency=float(clients))
        case _:
            asked = Load()
    estimate = estimator.estimate(candidate, workload, asked, limits)
    if estimate is None:
        return "it says that the rate cannot be kept up with"
    return in_units_of(one, estimate)


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
    """Ask, compare, write."""
    if not AiSimulateProcess().is_installed:
        raise SystemExit(NOT_INSTALLED)
    rows = tuple(one for one in scored() if not one.is_first_token)
    theirs, versions = ask_all(rows)
    ours = {name: cell for name, cell in _fit()["cells"].items() if "gpu_left_out" in cell}
    figures = {name: value for name, value in theirs.items() if not isinstance(value, str)}
    found = errors_by_cell((one, figures[one.id]) for one in rows if one.id in figures)
    shared = [name for name in found if name in ours]
    stated = {
        stratum: {
            "roofline": _over(ours[name]["gpu_left_out"] for name in cells),
            "aisimulate": _rounded(errors_of({name: found[name] for name in cells})),
        }
        for stratum, cells in _of_stratum(shared, ours).items()
    }
    result: dict[str, object] = {
        "what": "errors as factors on the published cells that both estimators can do; medians of |log error| by cell",
        "versions": {"aisimulate": _aisimulate_version(), "its tables, TensorRT-LLM by GPU": versions},
        "covered": {
            "measurements": {"all": len(rows), "aisimulate": len(figures)},
            "cells": {"all": len({one.cell for one in rows}), "both": len(shared)},
            "why_aisimulate_has_none": dict(Counter(value for value in theirs.values() if isinstance(value, str))),
        },
        "shared": stated,
        "by": {
            kind: {
                group: {
                    "roofline": _over(ours[name]["gpu_left_out"] for name in cells),
                    "aisimulate": _rounded(errors_of({name: found[name] for name in cells})),
                }
                for group, cells in _grouped(rows, shared, kind).items()
            }
            for kind in ("gpu", "model", "group", "weight_format")
        },
        "cells": {name: _rounded(errors_of({name: found[name]})) for name in sorted(found)},
    }
    write_result("planner_estimators", result)
    header = (
        "# Generated by `make planner-estimators` on the published cells that both can do. Errors are factors: 1.1 is\n"
        "# 10 %. The roofline's are without the GPU in its fit: AISimulate was not fitted to these cells either.\n"
    )
    TABLE.write_text(header + yaml.safe_dump(stated, sort_keys=False), encoding="utf-8")
    print(json.dumps({"covered": result["covered"], "shared": stated}, indent=1))


def _fit() -> Mapping[str, Any]:
    """Return the newest result of the fit."""
    found: dict[str, Any] = json.loads(max(RESULTS.glob("planner_fit_*.json")).read_text(encoding="utf-8"))
    return found


def _of_stratum(names: list[str], cells: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the names by stratum, and all of them as one more."""
    groups = {stratum: [name for name in names if cells[name]["stratum"] == stratum] for stratum in STRATA}
    return {stratum: found for stratum, found in groups.items() if found} | {"all": names}


def _over(cells: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the errors over cells of which each has its own already."""
    return _rounded(errors_of_medians([(math.log(cell["median"]), math.log(cell["bias"])) for cell in cells]))


def _grouped(rows: tuple[Measurement, ...], shared: list[str], kind: str) -> dict[str, list[str]]:
    groups = defaultdict(set)
    for one in rows:
        if one.cell in set(shared):
            groups[str(getattr(one, kind))].add(one.cell)
    return {group: sorted(cells) for group, cells in sorted(groups.items())}


def _rounded(errors: Errors) -> dict[str, float]:
    return {name: round(value, 3) for name, value in errors._asdict().items()}


def _aisimulate_version() -> str:
    [found] = PYTHON.parents[1].glob("lib/python3*/site-packages/aisimulate-*.dist-info")
    return found.name.removeprefix("aisimulate-").removesuffix(".dist-info")


if __name__ == "__main__":
    main()
