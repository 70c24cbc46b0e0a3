# SPDX-License-Identifier: Apache-2.0
"""A machine that drives a rollout and shares nothing with its servers but addresses, authorities and keys."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from certificates import Authority
from rollout_site import GATE, PATIENCE_S

from clients.rollout.records.open_database import is_there
from clients.rollout.records.store import Store
from trireme.base.free_ports import free_ports
from trireme.base.store_place import PostgresPlace, StorePlace

KEY = "a-key-of-the-rollout-0123456789"
STEP_S = 60.0


class RemoteAddress:
    """The address of a server's control, with keys of its own.

    Args:
        authority: of its certificate; None: one of its own.

    Attributes:
        ca: file of the authority that a rollout trusts.
        options: of `trireme serve`.
    """

    def __init__(self, folder: Path, *, key: str = KEY, authority: Authority | None = None) -> None:
        authority = authority or Authority(folder / "authority")
        pair, self.ca = authority.server(), authority.ca
        (folder / "keys.txt").write_text(f"another-key-0123456789\n{key}\n")
        [port] = free_ports(1)
        self.url = f"https://127.0.0.1:{port}"
        options = {
            "--remote-host": "0.0.0.0",
            "--remote-port": str(port),
            "--remote-cert-file": str(pair.cert),
            "--remote-key-file": str(pair.key),
            "--remote-token-file": str(folder / "keys.txt"),
        }
        self.options = tuple(part for one in options.items() for part in one)


class Controller:
    """Another machine: a folder of its own, from which nothing of the server's is named.

    Args:
        store: place of the rollouts; None: a file of the folder.
    """

    def __init__(self, folder: Path, url: str, ca: Path, *, key: str = KEY, store: PostgresPlace | None = None) -> None:
        folder.mkdir()
        shutil.copy(ca, folder / "ca.crt")
        (folder / "key.txt").write_text(f"{key}\n")
        (folder / "gate.yaml").write_text(yaml.safe_dump(GATE))
        (folder / "candidate.yaml").write_text(yaml.safe_dump({"engine": {"seed": 2}}))
        self.folder, self.url = folder, url
        self._begun: list[subprocess.Popen[str]] = []
        [self.port] = free_ports(1)
        own = folder / "build" / url.partition(",")[0].removeprefix("https://").replace(":", "-") / "rollouts.sqlite"
        self.store: StorePlace = own if store is None else store
        # As a pod has them: the address among its arguments, the password from a Secret.
        self._options = () if store is None else ("--store", str(store))
        self._environment = {} if store is None else {"PGPASSWORD": store.passwords[-1]}

    def rollout(self, *arguments: str) -> subprocess.Popen[str]:
        running = subprocess.Popen(
            [sys.executable, "-m", "trireme", "rollout", *arguments, *self._options],
            cwd=self.folder, env=os.environ | self._environment,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        self._begun.append(running)
        return running

    def close(self) -> None:
        """End what a test that failed has left."""
        for running in self._begun:
            if running.poll() is None:
                running.kill()
                running.communicate()

    def start(self, *options: str) -> subprocess.Popen[str]:
        return self.rollout(
            "start", "candidate.yaml", "--port", str(self.port), "--gate", "gate.yaml", "--lease-s", "1",
            "--server", self.url, "--server-ca-file", "ca.crt", "--server-token-file", "key.txt", *options,
        )  # fmt: skip

    def end_of(self, running: subprocess.Popen[str], *, code: int) -> str:
        try:
            text, _ = running.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            running.kill()
            raise AssertionError(running.communicate()[0]) from None
        assert running.returncode == code, text
        return text

    def done(self, *arguments: str) -> str:
        return self.end_of(self.rollout(*arguments), code=0)

    def phase(self) -> str:
        if not is_there(self.store):
            return ""
        with Store(self.store) as store:
            return next((str(one.phase) for one in reversed(store.rollouts())), "")

    def wait_for(self, phase: str, running: subprocess.Popen[str]) -> None:
        deadline_s = time.monotonic() + STEP_S
        while self.phase() != phase:
            assert running.poll() is None, running.communicate()[0]
            if time.monotonic() > deadline_s:
                found = self.phase()
                running.kill()
                raise AssertionError(f"{found or 'no phase'}, not {phase}: {running.communicate()[0]}")
            time.sleep(0.1)

    def wait_for_counted(self, num: int) -> tuple[int, int]:
        """Return what `counted` does once the candidate's are as many as that, or the time is over."""
        deadline_s = time.monotonic() + STEP_S
        while self.counted()[0] < num and time.monotonic() < deadline_s:
            time.sleep(0.1)
        time.sleep(2)  # what came twice would come now
        return self.counted()

    def counted(self) -> tuple[int, int]:
        """Return the requests that the last rollout has counted at its first share, of the candidate and the other."""
        with Store(self.store) as store:
            evidence: Mapping[str, Any] = store.evidence(store.rollouts()[-1].id, 0) or {}
        candidate, baseline = evidence.get("num_requests", (0, 0))
        return int(candidate), int(baseline)
