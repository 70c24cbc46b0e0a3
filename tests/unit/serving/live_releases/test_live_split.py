# SPDX-License-Identifier: Apache-2.0
"""The split that a rollout asks a server for is checked, and written where its models look."""

from pathlib import Path
from typing import Any

import pytest

from ensemble_configs.spec.deployment import DeploymentSpec
from ensemble_configs.spec.engine.simulated_spec import SimulatedEngineSpec
from ensemble_configs.spec.release_spec import TokenizerSpec
from ensemble_configs.split.release_split import SplitFile
from serving.live_releases.live_split import LiveSplit
from trireme.base.errors import RequestError, SpecError, Unavailable
from trireme.base.project_files import CODE_ROOT

SHARES = [{"upto": 0.25, "release": 2, "arm": "candidate"}, {"upto": 1.0, "release": 1, "arm": "baseline"}]
ASKED: dict[str, Any] = {"rollout": 3, "step": 1, "hash_seed": "s", "shares": SHARES, "lease_s": 5.0}


class Live:
    """A server of a model with two releases."""

    def __init__(self, run_dir: Path, **model: object) -> None:
        engine = SimulatedEngineSpec(provider="simulated")
        tokenizer = TokenizerSpec(dir=CODE_ROOT / "examples/demo_model/target")
        other = {"release": 2, "engine": engine, "tokenizer": tokenizer}
        more: Any = {"name": "chat", "other_releases": (other,), **model}
        self.spec = DeploymentSpec.of_one(release=1, engine=engine, tokenizer=tokenizer, **more)
        self._run_dir = run_dir
        self.is_away = False

    def run_dir(self) -> Path:
        if self.is_away:
            raise Unavailable("it is being started", reason="starting")
        return self._run_dir


def ask(live: Live, folder: Path, **changes: object) -> Path:
    handlers = LiveSplit(live, folder, now_s=lambda: 100.0).handlers()
    return Path(str(handlers["split"]({"op": "split", **ASKED, **changes}, lambda _: None)["journal"]))


def test_a_split_is_where_the_models_look_until_its_lease_is_over(tmp_path: Path) -> None:
    live = Live(tmp_path, sticky_key="parameter:user")
    journal = ask(live, tmp_path)
    found = SplitFile(tmp_path, live.spec.model.triton_prefix, now_s=lambda: 104.9).current()
    assert found is not None
    assert (found.rollout, found.step, found.key, found.journal) == (3, 1, "parameter:user", str(journal))
    shares = [(share.upto, share.release, share.arm) for share in found.shares]
    assert shares == [(0.25, 2, "candidate"), (1.0, 1, "baseline")]
    assert SplitFile(tmp_path, live.spec.model.triton_prefix, now_s=lambda: 105.0).current() is None


def test_the_outcomes_of_rollouts_that_are_over_go_with_the_next_one(tmp_path: Path) -> None:
    live = Live(tmp_path)
    first = ask(live, tmp_path)
    (first / "old.jsonl").write_text("")
    assert ask(live, tmp_path) == first
    assert (first / "old.jsonl").exists(), "the same rollout goes on"
    second = ask(live, tmp_path, rollout=4)
    assert (first.exists(), second.exists()) == (False, True)


REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "no end": ({"shares": SHARES[:1]}, RequestError, "the last at 1, got .0.25."),
    "shares that shrink": ({"shares": [*SHARES, SHARES[0]]}, RequestError, "growing places"),
    "no shares": ({"shares": []}, RequestError, "cannot be read"),
    "a release that is not there": (
        {"shares": [{"upto": 1.0, "release": 7}]}, RequestError, "release 7, and chat has: 1, 2",
    ),
    "a lease without an end": ({"lease_s": 1e9}, RequestError, "lease_s"),
    "another model": ({"model": "code"}, SpecError, "there is no model code"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_wrong_split_is_refused_by_name_and_changes_nothing(tmp_path: Path, case: str) -> None:
    changes, error, reason = REFUSED[case]
    live = Live(tmp_path)
    with pytest.raises(error, match=reason):
        ask(live, tmp_path, **changes)
    assert SplitFile(tmp_path, live.spec.model.triton_prefix).current() is None


def test_without_a_server_the_rollout_is_told_to_wait(tmp_path: Path) -> None:
    live = Live(tmp_path)
    live.is_away = True
    with pytest.raises(Unavailable):
        ask(live, tmp_path)
