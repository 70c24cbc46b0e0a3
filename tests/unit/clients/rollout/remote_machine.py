# SPDX-License-Identifier: Apache-2.0
"""A server's machine that a rollout reaches by HTTPS alone, for tests of what is counted and who steers."""

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from certificates import Authority
from live_model import Live
from remote_site import RemoteSite
from rollout_world import World

from clients.access import Access
from clients.remote_control import RemoteControl
from clients.rollout.records.store import Store
from serving.live_releases.live_split import LiveSplit
from serving.live_releases.steering import Steering
from trireme.base.errors import Unavailable


class LosingControl(RemoteControl):
    """The control of a server behind a network that loses every other answer, after the server has done its part."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.rng = random.Random(3)
        self.num_lost = 0

    def ask(self, operation: str, **question: object) -> Mapping[str, object]:
        found = super().ask(operation, **question)
        if operation == "journal" and self.rng.random() < 0.5:
            self.num_lost += 1
            raise Unavailable("the answer was lost", reason="restarting")
        return found


class Machine:
    """The server's machine, with TLS; its supervisor may be ended and started again."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        authority = Authority(folder / "authority")
        self._pair = authority.server()
        self._site = RemoteSite(folder)
        self.access = Access(ca_file=str(authority.ca), token_file=str(self._site.keys))
        self.folder, self._live = folder, Live(folder)
        self.port = 0
        self.begin()

    def begin(self) -> None:
        handlers = LiveSplit(self._live, self.folder).handlers()
        steering = Steering()
        handlers = steering.guarded(handlers, ["split"]) | steering.handlers()
        self._api = self._site.serve(handlers, port=self.port, cert_file=self._pair.cert, key_file=self._pair.key)
        self.port = self._api.port
        self.handlers = handlers

    def end(self) -> None:
        self._api.close()

    def control(self, kind: type[RemoteControl] = RemoteControl) -> RemoteControl:
        return kind(f"https://127.0.0.1:{self.port}", self.access)

    def close(self) -> None:
        self._site.close()


def num_counted(world: World, step: int) -> int:
    with Store(world.path) as store:
        evidence = store.evidence(world.number, step)
    found = msgspec.convert(evidence or {}, dict[str, Any])
    return int(sum(found.get("num_requests", (0, 0))))
