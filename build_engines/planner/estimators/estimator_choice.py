# SPDX-License-Identifier: Apache-2.0
"""The choice of the estimator that a plan asks first, and the reason."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

import yaml

from build_engines.planner.estimators.aisimulate_estimator import AiSimulate
from build_engines.planner.estimators.aisimulate_process import NOT_INSTALLED, AiSimulateProcess, model_folder
from build_engines.planner.estimators.estimator import Estimator, Roofline
from trireme.base.errors import SpecError

TABLE = Path(__file__).with_name("estimator_errors.yaml")

Wish = Literal["auto", "roofline", "aisimulate"]


class Choice(NamedTuple):
    """Estimators in order; the first that covers a candidate is asked."""

    estimators: list[Estimator]
    why: str


@cache
def stated_errors() -> dict[str, dict[str, float]]:
    """Return the errors of both estimators on the published cells that both cover, as `published.Errors` by estimator.

    The roofline's are those without the GPU in its fit: AISimulate was not fitted to these cells either.
    """
    errors: dict[str, dict[str, float]] = yaml.safe_load(TABLE.read_text(encoding="utf-8"))
    return errors


@contextmanager
def chosen(wish: Wish, config: Mapping[str, object], process: AiSimulateProcess | None = None) -> Iterator[Choice]:
    """Yield the estimators of a plan about one model; AISimulate's process runs as long as the context is open.

    `auto` asks AISimulate first where it is installed and its stated median error is the smaller one.

    Args:
        config: the model's `config.json`.

    Raises:
        SpecError: AISimulate is asked for and not installed.
    """
    process = process or AiSimulateProcess()
    if wish == "aisimulate" and not process.is_installed:
        raise SpecError(f"{NOT_INSTALLED}; or leave it to --estimator roofline", field="estimator", value=wish)
    is_aisimulate, why = _decide(wish, is_installed=process.is_installed)
    if not is_aisimulate:
        yield Choice([Roofline()], why)
        return
    with model_folder(config) as folder:
        try:
            yield Choice([AiSimulate(folder, process), Roofline()], why)
        finally:
            process.close()


def _decide(wish: Wish, *, is_installed: bool) -> tuple[bool, str]:
    if wish != "auto":
        return wish == "aisimulate", f"{wish} was asked for"
    ours, theirs = (stated_errors()[name] for name in ("roofline", "aisimulate"))
    errors = (
        f"roofline's median error x/÷ {ours['median']:.2f}, AISimulate's {theirs['median']:.2f} "
        f"on the {ours['num_cells']:.0f} published cells that both can do"
    )
    if theirs["median"] >= ours["median"]:
        return False, errors
    if not is_installed:
        return False, f"{errors}, but it is not installed (make aisimulate)"
    return True, errors
