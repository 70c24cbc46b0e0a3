# SPDX-License-Identifier: Apache-2.0
"""The fit of the roofline's constants to the published measurements; it writes them down with their errors.

    make planner-fit

Errors are stated as they are on figures that were not fitted: one GPU is left out at a time, and one model. Writes the
constants with a summary (build_engines/planner/roofline/efficiencies.yaml), and the errors of each cell
(benchmarks/results/planner_fit_<date>.json). Some twenty minutes.
"""

import math
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from statistics import median
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import yaml
from scipy.optimize import least_squares

from benchmarks.support.report import write_result
from build_engines.planner.estimators.published import (
    Errors,
    Measurement,
    engine_of,
    errors_of,
    log_errors,
    predicted,
    scored,
)
from build_engines.planner.estimators.strata import PLAIN, STRATA, stratum_of
from build_engines.planner.roofline.efficiencies import TABLE, Efficiencies
from trireme.base.sample_statistics import percentile

Logs = npt.NDArray[np.float64]
Cells = dict[str, list[float]]

# What a datasheet leaves open; the fit is held near it, weakly, where the data do not say (PCIe and NVLink of one GPU).
PRIOR = {
    "gemm_fp16": 0.75, "gemm_fp8": 0.70, "gemm_fp4": 0.55, "gemm_fp4_rtx": 0.55, "block_scaled": 0.8,
    "narrow_experts": 500.0, "memory": 0.85, "kv_cache": 0.80, "attention": 0.40, "nvlink": 0.60, "pcie": 0.60,
    "all_reduce_s": 15e-6, "one_shot_s": 9e-6, "all_reduce_pcie_s": 25e-6, "layer_s": 25e-6, "compiled_layer_s": 40e-6,
    "expert_layer_s": 20e-6, "fused_expert_layer_s": 10e-6, "latent_layer_s": 40e-6, "step_s": 1e-3,
    "sequence_s": 3e-6, "activation_passes": 20.0, "routing_passes": 6.0, "expert_padding": 16.0,
    "expert_variety": 0.9, "expert_imbalance": 0.2, "blend": 1.5,
}  # fmt: skip
# Weights that are unpacked: no measurement here has them. Eager launches: no step that is scored waits for them. Waited
# steps: in one the prompt has not begun, and half of the others' tokens leave a step later. Tokenizing: measured.
ASSUMED = {"dequantize": 0.75, "eager_layer_s": 120e-6, "tokenize_s": 2.8e-6, "waited_steps": 1.5}
# Fitted last, to all, with the others held: dense engines in 8 and 16 bits, most of the figures, do not show them. Of
# steps and layers: a few sequences on Blackwell show what full batches hide.
LAST = (
    "gemm_fp4", "gemm_fp4_rtx", "block_scaled", "narrow_experts", "expert_layer_s", "routing_passes", "expert_padding",
    "expert_variety", "expert_imbalance", "latent_layer_s", "fused_expert_layer_s", "layer_s", "step_s", "one_shot_s",
)  # fmt: skip
# What no kernel has been seen to surpass.
UPPER = {
    "gemm_fp16": 0.85, "gemm_fp8": 0.85, "gemm_fp4": 0.85, "gemm_fp4_rtx": 0.85, "block_scaled": 1.0, "memory": 0.92,
    "kv_cache": 0.92, "attention": 0.75, "nvlink": 0.85, "pcie": 0.85, "expert_variety": 1.0,
}  # fmt: skip
_PRIOR_WEIGHT = 0.03
_ROWS_OF_A_CELL = 4  # evenly over loads and lengths: more say the same again
_FAMILY = {"llama-2-70b": "70b", "llama-3.1-70b": "70b"}  # of one size: leaving one out alone would be no test


class Fit(NamedTuple):
    """The logarithms of the constants, in the order of `PRIOR`."""

    plain: Logs  # after the first stage
    whole: Logs  # after both


def fit(rows: Iterable[Measurement], *, start: Fit | None = None, max_nfev: int = 20) -> Fit:
    """Return the constants that explain measurements best.

    First all constants to the plain engines, then `LAST` to all. So experts and four bits, which are explained less
    well, do not pull at what plain engines show.

    Args:
        start: where each stage begins, near its end; None: at the prior.
    """
    rows = list(rows)
    prior = np.log(list(PRIOR.values()))
    plain = [one for one in rows if stratum_of(engine_of(one)) == PLAIN]
    first = _fitted(plain, prior if start is None else start.plain, tuple(PRIOR), max_nfev)
    second = first.copy()
    if start is not None:
        last = [list(PRIOR).index(name) for name in LAST]
        second[last] = start.whole[last]
    return Fit(first, _fitted(rows, second, LAST, max_nfev))


def _fitted(rows: list[Measurement], start: Logs, names: tuple[str, ...], max_nfev: int) -> Logs:
    """Return the constants with those of some names fitted: robust least squares of log errors.

    Set-ups weigh alike, whatever number of versions and figures they have.
    """
    rows = sample(rows)
    weights = _weights(rows)
    free = [list(PRIOR).index(name) for name in names]
    prior = np.log([PRIOR[name] for name in names])

    def whole(logs: Logs) -> Logs:
        made = start.copy()
        made[free] = logs
        return made

    def residuals(logs: Logs) -> Logs:
        eff = unchecked(whole(logs))
        values = [predicted(one, eff) for one in rows]
        errors = [
            0.0 if value is None else math.log(value / one.value) for value, one in zip(values, rows, strict=True)
        ]
        return np.concatenate([np.array(errors) * weights, _PRIOR_WEIGHT * (logs - prior)])

    low = np.array([0.0 if name == "blend" else -np.inf for name in names])
    high = np.log([UPPER.get(name, np.inf) for name in names])
    begin = np.clip(start[free], low + 1e-6, high - 1e-6)
    found = least_squares(residuals, begin, bounds=(low, high), loss="soft_l1", f_scale=0.15, max_nfev=max_nfev)
    return whole(found.x)


def sample(rows: Iterable[Measurement]) -> list[Measurement]:
    """Return some figures of each cell, evenly over its lengths and loads."""
    cells = defaultdict(list)
    for one in rows:
        cells[one.cell].append(one)
    found = []
    for _, of_cell in sorted(cells.items()):
        of_cell.sort(key=lambda one: (one.isl or 0, one.osl or 0, str(one.load), one.metric))
        step = max(1, len(of_cell) // _ROWS_OF_A_CELL)
        found += of_cell[::step][:_ROWS_OF_A_CELL]
    return found


def _weights(rows: list[Measurement]) -> npt.NDArray[np.float64]:
    in_cell, cells = Counter(one.cell for one in rows), defaultdict(set)
    for one in rows:
        cells[one.set_up].add(one.cell)
    return np.array([(in_cell[one.cell] * len(cells[one.set_up])) ** -0.5 for one in rows])


def unchecked(logs: Logs) -> Efficiencies:
    """Return constants from their logarithms, without the checks that a table gets."""
    return Efficiencies.model_construct(**(dict(zip(PRIOR, np.exp(logs).tolist(), strict=True)) | ASSUMED))


def leave_one_out(rows: list[Measurement], group_of: Callable[[Measurement], str], start: Fit) -> Cells:
    """Return the errors of every cell, by constants that were fitted without its group."""
    everything: Cells = {}
    names = sorted({group_of(one) for one in rows})
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for name, cells in zip(names, pool.map(partial(_without, rows, group_of, start), names), strict=True):
            print(f"  without {name}: {errors_of(cells)}", flush=True)
            everything |= cells
    return everything


def _without(rows: list[Measurement], group_of: Callable[[Measurement], str], start: Fit, name: str) -> Cells:
    found = fit((one for one in rows if group_of(one) != name), start=start, max_nfev=5)
    return _errors([one for one in rows if group_of(one) == name], unchecked(found.whole))


def _errors(rows: Iterable[Measurement], eff: Efficiencies) -> Cells:
    """Return errors by cell; a cell's first tokens are a cell of their own."""
    rows = list(rows)
    speed = log_errors([one for one in rows if not one.is_first_token], eff)
    first = log_errors([one for one in rows if one.is_first_token], eff)
    return speed | {f"{name}{_FIRST}": errors for name, errors in first.items()}


_FIRST = "|first token"


def by_gpu(one: Measurement) -> str:
    """Return the GPU of a measurement."""
    return str(one.gpu)


def by_model(one: Measurement) -> str:
    """Return the model of a measurement, models of one shape as one."""
    return _FAMILY.get(one.model, one.model)


def main() -> None:
    """Fit, leave out, write."""
    rows = list(scored())
    print(f"fitting {len(PRIOR)} constants to {len(sample(rows))} of {len(rows)} measurements", flush=True)
    start = fit(rows)
    eff = Efficiencies(**{name: float(f"{value:.4g}") for name, value in dict(unchecked(start.whole)).items()})
    found = {"fitted": _errors(rows, eff)}
    print(f"  fitted: {errors_of(found['fitted'])}", flush=True)
    found["gpu_left_out"] = leave_one_out(rows, by_gpu, start)
    found["model_left_out"] = leave_one_out(rows, by_model, start)
    stratum = {one.cell: stratum_of(engine_of(one)) for one in rows}
    summary = _summary(found, stratum)
    content = {
        "efficiencies": dict(eff),
        "fitted_on": {
            "gpus": sorted({by_gpu(one) for one in rows}),
            "models": sorted({one.model for one in rows}),
        },
        "errors": summary,
    }
    result: dict[str, object] = {
        "what": "log(predicted / measured), the median of each cell's and of each cell's magnitudes; errors as factors",
        "measurements": len(rows),
        "fitted_to": len(sample(rows)),
        "summary": summary,
        "by_gpu_left_out": _by(found["gpu_left_out"], {one.cell: by_gpu(one) for one in rows}),
        "by_model_left_out": _by(found["model_left_out"], {one.cell: by_model(one) for one in rows}),
        "by_source": _by(found["fitted"], {one.cell: one.group for one in rows}),
        "cells": {
            name: {"stratum": stratum[_plain(name)]}
            | {how: _rounded(errors_of({name: cells[name]})) for how, cells in found.items() if name in cells}
            for name in sorted(found["fitted"])
        },
    }
    write_result("planner_fit", result)  # first: it says of which commit, and the table is a part of that
    header = "# Generated by `make planner-fit` from published_measurements.json. Errors are factors: 1.1 is 10 %.\n"
    TABLE.write_text(header + yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    print(f"wrote {TABLE.name}")


def _plain(cell: str) -> str:
    return cell.removesuffix(_FIRST)


def _summary(found: Mapping[str, Cells], stratum: Mapping[str, str]) -> dict[str, dict[str, dict[str, float]]]:
    """Return the errors of each stratum, and of first tokens, by what was left out."""
    speed = [cell for cell in found["fitted"] if _FIRST not in cell]
    groups = {name: [cell for cell in speed if stratum[cell] == name] for name in STRATA}
    groups |= {"all": speed, "first tokens": [cell for cell in found["fitted"] if _FIRST in cell]}
    return {
        name: {
            how: _with_reach({cell: all_of[cell] for cell in cells if cell in all_of}, how)
            for how, all_of in found.items()
        }
        for name, cells in groups.items()
        if cells
    }


def _with_reach(cells: Cells, how: str) -> dict[str, float]:
    """Return errors with the factor within which nine of ten cells lie, counted on groups that it is not made from.

    The factor of the other groups is widened by one exponent for all until nine of ten lie within it: some groups are
    further off than all others together say. A group is a source, a GPU or a model, as it was left out.
    """
    groups: dict[str, list[float]] = defaultdict(list)
    for name, errors in cells.items():
        groups[_GROUP_OF_CELL[how](name.split("|"))].append(median(map(abs, errors)))
    shares = []
    for name, own in groups.items():
        others = [error for other, errors in groups.items() if other != name for error in errors]
        shares += [error / percentile(others, 90) for error in own] if others else []
    counted = sum(share <= 1 for share in shares) / len(shares) if shares else 0.0
    stated = errors_of(cells)
    within = stated.p90 ** max(1.0, percentile(shares, 90) if shares else 1.0)
    return _rounded(stated) | {"counted_apart": round(counted, 3), "within": round(within, 3)}


_GROUP_OF_CELL: dict[str, Callable[[list[str]], str]] = {
    "fitted": lambda parts: parts[0],
    "gpu_left_out": lambda parts: parts[2],
    "model_left_out": lambda parts: _FAMILY.get(parts[1], parts[1]),
}


def _by(cells: Cells, group_of: Mapping[str, str]) -> dict[str, dict[str, dict[str, float]]]:
    """Return the errors of each group's cells, first tokens apart."""
    groups: dict[str, dict[str, Cells]] = defaultdict(lambda: defaultdict(dict))
    for name, errors in cells.items():
        groups[group_of[_plain(name)]]["first tokens" if _FIRST in name else "speed"][name] = errors
    return {
        group: {kind: _rounded(errors_of(of_kind)) for kind, of_kind in sorted(kinds.items())}
        for group, kinds in sorted(groups.items())
    }


def _rounded(errors: Errors) -> dict[str, float]:
    return {name: round(value, 3) for name, value in errors._asdict().items()}


if __name__ == "__main__":
    main()
