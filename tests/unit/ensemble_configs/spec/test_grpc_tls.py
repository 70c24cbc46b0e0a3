# SPDX-License-Identifier: Apache-2.0
"""Certificates of Triton's gRPC endpoint: what a deployment says, what is wrong with files, what follows."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from certificates import Authority
from demo_release import write_demo_release
from test_doctor_command import doctor, write_deployment
from test_preflight import spec

from clients.access import Access
from ensemble_configs.render.helm_values import helm_values
from ensemble_configs.render.launch_flags import launch_flags
from ensemble_configs.spec.deployment import DeploymentSpec, override_triton
from ensemble_configs.spec.grpc_tls import GrpcTlsSpec, certificate_of, grpc_tls_findings, own_access
from serving.doctor.preflight import check
from trireme.base.errors import SpecError

pytestmark = pytest.mark.slow


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ours")


def mutual(authority: Authority) -> GrpcTlsSpec:
    pair, own = authority.server(hosts=("triton.example", "localhost")), authority.client("own")
    return GrpcTlsSpec(
        cert_file=pair.cert, key_file=pair.key, client_ca_file=authority.ca, own_cert_file=own.cert,
        own_key_file=own.key,
    )  # fmt: skip


def with_tls(deployment: DeploymentSpec, tls: GrpcTlsSpec) -> DeploymentSpec:
    return override_triton(deployment, grpc_tls=tls.model_dump())


def test_the_fields_become_tritons_flags(authority: Authority) -> None:
    tls = mutual(authority)
    plain = tls.model_copy(update={"client_ca_file": None, "own_cert_file": None, "own_key_file": None})
    pair = {"grpc-server-cert": str(tls.cert_file), "grpc-server-key": str(tls.key_file)}

    def flags(tls: GrpcTlsSpec) -> dict[str, str]:
        found = dict(launch_flags(with_tls(spec(), tls)))
        return {name: value for name, value in found.items() if "ssl" in name or "cert" in name or "server-key" in name}

    assert flags(plain) == {"grpc-use-ssl": "true", **pair}
    assert flags(tls) == {"grpc-use-ssl-mutual": "true", **pair, "grpc-root-cert": str(authority.ca)}


def test_commands_on_the_machine_trust_the_certificate_itself_by_its_own_name(authority: Authority) -> None:
    tls = mutual(authority)
    access = Access(**own_access(tls))  # type: ignore[arg-type]
    assert (access.ca_file, access.server_name) == (str(tls.cert_file), "triton.example")
    assert (access.cert_file, access.key_file) == (str(tls.own_cert_file), str(tls.own_key_file))
    without_own = tls.model_copy(update={"own_cert_file": None, "own_key_file": None})
    assert own_access(without_own)["cert_file"] == str(tls.cert_file), "the server's own, where nothing else is named"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"cert_file": "/a"}, "grpc_tls.key_file: field required"),
        ({"cert_file": "/a", "key_file": "/b", "own_cert_file": "/c"}, "own_cert_file and own_key_file go together"),
        (
            {"cert_file": "/a", "key_file": "/b", "own_cert_file": "/c", "own_key_file": "/d"},
            "only where client_ca_file asks for certificates",
        ),
        ({"cert_file": "/a", "key_file": "/b", "password": "x"}, "grpc_tls.password: extra inputs are not permitted"),
    ],
)
def test_what_does_not_go_together_is_refused(fields: dict[str, str], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        override_triton(spec(), grpc_tls=fields)


WRONG: dict[str, tuple[Callable[[Authority, Path], dict[str, Path]], str, str]] = {
    "not there": (lambda _, folder: {"cert_file": folder / "none"}, "cert_file", "No such file"),
    "no certificate": (lambda a, _: {"cert_file": a.server("b").key}, "cert_file", "a certificate in PEM"),
    "no key": (lambda a, _: {"key_file": a.ca}, "key_file", "a private key without a password in PEM"),
    "another's key": (lambda a, _: {"key_file": a.server("b").key}, "key_file", "of another certificate"),
    "own key": (lambda a, _: {"own_key_file": a.client("b").key}, "own_key_file", "of another certificate"),
    "expired": (lambda a, _: pair_of(a, days=-1), "cert_file", "valid now"),
    "no authority": (lambda _, folder: {"client_ca_file": folder / "none"}, "client_ca_file", "No such file"),
}


def pair_of(authority: Authority, *, days: float) -> dict[str, Path]:
    pair = authority.server("later", days=days)
    return {"cert_file": pair.cert, "key_file": pair.key}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_with_the_files_is_found_before_a_start(authority: Authority, tmp_path: Path, case: str) -> None:
    change, field, said = WRONG[case]
    tls = mutual(authority).model_copy(update=change(authority, tmp_path))
    [finding] = grpc_tls_findings(tls)
    assert finding.check == f"triton.grpc_tls.{field}"
    assert said in str(finding)
    with pytest.raises(SpecError, match=f"triton.grpc_tls.{field}") as refused:
        check(with_tls(spec(), tls))
    assert refused.value.facts["field"] == f"triton.grpc_tls.{field}"


def test_right_files_are_started_with(authority: Authority) -> None:
    check(with_tls(spec(), mutual(authority)))


def test_doctor_tells_the_certificate_and_that_it_expires_soon(authority: Authority, tmp_path: Path) -> None:
    release = write_demo_release(tmp_path / "release")

    def tell(*arguments: str, days: float) -> Any:
        tls = {name: str(path) for name, path in pair_of(authority, days=days).items()}
        path = write_deployment(tmp_path, release_dir=str(release), triton={"grpc_tls": tls})
        return doctor(tmp_path, "--deployment", path, *arguments)

    assert "gRPC     certificate of localhost, 127.0.0.1; valid for 100 days" in tell(days=100.1).stdout
    assert "RENEW IT" not in tell(days=100).stdout
    assert "RENEW IT" in tell(days=5).stdout
    [facts] = json.loads(tell("--json", days=5).stdout)
    assert facts["grpc_certificate"]["names"] == ["localhost", "127.0.0.1"]
    expired = tell(days=-1)
    assert expired.returncode == 1
    assert "triton.grpc_tls.cert_file" in expired.stdout.replace("\n", "")


def test_a_wildcard_is_asked_for_by_a_name_that_it_covers(authority: Authority) -> None:
    pair = authority.server("star", hosts=("*.models.example",))
    tls = GrpcTlsSpec(cert_file=pair.cert, key_file=pair.key)
    assert certificate_of(tls).names == ("*.models.example",)
    assert own_access(tls)["server_name"] == "any.models.example"


def test_the_chart_is_told_where_the_secret_is_mounted(tmp_path: Path) -> None:
    folder = Path("/etc/trireme/grpc-tls")
    tls = GrpcTlsSpec(cert_file=folder / "tls.crt", key_file=folder / "tls.key", client_ca_file=folder / "ca.crt")
    found = helm_values(with_tls(spec(), tls))
    assert found["grpcTls"] == {"directory": str(folder), "isMutual": True}
    assert "grpcTls" not in helm_values(spec())
    with pytest.raises(SpecError, match="from one Secret, which is one folder"):
        helm_values(with_tls(spec(), tls.model_copy(update={"client_ca_file": tmp_path / "ca.crt"})))
