# SPDX-License-Identifier: Apache-2.0
"""The command `trireme gateway envoy`: an Envoy's configuration, from a deployment and what stands behind it."""

from pathlib import Path
from typing import Annotated

import typer
import yaml

from clients.envoy_parts import Address, check_yaml_name, read_address
from ensemble_configs.render.repository import DEFAULT_DEPLOYMENT
from ensemble_configs.spec.deployment import DeploymentSpec, load_deployment
from gateway.envoy.backends import Backends, GivenTls, read_backends
from gateway.envoy.bootstrap import bootstrap
from gateway.envoy.settings import Concurrency, EnvoySettings, Front, ListenerTls
from trireme.base.durable_files import write_atomically
from trireme.base.errors import RequestError
from trireme.base.http_servers.http_access import is_loopback

_GATEWAY_SCHEMES, _SERVER_SCHEMES = ("http", "https"), ("grpc", "grpcs")


def envoy(
    deployment: Annotated[
        Path, typer.Option(help="Deployment file of the servers.", show_default="the demo model's, demo_cpu.yaml")
    ] = DEFAULT_DEPLOYMENT,
    gateway: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST:PORT",
            help="A gateway: HOST:PORT, https://HOST:PORT with TLS, HOST:PORT=3 for a share of three beside others. "
            "Again for each.",
        ),
    ] = None,
    server: Annotated[
        list[str] | None,
        typer.Option(metavar="HOST:PORT", help="A Triton's gRPC, likewise; grpcs://HOST:PORT with TLS."),
    ] = None,
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address for callers of the gateways.")
    ] = "127.0.0.1:8090",
    server_listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address for callers of the Tritons, over gRPC.")
    ] = "127.0.0.1:8011",
    admin: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address of Envoy's admin interface, on the loopback interface.")
    ] = "127.0.0.1:9901",
    cert_file: Annotated[
        Path | None, typer.Option(help="PEM file of the certificate that callers see, where Envoy runs.")
    ] = None,
    key_file: Annotated[Path | None, typer.Option(help="PEM file of that certificate's private key.")] = None,
    client_ca_file: Annotated[
        Path | None, typer.Option(help="Callers must bring a certificate of these authorities.")
    ] = None,
    gateway_ca_file: Annotated[
        Path | None, typer.Option(help="With https://: PEM file of the gateways' authority.")
    ] = None,
    gateway_name: Annotated[
        str | None,
        typer.Option(help="Name that the gateways' certificates must have.", show_default="the host of each"),
    ] = None,
    server_ca_file: Annotated[
        Path | None, typer.Option(help="With grpcs://: PEM file of the Tritons' authority.")
    ] = None,
    server_name: Annotated[
        str | None, typer.Option(help="Name that the Tritons' certificates must have.", show_default="the host of each")
    ] = None,
    server_cert_file: Annotated[
        Path | None, typer.Option(help="Certificate that Envoy shows to the Tritons, where they ask for one.")
    ] = None,
    server_key_file: Annotated[Path | None, typer.Option(help="That certificate's private key.")] = None,
    mirror: Annotated[
        list[str] | None,
        typer.Option(metavar="HOST:PORT", help="A gateway that gets copies of requests; nobody sees its answers."),
    ] = None,
    server_mirror: Annotated[
        list[str] | None, typer.Option(metavar="HOST:PORT", help="A Triton that gets copies, likewise.")
    ] = None,
    mirror_percent: Annotated[
        float | None, typer.Option(min=0.01, max=100, help="Percentage of requests that are copied.")
    ] = None,
    retries: Annotated[
        int, typer.Option(min=0, max=10, help="Tries at other backends of a request that has certainly not begun.")
    ] = 1,
    idle_timeout_s: Annotated[
        float,
        typer.Option(
            min=1, help="Seconds of silence after which a stream is ended; more than a request waits in a queue."
        ),
    ] = 900.0,
    max_requests: Annotated[
        int,
        typer.Option(
            min=1,
            max=1_000_000,
            help="Most requests at a time for each backend; as many again wait, others are refused (429).",
        ),
    ] = 4096,
    max_body_bytes: Annotated[
        int, typer.Option(min=1024, max=1 << 30, help="Longest request that can be sent again.")
    ] = 8 << 20,
    is_adaptive: Annotated[
        bool,
        typer.Option(
            "--adaptive-concurrency",
            help="Refuse requests of gateways (429) while answers take longer than they did; it cannot tell long "
            "answers from slow ones, so it never refuses --least-requests at a time.",
        ),
    ] = False,
    least_requests: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=1_000_000,
            help="With --adaptive-concurrency: requests at a time that are never refused.",
            show_default="twice what the deployment's engines run at a time",
        ),
    ] = None,
    access_log: Annotated[
        str, typer.Option(help="File for the log of requests, as JSON; none: no log.")
    ] = "/dev/stdout",
    out: Annotated[
        Path | None, typer.Option(help="File to write, replaced in one step.", show_default="standard output")
    ] = None,
) -> None:
    """Write the configuration of an Envoy before several gateways, or several Tritons.

    \b
    Examples:
      trireme gateway envoy --gateway g1:8080 --gateway g2:8080 --out envoy.yaml && envoy -c envoy.yaml
      trireme gateway envoy --deployment mine.yaml --gateway g1:8080=3 --gateway g2:8080=1
      trireme gateway envoy --gateway g1:8080 --mirror g3:8080 --mirror-percent 5
      trireme gateway envoy --server gpu1:8001 --server gpu2:8001
      trireme gateway envoy --gateway https://g1:8443 --gateway-ca-file ca.crt --listen 0.0.0.0:443 \\
          --cert-file tls.crt --key-file tls.key

    \b
    Exit codes: 0 written; 2 an option or the deployment is wrong.
    """
    spec = load_deployment(deployment)
    to_gateways = GivenTls(_absolute(gateway_ca_file), gateway_name)
    to_servers = GivenTls(
        _absolute(server_ca_file), server_name, _absolute(server_cert_file), _absolute(server_key_file)
    )
    gateways = read_backends(
        gateway or [], name="gateways", option="--gateway", schemes=_GATEWAY_SCHEMES, given=to_gateways
    )
    servers = read_backends(server or [], name="servers", option="--server", schemes=_SERVER_SCHEMES, given=to_servers)
    if gateways is None and servers is None:
        raise RequestError("there is nobody behind Envoy: give --gateway HOST:PORT, or --server HOST:PORT, or both",
                           field="gateway")  # fmt: skip
    _check_tls_of(spec, servers)
    copies = read_backends(
        mirror or [], name="gateway_mirrors", option="--mirror", schemes=_GATEWAY_SCHEMES,
        given=GivenTls() if _is_plain(mirror) else to_gateways,
    )  # fmt: skip
    server_copies = read_backends(
        server_mirror or [], name="server_mirrors", option="--server-mirror", schemes=_SERVER_SCHEMES,
        given=GivenTls() if _is_plain(server_mirror) else to_servers,
    )  # fmt: skip
    _check_mirrors(gateways, copies, "mirror", mirror_percent)
    _check_mirrors(servers, server_copies, "server_mirror", mirror_percent)
    if mirror_percent is not None and copies is None and server_copies is None:
        raise RequestError("--mirror-percent is of copies, and there is nobody to get them; give --mirror HOST:PORT",
                           field="mirror_percent", value=mirror_percent)  # fmt: skip
    if least_requests is not None and not is_adaptive:
        raise RequestError("--least-requests is of --adaptive-concurrency; give that, too, or leave this out",
                           field="least_requests", value=least_requests)  # fmt: skip
    tls = _listener_tls(cert_file, key_file, client_ca_file)
    number = 0 if gateways is None else len(gateways.members)
    settings = EnvoySettings(
        name=spec.name,
        gateways=None if gateways is None else Front(_address(listen, "listen", tls), gateways, copies),
        servers=None
        if servers is None
        else Front(_address(server_listen, "server_listen", tls), servers, server_copies),
        admin=_admin(admin),
        tls=tls,
        mirror_percent=mirror_percent or 0.0,
        max_requests=max_requests,
        retries=retries,
        idle_s=idle_timeout_s,
        max_body_bytes=max_body_bytes,
        access_log=None if access_log == "none" else Path(access_log).absolute(),
        concurrency=_concurrency(spec, least_requests, most=max_requests * number) if is_adaptive else None,
    )
    text = f"# Generated from {deployment} by trireme gateway envoy\n" + yaml.dump(
        bootstrap(settings), Dumper=_Written, sort_keys=False, width=120
    )
    if out is None:
        typer.echo(text, nl=False)
    else:
        check_yaml_name(out, "--out")
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out, text)


class _Written(yaml.SafeDumper):
    """A YAML dumper that writes a part again where it is there twice, for people to read."""

    def ignore_aliases(self, _data: object) -> bool:
        """Return that nothing is written as a reference."""
        return True


def _absolute(path: Path | None) -> Path | None:
    return None if path is None else path.absolute()


def _is_plain(urls: list[str] | None) -> bool:
    return not any(url.startswith(("https://", "grpcs://")) for url in urls or [])


def _check_mirrors(backends: Backends | None, copies: Backends | None, field: str, percent: float | None) -> None:
    option = "--" + field.replace("_", "-")
    if copies is None:
        return
    if backends is None:
        of = "--server" if field == "server_mirror" else "--gateway"
        raise RequestError(f"{option} gets copies of what {of} is asked, and there is none; give {of}", field=field)
    if percent is None:
        raise RequestError(f"{option} needs --mirror-percent: which part of the requests is copied", field=field)
    both = {member.address for member in backends.members} & {member.address for member in copies.members}
    if both:
        host, port = min(both)
        said = f"{option} {host}:{port} is one of those that answer, and would be asked twice; name another"
        raise RequestError(said, field=field)


def _check_tls_of(spec: DeploymentSpec, servers: Backends | None) -> None:
    """Refuse addresses that do not speak what the deployment's servers do."""
    expected = spec.triton.grpc_tls
    if servers is None:
        return
    if expected is not None and servers.tls is None:
        raise RequestError(
            "--server has no TLS, and the deployment has triton.grpc_tls: write grpcs://HOST:PORT, and give "
            "--server-ca-file",
            field="server",
        )
    if expected is not None and expected.client_ca_file is not None and servers.tls and not servers.tls.cert_file:
        raise RequestError(
            "--server-cert-file is missing: the deployment's triton.grpc_tls.client_ca_file lets nobody in without a "
            "certificate; name one for clients, and --server-key-file",
            field="server_cert_file",
        )


def _listener_tls(cert_file: Path | None, key_file: Path | None, client_ca_file: Path | None) -> ListenerTls | None:
    if cert_file is None and key_file is None:
        if client_ca_file is not None:
            raise RequestError("--client-ca-file is of TLS; give --cert-file and --key-file, too",
                               field="client_ca_file")  # fmt: skip
        return None
    if cert_file is None or key_file is None:
        missing = "cert" if cert_file is None else "key"
        raise RequestError(f"--{missing}-file is missing: a certificate goes with its private key; name both",
                           field=f"{missing}_file")  # fmt: skip
    return ListenerTls(cert_file.absolute(), key_file.absolute(), _absolute(client_ca_file))


def _address(text: str, field: str, tls: ListenerTls | None) -> Address:
    option = "--" + field.replace("_", "-")
    found = read_address(text, field=option)
    if tls is None and not is_loopback(found.host):
        raise RequestError(
            f"{option} {text} lets other machines in, which would send their keys without TLS: give --cert-file and "
            "--key-file, or listen on 127.0.0.1",
            field="cert_file",
        )
    return found


def _admin(text: str) -> Address:
    found = read_address(text, field="--admin")
    if not is_loopback(found.host):
        raise RequestError(
            f"--admin {text} would let other machines stop Envoy and read its configuration; give an address of the "
            "loopback interface, such as 127.0.0.1:9901",
            field="admin",
            value=text,
        )
    return found


def _concurrency(spec: DeploymentSpec, least: int | None, *, most: int) -> Concurrency:
    if most == 0:
        raise RequestError("--adaptive-concurrency is of requests to gateways, and there are none; give --gateway",
                           field="adaptive_concurrency")  # fmt: skip
    # As many wait as run: what is queued behind a full batch is no sign of trouble yet.
    running = spec.replicas * sum(model.engine.max_num_seqs for model in spec.models)
    least = 2 * running if least is None else least
    if least > most:
        raise RequestError(
            f"--least-requests {least} is more than --max-requests lets through, {most} in all; raise --max-requests, "
            "or give less",
            field="least_requests",
            value=least,
        )
    return Concurrency(least, most)
