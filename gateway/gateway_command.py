# SPDX-License-Identifier: Apache-2.0
"""The commands `trireme gateway`: the front door of a server that runs already."""

import asyncio
import contextlib
import gc
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import typer

from clients.access import Access
from ensemble_configs.render.repository import DEFAULT_DEPLOYMENT
from ensemble_configs.spec.deployment import load_deployment
from ensemble_configs.spec.gateway_spec import LedgerRetentionSpec
from gateway.access.key_book import GRACE_S, LEAST_GRACE_S
from gateway.access.open_keys import open_keys
from gateway.access.session_key import session_key
from gateway.gateway import Gateway, Limits
from gateway.ledger.ledger import Ledger, journal_of
from gateway.ledger.open_ledger import open_ledger
from gateway.ledger.retention import Retention
from gateway.live.rollout_state import ROLLOUTS_OPTION
from gateway.redis_place import RedisPlace
from gateway.served_models import models_of
from gateway.servers.server_pool import SILENCE_S
from serving.process.server_log import set_up_log
from trireme.base.errors import SpecError
from trireme.base.http_servers.http_access import HttpAccess, is_loopback
from trireme.base.http_servers.http_thread import listen
from trireme.base.store_place import read_place

DEFAULT_URL = "localhost:8001"


def serve(
    deployment: Annotated[
        Path, typer.Option(help="Deployment file of the server.", show_default="the demo model's, demo_cpu.yaml")
    ] = DEFAULT_DEPLOYMENT,
    url: Annotated[
        list[str] | None,
        typer.Option(
            help="host:port of Triton's gRPC endpoint; grpcs://host:port: with TLS. Again for each of several servers "
            "that serve alike; dns:///NAME:PORT (grpcs+dns:///NAME:PORT): each address that DNS has for a name, asked "
            "again and again.",
            show_default="localhost:8001",
        ),
    ] = None,
    server_ca_file: Annotated[
        Path | None, typer.Option(help="PEM file of the authorities to trust there.", show_default="public ones")
    ] = None,
    server_name: Annotated[
        str | None,
        typer.Option(help="Name that the servers' certificate must have.", show_default="the host of --url"),
    ] = None,
    server_cert_file: Annotated[
        Path | None, typer.Option(help="PEM file of the certificate to show there, where the servers ask for one.")
    ] = None,
    server_key_file: Annotated[Path | None, typer.Option(help="PEM file of that certificate's private key.")] = None,
    server_token_file: Annotated[Path | None, typer.Option(help="File with the key to the server.")] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; any but the loopback's needs keys and TLS.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(help="Port to listen on; 0: any free port.", min=0, max=65535)] = 8080,
    cert_file: Annotated[
        Path | None, typer.Option(help="PEM file of the certificate that callers see, with its chain.")
    ] = None,
    key_file: Annotated[Path | None, typer.Option(help="PEM file of that certificate's private key.")] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(help="File of keys, one a line: callers bring one as a bearer token. Read again when it changes."),
    ] = None,
    keys: Annotated[
        str | None,
        typer.Option(
            help="Keys of `trireme gateway keys`, in place of --token-file: a file, or "
            "postgresql://USER@HOST:PORT/DATABASE."
        ),
    ] = None,
    keys_grace_s: Annotated[
        float,
        typer.Option(
            help="How long known keys are accepted while their database is away, in seconds.", min=LEAST_GRACE_S
        ),
    ] = GRACE_S,
    limits: Annotated[
        str | None,
        typer.Option(
            help="Redis that has the use of limits, for several gateways: redis://HOST:PORT/NUMBER, rediss:// with "
            "TLS; its password comes from REDISCLI_AUTH.",
            show_default="each process counts for itself",
        ),
    ] = None,
    cache: Annotated[
        str | None,
        typer.Option(
            help="Redis that has the answers which the deployment's gateway.answer_cache keeps, for several gateways; "
            "as --limits, and better another one.",
            show_default="each process keeps its own",
        ),
    ] = None,
    ledger: Annotated[
        str | None,
        typer.Option(
            help="Write each request with its tokens and its cost down, for `trireme gateway usage`: a file, or "
            "postgresql://USER@HOST:PORT/DATABASE; may be that of --keys.",
            show_default="none is kept",
        ),
    ] = None,
    ledger_journal: Annotated[
        Path | None,
        typer.Option(
            help="Folder on this machine's disk where requests wait for the ledger's database.",
            show_default="build/NAME/ledger_journal",
        ),
    ] = None,
    metrics_url: Annotated[
        list[str] | None,
        typer.Option(
            help="Triton's page of metrics, host:port or an http:// or https:// address: requests go where the queue "
            "and the KV cache have room, and the gateway's page shows both. Again for each --url, in the same order; "
            "dns:///NAME:PORT beside such a --url.",
            show_default="requests of other gateways are not seen",
        ),
    ] = None,
    rollouts: Annotated[
        str | None,
        typer.Option(
            help="Store of `trireme rollout`, to show how the rollout goes on the gateway's page: a file, or "
            "postgresql://USER@HOST:PORT/DATABASE.",
            show_default="it is not shown",
        ),
    ] = None,
    log_format: Annotated[
        Literal["text", "json"] | None,
        typer.Option(help="Format of the log.", show_default="the deployment's"),
    ] = None,
    has_session_key: Annotated[
        bool,
        typer.Option(
            "--session-key",
            help="With --keys: make a key for this run, and show it with a first request.",
        ),
    ] = False,
    listener_fd: Annotated[int | None, typer.Option("--listener", hidden=True)] = None,
    timeout_s: Annotated[float, typer.Option(help="Longest time of a request, in seconds.", min=1)] = 600.0,
    max_body_bytes: Annotated[int, typer.Option(help="Longest body of a request.", min=1024)] = 8 << 20,
    max_connections: Annotated[int, typer.Option(help="Most connections of callers.", min=1)] = 4096,
    has_affinity: Annotated[
        bool,
        typer.Option(
            "--affinity/--no-affinity",
            help="With several servers: send a conversation to the one that has its beginning in its KV cache.",
        ),
    ] = True,
    silence_s: Annotated[
        float,
        typer.Option(
            help="With several servers: a stream that says nothing for so long goes on at another one, in seconds.",
            min=1,
        ),
    ] = SILENCE_S,
    exit_timeout_s: Annotated[
        float, typer.Option(help="How long running requests may go on at shutdown, in seconds.", min=0)
    ] = 30.0,
) -> None:
    """Serve OpenAI's API in front of a running server: /v1/chat/completions, /v1/completions, /v1/models.

    \b
    Examples:
      trireme gateway serve
      curl localhost:8080/v1/chat/completions -H 'Content-Type: application/json' \\
          -d '{"messages": [{"role": "user", "content": "Hi"}], "stream": true}'
      trireme gateway serve --deployment mine.yaml --url grpcs://llm.example:443 --server-token-file key.txt
      trireme gateway serve --deployment mine.yaml --url gpu1:8001 --url gpu2:8001 \\
          --metrics-url gpu1:8002 --metrics-url gpu2:8002
      trireme gateway serve --deployment mine.yaml --url dns:///chat-pods.llm.svc.cluster.local:8001
      trireme gateway serve --host 0.0.0.0 --cert-file tls.crt --key-file tls.key --keys keys.sqlite
      trireme gateway serve --keys keys.sqlite --ledger ledger.sqlite

    \b
    Exit codes: 0 ended by SIGTERM; 1 a database is away at the start; 2 the deployment, an address, a certificate, the
    keys or the ledger are wrong; 130 Ctrl-C.
    """
    ours = HttpAccess(cert_file=cert_file, key_file=key_file, token_file=token_file)
    _refuse_two_kinds_of_keys(keys, token_file)
    if has_session_key and keys is None:
        raise SpecError("--session-key is one of --keys; name these", field="session_key")
    spec = load_deployment(deployment)
    _refuse_open_door(host, ours, has_callers=keys is not None or spec.gateway.oidc is not None)
    set_up_log(log_format or spec.logs.format, deployment=spec.name)
    models = models_of(spec)
    if cache is not None and spec.gateway.answer_cache is None:
        raise SpecError(
            f"--cache is a Redis for kept answers, and {deployment} keeps none; add gateway.answer_cache to it, or "
            "leave --cache out",
            field="cache",
        )
    journal = ledger_journal or Path("build") / spec.name / "ledger_journal"
    with (
        contextlib.nullcontext() if keys is None else open_keys(keys) as store,
        _ledger(ledger, journal, spec.gateway.ledger_retention) as written,
    ):
        gateway = Gateway(
            models,
            urls=_distinct(url or [DEFAULT_URL]),
            server_access=_access(server_name, server_ca_file, server_cert_file, server_key_file, server_token_file),
            access=ours,
            keys=store,
            ledger=written,
            rules=spec.gateway,
            limits_redis=None if limits is None else RedisPlace(limits, option="--limits"),
            cache_redis=None if cache is None else RedisPlace(cache, option="--cache"),
            metrics_urls=metrics_url or (),
            rollouts=None if rollouts is None else read_place(rollouts, option=ROLLOUTS_OPTION),
            limits=Limits(
                timeout_s=timeout_s,
                max_body_bytes=max_body_bytes,
                max_connections=max_connections,
                exit_timeout_s=exit_timeout_s,
                has_affinity=has_affinity,
                silence_s=silence_s,
                keys_grace_s=keys_grace_s,
            ),
        )
        listener = listen(host, port) if listener_fd is None else socket.socket(fileno=listener_fd)
        typer.echo(_welcome(listener, gateway), err=True)
        if store is not None and not has_session_key and not store.latest(1).records:
            typer.echo(
                f"there are no keys yet; make one: trireme gateway keys create NAME --keys {store.place}", err=True
            )
        gc.freeze()  # imported objects stay; a full collection takes milliseconds of every stream
        with contextlib.nullcontext("") if store is None or not has_session_key else session_key(store) as key:
            if key:
                typer.echo(_first_request(listener, gateway, key), err=True)
            asyncio.run(_run(gateway, listener))


@contextlib.contextmanager
def _ledger(place: str | None, journal: Path, retention: LedgerRetentionSpec | None) -> Iterator[Ledger | None]:
    if place is None:
        yield None
        return
    with (
        open_ledger(place) as store,
        contextlib.nullcontext() if retention is None else Retention(store, retention),
        Ledger(store, journal_of(journal, store.place)) as ledger,
    ):
        yield ledger


async def _run(gateway: Gateway, listener: socket.socket) -> None:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await gateway.serve(listener, stop=stop)


def _distinct(urls: list[str]) -> list[str]:
    for url in urls:
        if urls.count(url) > 1:
            raise SpecError(f"--url {url} is given twice; name each server once", field="url", value=url)
    return urls


def _refuse_two_kinds_of_keys(keys: str | None, token_file: Path | None) -> None:
    if keys is not None and token_file is not None:
        raise SpecError(
            f"--keys and --token-file {token_file} are both given: give --keys for keys that can be listed and "
            "revoked, or --token-file for a file of keys that are all alike",
            field="keys",
        )


def _refuse_open_door(host: str, access: HttpAccess, *, has_callers: bool) -> None:
    """Refuse to let other machines in without keys and TLS."""
    if is_loopback(host):
        return
    for name, is_given in (
        ("keys", has_callers or access.token_file is not None),
        ("cert_file", access.cert_file is not None),
    ):
        if not is_given:
            raise SpecError(
                f"--host {host} lets other machines in: give --keys or --token-file, or a deployment with "
                "gateway.oidc; and --cert-file and --key-file, or listen on 127.0.0.1",
                field=name,
            )


def _access(
    name: str | None, ca_file: Path | None, cert_file: Path | None, key_file: Path | None, token_file: Path | None
) -> Access:
    files = (None if path is None else str(path.absolute()) for path in (ca_file, cert_file, key_file, token_file))
    ca, cert, key, token = files
    return Access(ca_file=ca, cert_file=cert, key_file=key, server_name=name, token_file=token)


def _address(listener: socket.socket, gateway: Gateway) -> str:
    host, port = listener.getsockname()[:2]
    return f"http{'s' if gateway.is_tls else ''}://{f'[{host}]' if ':' in host else host}:{port}"


def _welcome(listener: socket.socket, gateway: Gateway) -> str:
    where, names = _address(listener, gateway), ", ".join(model.name for model in gateway.models)
    return f"OpenAI's API of {names} at {where}/v1; its page at {where}; metrics at /metrics"


def _first_request(listener: socket.socket, gateway: Gateway, key: str) -> str:
    model = next(iter(gateway.models)).name
    body = f'{{"model": "{model}", "messages": [{{"role": "user", "content": "What is the capital of France?"}}]}}'
    return (
        f"  key      {key}   (of this run)\n"
        f"  page     {_address(listener, gateway)}/\n"
        f"ask it:  curl {_address(listener, gateway)}/v1/chat/completions -H 'Authorization: Bearer {key}' \\\n"
        f"           -d '{body}'"
    )
