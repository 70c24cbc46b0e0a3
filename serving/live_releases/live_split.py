# SPDX-License-Identifier: Apache-2.0
"""The split of a running server, which a rollout sets and puts off the end of; a change needs no load.

A Triton that is started anew begins without a split, until the rollout says it again.
"""

import contextlib
import hashlib
import re
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Protocol

import msgspec

from ensemble_configs.changes.release_changes import model_named
from ensemble_configs.spec.deployment import DeploymentSpec
from ensemble_configs.split.outcome_journal import OUTCOMES, JournalReader
from ensemble_configs.split.release_split import ReleaseShare, ReleaseSplit, SplitFile
from trireme.base.errors import RequestError
from trireme.base.known_types import known
from trireme.base.unix_rpc import Handler, Say

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,254}")  # of a journal and of its files: never a path
_PART_BYTES = 256 << 10  # of lines in an answer: `trireme.base.unix_rpc` takes messages of a megabyte
_KEPT_S = 86_400.0  # an earlier journal's lines that nobody has counted yet


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
        clock_s: seconds since 1970, as times of files are.
    """

    def __init__(
        self,
        live: Served,
        folder: Path,
        now_s: Callable[[], float] = time.monotonic,
        *,
        clock_s: Callable[[], float] = time.time,
    ) -> None:
        self._live = live
        self._folder = folder
        self._now_s = now_s
        self._clock_s = clock_s
        self._lock = threading.Lock()

    def handlers(self) -> dict[str, Handler]:
        """Return the handlers by operation.

        ``split`` takes a `SplitRequest`, and answers with the folder of the ``journal`` and its ``name``, which no
        other server has. ``journal`` takes a `JournalRequest`, and answers with the lines behind its cursor, for a
        rollout on another machine.
        """
        return {"split": self._set, "journal": self._read}

    def _set(self, question: Mapping[str, object], say: Say) -> Mapping[str, object]:
        del say
        try:
            asked = msgspec.convert(
                {name: value for name, value in question.items() if name != "op"}, known(SplitRequest)
            )
        except msgspec.ValidationError as exc:
            raise RequestError(f"the split cannot be read: {exc}", field="split") from exc
        _check(asked, self._live.spec)
        model = model_named(self._live.spec, asked.model)
        with self._lock:
            journal = self._journal(model.name, asked)
            split = ReleaseSplit(
                rollout=asked.rollout,
                step=asked.step,
                hash_seed=asked.hash_seed,
                shares=asked.shares,
                journal=str(journal),
                ends_s=self._now_s() + asked.lease_s,
                key=model.sticky_key or "",
            )
            SplitFile(self._live.run_dir(), model.triton_prefix).write(split)
        return {"journal": str(journal), "name": journal.name}

    def _journal(self, model: str, asked: SplitRequest) -> Path:
        """Return the folder of a rollout's journal; a new one has a name that no other server gives."""
        # Rollouts of two stores may have one number, and no two rollouts have one seed.
        begin = f"{model}-{asked.rollout}-{hashlib.sha256(asked.hash_seed.encode()).hexdigest()[:8]}"
        all_of_model = self._journals(model)
        for found in all_of_model:
            if found.name == begin or found.name.startswith(f"{begin}-"):
                return found
        for earlier in all_of_model:
            if self._clock_s() - _last_change_s(earlier) > _KEPT_S:
                shutil.rmtree(earlier, ignore_errors=True)
        journal = self._folder / OUTCOMES / f"{begin}-{secrets.token_hex(4)}"
        journal.mkdir(parents=True)
        return journal

    def _journals(self, model: str) -> list[Path]:
        pattern = re.compile(rf"{re.escape(model)}-[0-9]+(-[0-9a-f]{{8}}){{0,2}}")
        return sorted(path for path in (self._folder / OUTCOMES).glob("*") if pattern.fullmatch(path.name))

    def _read(self, question: Mapping[str, object], say: Say) -> Mapping[str, object]:
        del say
        try:
            asked = msgspec.convert(
                {name: value for name, value in question.items() if name != "op"}, known(JournalRequest)
            )
        except msgspec.ValidationError as exc:
            raise RequestError(f"the journal cannot be read: {exc}", field="journal") from exc
        for name in (asked.name, *asked.cursor):
            if not _NAME.fullmatch(name):
                raise RequestError(
                    f"{name[:80]!r} is no name of a journal or of its files: letters, digits, '_', '.' and '-', no "
                    "path; give the name that `split` answered with, and the cursor of the answer before",
                    field="name",
                    value=name[:80],
                )
        part = JournalReader(self._folder / OUTCOMES / asked.name).read(asked.cursor, max_bytes=_PART_BYTES)
        found: dict[str, object] = msgspec.to_builtins(part._asdict())
        return found


def _last_change_s(folder: Path) -> float:
    """Return when a journal last got or lost a line, in seconds since 1970."""
    times_s = [0.0]
    for path in (folder, *folder.glob("*")):
        with contextlib.suppress(FileNotFoundError):
            times_s.append(path.stat().st_mtime)
    return max(times_s)


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
