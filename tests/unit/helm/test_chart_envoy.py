# SPDX-License-Identifier: Apache-2.0
"""The real Envoy with the chart's configuration: who gets a request, and what becomes of it when a pod goes."""

import asyncio
import contextlib
import datetime
import io
import ipaddress
import json
import re
import socket
import subprocess
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import grpc.aio
import pytest
import yaml
from certificates import Authority, Pair
from chart_here import CHART, IMAGES, deployment_values, merged, needs_chart, of_kind, render
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from envoy_between import validate
from envoy_here import needs_envoy
from envoy_of_chart import EnvoyOfChart
from pods_of_chart import NUM_CHUNKS, Client, Pod, client, pods
from yarl import URL

from clients.rollout.records.rollout_plan import Plan
from clients.rollout.records.state import Phase
from clients.rollout.records.store import Store
from trireme.commands import run_command

pytestmark = [pytest.mark.slow, needs_envoy, needs_chart]
MODEL = {"tokenizer": {"dir": "/models/t"}, "engine": {"provider": "simulated"}}
DEPLOYMENT = {
    "name": "pair",
    "models": [
        {"name": "chat", "prefix": "", "endpoints": ["ensemble"], "other_releases": [{"release": 2, **MODEL}], **MODEL},
        {"name": "code", "endpoints": ["ensemble"], **MODEL},
    ],
}
CANARY = {"candidate": "chat-2", "candidateWeight": 1000, "salt": "7"}
NAMES = {"chat": "127.0.0.2", "chat-2": "127.0.0.3", "code": "127.0.0.4"}
EJECTED_WITHIN_S = 5.0


@pytest.fixture
def envoy(tmp_path: Path) -> EnvoyOfChart:
    (tmp_path / "deployment.yaml").write_text(yaml.safe_dump(DEPLOYMENT))
    values = deployment_values(tmp_path / "deployment.yaml")
    return EnvoyOfChart(tmp_path, merged(values, IMAGES, {"traffic": {"chat": CANARY}}))


@contextlib.asynccontextmanager
async def three(envoy: EnvoyOfChart) -> AsyncIterator[tuple[Client, dict[str, Pod]]]:
    """Yield a pod of each server, Envoy before them, and a client."""
    async with pods(envoy.ports, **NAMES) as found:
        for name, host in NAMES.items():
            envoy.pods[name].append(host)
        with in_thread(envoy) as started:
            await started
            async with client(envoy.url) as asking:
                yield asking, found


@contextlib.contextmanager
def in_thread(envoy: EnvoyOfChart) -> Any:
    """Envoy's start waits for pods, which live in this thread's loop."""
    with contextlib.ExitStack() as held:
        yield asyncio.get_running_loop().run_in_executor(None, lambda: held.enter_context(envoy.run()))


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"envoy": {"adaptiveConcurrency": {"enabled": True}, "accessLog": False}},
        {"traffic": {"chat": CANARY | {"mirror": {"server": "chat-2", "percent": 10}}}},
    ],
    ids=["plain", "adaptive concurrency", "canary and mirror"],
)
def test_envoy_takes_the_configuration_without_a_warning(envoy: EnvoyOfChart, tmp_path: Path, values: Any) -> None:
    envoy = EnvoyOfChart(tmp_path / "other", merged(envoy.values, values))
    validate(envoy.write())


def test_the_whole_names_of_servers_are_asked_for_as_they_are(envoy: EnvoyOfChart) -> None:
    values = merged(envoy.values, {"envoy": {"enabled": True}})
    [pod] = [one["spec"]["template"]["spec"] for one in of_kind(render(values), "Deployment") if is_envoy(one)]
    [option] = pod["dnsConfig"]["options"]
    assert option["name"] == "ndots"
    assert len(names := dns_names(envoy)) > 1
    assert all(name.count(".") >= int(option["value"]) for name in names)


def test_a_request_to_a_node_that_vanished_is_given_up(envoy: EnvoyOfChart) -> None:
    """Linux alone would send it again for a quarter of an hour, and asks no keepalive meanwhile."""
    config = yaml.safe_load(envoy.write().read_text())
    clusters = [each for each in config["static_resources"]["clusters"] if "upstream_connection_options" in each]
    assert len(clusters) == 8  # three servers and a mirror, for gRPC and for HTTP
    for cluster in clusters:
        [option] = cluster["upstream_bind_config"]["socket_options"]
        assert (option["level"], option["name"]) == (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
        keepalive = cluster["upstream_connection_options"]["tcp_keepalive"]
        seconds = keepalive["keepalive_time"] + keepalive["keepalive_probes"] * keepalive["keepalive_interval"]
        assert option["int_value"] == 1000 * seconds


def dns_names(envoy: EnvoyOfChart) -> list[str]:
    text = json.dumps([found["data"] for found in of_kind(render(envoy.values), "ConfigMap") if is_envoy(found)])
    return re.findall(r"address: (\S+-pods\S+?)\\n", text)


def is_envoy(document: Any) -> bool:
    return bool(document["metadata"]["labels"].get("app.kubernetes.io/component") == "envoy")


@pytest.mark.parametrize(
    ("tls", "protocols"), [({}, {"http", "kubernetes.io/h2c"}), ({"tls": {"secret": "tls"}}, {"https"})]
)
def test_a_service_says_what_is_spoken_at_its_ports(envoy: EnvoyOfChart, tls: Any, protocols: set[str]) -> None:
    values = merged(envoy.values, {"envoy": {"enabled": True, **tls}})
    services = [one for one in of_kind(render(values), "Service") if is_envoy(one)]
    assert len(services) == 2
    for service in services:
        assert {port["appProtocol"] for port in service["spec"]["ports"]} == protocols


@pytest.mark.parametrize(
    ("number", "points"), [(2_000, 3.16), pytest.param(20_000, 1, marks=pytest.mark.soak)], ids=["few", "many"]
)
def test_requests_meet_a_canarys_weight_within_some_points(envoy: EnvoyOfChart, number: int, points: float) -> None:
    async def run() -> None:
        async with three(envoy) as (asking, found):
            names = Counter(await asking.ask_often(number))
            assert names.total() == number
            assert abs(names["chat-2"] / number - 0.10) < points / 100  # 4.7 standard deviations
            assert found["code"].num_requests == 0

    asyncio.run(run())


def test_a_request_goes_to_the_server_of_the_model_that_it_names(envoy: EnvoyOfChart) -> None:
    async def run() -> None:
        async with three(envoy) as (asking, _):
            stable = ("x-trireme-release", "stable")
            assert await asking.ask(("x-trireme-model", "code_ensemble")) == "code"
            assert await asking.ask(("x-trireme-model", "ensemble"), stable) == "chat"
            assert await asking.ask(stable) == "chat"  # the deployment's first
            assert await asking.ask(("x-trireme-release", "candidate")) == "chat-2"
            assert await asking.stream(("x-trireme-model", "code_ensemble")) == ["code"] * NUM_CHUNKS
            async with aiohttp.ClientSession(f"http://{envoy.url}", headers=dict([stable])) as session:
                assert await posted(session, "/v2/models/code_ensemble/generate", {}) == (
                    200,
                    {"pod": "code", "path": "/v2/models/code_ensemble/generate", "body": "{}"},
                )
                for way in ("/generate", "/generate_stream"):
                    for model, pod in (("code_ensemble", "code"), ("ensemble", "chat")):
                        status, told = await posted(session, way, {"model": model, "text_input": "x" * 2_000_000})
                        assert (status, told["pod"], told["path"]) == (200, pod, f"/v2/models/{model}{way}")
                        assert len(told["body"]) > 2_000_000
                for content_type in ("application/json; charset=utf-8", "Application/JSON"):
                    headers = {"content-type": content_type}
                    async with session.post("/generate", data=b'{"model": "code_ensemble"}', headers=headers) as answer:
                        assert (answer.status, (await answer.json(content_type=None))["pod"]) == (200, "code")
                status, told = await posted(session, "/generate", {"model": "another"})
                assert (status, "no such path or model" in told["error"]) == (404, True)

    asyncio.run(run())


async def posted(session: aiohttp.ClientSession, path: str, body: Any) -> tuple[int, Any]:
    content = io.BytesIO(json.dumps(body).encode())
    async with session.post(path, data=content, headers={"content-type": "application/json"}) as answer:
        return answer.status, await answer.json(content_type=None)


@pytest.mark.parametrize("is_mutual", [False, True], ids=["TLS", "mTLS"])
def test_envoy_reaches_servers_with_tls_of_their_own_and_no_others(tmp_path: Path, is_mutual: bool) -> None:
    authority, stranger = Authority(tmp_path / "ours"), Authority(tmp_path / "strangers")
    tls = {"cert_file": "/etc/trireme/grpc-tls/tls.crt", "key_file": "/etc/trireme/grpc-tls/tls.key"}
    if is_mutual:
        tls |= {"client_ca_file": "/etc/trireme/grpc-tls/ca.crt"}
    (tmp_path / "deployment.yaml").write_text(yaml.safe_dump(DEPLOYMENT | {"triton": {"grpc_tls": tls}}))
    site = {"grpcTls": {"secret": "pair", "serverName": "pair.models.svc"}}
    values = merged(deployment_values(tmp_path / "deployment.yaml"), IMAGES, site)
    envoy = EnvoyOfChart(tmp_path / "envoy", values)
    secret = tmp_path / "envoy" / "grpc-tls"
    secret.mkdir()
    shown = authority.client()
    for name, path in {"ca.crt": authority.ca, "tls.crt": shown.cert, "tls.key": shown.key}.items():
        (secret / name).write_bytes(path.read_bytes())
    validate(envoy.write())

    async def run() -> None:
        right, wrong = (each.server(hosts=("pair.models.svc",)) for each in (authority, stranger))
        async with (
            pods(envoy.ports, credentials=credentials(right, authority, is_mutual), chat=NAMES["chat"]),
            pods(envoy.ports, credentials=credentials(wrong, authority, is_mutual), code=NAMES["code"]),
        ):
            for name in ("chat", "code"):
                envoy.pods[name].append(NAMES[name])
            with in_thread(envoy) as started:
                await started  # health has no TLS, so both are well
                async with client(envoy.url) as asking:
                    assert await asking.stream(("x-trireme-release", "stable")) == ["chat"] * NUM_CHUNKS
                    with pytest.raises(grpc.aio.AioRpcError) as refused:
                        await asking.ask(("x-trireme-model", "code_ensemble"))
                    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE

    asyncio.run(run())


def credentials(pair: Pair, clients: Authority, is_mutual: bool) -> Any:
    """Return a server's credentials; with mTLS the server asks for certificates of an authority."""
    trusted = clients.ca.read_bytes() if is_mutual else None
    return grpc.ssl_server_credentials(
        [(pair.key.read_bytes(), pair.cert.read_bytes())], trusted, require_client_auth=is_mutual
    )


def test_nobody_reaches_the_control_api_through_it(envoy: EnvoyOfChart) -> None:
    async def run() -> None:
        async with three(envoy) as (asking, found):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await asking.index(b"")
            assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
            async with aiohttp.ClientSession(f"http://{envoy.url}") as session:
                for path in (
                    "/v2/repository/index",
                    "/v2//repository/index",
                    "/v2/x/../repository/index",
                    "/v2/logging",
                ):
                    assert (await posted(session, path, {}))[0] == 403
                assert (await posted(session, "/v2/models/ensemble/trace/setting", {}))[0] == 403
                async with session.post(URL("/v2/%2Frepository/index", encoded=True)) as answer:
                    assert answer.status == 400
            never = ("triton_grpc_error", "trireme-control-key", "triton-grpc-protocol-trireme-control-key")
            await asking.ask(("x-trireme-release", "stable"), *((name, "true") for name in never))
            assert not set(never) & set(found["chat"].metadata)

    asyncio.run(run())


def test_a_weight_is_a_wish_while_the_candidate_is_not_ready(envoy: EnvoyOfChart) -> None:
    """It loads, or its only pod has died: its share is the stable server's, and answers say so."""

    async def run() -> None:
        async with three(envoy) as (asking, found):
            for name in await asking.ask_often(300):
                assert name in ("chat", "chat-2")
            assert {await asking.who() for _ in range(200)} == {("chat", "stable"), ("chat-2", "candidate")}
            await found["chat-2"].kill()
            assert set(await asking.ask_often(500)) == {"chat"}
            assert {await asking.who() for _ in range(200)} == {("chat", "stable")}
            with pytest.raises(grpc.aio.AioRpcError):  # whoever asks for the candidate is told that there is none
                await asking.ask(("x-trireme-release", "candidate"))

    asyncio.run(run())


def test_keys_stay_with_their_release(envoy: EnvoyOfChart) -> None:
    async def run() -> set[str]:
        async with three(envoy) as (asking, _):
            asked = [
                await asyncio.gather(*(asking.ask(("x-trireme-key", f"user-{n}")) for n in range(400))) for _ in (1, 2)
            ]
            assert asked[0] == asked[1]
            return {str(n) for n, name in enumerate(asked[0]) if name == "chat-2"}

    assert 15 < len(asyncio.run(run())) < 70  # 40 of 400, five standard deviations


def test_traffic_changes_while_streams_run_and_none_is_lost(envoy: EnvoyOfChart) -> None:
    async def run() -> None:
        async with three(envoy) as (asking, _):
            streams = [asyncio.ensure_future(asking.stream()) for _ in range(40)]
            await asyncio.sleep(0.2)
            loop = asyncio.get_running_loop()
            for weight in (10_000, 0):
                traffic = {"traffic": {"chat": {"candidateWeight": weight}}}
                await loop.run_in_executor(None, envoy.upgrade, traffic)
                assert set(await asking.ask_often(200)) == {"chat-2" if weight else "chat"}
            for chunks in await asyncio.gather(*streams):
                assert len(chunks) == NUM_CHUNKS
                assert len(set(chunks)) == 1

    asyncio.run(run())


def test_a_mirror_that_hangs_does_not_slow_the_primary(envoy: EnvoyOfChart) -> None:
    """Nothing of it: as many answers, and each in time, while every copy hangs; of those no more than 64 are kept."""

    async def run() -> None:
        async with three(envoy) as (asking, found):
            loop = asyncio.get_running_loop()
            alone_s = await longest_s(asking)
            before = found["chat-2"].num_requests
            found["chat-2"].behaviour = "hang"
            mirror = {"candidateWeight": 0, "mirror": {"server": "chat-2", "percent": 100}}
            await loop.run_in_executor(None, envoy.upgrade, {"traffic": {"chat": mirror}})
            limit_s = max(1.0, 5 * alone_s)  # a hung copy that is waited for takes an hour
            mirrored_s = await longest_s(asking)
            assert found["chat-2"].num_requests - before == 64
            for _ in range(2):  # something else may have held up this machine once
                if mirrored_s >= limit_s:
                    mirrored_s = await longest_s(asking)
            assert mirrored_s < limit_s
            active = await loop.run_in_executor(None, envoy.statistic, "cluster.chat-2-grpc-mirror.upstream_rq_active")
            assert active == 64  # and the others were not sent
            assert found["chat"].num_requests > 1000

    asyncio.run(run())


async def longest_s(asking: Client) -> float:
    """Return the longest time of 100 requests, of 600 of which none fails."""
    times = []
    for _ in range(6):
        started_s = time.monotonic()
        await asking.ask_often(100, ("x-trireme-model", "ensemble"), at_a_time=10)
        times.append(time.monotonic() - started_s)
    return max(times)


@pytest.fixture
def envoy_of_three(tmp_path: Path) -> EnvoyOfChart:
    (tmp_path / "deployment.yaml").write_text(yaml.safe_dump({"name": "chat", "endpoints": ["ensemble"], **MODEL}))
    return EnvoyOfChart(tmp_path, merged(deployment_values(tmp_path / "deployment.yaml"), IMAGES))


@contextlib.asynccontextmanager
async def replicas(envoy: EnvoyOfChart) -> AsyncIterator[tuple[Client, list[Pod]]]:
    async with pods(envoy.ports, a="127.0.0.2", b="127.0.0.3", c="127.0.0.4") as found:
        envoy.pods["chat"].extend(pod.host for pod in found.values())
        with in_thread(envoy) as started:
            await started
            async with client(envoy.url) as asking:
                yield asking, list(found.values())


def test_a_pod_that_is_killed_is_ejected_within_five_seconds_and_nothing_fails(envoy_of_three: EnvoyOfChart) -> None:
    envoy = envoy_of_three

    async def run() -> None:
        async with replicas(envoy) as (asking, found):
            loop = asyncio.get_running_loop()
            over = asyncio.Event()
            names: Counter[str] = Counter()

            async def load() -> None:
                while not over.is_set():
                    names[await asking.ask()] += 1

            callers = [asyncio.ensure_future(load()) for _ in range(16)]
            while min(names[pod.name] for pod in found) <= 100:
                assert not any(caller.done() for caller in callers)
                await asyncio.sleep(0.05)
            await found[0].kill()
            killed_s = time.monotonic()
            while not (await loop.run_in_executor(None, envoy.hosts, "chat-grpc"))[found[0].host]:
                assert time.monotonic() - killed_s < EJECTED_WITHIN_S
                await asyncio.sleep(0.05)
            await asyncio.sleep(0.5)
            over.set()
            await asyncio.gather(*callers)  # raises what any of them was refused

    asyncio.run(run())


def test_a_request_that_had_no_byte_of_an_answer_is_asked_again_elsewhere(envoy_of_three: EnvoyOfChart) -> None:
    async def run() -> None:
        async with replicas(envoy_of_three) as (asking, found):
            found[0].behaviour = "reset"
            assert set(await asking.ask_often(300)) == {"b", "c"}
            for chunks in await asyncio.gather(*(asking.stream() for _ in range(30))):
                assert chunks in (["b"] * NUM_CHUNKS, ["c"] * NUM_CHUNKS)
            assert found[0].num_requests > 0

    asyncio.run(run())


def test_a_stream_that_has_begun_is_not_asked_again(envoy_of_three: EnvoyOfChart) -> None:
    async def run() -> None:
        async with replicas(envoy_of_three) as (asking, found):
            streams = [asyncio.ensure_future(asking.stream()) for _ in range(30)]
            await asyncio.sleep(0.4)
            await found[0].kill()
            ends = await asyncio.gather(*streams, return_exceptions=True)
            cut = [end for end in ends if isinstance(end, grpc.aio.AioRpcError)]
            assert 0 < len(cut) < 30
            assert sum(pod.num_requests for pod in found) == 30

    asyncio.run(run())


def test_a_pod_that_is_not_ready_gets_nothing_new_and_ends_what_it_has(envoy_of_three: EnvoyOfChart) -> None:
    envoy = envoy_of_three

    async def run() -> None:
        async with replicas(envoy) as (asking, found):
            streams = [asyncio.ensure_future(asking.stream()) for _ in range(30)]
            await asyncio.sleep(0.2)
            found[0].is_ready = False
            envoy.pods["chat"].remove(found[0].host)  # as Kubernetes does with one that goes
            loop = asyncio.get_running_loop()
            while not await loop.run_in_executor(None, envoy.has_healthy, "chat", 2):
                await asyncio.sleep(0.05)
            before = found[0].num_requests
            assert set(await asking.ask_often(300)) == {"b", "c"}
            assert found[0].num_requests == before > 0
            assert {len(chunks) for chunks in await asyncio.gather(*streams)} == {NUM_CHUNKS}

    asyncio.run(run())


def test_adaptive_concurrency_sheds_what_a_busy_server_would_queue(
    envoy_of_three: EnvoyOfChart, tmp_path: Path
) -> None:
    adaptive = {"enabled": True, "minRttSeconds": 3600, "requests": 25}
    envoy = EnvoyOfChart(
        tmp_path / "adaptive", merged(envoy_of_three.values, {"envoy": {"adaptiveConcurrency": adaptive}})
    )

    async def run() -> None:
        async with replicas(envoy) as (asking, found):
            loop = asyncio.get_running_loop()
            gradient = "http.trireme.adaptive_concurrency.gradient_controller"
            await asking.ask_often(100, at_a_time=2)
            while await loop.run_in_executor(None, envoy.statistic, f"{gradient}.min_rtt_calculation_active"):
                await asking.ask_often(20, at_a_time=2)
            for pod in found:
                pod.pause_s = 0.5
            asked = await asyncio.gather(
                *(asking.ask_often(5, at_a_time=1) for _ in range(400)), return_exceptions=True
            )
            refused = [each for each in asked if isinstance(each, grpc.aio.AioRpcError)]
            assert refused
            assert {each.code() for each in refused} == {grpc.StatusCode.UNAVAILABLE}
            assert await loop.run_in_executor(None, envoy.statistic, f"{gradient}.rq_blocked") >= len(refused)

    asyncio.run(run())


def test_an_envoy_that_goes_waits_for_its_streams(envoy_of_three: EnvoyOfChart) -> None:
    """The chart's preStop hook: not ready at once, and over when no request runs."""
    envoy = envoy_of_three

    async def run() -> None:
        async with replicas(envoy) as (asking, _):
            streams = [asyncio.ensure_future(asking.stream()) for _ in range(10)]
            await asyncio.sleep(0.2)
            script = CHART / "files/envoy/drain.sh"
            hook = await asyncio.create_subprocess_exec("bash", str(script), "0", f"127.0.0.1/{envoy.admin_port}")
            await asyncio.sleep(0.2)
            assert not await asyncio.get_running_loop().run_in_executor(None, envoy.is_ready)
            assert hook.returncode is None
            assert {len(chunks) for chunks in await asyncio.gather(*streams)} == {NUM_CHUNKS}
            assert await asyncio.wait_for(hook.wait(), 20) == 0

    asyncio.run(run())


def test_the_hook_ends_when_envoy_is_gone() -> None:
    hook = subprocess.run(["bash", CHART / "files/envoy/drain.sh", "0", "127.0.0.1/1"], check=False, timeout=20)
    assert hook.returncode == 0


def test_clients_are_served_over_tls_by_the_secrets_certificate(envoy_of_three: EnvoyOfChart, tmp_path: Path) -> None:
    secret = {"envoy": {"tls": {"secret": "llm-tls"}}}
    envoy = EnvoyOfChart(tmp_path / "tls", merged(envoy_of_three.values, secret))
    certificate = write_certificate(tmp_path / "tls/tls")

    async def run() -> None:
        async with pods(envoy.ports, a="127.0.0.2") as found:
            envoy.pods["chat"].append(found["a"].host)
            with in_thread(envoy) as started:
                await started
                async with client(envoy.url, certificate=certificate) as asking:
                    assert await asking.ask() == "a"
                    assert await asking.stream() == ["a"] * NUM_CHUNKS
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(1), client(envoy.url):
                        pass

    asyncio.run(run())


def write_certificate(folder: Path) -> bytes:
    """Write and return a certificate of 127.0.0.1, signed by itself, as a Secret of kubernetes.io/tls has it."""
    folder.mkdir(parents=True)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "llm")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - datetime.timedelta(hours=1))
    builder = builder.not_valid_after(now + datetime.timedelta(hours=1)).add_extension(address, critical=False)
    pem = serialization.Encoding.PEM
    certificate = builder.sign(key, hashes.SHA256()).public_bytes(pem)
    (folder / "tls.crt").write_bytes(certificate)
    (folder / "tls.key").write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return certificate


def test_a_rollouts_share_is_what_the_chart_splits_by(tmp_path: Path) -> None:
    # `trireme rollout export --format helm-values`, as it goes through Helm
    (tmp_path / "deployment.yaml").write_text(yaml.safe_dump(DEPLOYMENT))
    store = tmp_path / "rollouts.sqlite"
    plan = Plan(candidate=2, stable=1, release={}, salt="a1", shares=(0.05, 0.25, 1.0))
    with Store(store) as kept:
        number = kept.begin("chat", plan.text(), why="").id
        kept.enter(number, Phase.RUNNING, why="", step=1)
    out = tmp_path / "traffic.yaml"
    with pytest.raises(SystemExit) as ended:
        run_command("rollout", ["export", "--format", "helm-values", "--store", str(store), "--out", str(out)])
    assert ended.value.code == 0
    traffic = yaml.safe_load(out.read_text())
    assert traffic == {"traffic": {"chat": {"candidate": "chat-2", "candidateWeight": 2500, "salt": "a1"}}}
    values = merged(deployment_values(tmp_path / "deployment.yaml"), IMAGES, traffic, {"envoy": {"enabled": True}})
    routes = next(
        found["data"]["routes.yaml"] for found in of_kind(render(values), "ConfigMap") if "routes.yaml" in found["data"]
    )
    weighted = [
        {cluster["name"]: cluster["weight"] for cluster in route["route"]["weighted_clusters"]["clusters"]}
        for route in yaml.safe_load(routes)["resources"][0]["virtual_hosts"][0]["routes"]
        if "weighted_clusters" in route.get("route", {})
    ]
    assert weighted
    assert all(sorted(split.values()) == [2500, 7500] for split in weighted)
    assert {"chat-2-grpc-or-stable", "chat-grpc"} in map(set, weighted)
