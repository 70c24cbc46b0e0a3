# SPDX-License-Identifier: Apache-2.0
"""Every first-party client through a real Envoy that wants TLS, a client certificate or a key, to the real Triton."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from certificates import Authority, Pair
from envoy_here import needs_envoy
from guarded_envoy import KEY, KEY_HEADER, TOKEN, Backend, GuardedEnvoy, Listener
from running_server import RunningServer

from benchmarks.free_ports import free_ports
from clients.access import Access
from clients.streaming import GenerateRequest, TritonClient
from ensemble_configs.errors import AccessDenied

pytestmark = needs_envoy
ASKED = GenerateRequest(text_input="Once upon a time", max_tokens=8, stream=True)


class Doors(NamedTuple):
    """An Envoy's ports by what they want, and the files for them."""

    bearer: int  # TLS, and a bearer token
    mutual: int  # TLS, a client certificate, and a key in a header of its own
    expired: int
    other_name: int
    authority: Authority
    stranger: Authority
    client: Pair
    token_file: Path
    key_file: Path


@pytest.fixture(scope="module")
def doors(simulated: RunningServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    folder = tmp_path_factory.mktemp("doors")
    authority, stranger = Authority(folder / "ours"), Authority(folder / "strangers", "strangers")
    client = authority.client()
    server = authority.server()
    bearer, mutual, expired, other_name = free_ports(4)
    listeners = [
        Listener(bearer, server, wants_bearer=True),
        Listener(mutual, server, client_ca=authority.ca, wants_key=True),
        Listener(expired, authority.server("expired", days=-1)),
        Listener(other_name, authority.server("other", hosts=("triton.example",))),
    ]
    backends = [
        Backend("/inference.GRPCInferenceService", simulated.grpc_port, is_http2=True),
        Backend("/metrics", simulated.metrics_port),
        Backend("/v2", simulated.http_port),
    ]
    token_file, key_file = folder / "token", folder / "key"
    token_file.write_text(f"{TOKEN}\n")
    key_file.write_text(KEY)
    with GuardedEnvoy(folder / "envoy", listeners, backends):
        yield Doors(bearer, mutual, expired, other_name, authority, stranger, client, token_file, key_file)


def by_bearer(doors: Doors, **changes: object) -> Access:
    return Access(**{"ca_file": str(doors.authority.ca), "token_file": str(doors.token_file)} | changes)  # type: ignore[arg-type]


def by_certificate(doors: Doors, pair: Pair | None = None, **changes: object) -> Access:
    pair = pair or doors.client
    fields: dict[str, object] = {
        "ca_file": str(doors.authority.ca), "cert_file": str(pair.cert), "key_file": str(pair.key),
        "token_file": str(doors.key_file), "token_header": KEY_HEADER,
    }  # fmt: skip
    return Access(**fields | changes)  # type: ignore[arg-type]


def answer(port: int, access: Access) -> str:
    with TritonClient(f"localhost:{port}", access=access) as client:
        return "".join(chunk.text for chunk in client.generate(ASKED, timeout_s=30.0))


def test_a_client_with_the_right_certificates_and_key_is_answered(doors: Doors) -> None:
    assert answer(doors.bearer, by_bearer(doors))
    assert answer(doors.mutual, by_certificate(doors))
    assert answer(doors.other_name, by_bearer(doors, server_name="triton.example"))


@pytest.mark.parametrize(
    ("door", "access", "reason", "cure"),
    [
        pytest.param("bearer", {"ca_file": "stranger"}, "unknown_authority", "--ca-file", id="wrong authority"),
        pytest.param("bearer", {"ca_file": None, "is_tls": True}, "unknown_authority", "--ca-file", id="no authority"),
        pytest.param("expired", {}, "expired", "renewed", id="expired"),
        pytest.param("other_name", {}, "wrong_name", "--tls-server-name", id="other name"),
        pytest.param("mutual", {}, "no_client_certificate", "--cert-file", id="no client certificate"),
        pytest.param(
            "mutual", {"pair": "stranger"}, "client_certificate", "--cert-file", id="a stranger's certificate"
        ),
        pytest.param("mutual", {"pair": "old"}, "client_certificate", "has expired", id="an expired certificate"),
        pytest.param("bearer", {"token_file": None}, "no_key", "--token-file", id="no key"),
        pytest.param("bearer", {"token_file": "wrong"}, "key", "is it the right one", id="another key"),
        pytest.param("bearer", {"plain": True}, "tls_required", "--tls", id="without TLS"),
        pytest.param("mutual", {"plain": True}, "tls_required", "--tls", id="without mTLS"),
    ],
)
def test_what_is_wrong_is_said_with_the_cure_and_no_secret(
    doors: Doors, tmp_path: Path, door: str, access: dict[str, object], reason: str, cure: str
) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("another-s3cret")
    pairs = {"stranger": doors.stranger.client(), "old": doors.authority.client("old", days=-1)}
    if access.pop("plain", False):
        given = Access()
    elif "pair" in access:
        given = by_certificate(doors, pairs[str(access["pair"])])
    else:
        files = {"stranger": str(doors.stranger.ca), "wrong": str(wrong)}
        given = by_bearer(doors, **{name: files.get(str(value), value) for name, value in access.items()})
    with pytest.raises(AccessDenied) as denied:
        answer(getattr(doors, door), given)
    assert denied.value.facts["reason"] == reason, denied.value.message
    assert cure in denied.value.message
    assert f"localhost:{getattr(doors, door)}" in denied.value.message
    assert "s3cret" not in str(denied.value)
