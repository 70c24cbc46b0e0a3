# SPDX-License-Identifier: Apache-2.0
"""Findings about a recipe: the field, what it says, what is allowed, and the next step."""

from collections.abc import Iterable, Iterator

from build_engines.recipes.recipe_parts import Calibration
from ensemble_configs.spec.finding import Finding

Findings = Iterator[Finding]


def finding(field: str, found: object, wanted: object, next_step: str) -> Finding:
    """Return a finding."""
    return Finding(check=field, found=str(found), wanted=str(wanted), next_step=next_step)


def one_of(names: Iterable[object]) -> str:
    """Return names sorted, with commas."""
    return ", ".join(sorted(map(str, names)))


def ability(field: str, value: str, known: frozenset[str], where: str, next_step: str) -> Findings:
    """Yield a finding if a value is not among those that `where` knows."""
    if value not in known:
        yield finding(field, value, f"{one_of(known)} {where}", next_step)


def fixed(calibration: Calibration, tool: str, *fields: str) -> Findings:
    """Yield a finding for each setting that the tool does not let a recipe choose."""
    for field in fields:
        value, default = getattr(calibration, field), Calibration.model_fields[field].default
        if value != default:
            yield finding(f"calibration.{field}", value, default, f"{tool} cannot set it; leave it out")


def shown(value: object) -> str:
    """Return a field's value, as short as in a recipe."""
    match value:
        case None:
            return "nothing"
        case bool():
            return str(value).lower()
        case str() | int():
            return str(value)
    return "set"
