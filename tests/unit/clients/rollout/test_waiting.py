# SPDX-License-Identifier: Apache-2.0
"""A process that waits for rollouts drives each in its turn, and one beside it stands by."""

import threading
from pathlib import Path

import pytest
import typer

from clients.rollout import waiting
from clients.rollout.records.state import Phase, Rollout
from clients.rollout.records.store import Store
from clients.rollout.waiting import wait_for_rollouts
from trireme.base.errors import Unavailable


class EnoughError(Exception):
    """The end of a process that would wait for ever."""


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(waiting, "_LOOK_S", 0.01)
    return tmp_path / "rollouts.sqlite"


def begun(store: Path, *models: str) -> None:
    with Store(store) as kept:
        for model in models:
            kept.begin(model, "{}", why="")


def test_the_oldest_is_driven_first_and_one_that_was_rolled_back_ends_nothing(store: Path) -> None:
    begun(store, "chat", "code")
    driven: list[str] = []
    told: list[str] = []

    def go_on(kept: Store, rollout: Rollout) -> None:
        driven.append(rollout.model)
        kept.enter(rollout.id, Phase.ROLLED_BACK, why="it was slower")
        raise typer.Exit(1)

    def tell(text: str) -> None:
        told.append(text)
        raise EnoughError

    with pytest.raises(EnoughError):
        wait_for_rollouts(store, go_on, tell=tell)
    assert (driven, told) == (["chat", "code"], [f"waiting for a rollout in {store}"])


def test_what_stands_in_the_way_is_told_once_and_tried_again(store: Path) -> None:
    begun(store, "chat")
    told: list[str] = []
    tries: list[int] = []

    def go_on(_: Store, rollout: Rollout) -> None:
        tries.append(rollout.id)
        if len(tries) > 4:
            raise EnoughError
        raise Unavailable("the server is away")

    with pytest.raises(EnoughError):
        wait_for_rollouts(store, go_on, tell=told.append)
    assert told == ["rollout 1 waits: the server is away"]


def test_a_second_process_stands_by_and_takes_over(store: Path) -> None:
    begun(store, "chat")
    is_driving, is_over = threading.Event(), threading.Event()

    def first(*_: object) -> None:
        is_driving.set()
        assert is_over.wait(30)
        raise EnoughError

    def run_first() -> None:
        with pytest.raises(EnoughError):
            wait_for_rollouts(store, first, tell=lambda _: None)

    told: list[str] = []
    driven: list[bool] = []

    def tell(text: str) -> None:
        told.append(text)
        is_over.set()

    def second(*_: object) -> None:
        driven.append(is_over.is_set())
        raise EnoughError

    thread = threading.Thread(target=run_first)
    thread.start()
    assert is_driving.wait(30)
    with pytest.raises(EnoughError):
        wait_for_rollouts(store, second, tell=tell)
    thread.join(30)
    assert driven == [True]
    assert told[0].startswith("standing by: another process")
