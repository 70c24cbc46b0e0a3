# SPDX-License-Identifier: Apache-2.0
"""`docs/rollouts.md` says what the committed figures say, and those are what was promised."""

from documents.results import latest
from documents.serving_pages.rollout_page import (
    clients_table,
    kills_table,
    metrics_table,
    outcomes_table,
    rollouts_table,
    shares_table,
)


def test_no_request_of_the_committed_rollouts_failed() -> None:
    rollouts = latest("rollouts")["rollouts"]
    assert len(rollouts) in {5, 7}  # since 25 November two with the default gate
    for one in rollouts:
        assert (one["failed_cut_or_mixed"], one["refused"]) == (0, 0), one["name"]
        assert sum(one["answers"].values()) > 1000


def test_all_kills_ended_with_one_release() -> None:
    of_rollout, of_triton = latest("rollout_kills")["kills"]
    for one, least_kills, least_rollouts in ((of_rollout, 30, 10), (of_triton, 10, 5)):
        assert set(one["ends"]) <= {"promoted", "rolled_back"}
        assert sum(one["ends"].values()) >= least_rollouts
        assert one.get("kills", least_kills) >= least_kills
        assert one.get("mixed", 0) == 0


def test_each_outcome_counts_once_under_thirty_kills() -> None:
    found = latest("outcomes_under_kills")
    assert sum(found["kills"].values()) == 30
    more = found["counted_of_the_candidate"] - found["answers_of_the_candidate"]
    assert 0 <= more <= found["cut"] + found["refused"]
    assert (found["mixed"], found["served_at_the_end"]) == (0, 1)
    assert "| the rollout's process 8, Triton 8, the stub of ensemble 7," in outcomes_table(found)


def test_outcomes_are_the_requests_of_the_metrics() -> None:
    found = latest("outcomes_and_metrics")
    metrics, outcomes = found["metrics"], found["outcomes"]
    assert found["kills"] == 10
    assert outcomes == {
        "candidate": metrics["candidate"] - metrics["not_ready"],
        "baseline": metrics["baseline"],
    }
    assert f"| candidate | {metrics['candidate']:,} |" in metrics_table(found)


def test_every_client_met_the_good_release_and_each_bad_one_was_rolled_back() -> None:
    found = latest("every_client")
    good, *bad = found["rollouts"]
    assert (found["gate"], good["phase"], good["failed"]) == ("default", "promoted", 0)
    assert len(bad) == 7
    assert {one["phase"] for one in bad} == {"rolled_back"}
    assert {one["name"] for one in bad if one["failed"]} <= {"crashes", "hangs"}
    assert set(good["met"]) == set(found["streams"])
    assert sum(found["streams"].values()) == 32
    for shares in good["met"].values():
        assert list(shares) == ["0.01", "0.05", "0.25", "0.5"]
    assert "| tritonclient | 12 | 32 of 3,430 |" in shares_table(found)
    assert "| decode a tenth slower | rolled back | TPOT +9.4%, worse than chance explains |" in clients_table(found)


def test_tables_name_the_gate_and_count_what_was_killed() -> None:
    kill = {
        "what": "Triton",
        "kills": 11,
        "ends": {"promoted": 4, "rolled_back": 1},
        "failed": 7,
        "refused": 3,
        "mixed": 0,
    }
    [first, *_] = latest("rollouts")["rollouts"]
    assert "| Triton | wide open | 11 | 5 | promoted 4, rolled back 1 | 7 | 3 | 0 |" in kills_table(
        {"gate": "wide open", "kills": [kill]}
    )
    assert "% | default |" in rollouts_table({"rollouts": [{**first, "gate": "default"}]})
