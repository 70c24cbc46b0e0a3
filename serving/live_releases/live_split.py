# SPDX-License-Identifier: Apache-2.0
"""The split of a running server, which a rollout sets and puts off the end of; a change needs no load.

A Triton that is started anew begins without a split, until the rollout says it again.
"""

import hashlib
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Protocol

import msgspec

from ensemble_configs.changes.release_changes import model_named
from ensemble_configs.spec.deployment import DeploymentSpec
from ensemble_configs.split.outcome_journal import JournalReader
from ensemble_configs.split.release_split import ReleaseShare, ReleaseSplit, SplitFile
from trireme.base.errors import RequestError
from trireme.base.unix_rpc import Handler, Say

_FOLDER = "outcomes"


class SplitRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The split that a rollout asks for.

    Attributes:
        model: by its name in the deployment; None: the only one.
        lease_s: how long the split holds unless it is asked for again.
    """

    rollout: Annotated[int, msgspec.Meta(ge=1)]
    step: Annotated[int, msgspec.Meta(ge=0)]
    hash_seed: str
    shares: Annotated[tuple[ReleaseShare, ...], msgspec.Meta(min_length=1, max_length=64)]
    lease_s: Annotated[float, msgspec.Meta(gt=0, le=3600)]
    model: str | None = None


class JournalRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a journal that is asked for. Attributes: `cursor`: how far each of its files has been read."""

    name: str
    cursor: Annotated[dict[str, Annotated[int, msgspec.Meta(ge=0)]], msgspec.Meta(max_length=100_000)]


class Served(Protocol):
    """A server's deployment (`serving.live_releases.live_deployment.LiveDeployment`)."""

    spec: DeploymentSpec

    def run_dir(self) -> Path:
        """Return the folder of the server's processes."""


class LiveSplit:
    """The splits of the models of one server.

    Args:
        live: the server's deployment.
        folder: folder of the server, for the outcomes.
        now_s: the machine's monotonic clock.
    """

    def __init__(self, live: Served, folder: Path, now_s: Callable[[], float] = time.monotonic) -> None:
        self._live = live
        self._folder = folder
        self._now_s = now_s
        self._lock = threading.Lock()

    def handlers(self) -> dict[str, Handler]:
        """Return the handlers by operation.

        ``split`` takes a `SplitRequest`, and answers with the name of the ``journal``. ``journal`` takes a
        `JournalRequest`, and answers with the lines behind its cursor, for a rollout on another machine.
        """
        return {"split": self._set, "journal": self._read}

    def _set(self, question: Mapping[str, object], say: Say) -> Mapping[str, object]:
        del say
        try:
            asked = msgspec.convert({name: value for name, value in question.items() if name != "op"}, SplitRequest)
        except msgspec.ValidationError as exc:
            raise RequestError(f"the split cannot be read: {exc}", field="split") from exc
        _check(asked, self._live.spec)
        model = model_named(self._live.spec, asked.model)
        # Rollouts of two stores may have one number, and no two rollouts have one seed.
        of_seed = hashlib.sha256(asked.hash_seed.encode()).hexdigest()[:8]
        journal = self._folder / _FOLDER / f"{model.name}-{asked.rollout}-{of_seed}"
        split = ReleaseSplit(
            rollout=asked.rollout,
            step=asked.step,
            hash_seed=asked.hash_seed,
            shares=asked.shares,
            journal=str(journal),
            ends_s=self._now_s() + asked.lease_s,
            key=model.sticky_key or "",
        )
        with self._lock:
            if not journal.exists():
                self._forget_earlier(model.name)
                journal.mkdir(parents=True)
            SplitFile(self._live.run_dir(), model.triton_prefix).write(split)
        return {"journal": str(journal)}

    def _read(self, question: Mapping[str, object], say: Say) -> Mapping[str, object]:
        del say
        try:
            asked = msgspec.convert({name: value for name, value in question.items() if name != "op"}, JournalRequest)
        except msgspec.ValidationError as exc:
            raise RequestError(f"the journal cannot be read: {exc}", field="journal") from exc
        journal = Path(asked.name)
        if journal.parent != self._folder / _FOLDER:
            raise RequestError(
                f"{asked.name!r} is no journal of this server; name the one that `split` answered with",
                field="name",
                value=asked.name,
            )
        found: dict[str, object] = msgspec.to_builtins(JournalReader(journal).read(asked.cursor)._asdict())
        return found

    def _forget_earlier(self, model: str) -> None:
        """Remove the journals of rollouts that are over: a model has one at a time."""
        for earlier in (self._folder / _FOLDER).glob(f"{model}-[0-9]*"):
            shutil.rmtree(earlier, ignore_errors=True)


def _check(asked: SplitRequest, spec: DeploymentSpec) -> None:
    """Check that the shares grow to 1, and are of releases that are served.

    Raises:
        RequestError: they do not, or are not.
        SpecError: there is no such model.
    """
    model = model_named(spec, asked.model)
    known = {release.release for release in model.releases}
    ends = [share.upto for share in asked.shares]
    if ends != sorted(set(ends)) or ends[0] <= 0 or ends[-1] != 1:
        raise RequestError(f"shares must end at growing places, the last at 1, got {ends}", field="shares", value=ends)
    for share in asked.shares:
        if share.release not in known:
            there = ", ".join(map(str, sorted(known)))
            raise RequestError(
                f"shares name release {share.release}, and {model.name} has: {there}",
                field="release",
                value=share.release,
            )
