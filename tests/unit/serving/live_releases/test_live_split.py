# SPDX-License-Identifier: Apache-2.0
"""The split that a rollout asks a server for is checked, and written where its models look."""

import contextlib
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from live_model import Live

from ensemble_configs.split.outcome import Outcome
from ensemble_configs.split.outcome_journal import JournalWriter
from ensemble_configs.split.release_split import SplitFile
from serving.live_releases.live_split import LiveSplit
from trireme.base.errors import RequestError, SpecError, Unavailable
from trireme.base.unix_rpc import RpcServer, call

SHARES = [{"upto": 0.25, "release": 2, "arm": "candidate"}, {"upto": 1.0, "release": 1, "arm": "baseline"}]
ASKED: dict[str, Any] = {"rollout": 3, "step": 1, "hash_seed": "s", "shares": SHARES, "lease_s": 5.0}


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


def test_an_earlier_rollout_s_outcomes_are_kept_for_a_day_for_whoever_has_not_counted_them(tmp_path: Path) -> None:
    live = Live(tmp_path)
    first = ask(live, tmp_path)
    (first / "old.jsonl").write_text("")
    assert ask(live, tmp_path) == first
    second = ask(live, tmp_path, rollout=4)
    assert (first / "old.jsonl").exists()
    assert second != first
    day_s = 86_500.0
    for path in (first, first / "old.jsonl"):
        os.utime(path, (time.time() - day_s, time.time() - day_s))
    third = ask(live, tmp_path, rollout=5)
    assert [path.exists() for path in (first, second, third)] == [False, True, True]


def test_a_model_s_journals_are_not_taken_for_those_of_another_one(tmp_path: Path) -> None:
    outcomes = tmp_path / "outcomes"
    others = [outcomes / "chat-2-7-0123abcd-0123abcd", outcomes / "chat-x", outcomes / "achat-1-0123abcd-0123abcd"]
    for path in others:
        path.mkdir(parents=True)
        os.utime(path, (0, 0))
    earlier = outcomes / "chat-1-0123abcd"
    earlier.mkdir()
    os.utime(earlier, (0, 0))
    ask(Live(tmp_path), tmp_path)
    assert [path.exists() for path in [*others, earlier]] == [True, True, True, False]


def test_a_journal_of_an_earlier_version_keeps_its_name(tmp_path: Path) -> None:
    live = Live(tmp_path)
    new = ask(live, tmp_path)
    old = new.with_name(new.name.rpartition("-")[0])
    new.rename(old)
    assert ask(live, tmp_path) == old


def test_two_servers_give_two_names(tmp_path: Path) -> None:
    found = {ask(Live(tmp_path), tmp_path / each).name for each in "ab"}
    assert len(found) == 2


def read(folder: Path, name: str, cursor: Mapping[str, object]) -> Mapping[str, Any]:
    live: Any = object()
    return LiveSplit(live, folder).handlers()["journal"](
        {"op": "journal", "name": name, "cursor": cursor}, lambda _: None
    )


@pytest.mark.parametrize("name", ["..", ".", "", "/etc", "a/b", "../outcomes/a", "a\0", "a\n", "x" * 300, "a\\..\\b"])
def test_the_name_of_a_journal_or_of_its_file_is_never_a_path(tmp_path: Path, name: str) -> None:
    (tmp_path / "outcomes" / "a").mkdir(parents=True)
    secret = tmp_path / "b.jsonl"
    secret.write_text("{}\n")
    for refused in ((name, {}), ("a", {name: 0})):
        with pytest.raises(RequestError, match="is no name of a journal or of its files"):
            read(tmp_path, *refused)
    assert read(tmp_path, "a", {"b.jsonl": 3}) == {"lines": [], "cursor": {}}
    assert secret.exists()


def test_a_part_of_a_journal_fits_a_message_of_the_socket(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path / "outcomes" / "a", "ensemble-1")
    num = 10_000
    for number in range(num):
        writer.write(
            rollout=1, step=0, release=2, outcome=Outcome(arm="candidate", unit="u" * 64, ttft_ms=float(number))
        )
    writer.close()
    found: list[float] = []
    socket = tmp_path / "s"
    live: Any = object()
    with contextlib.closing(RpcServer(socket, LiveSplit(live, tmp_path).handlers())):
        cursor: Any = {}
        while True:
            part: Any = call(socket, "journal", {"name": "a", "cursor": cursor}, timeout_s=10)
            if not part["lines"]:
                break
            found += [line["outcome"]["ttft_ms"] for line in part["lines"]]
            cursor = part["cursor"]
    assert found == [float(number) for number in range(num)]


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
