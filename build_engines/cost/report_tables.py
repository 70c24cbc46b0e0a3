# SPDX-License-Identifier: Apache-2.0
"""The findings as tables of text, which a terminal, Markdown and HTML show alike."""

from collections.abc import Iterator

from build_engines.cost.break_even import BreakEven
from build_engines.cost.findings import Findings
from build_engines.cost.levers import LeverPlan
from build_engines.cost.usage_records import TenantShare
from trireme.base.text_tables import TextTable

_BAR = 24


def tables(found: Findings) -> Iterator[TextTable]:
    """Yield the tables in the order in which they are read."""
    yield _pools(found)
    yield _bill(found)
    yield _prices(found)
    if found.tenants:
        yield _tenants(found.tenants)
    yield _break_evens(found)
    if found.levers is not None:
        yield levers_table(found.levers)
    if found.sensitivities:
        yield _tornado(found)


def usd(amount: float) -> str:
    """Return an amount in whole dollars, or with cents where whole dollars would hide the figure."""
    return f"${amount:,.0f}" if abs(amount) >= 100 else f"${amount:,.2f}"


def price(amount: float) -> str:
    """Return a price per million tokens: three decimals, or two digits where that would hide the figure."""
    return f"{amount:.3f}" if amount >= 0.1 or not amount else f"{amount:.2g}"


def count(number: float | None) -> str:
    """Return a number with M, B or T and three digits, or "never" for None."""
    if number is None:
        return "never"
    number = float(f"{number:.3g}")  # before the letter: 999,900 is 1M, not 1e+03K
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K")):
        if number >= size:
            return f"{number / size:.3g}{letter}"
    return f"{number:.3g}"


def _pools(found: Findings) -> TextTable:
    rows = []
    for one in found.bill.pools:
        fewest, most = min(one.replicas), max(one.replicas)
        within = "" if one.rates.uncertainty is None else f"x/÷ {one.rates.uncertainty:.2f}"
        cells = [one.model, f"{fewest}" if fewest == most else f"{fewest} to {most}", str(one.rates.num_gpus)]
        cells += [f"{1 / one.rates.prefill_s:,.0f}" if one.prompt_share else "", f"{1 / one.rates.decode_s:,.0f}"]
        cells += [f"{one.prompt_share:.0%}", f"{one.utilisation:.0%}", within, one.rates.source]
        rows.append(tuple(cells))
    headers = (
        "model", "replicas", "GPUs each", "prefill tokens/s", "decode tokens/s", "prompts' time", "busy", "within",
        "rates from",
    )  # fmt: skip
    notes = ("Rates are of one replica that does nothing else. Busy: mean over the day, of what is paid.",)
    return TextTable("Fleet", headers, tuple(rows), notes, ("rates from",))


def _bill(found: Findings) -> TextTable:
    total = found.bill
    at_work = total.gpu_usd - total.idle_usd
    parts = {
        "GPUs at work": at_work,
        "GPUs idle": total.idle_usd,
        "egress": total.egress_usd,
        "storage": total.storage_usd,
        "engineers": total.engineers_usd,
    }
    rows = [(name, usd(part), f"{part / total.total_usd:.0%}") for name, part in parts.items() if part]
    rows.append(("all", usd(total.total_usd), "100%"))
    missing = [name for name in ("egress", "storage", "engineers") if not parts[name]]
    notes = (f"Not in: {', '.join(missing)} (nothing was given).",) if missing else ()
    return TextTable("A month", ("", "US dollars", "of all"), tuple(rows) if total.total_usd else (), notes)


def _prices(found: Findings) -> TextTable:
    total = found.bill
    tokens = total.tokens
    rows = []
    if total.usd_per_million_input is not None:
        rows.append(("input", count(tokens.prefilled), price(total.usd_per_million_input)))
    if tokens.cached:
        rows.append(("input, cached", count(tokens.cached), "0.000"))
    rows.append(("output", count(tokens.output), price(total.usd_per_million_output)))
    rows.append(("all", count(tokens.total), price(total.usd_per_million)))
    notes = (
        "Input and output have of the GPUs what prefill and decode take of their time, idle time in proportion; "
        "output has the egress. A cached token takes no time of its own.",
    )
    return TextTable("A million tokens", ("tokens", "a month", "US dollars"), tuple(rows), notes)


def _tenants(tenants: tuple[TenantShare, ...]) -> TextTable:
    rows = tuple(
        (
            one.tenant, f"{one.requests:,}", count(one.tokens.prefilled), count(one.tokens.cached),
            count(one.tokens.output), usd(one.usd), f"{one.fraction:.1%}",
        )
        for one in tenants
    )  # fmt: skip
    headers = ("tenant", "requests", "input", "cached", "output", "$ a month", "of all")
    notes = ("Counts are of the records; dollars of a month like them, by the GPU time of each tenant's tokens.",)
    return TextTable("Tenants", headers, rows, notes)


def _break_evens(found: Findings) -> TextTable:
    rows = tuple(_break_even_row(one, found.bill.total_usd) for one in found.break_evens)
    headers = ("managed", "$/M", "its bill", "yours is", "cheaper from", "yours at best $/M")
    notes = (
        f"Prices collected {found.managed.collected}; give your own list with --managed. Cheaper from: tokens a month, "
        "in and out in today's mix, from which your fleet is cheaper for good. At best: nothing fixed or rounded up.",
    )
    return TextTable("Against managed prices", headers, rows, notes)


def _break_even_row(one: BreakEven, own_usd: float) -> tuple[str, ...]:
    times = f"{own_usd / one.managed_usd:.2f}x" if one.managed_usd else ""
    return (
        one.price.name, price(one.managed_usd_per_million), usd(one.managed_usd), times,
        cheaper_from(one), price(one.limit_usd_per_million),
    )  # fmt: skip


def cheaper_from(one: BreakEven) -> str:
    """Return the break-even traffic in words."""
    if not one.managed_usd:
        return "never, it is free"
    if one.tokens is None and one.first_tokens is not None:  # reserved replicas alone are cheap enough
        return f"{count(one.first_tokens)}, not for good"
    return count(one.tokens)


def levers_table(plan: LeverPlan) -> TextTable:
    """Return the table of the levers' savings, each alone and all together."""
    rows = [
        (
            one.name.replace("_", " "),
            usd(one.alone),
            f"{one.alone / plan.usd:.0%}",
            usd(one.last),
            usd(one.share),
            one.formula,
        )
        for one in plan.savings
    ]
    joint = plan.usd - plan.joint_usd
    rows.append(
        ("all together", usd(joint), f"{joint / plan.usd:.0%}", "", usd(joint), f"leaves {usd(plan.joint_usd)}")
    )
    fewest = plan.fewest_for(plan.usd / 2)
    halved = (
        f"The fewest that halve it: {' + '.join(fewest).replace('_', ' ')}."
        if fewest
        else "Not even all of them halve it."
    )
    notes = (
        f"Added up, the savings alone would be {usd(joint - plan.interaction_usd)}; together they are {usd(joint)}, "
        "for what one has saved the next cannot. As the last: in a fleet that has all others. Share: of the joint "
        "saving, the mean over all orders.",
        halved,
    )
    headers = ("lever", "alone saves", "of the bill", "as the last", "share", "by")
    return TextTable(f"Levers on {usd(plan.usd)} a month", headers, tuple(rows), notes, ("by",))


def _tornado(found: Findings) -> TextTable:
    base = found.bill.usd_per_million
    widest = found.sensitivities[0].swing_usd
    rows = tuple(
        (one.name, price(one.low_usd), price(one.high_usd), "#" * max(1, round(_BAR * one.swing_usd / widest)))
        for one in found.sensitivities
    )
    percent = f"{100 * (found.sensitivity_fraction or 0):g} %"
    title = f"What {price(base)} $/M would be with one assumption {percent} off"
    notes = (
        "Replicas are whole, so a small step may change nothing or a whole replica. Rates stay while the mix moves.",
    )
    return TextTable(title, ("assumption", f"-{percent}", f"+{percent}", "swing"), rows, notes, ("swing",))
