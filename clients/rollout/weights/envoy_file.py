# SPDX-License-Identifier: Apache-2.0
"""The weights in the file that an Envoy reads its routes from (`clients.rollout.export.envoy_routes`).

Envoy takes a file that takes the place of another, and says by its admin interface which weights it goes by. Without
an admin address nothing can be known, and whoever waits has to give it time.
"""

import datetime
import os
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import yaml

from clients.rollout.export.definition import WEIGHT_SUM
from clients.rollout.export.envoy_routes import CANDIDATE, STABLE, routes_file
from clients.rollout.weights.envoy_admin import candidate_weight, weight_in_force
from clients.rollout.weights.weights import Claim, Present, RouteTaken, check_owner, check_weight
from trireme.base.durable_files import write_atomically
from trireme.base.errors import SpecError, Unavailable

_CLAIM = re.compile(r"# Weights of (?P<owner>.+): (?P<weight>\d+) of \d+ to the candidate\n")
_LOOK_S = 0.1


class EnvoyFile:
    """The weights of one routes file; a `clients.rollout.weights.weights.Weights`.

    Args:
        salt: hash seed of the keys' places.
        admins: addresses of the admin interfaces of all Envoys that read the file, ``host:port``.
        pause: waits for so many seconds, between looks.
    """

    def __init__(
        self, path: Path, *, salt: str, admins: Sequence[str] = (), pause: Callable[[float], None] = time.sleep
    ) -> None:
        self._path = path
        self._salt = salt
        self._admins = tuple(admins)
        self._pause = pause

    def read(self) -> Present:
        """Return the weights in the file; where there is none yet, the candidate has nothing."""
        try:
            text = self._path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return Present(0)
        except (OSError, UnicodeDecodeError) as exc:
            raise SpecError(f"cannot read {self._path}: {exc}; name another with --weights", field="weights") from exc
        found = _CLAIM.match(text)
        return Present(
            self._weight_in(text),
            Claim(found["owner"], int(found["weight"])) if found else None,
            self._changed_at(),
        )

    def _weight_in(self, text: str) -> float:
        try:
            return candidate_weight(yaml.safe_load(text)["resources"][0])
        except (yaml.YAMLError, LookupError, TypeError, ValueError) as exc:
            raise RouteTaken(
                f"{self._path} holds no weights of {CANDIDATE} and {STABLE}: {' '.join(str(exc).split())}; let "
                "`trireme rollout export --format envoy-routes --share 0` write it",
                field="weights",
                value=self._path,
                reason="taken",
            ) from exc

    def _changed_at(self) -> str:
        at = datetime.datetime.fromtimestamp(self._path.stat().st_mtime, tz=datetime.UTC)
        return f"a change at {at:%Y-%m-%dT%H:%M:%SZ}"

    def check(self) -> None:
        """Check that a rollout may take the file, and that another can take its place."""
        check_owner(self.read(), 0, owner="", where=str(self._path))
        if not os.access(self._path.parent, os.W_OK | os.X_OK):
            raise SpecError(
                f"cannot write {self._path}: its folder cannot be written; name another with --weights",
                field="weights",
                value=self._path,
            )

    def set(self, weight: int, owner: str) -> None:
        """Write the file with a weight and with who set it, unless it says both."""
        check_weight(weight)
        present = self.read()
        check_owner(present, weight, owner, where=str(self._path))
        if present.claim is None or not present.claim.weight == present.weight == weight:
            self._write(weight, f"# Weights of {owner}: {weight} of {WEIGHT_SUM} to the candidate\n")

    def let_go(self, owner: str) -> None:
        """Take a rollout's name away from the file."""
        present = self.read()
        if present.claim is not None and present.claim.owner == owner and present.claim.weight == present.weight:
            self._write(present.claim.weight, f"# The last rollout was {owner}\n")

    def _write(self, weight: int, head: str) -> None:
        document = routes_file(weight / WEIGHT_SUM, salt=self._salt)
        try:
            write_atomically(self._path, head + yaml.safe_dump(document, sort_keys=False, width=120))
        except OSError as exc:  # full, or not there for now
            raise Unavailable(f"cannot write {self._path}: {exc.strerror}", reason="file") from exc

    def wait(self, weight: int, *, timeout_s: float) -> bool:
        """Return whether every Envoy goes by the file; without admin addresses, whether it is written."""
        end_s = time.monotonic() + timeout_s
        while True:
            present = self.read()
            if present.weight != weight:
                raise RouteTaken(
                    f"{self._path} gives the candidate {present.weight:g} and not the {weight} that was set "
                    f"({present.moved_by} was the last)",
                    field="weights",
                    value=present.weight,
                    reason="taken",
                )
            if all(weight_in_force(admin) == weight for admin in self._admins):
                return True
            if time.monotonic() >= end_s:
                return False
            self._pause(_LOOK_S)
