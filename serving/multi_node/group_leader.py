# SPDX-License-Identifier: Apache-2.0
"""The leader of a node group: it waits for the workers, has `mpirun` start all ranks, and ends when any of them ends.

`mpirun` kills its ranks on SIGTERM. So the leader stays its parent, tells the server alone to stop, and waits until its
streams have ended.
"""

import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from ensemble_configs.spec.end_times import GROUP_KILL_S, GROUP_STOP_S
from serving.multi_node.group_record import GroupRecord
from serving.supervisor.stop_signal import StopSignal
from trireme.base.errors import ServerError

Tell = Callable[[str], object]

_ASK_S = 20.0  # for one answer of a worker
_PAUSE_S = 1.0
_LINE_S = 15.0
_POLL_S = 0.2
_MAX_AT_ONCE = 32


def wait_for_workers(
    workers: Sequence[str],
    ask: Callable[[str], str | None],
    *,
    timeout_s: float,
    stop: StopSignal,
    tell: Tell,
) -> bool:
    """Wait until all workers answer; return False if a stop is asked for meanwhile.

    Args:
        ask: says what is wrong with a worker; None: nothing.

    Raises:
        ServerError: some workers did not answer in time; the text says which, and why.
    """
    began_s = told_s = time.monotonic()
    missing = dict.fromkeys(workers, "not asked")
    with ThreadPoolExecutor(min(len(workers), _MAX_AT_ONCE)) as pool:
        while not stop.count:
            answers = zip(missing, pool.map(ask, list(missing)), strict=True)
            missing = {worker: why for worker, why in answers if why is not None}
            now_s = time.monotonic()
            if not missing:
                tell(f"all {len(workers)} workers are there after {now_s - began_s:.1f} s")
                return True
            if now_s - began_s > timeout_s:
                raise ServerError(
                    f"{len(missing)} of {len(workers)} workers did not answer within {timeout_s:g} s: {_shown(missing)}"
                )
            if now_s - told_s > _LINE_S:
                told_s = now_s
                tell(f"waiting for {len(missing)} of {len(workers)} workers: {_shown(missing)}")
            stop.wait(_PAUSE_S)
    return False


def _shown(missing: Mapping[str, str]) -> str:
    return ", ".join(f"{worker} ({why})" for worker, why in missing.items())


def ask_by_ssh(ssh: Sequence[str], worker: str) -> str | None:
    """Return what keeps a command from being run at a worker; None: nothing."""
    try:
        result = subprocess.run(
            [*ssh, worker, "true"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_ASK_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no answer in {_ASK_S:g} s"
    said = result.stderr.strip().splitlines() or [f"exit status {result.returncode}"]
    return said[-1].strip() if result.returncode else None


def run_ranks(
    argv: Sequence[str], environ: Mapping[str, str], *, record: GroupRecord, stop: StopSignal, tell: Tell
) -> None:
    """Start all ranks, and return when the server has ended as it was asked to.

    Raises:
        ServerError: the server failed, or a rank or a node died; no process of them runs on this node any more.
    """
    # Ctrl-C goes to a whole process group; mpirun would kill the ranks while the server drains.
    mpirun = subprocess.Popen(argv, env=dict(environ), stdin=subprocess.DEVNULL, start_new_session=True)
    is_early = False
    try:
        is_early = _wait(mpirun, record, stop, tell)
    finally:
        _end(mpirun)
        server_status = record.status
        record.kill()
    if server_status == 0 or is_early:
        return
    if server_status is not None and server_status > 0:
        raise ServerError(f"the server has ended with exit status {server_status}; its last lines are above")
    raise ServerError(
        f"a rank or a node has died, or could not be started: mpirun has ended with {mpirun.returncode}; "
        "its last lines are above"
    )


def _wait(mpirun: "subprocess.Popen[bytes]", record: GroupRecord, stop: StopSignal, tell: Tell) -> bool:
    """Wait until `mpirun` has ended, or should; return whether the stop came before there was a server to tell."""
    num_sent = 0
    while mpirun.poll() is None:
        if stop.count > num_sent:
            num_sent = stop.count
            tell("asked to stop; the server drains")
            if not record.send(signal.SIGTERM):
                return record.status is None
        status = record.status
        if status is not None:
            tell(f"the server has ended with exit status {status}")
            if status == 0:
                _wait_up_to(mpirun, GROUP_STOP_S)
            return False
        time.sleep(_POLL_S)
    return False


def _end(mpirun: "subprocess.Popen[bytes]") -> None:
    if mpirun.poll() is None:
        mpirun.terminate()
        if not _wait_up_to(mpirun, GROUP_KILL_S):
            mpirun.kill()
            mpirun.wait()


def _wait_up_to(mpirun: "subprocess.Popen[bytes]", timeout_s: float) -> bool:
    try:
        mpirun.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return False
    return True
