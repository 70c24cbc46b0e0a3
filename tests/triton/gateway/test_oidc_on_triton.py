# SPDX-License-Identifier: Apache-2.0
"""Tokens of a provider at `trireme gateway serve` before the real server, with OpenAI's official client."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
import yaml
from gateway_process import GatewayProcess
from oidc_provider import AUDIENCE, OidcProvider, SigningKey
from openai import OpenAI
from running_server import RunningServer

from gateway.access.oidc.claims import account_of

PATIENCE_S = 30.0


@pytest.fixture
def provider() -> Iterator[OidcProvider]:
    with OidcProvider(SigningKey("first", "RS256")) as running:
        yield running


@pytest.fixture
def deployment(simulated: RunningServer, provider: OidcProvider, tmp_path: Path) -> Path:
    spec = yaml.safe_load((simulated.folder / "deployment.yaml").read_text())
    oidc = {"issuer": provider.issuer, "audience": AUDIENCE, "tenant_claim": "tenant", "models_claim": "models"}
    spec["gateway"] = {"oidc": oidc, "tenants": [{"name": "small", "requests_per_minute": 1}]}
    (tmp_path / "deployment.yaml").write_text(yaml.safe_dump(spec))
    return tmp_path / "deployment.yaml"


def ask(gateway: GatewayProcess, token: str) -> str:
    with OpenAI(base_url=gateway.url, api_key=token, max_retries=0) as client:
        answer = client.completions.create(model="simulated", prompt="Hi", max_tokens=4, temperature=0)
    return answer.choices[0].text


def test_a_token_asks_what_its_claims_allow(
    simulated: RunningServer, deployment: Path, provider: OidcProvider, tmp_path: Path
) -> None:
    ledger, keys = str(tmp_path / "ledger.sqlite"), str(tmp_path / "keys.sqlite")
    trireme = [sys.executable, "-m", "trireme", "gateway"]
    made = subprocess.run(
        [*trireme, "keys", "create", "bob", "--keys", keys], capture_output=True, text=True, check=True
    )
    options = ("--ledger", ledger, "--ledger-journal", str(tmp_path / "journal"), "--keys", keys)
    claims = {"models": ["simulated"], "tenant": "acme"}
    with GatewayProcess(simulated, tmp_path, options=options, deployment=deployment) as gateway:
        token = provider.token(**claims)
        assert ask(gateway, token)
        assert ask(gateway, made.stdout.strip())
        with pytest.raises(openai.PermissionDeniedError) as other:
            ask(gateway, provider.token(**{**claims, "models": ["other"]}))
        assert other.value.code == "model_not_allowed"
        with pytest.raises(openai.AuthenticationError) as expired:
            ask(gateway, provider.token(**claims, exp=int(time.time()) - 300))
        assert expired.value.code == "token_expired"
        assert ask(gateway, provider.token(**{**claims, "tenant": "small"}, sub="carol"))
        with pytest.raises(openai.RateLimitError):
            ask(gateway, provider.token(**{**claims, "tenant": "small"}, sub="dave"))

        # Rotation: the new key is accepted at once, and the old one while it is published.
        provider.keys.insert(0, SigningKey("second", "ES256"))
        deadline_s = time.monotonic() + PATIENCE_S
        while True:  # the provider is asked for new keys each ten seconds at most
            try:
                assert ask(gateway, provider.token(**claims))
                break
            except openai.AuthenticationError:
                assert time.monotonic() < deadline_s
                time.sleep(0.5)
        provider.is_away = True
        assert ask(gateway, token)
        assert ask(gateway, provider.keys[1].sign(provider.claims(**claims, sub="erin")))
        log = gateway.log()
    assert not any(part in log for part in token.split("."))
    command = [*trireme, "usage", "--ledger", ledger, "--by", "tenant,key", "--json"]
    used = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert account_of(provider.issuer, "alice") in used
    assert "alice" not in used


def test_a_provider_opens_no_door_without_tls(deployment: Path) -> None:
    command = [sys.executable, "-m", "trireme", "gateway", "serve", "--deployment", str(deployment)]
    done = subprocess.run(
        [*command, "--host", "0.0.0.0", "--port", "0"], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 2
    assert "--cert-file" in done.stderr
