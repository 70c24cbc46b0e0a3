# SPDX-License-Identifier: Apache-2.0
"""`docs/rollouts.md` says what the committed figures say, and those are what was promised."""

from documents.pages import latest


def test_no_request_of_the_committed_rollouts_failed() -> None:
    rollouts = latest("rollouts")[1]["rollouts"]
    assert len(rollouts) == 5
    for one in rollouts:
        assert (one["failed_cut_or_mixed"], one["refused"]) == (0, 0), one["name"]
        assert sum(one["answers"].values()) > 1000


def test_all_kills_ended_with_one_release() -> None:
    by_what = {one["what"]: sum(one["ends"].values()) for one in latest("rollout_kills")[1]["kills"]}
    assert by_what == {"the rollout's process, 30 times": 10, "Triton, 10 times": 5}
    for one in latest("rollout_kills")[1]["kills"]:
        assert set(one["ends"]) <= {"promoted", "rolled_back"}
