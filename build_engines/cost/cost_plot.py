# SPDX-License-Identifier: Apache-2.0
"""Three pictures, readable without colour: where a fleet becomes cheaper, what matters most, what each lever saves."""

import io

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from build_engines.cost.break_even import usd_at
from build_engines.cost.findings import Findings
from build_engines.cost.levers import LeverPlan
from build_engines.cost.report_tables import cheaper_from, count, usd

_DASHES = ((0, ()), (0, (6, 2)), (0, (2, 2)), (0, (8, 2, 2, 2)), (0, (1, 1)))
_POINTS = 600


def pictures(found: Findings) -> dict[str, bytes]:
    """Return the pictures as PNGs, by what they show."""
    made = {"Self-hosted against managed": _png(break_even_figure(found))}
    if found.sensitivities:
        made["What matters most"] = _png(tornado_figure(found))
    if found.levers is not None:
        made["Levers, alone and together"] = _png(levers_figure(found.levers))
    return made


def break_even_figure(found: Findings) -> Figure:
    """Draw dollars a month over tokens a month, both logarithmic; a mark where the fleet becomes cheaper for good."""
    figure, axes = _axes()
    now = found.bill.tokens.total
    marks = [one.tokens for one in found.break_evens if one.tokens] + [now]
    tokens = np.geomspace(min(marks) / 30, max(marks) * 10, _POINTS)
    axes.plot(
        tokens, [usd_at(found.spec, each, now) for each in tokens], color="black", linewidth=2, label="your fleet"
    )
    for number, one in enumerate(found.break_evens):
        (line,) = axes.plot(
            tokens, tokens * one.managed_usd_per_million / 1e6, linestyle=_DASHES[number % len(_DASHES)],
            label=f"{one.price.name}: {cheaper_from(one)}",
        )  # fmt: skip
        if one.tokens:
            axes.plot(one.tokens, one.tokens * one.managed_usd_per_million / 1e6, "o", color=line.get_color(), ms=8)
    axes.axvline(now, color="gray", linewidth=1)
    low = axes.get_xaxis_transform()  # x in tokens, y as a share of the picture
    axes.annotate(
        f"today, {count(now)}", (now, 0.02), xycoords=low, rotation=90, va="bottom", ha="right", fontsize="small"
    )
    axes.set(xscale="log", yscale="log", xlabel="tokens a month, in and out", ylabel="US dollars a month")
    where = "from the dots on the fleet is cheaper" if any(one.tokens for one in found.break_evens) else "never cheaper"
    axes.set_title(f"{found.spec.name}: {where} (prices of {found.managed.collected})")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    return figure


def tornado_figure(found: Findings) -> Figure:
    """Draw bars of $/M from each assumption lower (hatched) to higher (full)."""
    figure, axes = _axes()
    base, percent = found.bill.usd_per_million, 100 * (found.sensitivity_fraction or 0)
    ordered = found.sensitivities[::-1]
    for is_low, hatch, face, label in ((True, "///", "white", "less"), (False, "", "dimgray", "more")):
        ends = [one.low_usd if is_low else one.high_usd for one in ordered]
        axes.barh(
            [one.name for one in ordered], [end - base for end in ends], left=base, hatch=hatch, facecolor=face,
            edgecolor="black", label=f"{percent:g} % {label}", height=0.4 if is_low else -0.4, align="edge",
        )  # fmt: skip
    axes.axvline(base, color="black", linewidth=1)
    axes.set(xlabel="US dollars per million tokens", title=f"{found.spec.name}: one assumption {percent:g} % off")
    axes.grid(alpha=0.3, axis="x")
    axes.legend(fontsize="small", loc="lower right")
    return figure


def levers_figure(plan: LeverPlan) -> Figure:
    """Draw the bill with each lever alone, with all, and with what adding up would promise."""
    figure, axes = _axes()
    bars = {"today": plan.usd, **{f"{one.name.replace('_', ' ')} alone": plan.usd - one.alone for one in plan.savings}}
    bars["all together"] = plan.joint_usd
    names = list(bars)[::-1]
    drawn = axes.barh(names, [bars[name] for name in names], facecolor="lightgray", edgecolor="black")
    axes.bar_label(drawn, [f" {usd(bars[name])}" for name in names], fontsize="small")
    axes.axvline(plan.usd / 2, color="black", linestyle="--", linewidth=1, label="half of today's")
    axes.set(xlabel="US dollars a month", title="Levers, alone and together", xlim=(0, plan.usd * 1.15))
    axes.legend(fontsize="small", loc="lower right")
    return figure


def _axes() -> tuple[Figure, Axes]:
    figure = Figure(figsize=(10, 6), layout="constrained")
    return figure, figure.add_subplot()


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return buffer.getvalue()
