# SPDX-License-Identifier: Apache-2.0
"""The command `trireme gateway envoy`: what it writes, and what it refuses by name."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from chart_here import IMAGES, deployment_values, merged, needs_chart, of_kind, render
from envoy_here import needs_envoy
from envoy_of_command import written

from trireme.commands import run_command

PROJECT = Path(__file__).resolve().parents[4]
DEMO = PROJECT / "ensemble_configs/deployments/demo_cpu.yaml"
CERT = ("--cert-file", "/etc/envoy/tls.crt", "--key-file", "/etc/envoy/tls.key")
TLS = ("--server", "grpcs://gpu1:8001", "--server-ca-file", "ca.crt")


def ended(*options: str) -> int:
    """Return the exit code of the command."""
    with pytest.raises(SystemExit) as exit_:
        run_command("gateway", ["envoy", *options])
    return int(exit_.value.code or 0)


def configuration(path: Path, *options: str) -> Any:
    assert ended(*options, "--out", str(path)) == 0
    return yaml.safe_load(path.read_text())


REFUSED: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "nobody": ((), ("nobody behind Envoy", "--gateway HOST:PORT")),
    "no address": (("--gateway", "g1"), ("--gateway must be HOST:PORT", "'g1'")),
    "another scheme": (("--gateway", "ftp://g1:80"), ("http://HOST:PORT or https://HOST:PORT", "ftp://g1:80")),
    "no weight": (("--gateway", "g1:80=0"), ("from 1 to 1000", "g1:80=0")),
    "twice": (("--gateway", "g1:80", "--gateway", "g1:80=2"), ("is given twice", "g1:80")),
    "with TLS and without": (
        ("--gateway", "g1:80", "--gateway", "https://g2:80", "--gateway-ca-file", "ca"),
        ("with TLS (https://) and without",),
    ),
    "TLS without authority": (("--gateway", "https://g1:443"), ("--gateway-ca-file is missing",)),
    "an authority without TLS": (
        ("--gateway", "g1:80", "--gateway-ca-file", "ca.crt"),
        ("--gateway-ca-file is for TLS", "https://"),
    ),
    "an address has no name": (
        ("--gateway", "https://10.0.0.1:443", "--gateway-ca-file", "ca.crt"),
        ("--gateway-name is missing", "10.0.0.1"),
    ),
    "half a certificate to servers": ((*TLS, "--server-cert-file", "c"), ("--server-key-file is missing",)),
    "open to others": (
        ("--gateway", "g1:80", "--listen", "0.0.0.0:80"),
        ("--listen 0.0.0.0:80 lets other machines in",),
    ),
    "half a certificate": (("--gateway", "g1:80", "--key-file", "k"), ("--cert-file is missing",)),
    "clients' certificates without TLS": (
        ("--gateway", "g1:80", "--client-ca-file", "ca"),
        ("--client-ca-file is of TLS",),
    ),
    "admin for others": (("--gateway", "g1:80", "--admin", "0.0.0.0:9901"), ("--admin 0.0.0.0:9901", "127.0.0.1:9901")),
    "a mirror without a share": (("--gateway", "g1:80", "--mirror", "g2:80"), ("--mirror needs --mirror-percent",)),
    "a share of no mirror": (("--gateway", "g1:80", "--mirror-percent", "5"), ("nobody to get them",)),
    "a mirror of nobody": (
        ("--server", "gpu1:8001", "--mirror", "g2:80", "--mirror-percent", "5"),
        ("--mirror gets copies of what --gateway is asked",),
    ),
    "a mirror that answers": (
        ("--gateway", "g1:80", "--mirror", "g1:80", "--mirror-percent", "5"),
        ("--mirror g1:80 is one of those that answer",),
    ),
    "least without adaptive": (
        ("--gateway", "g1:80", "--least-requests", "5"),
        ("--least-requests is of --adaptive-concurrency",),
    ),
    "adaptive of nobody": (("--server", "gpu1:8001", "--adaptive-concurrency"), ("is of requests to gateways",)),
    "least above most": (
        ("--gateway", "g1:80", "--adaptive-concurrency", "--least-requests", "9", "--max-requests", "8"),
        ("--least-requests 9 is more than --max-requests",),
    ),
    "no name of YAML": (("--gateway", "g1:80", "--out", "envoy.conf"), ("must end with .yaml", "envoy.conf")),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_bad_option_is_refused_by_name(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    options, parts = REFUSED[case]
    assert ended(*options) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert all(part in said for part in parts), said


@pytest.mark.parametrize(
    ("is_mutual", "options", "said"),
    [
        (False, ("--server", "gpu1:8001"), "--server has no TLS, and the deployment has triton.grpc_tls"),
        (True, TLS, "--server-cert-file is missing: the deployment's triton.grpc_tls.client_ca_file"),
    ],
)
def test_servers_are_asked_as_their_deployment_says(
    tmp_path: Path, is_mutual: bool, options: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    tls = {"cert_file": "/tls.crt", "key_file": "/tls.key"} | ({"client_ca_file": "/ca.crt"} if is_mutual else {})
    path = tmp_path / "tls.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(DEMO.read_text()) | {"triton": {"grpc_tls": tls}}))
    assert ended("--deployment", str(path), *options) == 2
    assert said in " ".join(capsys.readouterr().err.split())


@pytest.mark.slow
@needs_envoy
@pytest.mark.parametrize(
    "options",
    [
        ("--gateway", "g1:8080"),
        ("--gateway", "g1:8080=3", "--gateway", "[::1]:8080", "--adaptive-concurrency", "--access-log", "none"),
        ("--server", "gpu1:8001", "--server", "gpu2:8001=2", "--server-mirror", "gpu3:8001", "--mirror-percent", "0.5"),
        ("--gateway", "g1:8080", "--server", "gpu1:8001", "--mirror", "g2:8080", "--mirror-percent", "100"),
        ("--gateway", "g1:8080", "--retries", "0", "--idle-timeout-s", "30", "--max-requests", "10"),
    ],
    ids=" ".join,
)
def test_envoy_takes_what_is_written_without_a_warning(tmp_path: Path, options: tuple[str, ...]) -> None:
    written(tmp_path, *options)


def test_what_the_deployment_says_bounds_adaptive_concurrency(tmp_path: Path) -> None:
    path = tmp_path / "deployment.yaml"
    spec = yaml.safe_load(DEMO.read_text())
    engine = spec.get("engine", {})
    path.write_text(yaml.safe_dump(spec | {"engine": engine | {"max_num_seqs": 40}, "replicas": 3}))
    text = tmp_path / "envoy.yaml"
    found = configuration(
        text, "--deployment", str(path), "--gateway", "g1:80", "--gateway", "g2:80", "--adaptive-concurrency"
    )
    assert found["node"]["id"] == spec["name"]
    assert "min_concurrency: 240" in text.read_text()  # 2 * 3 * 40
    assert "max_concurrency_limit: 8192" in text.read_text()


def test_only_the_loopback_interface_reaches_the_admin_interface(tmp_path: Path) -> None:
    found = configuration(tmp_path / "envoy.yaml", "--gateway", "g1:80", "--listen", "0.0.0.0:443", *CERT)
    assert found["admin"]["address"]["socket_address"]["address"] == "127.0.0.1"
    [listener] = found["static_resources"]["listeners"]
    [chain] = listener["filter_chains"]
    params = chain["transport_socket"]["typed_config"]["common_tls_context"]["tls_params"]
    assert params == {"tls_minimum_protocol_version": "TLSv1_2"}


@pytest.mark.slow
@needs_chart
def test_servers_are_watched_as_by_the_charts_envoy(tmp_path: Path) -> None:
    found = configuration(tmp_path / "envoy.yaml", "--server", "gpu1:8001")
    [ours] = found["static_resources"]["clusters"]
    documents = render(merged(deployment_values(DEMO), IMAGES, {"envoy": {"enabled": True}}))
    [text] = [each["data"]["envoy.yaml"] for each in of_kind(documents, "ConfigMap") if "envoy.yaml" in each["data"]]
    clusters = yaml.safe_load(text)["static_resources"]["clusters"]
    [theirs] = [each for each in clusters if each["name"].endswith("-grpc")]
    for key in ("upstream_bind_config", "upstream_connection_options", "common_lb_config", "connect_timeout"):
        assert ours[key] == theirs[key], key
    own = {"base_ejection_time", "max_ejection_percent"}  # a site's to choose there
    assert {key: value for key, value in ours["outlier_detection"].items() if key not in own} == {
        key: value for key, value in theirs["outlier_detection"].items() if key not in own
    }
