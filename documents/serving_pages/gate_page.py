# SPDX-License-Identifier: Apache-2.0
"""The writer of the tables of `docs/rollout_gate.md` from the latest results of its two studies: `make docs`."""

from clients.rollout_gate.gate_spec import GateSpec
from clients.rollout_gate.metrics import METRICS, alpha_of
from documents.pages import DOCS, with_tables
from documents.results import Document, latest, newest
from trireme.base.text_tables import markdown_table

PAGE = DOCS / "rollout_gate.md"
_POWER = 0.95  # that was asked for, within 2,000 requests
_FALSE_ROLLBACKS, _PASSED = 0.01, 0.9  # that were asked for of equal releases, within 4,000


def page(text: str) -> str:
    """Return the page with its tables written anew."""
    result, hard = latest("gate_trials"), latest("gate_hard_trials")
    tables = {
        "metrics": _metrics(),
        "origin": _origin(result, newest("gate_trials").name),
        "false rollbacks": _false_rollbacks(result),
        "detection": _detection(result),
        "others": _others(result),
        "origin of hard traffic": _origin(hard, newest("gate_hard_trials").name),
        "equal releases": _equal_releases(hard),
        "faults": _faults(hard),
        "real server": real_server(latest("gate_server_trials")),
        "origin of the real server": _origin_of_server(latest("gate_server_trials"), newest("gate_server_trials").name),
    }
    return with_tables(text, tables)


def _metrics() -> str:
    spec = GateSpec()
    kinds = {"log_mean": "mean logarithm", "groups": "mean logarithm by group", "share": "events", "score": "pairs"}
    return markdown_table(
        ["metric", "name", "test", "too much", "alpha, in 1,000", ""],
        (
            [
                metric.title,
                f"`{name}`",
                kinds[metric.kind] + (", two-sided" if metric.is_two_sided else ""),
                f"{getattr(spec.effects, name):g}" if metric.kind == "score" else f"{getattr(spec.effects, name):.0%}",
                f"{1000 * alpha_of(name, spec):.2f}",
                "optional" if metric.is_optional else "",
            ]
            for name, metric in METRICS.items()
        ),
    )


def _origin(result: Document, source: str) -> str:
    where = result["environment"]
    return (
        f"From `benchmarks/results/{source}`, seed {result['seed']}, {where['date'][:10]}, "
        f"commit {where['commit'][:7]}, Python {where['python']}, numpy {where['versions']['numpy']}."
    )


def _false_rollbacks(result: Document) -> str:
    rows = []
    for one in result["scenarios"]:
        if one["scenario"] != "A/A":
            continue
        back, waited = one["rolled_back"], one["to_pass"]
        rows.append(
            [
                f"`{one['model']}`" + _changed(one),
                f"{one['rollouts']:,}",
                f"{one['max_requests']:,}",
                str(back["count"]),
                f"{back['upper']:.2%}",
                f"{one['passed']['share']:.1%}",
                f"{waited['median_requests']:,} / {waited['p95_requests']:,}" if waited else "",
            ]
        )
    header = ["model", "rollouts", "requests of each arm", "rolled back", "95 % upper bound"]
    return markdown_table([*header, "passed", "requests to the pass, median / p95"], rows)


def _detection(result: Document) -> str:
    rows = []
    for one in result["scenarios"]:
        if one["scenario"] == "A/A":
            continue
        back, taken = one["rolled_back"], one["to_rollback"]
        is_missed = one["spread"] == 1 and one["model"] != "own_bursts" and back["lower"] < _POWER
        rows.append(
            [
                one["scenario"],
                f"`{one['model']}`" + _changed(one),
                f"{one['max_requests']:,}",
                f"{back['share']:.1%}" + (" (missed)" if is_missed else ""),
                f"{back['lower']:.1%}",
                f"{one['passed']['share']:.1%}",
                f"{taken['median_requests']:,} / {taken['p95_requests']:,}",
                f"{taken['median_s']:.0f} / {taken['p95_s']:.0f}",
            ]
        )
    header = ["regression", "model", "requests of each arm", "rolled back", "95 % lower bound", "passed"]
    return markdown_table([*header, "requests, median / p95", "seconds, median / p95"], rows)


def _equal_releases(result: Document) -> str:
    rows = []
    for one in result["trials"]:
        if one["fault"]:
            continue
        back, passed, waited = one["rolled_back"], one["passed"], one["to_pass"]
        few = passed["share"] < _PASSED
        open_ones = ", ".join(f"`{name}`" for name in list(one["open_at_end"])[:3] if not METRICS[name].is_optional)
        rows.append(
            [
                one["conditions"],
                f"{one['rollouts']:,}",
                str(back["count"]),
                f"{back['upper']:.2%}" + (" (missed)" if back["upper"] > _FALSE_ROLLBACKS else ""),
                f"{passed['share']:.1%}" + (" (missed)" if few else ""),
                f"{waited['median_requests']:,} / {waited['p95_requests']:,}" if waited else "",
                open_ones if few else "",
            ]
        )
    header = ["traffic", "rollouts", "rolled back", "95 % upper bound", "passed"]
    return markdown_table([*header, "requests to the pass, median / p95", "open in the others"], rows)


def _faults(result: Document) -> str:
    found = {(one["fault"], one["conditions"]): one for one in result["trials"] if one["fault"]}
    conditions = list(dict.fromkeys(where for _, where in found))
    rows = []
    for fault in dict.fromkeys(fault for fault, _ in found):
        shares = [found[fault, where]["rolled_back"] for where in conditions]
        missed = [" (missed)" if back["lower"] < _POWER else "" for back in shares]
        rows.append([fault, *(f"{back['share']:.1%}{note}" for back, note in zip(shares, missed, strict=True))])
    return markdown_table(["rolled back within 2,000 requests of each arm", *conditions], rows)


def real_server(result: Document) -> str:
    """Return the table of the rollouts on the real server."""
    rows = []
    for one in result["trials"]:
        back, passed = one["rolled_back"], one["passed"]
        waited = one["requests_to_pass"] or one["requests_to_rollback"]
        held = one["rollouts"] - back["count"] - passed["count"]
        by = ", ".join(f"`{name}` {count}" for name, count in one["failed_by"].items())
        rows.append(
            [
                one["candidate"],
                str(one["rollouts"]),
                f"{back['count']}" + (f" (by {by})" if by else ""),
                str(passed["count"]),
                str(held),
                f"{waited['median']:,.0f} / {waited['p95']:,.0f}" if waited else "",
            ]
        )
    header = ["candidate", "rollouts", "rolled back", "passed", "held", "requests to the verdict, median / p95"]
    return markdown_table(header, rows)


def _origin_of_server(result: Document, source: str) -> str:
    where = result["environment"]
    return (
        f"From `benchmarks/results/{source}`, {where['date'][:10]}, commit {where['commit'][:7]}; {result['servers']} "
        f"servers at a time, {result['requests_per_s']:g} requests a second to each and {result['beside_per_s']:g} "
        "beside; "
        f"{where['cpu']}, {where['num_cpus']} cores, load {where['load_1min']}."
    )


def _others(result: Document) -> str:
    shown = [one for one in result["scenarios"] if one["others"]]
    shown = [one for one in shown if one["scenario"] == "A/A" or one["model"] == "steady"]
    names = list(shown[0]["others"])
    rows = []
    for one in shown:
        judged = {"ours": one} | {name: one["others"][name] for name in names}
        title = f"A/A, `{one['model']}`" if one["scenario"] == "A/A" else one["scenario"]
        rows.append([title, *(_outcome(found) for found in judged.values())])
    return markdown_table(["rolled back; median seconds until then", "this gate", *names], rows)


def _outcome(found: Document) -> str:
    share, taken = found["rolled_back"]["share"], found["to_rollback"]
    return f"{share:.1%}" + (f"; {taken['median_s']:.0f} s" if taken else "")


def _changed(one: Document) -> str:
    found = "" if one["spread"] == 1 else f", {one['spread']:g} times the spread"
    found += "" if one["own"] == 1 else f", bursts {one['own']:.2g} times as large"
    return found + ("" if one["own_fade"] == 1 else f", fading {one['own_fade']:g} times as long")
