# SPDX-License-Identifier: Apache-2.0
"""`trireme group` over pods of this machine, with the real sshd, ssh and mpirun: started ranks, waits and refusals.

The fate of streams is in tests/triton/multi_node/test_group_on_triton.py.
"""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from group_of_pods import ODD, GroupOfPods, needs_pods, wait_for

pytestmark = [pytest.mark.slow, needs_pods]


@pytest.fixture
def group(tmp_path: Path) -> Iterator[GroupOfPods]:
    with GroupOfPods(tmp_path / "g", size=3, ranks_per_node=2) as started:
        yield started


def test_every_rank_starts_on_its_node_in_the_environment_of_its_pod(group: GroupOfPods) -> None:
    group.deployment.write_text(group.deployment.read_text().replace("examples", "nowhere"))  # so that the server fails
    workers = [group.worker(number) for number in (1, 2)]
    leader = group.leader()
    assert leader.wait() == 1
    assert group.ranks() == {
        0: (6, "big-0", 0),
        1: (6, "big-0", 1),
        2: (6, "big-0-1", 0),
        3: (6, "big-0-1", 1),
        4: (6, "big-0-2", 0),
        5: (6, "big-0-2", 1),
    }
    environ = group.environ(5)
    assert (environ["ODD"], environ["LWS_WORKER_INDEX"]) == (ODD, "2")
    assert environ["HOME"] == str(workers[1].home)
    assert "starting 6 ranks on 3 nodes" in leader.log()
    # Upstream's script goes on when the server has failed; the leader does not.
    assert "there is no" in leader.log()
    assert leader.log().splitlines()[-1].startswith("trireme: the server has ended with exit status 2;")
    for worker in workers:
        wait_for(lambda each=worker: len(each.processes()) == 1, "end of the ranks", worker)  # type: ignore[misc]
        worker.send(signal.SIGTERM)
        assert worker.wait() == 0


def test_a_leader_waits_for_its_workers_and_names_who_is_missing(group: GroupOfPods) -> None:
    leader = group.leader("--workers-timeout-s", "4")
    worker = group.worker(1)
    assert leader.wait() == 1
    last = leader.log().splitlines()[-1]
    assert last.startswith("trireme: 1 of 2 workers did not answer within 4 s: big-0-2.big.prod (ssh: connect to host")
    assert group.ranks() == {}
    assert worker.is_running()


def test_a_worker_with_another_key_is_not_taken_for_one_of_the_group(group: GroupOfPods) -> None:
    stranger = group.worker(1)
    wait_for(lambda: "sshd runs" in stranger.log(), "sshd", stranger)
    group.write_key()
    assert group.leader("--workers-timeout-s", "3").wait() == 1
    [leader] = [path / "log" for path in stranger.home.parent.iterdir() if path.name == "big-0"]
    assert "big-0-1.big.prod (Host key verification failed.)" in leader.read_text()


def test_both_end_when_asked_to_while_they_wait_for_the_other(group: GroupOfPods) -> None:
    leader, worker = group.leader(), group.worker(1)
    wait_for(lambda: "sshd runs" in worker.log(), "sshd", leader, worker)
    wait_for((leader.home / "run/known_hosts").exists, "key", leader, worker)
    wait_for((worker.home / "run/seen").exists, "question of the leader", leader, worker)
    for pod in (leader, worker):
        pod.send(signal.SIGTERM)
    assert (leader.wait(), worker.wait()) == (0, 0)


def test_a_worker_ends_when_nothing_is_heard_of_its_leader(group: GroupOfPods) -> None:
    worker = group.worker(1, "--leader-timeout-s", "2")
    assert worker.wait() == 1
    assert "nothing was heard of the leader for 2 s, and no rank runs here" in worker.log()


def test_a_worker_ends_with_its_sshd(group: GroupOfPods) -> None:
    worker = group.worker(1)
    wait_for(lambda: "sshd runs" in worker.log(), "sshd", worker)
    [sshd] = worker.command().children()
    sshd.kill()
    assert worker.wait() == 1
    assert "sshd has ended with exit status -9" in worker.log()


@pytest.mark.parametrize("role", ["leader", "worker"])
def test_nobody_starts_without_a_key(group: GroupOfPods, role: str) -> None:
    (group.secret / "ssh-privatekey").unlink()
    pod = group.leader() if role == "leader" else group.worker(1)
    assert pod.wait() == 2
    assert "ssh-privatekey: No such file or directory; mount a Secret of the type kubernetes.io/ssh-auth" in pod.log()
