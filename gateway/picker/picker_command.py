# SPDX-License-Identifier: Apache-2.0
"""The command `trireme gateway picker`: the endpoint picker of an inference pool."""

import asyncio
import signal
from pathlib import Path
from typing import Annotated, Any

import grpc
import typer

from clients.access import Access
from clients.envoy_parts import read_address
from clients.tls_context import check_access
from ensemble_configs.render.repository import DEFAULT_DEPLOYMENT
from ensemble_configs.spec.deployment import DeploymentSpec, load_deployment
from gateway.live.server_figures import page_addresses
from gateway.picker.endpoint_picker import EndpointPicker, Endpoints, has_address, serve
from gateway.served_models import ServedModels, models_of
from gateway.servers.open_pool import ServerPlaces, open_pool
from serving.process.server_log import set_up_log
from trireme.base.errors import SpecError
from trireme.base.http_servers.http_access import HttpAccess, is_loopback
from trireme.base.server_names import is_server_name, read_server_name


def picker(
    url: Annotated[
        list[str],
        typer.Option(
            help="IP:PORT of Triton's gRPC endpoint; grpcs://IP:PORT: with TLS. Again for each server; "
            "dns:///NAME:PORT: each address that DNS has for a name."
        ),
    ],
    deployment: Annotated[
        Path, typer.Option(help="Deployment file of the servers.", show_default="the demo model's, demo_cpu.yaml")
    ] = DEFAULT_DEPLOYMENT,
    endpoint_port: Annotated[
        int | None,
        typer.Option(
            min=1, max=65535, help="Port that requests go to, that of the pool.", show_default="the port of --url"
        ),
    ] = None,
    most_endpoints: Annotated[
        int,
        typer.Option(
            min=1,
            max=16,
            help="Most endpoints of a pick: those after the first are for the gateway's second tries. More than one "
            "only where it takes lists, as Envoy's override_host does, and ORIGINAL_DST does not.",
        ),
    ] = 1,
    metrics_url: Annotated[
        list[str] | None,
        typer.Option(
            help="Triton's page of metrics: HOST:PORT, dns:///NAME:PORT beside such a --url. Again for each --url, in "
            "the same order.",
            show_default="the queue and the KV cache are not seen",
        ),
    ] = None,
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address for Envoy; any but the loopback's needs TLS.")
    ] = "127.0.0.1:9002",
    cert_file: Annotated[Path | None, typer.Option(help="PEM file of the certificate that Envoy sees.")] = None,
    key_file: Annotated[Path | None, typer.Option(help="PEM file of that certificate's private key.")] = None,
    server_ca_file: Annotated[
        Path | None, typer.Option(help="PEM file of the authorities to trust of the servers.")
    ] = None,
    server_name: Annotated[str | None, typer.Option(help="Name that the servers' certificate must have.")] = None,
    exit_timeout_s: Annotated[
        float, typer.Option(min=0, help="How long running requests may go on at shutdown, in seconds.")
    ] = 30.0,
) -> None:
    """Pick the server of each request for an Envoy, as the Gateway API's inference extension asks for it.

    \b
    Examples:
      trireme gateway picker --url 10.0.0.1:8001 --url 10.0.0.2:8001 --endpoint-port 8000
      trireme gateway picker --listen 0.0.0.0:9002 --cert-file tls.crt --key-file tls.key --endpoint-port 8000 \\
          --url dns:///chat-pods.llm.svc.cluster.local:8001 --metrics-url dns:///chat-pods.llm.svc.cluster.local:8002

    \b
    Exit codes: 0 ended by SIGTERM; 1 the address of --listen is taken; 2 the deployment, an address or a certificate
    is wrong.
    """
    host, port = read_address(listen, field="listen")
    if not is_loopback(host) and cert_file is None:
        raise SpecError(
            f"--listen {listen} lets other machines in: give --cert-file and --key-file, or listen on 127.0.0.1",
            field="cert_file",
        )
    _check_urls(url)
    credentials = _credentials(HttpAccess(cert_file=cert_file, key_file=key_file))
    spec = load_deployment(deployment)
    set_up_log(spec.logs.format, deployment=spec.name)
    models = models_of(spec)
    ca_file = None if server_ca_file is None else str(server_ca_file.absolute())
    access = Access(ca_file=ca_file, server_name=server_name)
    check_access(access)
    places = ServerPlaces(
        url,
        frozenset(model.triton_model for model in models),
        access,
        page_addresses(metrics_url or (), url),
        has_feeds=True,
    )
    endpoints = _endpoints(spec, models, endpoint_port, most_endpoints)
    shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    asyncio.run(_run(places, endpoints, shown, credentials, exit_timeout_s))


def _check_urls(urls: list[str]) -> None:
    for url in urls:
        if urls.count(url) > 1:
            raise SpecError(f"--url {url} is given twice; name each server once", field="url", value=url)
        if is_server_name(url):
            read_server_name(url)
        elif not has_address(url):
            raise SpecError(
                f"--url {url} has a name, and the protocol tells Envoy addresses; write IP:PORT, or dns:///{url}, "
                "whose addresses are followed",
                field="url",
                value=url,
            )


def _endpoints(spec: DeploymentSpec, models: ServedModels, port: int | None, most: int) -> Endpoints:
    """Return the endpoints; a request may name a model as callers do, or any of its Triton models."""
    names = {model.name: model.triton_model for model in models}
    of_triton = {name: names[model.name] for model in spec.models if model.name in names for name in model.triton_names}
    return Endpoints(port, {**names, **of_triton}, next(iter(names.values())), most)


def _credentials(access: HttpAccess) -> Any:
    if access.tls() is None:  # it checks both files
        return None
    assert access.cert_file is not None
    assert access.key_file is not None
    return grpc.ssl_server_credentials([(access.key_file.read_bytes(), access.cert_file.read_bytes())])


async def _run(
    places: ServerPlaces, endpoints: Endpoints, listen: str, credentials: Any, exit_timeout_s: float
) -> None:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with open_pool(places, is_always_followed=True) as pool:
        picker = EndpointPicker(pool, endpoints)
        await serve(picker, listen, credentials, stop=stop, exit_timeout_s=exit_timeout_s)
