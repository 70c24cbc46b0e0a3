# SPDX-License-Identifier: Apache-2.0
"""A stand-in of a judge's `merge`, where a test looks at the outcomes themselves."""

from collections.abc import Mapping, Sequence

import msgspec

from ensemble_configs.split.outcome import Outcome


def merge(
    evidence: Mapping[str, object] | None, outcomes: Sequence[Outcome], *, at_s: float | None
) -> Mapping[str, object]:
    assert at_s is not None
    kept = list((evidence or {}).get("outcomes", []))  # type: ignore[call-overload]
    return {"outcomes": kept + [msgspec.to_builtins(one) for one in outcomes]}
