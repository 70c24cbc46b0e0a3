# SPDX-License-Identifier: Apache-2.0
"""Connections of clients: addresses, files, keys, and what is refused before anything is sent."""

import asyncio
import inspect
import os
from collections.abc import Callable
from pathlib import Path

import grpc
import grpc.aio
import msgspec
import pytest
from certificates import Authority
from command_here import run_here

from clients.access import Access, grpc_endpoint, is_grpc_url, redacted
from clients.access_errors import refused_call, refused_connection
from clients.access_options import with_access
from clients.load.tools.perf_analyzer import tls_options
from clients.stream_call import why_unwritten
from clients.tls_context import check_access, http_call
from trireme.base.errors import AccessDenied, RequestError, SpecError

pytestmark = pytest.mark.slow


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ours")


def test_the_scheme_of_an_address_turns_tls_on() -> None:
    assert grpc_endpoint("here:1") == ("here:1", Access())
    assert grpc_endpoint("grpc://here:1") == ("here:1", Access())
    assert grpc_endpoint("grpcs://[::1]:1") == ("[::1]:1", Access(is_tls=True))
    assert [is_grpc_url(url) for url in ("here:1", "grpcs://here:1", "https://here/v1")] == [True, True, False]


@pytest.mark.parametrize(
    "url", ["https://here:1", "grpcs://here", "grpcs://here:1/v1", "here", "", "grpcs://:secret@a:1"]
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(RequestError, match="grpcs://host:port") as refused:
        grpc_endpoint(url)
    assert "secret" not in str(refused.value)


def test_an_address_without_tls_goes_with_no_option_of_tls() -> None:
    with pytest.raises(RequestError, match=r"write grpcs://\.\.\., or leave them out"):
        grpc_endpoint("grpc://here:1", Access(ca_file="ca.crt"))


def test_a_key_is_sent_as_bearer_or_as_it_is_and_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "token"
    file.write_text("one\n")
    access = Access(token_file=str(file))
    assert access.headers() == (("authorization", "Bearer one"),)
    file.write_text("two")
    assert access.headers() == (("authorization", "Bearer two"),)
    monkeypatch.setenv("LLM_KEY", "three")
    assert Access(token_env="LLM_KEY", token_header="x-api-key").headers() == (("x-api-key", "three"),)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"cert_file": "{pair.cert}"}, "--cert-file is given without --key-file"),
        ({"key_file": "{pair.key}"}, "--key-file is given without --cert-file"),
        ({"cert_file": "{pair.cert}", "key_file": "{other.key}"}, "they do not belong together"),
        ({"cert_file": "{pair.key}", "key_file": "{pair.cert}"}, "the first holds no certificate.* swapped"),
        ({"cert_file": "{pair.cert}", "key_file": "{empty}"}, "--key-file .* is not PEM"),
        ({"ca_file": "{folder}/none.crt"}, "--ca-file .* cannot be read: No such file"),
        ({"ca_file": "{empty}"}, "--ca-file .* is not PEM"),
        ({"ca_file": "{pair.key}"}, "--ca-file .* holds no certificate that can be read"),
        ({"token_file": "{folder}/none"}, "--token-file .* cannot be read"),
        ({"token_file": "{empty}"}, "it is not set or empty"),
        ({"token_file": "{lines}"}, "holds no key that a header may carry"),
        ({"token_env": "NOBODY_SETS_THIS"}, "--token-env NOBODY_SETS_THIS: it is not set or empty"),
        ({"token_file": "{lines}", "token_env": "HOME"}, "both name the key"),
        ({"token_header": "x-api-key"}, "give --token-file or --token-env with it"),
        ({"token_env": "HOME", "token_header": "x api"}, "--token-header must be a header's name"),
        ({"token_env": "HOME", "token_header": "key-bin"}, "--token-header must be a header's name"),
    ],
)
def test_what_does_not_go_together_or_cannot_be_read_is_refused(
    tmp_path: Path, authority: Authority, fields: dict[str, str], said: str
) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "lines").write_text("s3cret\nof two lines")
    names = {
        "pair": authority.client(), "other": authority.client("other"), "folder": tmp_path,
        "empty": tmp_path / "empty", "lines": tmp_path / "lines",
    }  # fmt: skip
    with pytest.raises(SpecError, match=said) as refused:
        check_access(msgspec.convert({name: value.format(**names) for name, value in fields.items()}, Access))
    assert "s3cret" not in str(refused.value)


def test_a_private_key_with_a_password_is_refused_and_nobody_is_asked_for_it(
    tmp_path: Path, authority: Authority
) -> None:
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415

    pair = authority.client()
    key = serialization.load_pem_private_key(pair.key.read_bytes(), None)
    locked = tmp_path / "locked.key"
    locked.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"x")
        )
    )
    with pytest.raises(SpecError, match="the private key has a password"):
        check_access(Access(cert_file=str(pair.cert), key_file=str(locked)))


def test_a_key_that_was_read_is_in_no_text_of_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLM_KEY", "s3cret-key")
    access = Access(token_env="LLM_KEY")
    access.headers()
    assert redacted("Bearer s3cret-key is unknown") == "Bearer ... is unknown"
    denied = refused_call("[StatusCode.UNAUTHENTICATED] s3cret-key is unknown", "here:1", access)
    assert denied is not None
    assert "s3cret" not in str(denied)
    assert "s3cret" not in repr(access)


def test_a_key_does_not_go_over_http_without_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLM_KEY", "s3cret-key")
    access = Access(token_env="LLM_KEY")
    assert http_call("http://here:8002/metrics", access).request.header_items() == []
    assert http_call("https://here/metrics", access).request.get_header("Authorization") == "Bearer s3cret-key"


# As grpcio 1.85 and OpenSSL 3 say it, of each kind.
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Tls handshake failed: OPENSSL_internal:CERTIFICATE_VERIFY_FAILED: certificate has expired", "expired"),
        ("CERTIFICATE_VERIFY_FAILED: unable to get local issuer certificate: OK", "unknown_authority"),
        ("Custom verification check failed: UNAUTHENTICATED: Hostname Verification Check failed.", "wrong_name"),
        ("certificate verify failed: IP address mismatch, certificate is not valid for '127.0.0.1'.", "wrong_name"),
        ("OPENSSL_internal:TLSV1_ALERT_CERTIFICATE_REQUIRED", "no_client_certificate"),
        ("[SSL: TLSV1_ALERT_UNKNOWN_CA] tlsv1 alert unknown ca", "no_client_certificate"),
        ("SSL routines:OPENSSL_internal:WRONG_VERSION_NUMBER", "no_tls"),
        ("Connection refused", None),
    ],
)
def test_what_a_library_says_of_a_handshake_is_told_apart(text: str, reason: str | None) -> None:
    denied = refused_connection(text, "here:1", Access(is_tls=True))
    assert (None if denied is None else denied.facts["reason"]) == reason


def test_a_command_gets_the_options_in_the_place_of_its_access(tmp_path: Path) -> None:
    given: list[Access] = []

    def command(name: str, *, access: Access) -> None:
        assert name == "a"
        given.append(access)

    wrapped: Callable[..., None] = with_access(command)
    names = list(inspect.signature(wrapped).parameters)
    assert names == [
        "name", "tls", "ca_file", "cert_file", "key_file", "tls_server_name", "token_file", "token_env", "token_header",
    ]  # fmt: skip
    (tmp_path / "token").write_text("t")
    wrapped("a")
    wrapped("a", tls=True, token_file=Path(os.path.relpath(tmp_path / "token")), token_header="X-Key")
    assert given == [
        Access(),
        Access(is_tls=True, token_file=str(Path(os.path.relpath(tmp_path / "token")).absolute()), token_header="x-key"),
    ]


def test_a_refusal_is_no_request_error_and_is_not_tried_again() -> None:
    from clients.batch.retry_policy import FailureKind, failure_kind_of  # noqa: PLC0415

    assert failure_kind_of(AccessDenied("no", reason="key")) is FailureKind.UNFIT


@pytest.mark.parametrize(
    ("tool", "option", "why"),
    [
        ("perf-analyzer", "--token-file", "over gRPC it sends no key"),
        ("perf-analyzer", "--tls-server-name", "it expects the name of the address"),
        ("genai-perf", "--token-file", "over gRPC it sends no key"),
        ("aiperf", "--token-file", "only on its command line"),
    ],
)
def test_what_a_tool_cannot_do_is_refused_by_name(tmp_path: Path, tool: str, option: str, why: str) -> None:
    (tmp_path / "token").write_text("a-long-token")
    given = [option, str(tmp_path / "token") if option == "--token-file" else "other.example"]
    more = [] if tool == "perf-analyzer" else ["--tokenizer", str(tmp_path)]
    done = run_here("bench", tool, "--concurrency", "1", "--out", tmp_path / "run", *given, *more)
    assert done.returncode == 2
    assert f"cannot take {option}: " in done.stderr
    assert why in done.stderr


def test_tls_becomes_perf_analyzers_options() -> None:
    access = Access(ca_file="/ca", cert_file="/c", key_file="/k")
    assert tls_options(access) == [
        "--ssl-grpc-use-ssl", "--ssl-grpc-root-certifications-file", "/ca", "--ssl-grpc-certificate-chain-file", "/c",
        "--ssl-grpc-private-key-file", "/k",
    ]  # fmt: skip
    assert tls_options(Access(token_file="/t")) == []


def test_a_request_that_could_not_be_written_is_told_by_a_small_call_with_the_same_key() -> None:
    def error(code: grpc.StatusCode, details: str) -> grpc.aio.AioRpcError:
        return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details=details)

    asked: list[object] = []
    refused = error(grpc.StatusCode.PERMISSION_DENIED, "RBAC: access denied")

    class Stub:
        async def ServerLive(self, _: object, *, timeout: float, metadata: object) -> None:  # noqa: N802
            asked.append((timeout > 0, metadata))
            raise refused

    key = (("authorization", "Bearer x"),)
    unwritten = error(grpc.StatusCode.INTERNAL, "Internal error from Core")
    assert asyncio.run(why_unwritten(unwritten, Stub(), key)) is refused
    assert asked == [(True, key)]
    other = error(grpc.StatusCode.UNAVAILABLE, "failed to connect")
    assert asyncio.run(why_unwritten(other, Stub(), key)) is other
    assert len(asked) == 1, "others are told already"
