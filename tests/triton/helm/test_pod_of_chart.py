# SPDX-License-Identifier: Apache-2.0
"""The CPU demo's container as its pod runs it: probes, what it may and may not, and its end."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml
from chart_here import IMAGES, deployment_values, example_values, merged, needs_chart, render
from demo_release import alter_a_byte, write_demo_release
from pod_here import Pod, pod_template, skip_without_pods

from clients.streaming import GenerateRequest, TritonClient
from ensemble_configs.releases.release_lock import lock_file, locked
from trireme.base.errors import Unavailable

pytestmark = needs_chart
NUM_STREAMS, NUM_TOKENS = 16, 400
START_S, WAIT_S = 120.0, 30.0
KEY = "a-key-of-an-operator-0123456789"


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[Pod]:
    """Yield a started pod; the drain's delay is as short as an operator may set it."""
    skip_without_pods()
    values = merged(example_values("demo_cpu"), {"drain": {"delaySeconds": 1}, "controlKey": {"secret": "control"}})
    documents = render(values)
    template = pod_template(documents, "demo-cpu")
    with Pod(tmp_path, template, documents, secrets={"control": {"control-key": KEY + "\n"}}) as started:
        yield started


def started(pod: Pod) -> Pod:
    """Return the pod when the kubelet would call it ready."""
    deadline_s = time.monotonic() + START_S  # of the half hour that its startup probe gives it
    was_live = False
    while True:
        is_ready = pod.probe("readiness")
        if pod.probe("startup"):
            break
        assert not is_ready  # it loads
        was_live |= pod.probe("liveness")
        assert pod.process.poll() is None, pod.log()
        assert time.monotonic() < deadline_s, pod.log()
        time.sleep(0.05)
    assert was_live
    assert pod.probe("readiness")
    assert pod.probe("liveness")
    return pod


def test_it_is_what_the_pod_says_and_no_more(pod: Pod) -> None:
    started(pod)
    user = pod.spec["securityContext"]["runAsUser"]
    for process in pod.processes():
        status = Path(f"/proc/{process.pid}/status").read_text()
        facts = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        assert set(facts["Uid"].split()) == {str(user)}
        assert int(facts["CapEff"], 16) == int(facts["CapBnd"], 16) == 0
        assert facts["NoNewPrivs"] == "1"
    writable = {mount["mountPath"] for mount in pod.container["volumeMounts"] if not mount.get("readOnly")}
    assert writable == {"/var/lib/trireme", "/tmp", "/dev/shm"}
    for path in ("/opt/trireme/x", "/etc/trireme/x", "/x", "/var/x"):
        assert pod.status_of(["touch", path]) != 0
    for folder in writable:
        assert pod.status_of(["touch", f"{folder}/x"]) == 0

    assert pod.get("http", "/v2/health/ready") == 200
    assert pod.get("http", "/v2/repository/index", headers={}) in (400, 403)
    assert pod.get("http", "/v2/repository/index", headers={"trireme-control-key": KEY}) == 200
    assert KEY not in pod.log()


@pytest.mark.parametrize("has_hook", [True, False], ids=["preStop and SIGTERM", "SIGTERM alone"])
def test_sixteen_streams_come_to_their_end_and_it_exits_within_its_grace(pod: Pod, has_hook: bool) -> None:
    started(pod)
    grace_s = pod.spec["terminationGracePeriodSeconds"]
    url = f"{pod.host}:{pod.port('grpc')}"
    with ThreadPoolExecutor(NUM_STREAMS) as threads:
        running = [threads.submit(answer, url, f"Tell me about the number {number}") for number in range(NUM_STREAMS)]
        until_streaming(pod)
        asked_s = time.monotonic()
        if has_hook:
            hook = pod.exec(pod.container["lifecycle"]["preStop"]["exec"]["command"])
            until(lambda: not pod.probe("readiness"))
            assert sum(not stream.done() for stream in running) > 0
            with hook:
                said, _ = hook.communicate(timeout=grace_s)
            assert hook.returncode == 0, said
            assert all(stream.done() for stream in running)
            assert pod.probe("liveness")
            with pytest.raises(Unavailable, match="draining"):
                answer(url, "too late")
        pod.process_1.send_signal(signal.SIGTERM)
        assert pod.process.wait(grace_s) == 0, pod.log()
        assert time.monotonic() - asked_s < grace_s
        assert [stream.result() for stream in running] == [NUM_TOKENS] * NUM_STREAMS


def test_a_release_is_pulled_to_the_nodes_disk_once_and_served_from_there(tmp_path: Path) -> None:
    skip_without_pods()
    for path in (share := tmp_path / "share", cache := tmp_path / "nvme"):
        path.mkdir()
    write_demo_release(share / "demo")
    os.chown(cache, 0, 10001)
    cache.chmod(0o775)
    (tmp_path / "built.yaml").write_text(
        yaml.safe_dump({"name": "built", "release_dir": "/releases/demo", "engine": {"provider": "openvino"}})
    )
    pull = {"enabled": True, "claim": "share", "cacheHostPath": "/mnt/nvme"}
    values = merged(deployment_values(tmp_path / "built.yaml"), IMAGES, {"releases": {"pull": pull}})
    documents = render(values)
    folders = {"share": share, "/mnt/nvme": cache}
    for number in (1, 2):
        with Pod(tmp_path / f"pod{number}", pod_template(documents, "built"), documents, folders=folders) as pod:
            [release] = cache.glob("[0-9a-f]*")
            assert ("copied" if number == 1 else "was there already") in pod.log()
            started(pod)
            assert answer(f"{pod.host}:{pod.port('grpc')}", "Tell me") == NUM_TOKENS
            with locked(lock_file(release), is_shared=False) as is_free:
                assert not is_free
    alter_a_byte(release / "engine/openvino_model.bin")
    with pytest.raises(AssertionError, match=r"Stop what serves it, remove .* and pull again"):
        Pod(tmp_path / "pod3", pod_template(documents, "built"), documents, folders=folders).__enter__()


def answer(url: str, prompt: str) -> int:
    """Return the number of the answer's tokens."""
    request = GenerateRequest(
        text_input=prompt,
        max_tokens=NUM_TOKENS,
        end_id=-1,
        stream=True,
        return_finish_reason=True,
        return_num_output_tokens=True,
    )
    with TritonClient(url) as client:
        chunks = list(client.generate(request))
    assert chunks[-1].finish_reason == "length"
    return sum(chunk.num_output_tokens or 0 for chunk in chunks)


def until_streaming(pod: Pod) -> None:
    """Wait until every stream runs."""
    until(lambda: pod.metric("trireme_requests_running") == NUM_STREAMS)


def until(is_so: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
