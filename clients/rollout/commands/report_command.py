# SPDX-License-Identifier: Apache-2.0
"""The command `trireme rollout report`: all that a rollout has found out, as a page for people or as JSON."""

import csv
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from clients.rollout.choice import JsonOption, NumberOption, StoreOption, any_rollout, existing_store
from clients.rollout.judging.judges import judge_of
from clients.rollout.judging.sample_ratio import mismatch
from clients.rollout.records.rollout_plan import Mode, Plan, read_plan
from clients.rollout.records.state import Assignment
from clients.rollout.records.store import Store
from clients.rollout.server_place import ServerOption
from clients.rollout_gate.report_text import markdown, metric_table
from trireme.base.errors import RequestError, SpecError

Report = dict[str, Any]


def report(
    *,
    number: NumberOption = None,
    step: Annotated[
        int | None, typer.Option(min=0, help="Number of the share to report, from 0.", show_default="the last")
    ] = None,
    price_per_gpu_hour: Annotated[
        float | None,
        typer.Option(min=0, max=1e6, help="Price of a GPU hour, to report what a million tokens of each arm cost."),
    ] = None,
    assignments: Annotated[
        Path | None, typer.Option(help="CSV file to write the assignment log of an A/B test to.")
    ] = None,
    server: ServerOption = None,
    store: StoreOption = None,
    is_json: JsonOption = False,
) -> None:
    """Say what a rollout has found out: effect sizes with their bounds, texts of a shadow, cost of each arm.

    \b
    Examples:
      trireme rollout report > rollout.md
      trireme rollout report --rollout 3 --price-per-gpu-hour 2.5 --json
      trireme rollout report --assignments assignments.csv
    """
    with Store(existing_store(server, store)) as kept:
        rollout = any_rollout(kept, number)
        if step is not None and step > rollout.step:
            raise RequestError(
                f"rollout {rollout.id} has reached step {rollout.step}; --step must be 0 to that, got {step}",
                field="step",
                value=step,
            )
        plan = read_plan(rollout.plan)
        found: Report = dict(
            judge_of(plan).judge(kept.evidence(rollout.id, rollout.step if step is None else step)).report
        )
        found["rollout"] = msgspec.to_builtins(rollout)
        if plan.mode is Mode.AB:
            found["units"] = kept.assigned.units_by_arm(rollout.id)
            found["mismatch"] = mismatch(found["units"], plan.arms)
            found["on_several_arms"] = kept.assigned.num_units_on_several_arms(rollout.id)
            _add_cost(found, price_per_gpu_hour)
        if assignments is not None:
            _write(kept.assigned.rows(rollout.id), assignments)
    typer.echo(msgspec.json.encode(found).decode() if is_json else page(found, plan))


def page(found: Report, plan: Plan) -> str:
    """Return a rollout's report as Markdown."""
    if plan.mode is Mode.AB:
        return _page_of_arms(found)
    text = markdown(found)
    if plan.mode is Mode.SHADOW:
        text += _texts(found["texts"])
    return text


def _texts(texts: Report) -> str:
    if not texts["num"]:
        return "\nNo copy of a greedy request has ended yet: nothing is said of its text.\n"
    return (
        f"\n{texts['num']} copies of greedy requests: {texts['same']:.1%} have the text that the user got, to the end; "
        f"on average {texts['agreement']:.1%} of the longer text agree before the first difference.\n"
    )


def _page_of_arms(found: Report) -> str:
    has_price = any(row.get("usd_per_million_tokens") is not None for row in found["arms"].values())
    price = " USD a million tokens |" if has_price else ""
    lines = [
        "# A/B test",
        "",
        *([f"**{found['mismatch']}**", ""] if found["mismatch"] else []),
        f"| arm | share | keys and keyless requests | requests | errors | tokens | GPU s a million tokens |{price}",
        "|---|---|---|---|---|---|---|" + ("---|" if has_price else ""),
        *(_arm_row(arm, row, found, has_price=has_price) for arm, row in found["arms"].items()),
        "",
        "GPU seconds, and what they cost, are those of a full engine: a request holds one of its seats from its "
        "sending to its end, and the seats share the GPUs equally.",
        "",
    ]
    if found["on_several_arms"]:
        lines += [f"{found['on_several_arms']} keys were answered on more than one arm.", ""]
    for arm, one in found["against_stable"].items():
        lines += [f"## {arm} against the stable release", "", *metric_table(one, names=(arm, "stable")), ""]
    lines += [
        "The bounds hold at every look. Each is one-sided: the change is at least the one, and at most the other, with "
        "the chances that the gate's settings give.",
        "",
    ]
    return "\n".join(lines)


def _arm_row(arm: str, row: Report, found: Report, *, has_price: bool) -> str:
    per_million = row["gpu_s_per_million_tokens"]
    cells = [
        arm,
        f"{row['share']:.1%}",
        str(found["units"].get(arm, 0)),
        str(row["requests"]),
        str(row["errors"]),
        str(row["tokens"]),
        "" if per_million is None else f"{per_million:.1f}",
    ]
    if has_price:
        usd = row["usd_per_million_tokens"]
        cells.append("" if usd is None else f"{usd:.3f}")
    return f"| {' | '.join(cells)} |"


def _add_cost(found: Report, price_per_gpu_hour: float | None) -> None:
    for row in found["arms"].values():
        per_million = row["gpu_s_per_million_tokens"]
        is_known = per_million is not None and price_per_gpu_hour is not None
        row["usd_per_million_tokens"] = per_million / 3600 * price_per_gpu_hour if is_known else None


def _write(assigned: Iterable[Assignment], path: Path) -> None:
    try:
        with path.open("w", newline="", encoding="utf-8") as file:
            rows = csv.writer(file)
            rows.writerow(Assignment.__struct_fields__)
            rows.writerows(msgspec.structs.astuple(each) for each in assigned)
    except OSError as exc:
        raise SpecError(f"cannot write the assignments {path}: {exc.strerror}; name another file", file=path) from exc
