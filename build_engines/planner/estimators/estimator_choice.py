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
from build_engines.planner.estimators.estimator import Estimator, Load, Roofline
from build_engines.planner.estimators.strata import stratum_of
from build_engines.planner.roofline.candidates import Candidate
from build_engines.planner.roofline.steady_state import Estimate, Limits, Workload
from trireme.base.errors import SpecError

TABLE = Path(__file__).with_name("estimator_errors.yaml")

Wish = Literal["auto", "roofline", "aisimulate"]


class Choice(NamedTuple):
    """Estimators in order; the first that covers a candidate is asked."""

    estimators: list[Estimator]
    why: str


@cache
def stated_errors() -> dict[str, dict[str, dict[str, float]]]:
    """Return the errors of both estimators on the published cells that both cover, by stratum and estimator.

    They are as `published.Errors`. The roofline's are those without the GPU in its fit: AISimulate was not fitted to
    these cells either.
    """
    errors: dict[str, dict[str, dict[str, float]]] = yaml.safe_load(TABLE.read_text(encoding="utf-8"))
    return errors


class WhereBetter:
    """An estimator that is asked only about strata in which its stated median error is the smaller one.

    Args:
        inner: the estimator.
    """

    def __init__(self, inner: Estimator) -> None:
        self._inner = inner
        self.name = inner.name

    def why_not(self, candidate: Candidate, workload: Workload, limits: Limits) -> str | None:
        """Return the reason why it is not asked about a candidate, or None."""
        stratum = stratum_of(candidate.engine)
        if not _is_better(self.name, stratum):
            return f"in the stratum '{stratum}' {_in_words(stratum)}"
        return self._inner.why_not(candidate, workload, limits)

    def estimate(self, candidate: Candidate, workload: Workload, load: Load, limits: Limits) -> Estimate | None:
        """Return the estimator's estimate."""
        return self._inner.estimate(candidate, workload, load, limits)


@contextmanager
def chosen(wish: Wish, config: Mapping[str, object], process: AiSimulateProcess | None = None) -> Iterator[Choice]:
    """Yield the estimators of a plan about one model; AISimulate's process runs as long as the context is open.

    `auto` asks AISimulate first where it is installed, about the strata in which its stated median error is the
    smaller one.

    Args:
        config: the model's `config.json`.

    Raises:
        SpecError: AISimulate is asked for and not installed.
    """
    process = process or AiSimulateProcess()
    if wish == "aisimulate" and not process.is_installed:
        raise SpecError(f"{NOT_INSTALLED}; or leave it to --estimator roofline", field="estimator", value=wish)
    if wish == "roofline" or not process.is_installed:
        yield Choice([Roofline()], _why_not_asked(wish))
        return
    with model_folder(config) as folder:
        theirs = AiSimulate(folder, process)
        try:
            if wish == "auto":
                yield Choice([WhereBetter(theirs), Roofline()], "")
            else:
                yield Choice([theirs, Roofline()], f"{wish} was asked for")
        finally:
            process.close()


def _why_not_asked(wish: Wish) -> str:
    if wish == "roofline":
        return "roofline was asked for"
    better = [stratum for stratum in stated_errors() if _is_better("aisimulate", stratum)]
    if not better:
        return "in every stratum the roofline's median error is the smaller one"
    found = "; ".join(f"{stratum}: {_in_words(stratum)}" for stratum in better)
    return f"AISimulate is the nearer one for some ({found}), but it is not installed (make aisimulate)"


def _is_better(name: str, stratum: str) -> bool:
    errors = stated_errors().get(stratum)
    return errors is not None and errors[name]["median"] < errors["roofline"]["median"]


def _in_words(stratum: str) -> str:
    if stratum not in stated_errors():
        return "no published cell is one that both can do"
    ours, theirs = (stated_errors()[stratum][name] for name in ("roofline", "aisimulate"))
    return (
        f"roofline's median error is x/÷ {ours['median']:.2f}, AISimulate's {theirs['median']:.2f}, "
        f"on {ours['num_cells']:.0f} published cells that both can do"
    )
