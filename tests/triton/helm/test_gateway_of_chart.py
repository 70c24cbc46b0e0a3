# SPDX-License-Identifier: Apache-2.0
"""The chart's gateway: what its container runs, before real Tritons, with Redis and PostgreSQL; and its pod.

A pod is an address of the loopback network, and the name of a Service is that of its pods in a file of hosts, which the
gateway has for its own.
"""

import contextlib
import json
import os
import signal
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import postgres_here
import pytest
import redis_here
from certificates import Authority
from chart_here import IMAGES, deployment_values, merged, needs_chart, of_kind, render
from pod_here import Pod, skip_without_pods
from postgres_here import PostgresServer
from redis_here import RedisServer
from running_server import RunningServer, deployment_text

from ensemble_configs.render.helm_values import IMAGE_ROOT
from trireme.base.free_ports import free_ports

pytestmark = needs_chart
PROJECT = Path(__file__).resolve().parents[3]
ENGINE = {"provider": "simulated", "step_ms": 5.0, "num_kv_blocks": 4096, "seed": 1}
HOSTS = ("127.0.9.2", "127.0.9.3")
KEY = "a-key-of-a-caller-0123456789"
START_S, WAIT_S = 60.0, 60.0


class Site:
    """A rendered gateway in a process, two Tritons that are its pods, and the names that it finds them by."""

    def __init__(self, folder: Path, values: dict[str, Any]) -> None:
        self._folder = folder
        (folder / "site.yaml").write_text(deployment_text("chat", engine=ENGINE))
        self.grpc_port, self.port = free_ports(2)
        ports = {"ports": {"grpc": self.grpc_port}, "openai": {"port": self.port}}
        self.documents = render(merged(deployment_values(folder / "site.yaml"), IMAGES, values, ports))
        [template] = [
            each["spec"]["template"]
            for each in self.documents
            if each["kind"] in ("Deployment", "StatefulSet")
            and each["metadata"]["labels"]["app.kubernetes.io/component"] == "openai"
        ]
        self.template = template
        self.authority = Authority(folder / "authority")
        self._shown = self.authority.issue("openai", hosts=("llm.example.com",))
        self._hosts = folder / "hosts"
        self._log_path = folder / "gateway.log"
        [headless] = [
            each["metadata"]["name"]
            for each in of_kind(self.documents, "Service")
            if each["spec"].get("clusterIP") == "None"
        ]
        self._name = f"{headless}.llm.svc.cluster.local"
        self.serve_at()

    def serve_at(self, *hosts: str) -> None:
        """Give the Service's name these addresses."""
        self._hosts.write_text("127.0.0.1 localhost\n" + "".join(f"{host} {self._name}\n" for host in hosts))

    @contextlib.contextmanager
    def servers(self, number: int) -> Iterator[list[RunningServer]]:
        """Yield so many pods of the server, which have one port at addresses of their own."""
        with contextlib.ExitStack() as stack:
            found = []
            for host in HOSTS[:number]:
                served = RunningServer(
                    (self._folder / "site.yaml").read_text(), self._folder / host, options=("--host", host)
                )
                found.append(stack.enter_context(AtAddress(served, host, self.grpc_port)))
            yield [each.server for each in found]

    @contextlib.contextmanager
    def gateway(self, environment: dict[str, str] | None = None) -> Iterator["subprocess.Popen[bytes]"]:
        """Run the container's command, of which only paths on this machine differ from the chart's."""
        container = self.template["spec"]["containers"][0]
        files = {
            "/etc/trireme/deployment/deployment.yaml": self._folder / "deployment.yaml",
            "/etc/trireme/tls/tls.crt": self._shown.cert,
            "/etc/trireme/tls/tls.key": self._shown.key,
            "/etc/trireme/keys/keys.txt": self._folder / "keys.txt",
            "/var/lib/trireme-journal/journal": self._folder / "journal",
        }
        served = self.template["metadata"]["annotations"]["trireme/deployment"]
        files["/etc/trireme/deployment/deployment.yaml"].write_text(served.replace(str(IMAGE_ROOT), str(PROJECT)))
        files["/etc/trireme/keys/keys.txt"].write_text(KEY + "\n")
        command = [str(files.get(word, word)) for word in container["command"]]
        assert command[0] == "trireme"
        below = ["unshare", "--mount", "sh", "-c", f'mount --bind {self._hosts} /etc/hosts && exec "$@"', "sh"]
        with self._log_path.open("ab") as log:
            process = subprocess.Popen(
                [*below, sys.executable, "-m", *command], env=os.environ | (environment or {}), stdout=log, stderr=log
            )
        try:
            self.wait_for(200, "/health/live", process)
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            status = process.wait(WAIT_S)
        assert status == 0, self.log()

    def log(self) -> str:
        return self._log_path.read_text(errors="replace")

    def ask(self, path: str, body: Any = None, *, key: str = "") -> tuple[int, dict[str, str], str]:
        """Return an answer of the gateway; its certificate is for a name, as callers know it."""
        context = ssl.create_default_context(cafile=str(self.authority.ca))
        context.check_hostname = False
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        request = urllib.request.Request(f"https://127.0.0.1:{self.port}{path}", data=data, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=60, context=context) as answer:
                return answer.status, dict(answer.headers), answer.read().decode()
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.code, dict(refused.headers), refused.read().decode()

    def wait_for(self, status: int, path: str, process: "subprocess.Popen[bytes]") -> None:
        deadline_s = time.monotonic() + START_S
        while True:
            assert process.poll() is None, self.log()
            assert time.monotonic() < deadline_s, self.log()
            with contextlib.suppress(urllib.error.URLError, ConnectionError):
                if self.ask(path)[0] == status:
                    return
            time.sleep(0.1)

    def complete(self, key: str, number: int, *, tokens: int = 8) -> tuple[int, dict[str, str], str]:
        body = {"model": "chat", "prompt": f"{number} " * 40, "max_tokens": tokens, "ignore_eos": True}
        return self.ask("/v1/completions", body, key=key)


class AtAddress:
    """A server at a port that is not its own to choose."""

    def __init__(self, server: RunningServer, host: str, port: int) -> None:
        server.grpc_port = port
        self.server, self._host = server, host

    def __enter__(self) -> "AtAddress":
        self.server.is_ready = self._is_ready  # type: ignore[method-assign]
        self.server.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self.server.__exit__(*exc)

    def _is_ready(self) -> bool:
        url = f"http://{self._host}:{self.server.http_port}/v2/health/ready"
        try:
            with urllib.request.urlopen(url, timeout=5) as response:
                return bool(response.status == 200)
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False


def values_of(**openai: Any) -> dict[str, Any]:
    egress = [{"ports": [{"port": 5432}]}]
    return {"openai": {"enabled": True, "tls": {"secret": "tls"}, "egress": egress, **openai}}


def keys_command(*words: str, environment: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "trireme", "gateway", *words],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="a file of hosts of its own needs root")
def test_what_the_pod_runs_answers_with_redis_and_postgresql(
    redis_server: RedisServer, postgres: PostgresServer, tmp_path: Path
) -> None:
    database = f"postgresql://postgres@127.0.0.1:{postgres.port}/{postgres.new_database()}"
    secrets = {"PGPASSWORD": postgres_here.PASSWORD, "REDISCLI_AUTH": redis_here.PASSWORD}
    site = Site(
        tmp_path,
        values_of(
            keys={"url": database},
            ledger={"url": database},
            limits={"url": redis_server.url},
            databaseSecret="db",
            redisSecret="redis",
        ),
    )
    container = site.template["spec"]["containers"][0]
    assert {each["name"] for each in container["env"] if "valueFrom" in each} == set(secrets)
    created = keys_command(
        *["keys", "create", "alice", "--keys", database, "--requests-per-minute", "6"], environment=secrets
    )
    key = created.split()[0]
    with site.gateway(secrets) as process:
        assert site.ask("/health/ready")[0] == 503  # nobody is there yet
        assert site.complete(key, 0)[0] == 503
        with site.servers(1):
            site.serve_at(HOSTS[0])
            site.wait_for(200, "/health/ready?models=any", process)
            assert site.complete("", 1)[0] == 401
            status, headers, text = site.complete(key, 1)
            assert (status, headers["x-ratelimit-limit-requests"]) == (200, "6")
            assert json.loads(text)["usage"]["completion_tokens"] == 8
            statuses = Counter(site.complete(key, number)[0] for number in range(2, 9))
            assert statuses[429] >= 1  # by Redis
            assert set(statuses) == {200, 429}
    used = json.loads(keys_command(*["usage", "--ledger", database, "--by", "key", "--json"], environment=secrets))
    [row] = used
    assert row["completion_tokens"] == 8 * (1 + statuses[200])
    assert not any(secret in site.log() for secret in secrets.values())


@pytest.mark.skipif(os.geteuid() != 0, reason="a file of hosts of its own needs root")
def test_pods_of_the_server_come_and_go_and_no_request_is_lost(tmp_path: Path) -> None:
    site = Site(tmp_path, values_of(keys={"secret": "keys"}))
    with site.gateway() as process, site.servers(2), ThreadPoolExecutor(4) as pool:
        site.serve_at(HOSTS[0])
        site.wait_for(200, "/health/ready", process)

        def ask(number: int) -> int:
            return site.complete(KEY, number, tokens=40)[0]

        assert set(pool.map(ask, range(8))) == {200}
        assert known(site) == {HOSTS[0]}
        site.serve_at(*HOSTS)
        until(lambda: known(site) == set(HOSTS))
        assert set(pool.map(ask, range(8, 24))) == {200}
        running = [pool.submit(ask, number) for number in range(24, 40)]
        site.serve_at(HOSTS[1])
        assert {each.result() for each in running} == {200}
        until(lambda: known(site) == {HOSTS[1]})
        assert set(pool.map(ask, range(40, 48))) == {200}


def known(site: Site) -> set[str]:
    """Return the addresses of servers that the gateway's metrics tell of as taking requests."""
    _, _, page = site.ask("/metrics", key=KEY)
    lines = [line for line in page.splitlines() if line.startswith("trireme_gateway_server_is_taking_requests{")]
    return {line.split('"')[1].rpartition(":")[0] for line in lines if line.endswith(" 1.0")}


def until(is_so: Any) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < deadline_s
        time.sleep(0.1)


def test_its_container_starts_with_what_the_image_has(tmp_path: Path) -> None:
    skip_without_pods()
    site = Site(tmp_path, values_of(keys={"secret": "keys"}, drainSeconds=1))
    shown = site.authority.issue("pod", hosts=("llm.example.com",))
    secrets = {
        "tls": {"tls.crt": shown.cert.read_text(), "tls.key": shown.key.read_text()},
        "keys": {"keys.txt": KEY + "\n"},
    }
    with Pod(tmp_path / "pod", site.template, site.documents, secrets=secrets) as pod:
        until(lambda: told(pod, "/health/live") == 200 or pod.process.poll() is not None)
        assert pod.process.poll() is None, pod.log()
        assert told(pod, "/health/ready?models=any") == 503  # there are no servers
        assert told(pod, "/v1/models") == 401
        assert told(pod, "/v1/models", KEY) == 200
        with pod.exec(pod.container["lifecycle"]["preStop"]["exec"]["command"]) as hook:
            assert hook.wait(30) == 0
        pod.process_1.send_signal(signal.SIGTERM)
        assert pod.process.wait(pod.spec["terminationGracePeriodSeconds"]) == 0, pod.log()


def told(pod: Pod, path: str, key: str = "") -> int | None:
    """Return the status of an answer, as the kubelet asks: it checks no certificate."""
    context = ssl._create_unverified_context()
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    request = urllib.request.Request(f"https://{pod.host}:{pod.port('openai')}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=10, context=context) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refused:
        refused.close()
        return refused.code
    except OSError:
        return None
