# SPDX-License-Identifier: Apache-2.0
"""`docs/rollout_gate.md` says what the committed figures say, and those are what was promised or are called missed."""

from benchmarks.rollout_gate.gate_trials import SPEC, scenarios
from benchmarks.rollout_gate.latency_models import load_models
from documents.results import Document, latest
from documents.serving_pages.gate_page import PAGE


def committed() -> Document:
    return latest("gate_trials")


def test_the_committed_study_is_whole_and_of_today_s_settings() -> None:
    result = committed()
    assert result["spec"] == SPEC.model_dump(mode="json")
    keys = ("model", "spread", "own", "own_fade", "rollouts")
    assert [[one["scenario"], *(one[key] for key in keys)] for one in result["scenarios"]] == [
        [one.name, *(getattr(one, key) for key in keys)] for one in scenarios()
    ]


def test_the_committed_false_rollbacks_are_at_most_one_percent() -> None:
    judged = [one for one in committed()["scenarios"] if one["scenario"] == "A/A" and one["rollouts"] == 10_000]
    assert {one["model"] for one in judged} == set(load_models())
    for one in judged:
        assert one["rolled_back"]["upper"] <= 0.01


def test_a_regression_that_is_missed_is_called_so() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for one in committed()["scenarios"]:
        if one["scenario"] != "A/A" and one["spread"] == 1 and one["model"] != "own_bursts":
            row = next(
                line for line in text.splitlines() if line.startswith(f"| {one['scenario']} | `{one['model']}` |")
            )
            assert ("(missed)" in row) == (one["rolled_back"]["lower"] < 0.95)
