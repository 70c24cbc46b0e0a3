# SPDX-License-Identifier: Apache-2.0
"""The command `trireme rollout export`: a rollout's definition for Argo Rollouts, the Gateway API, Envoy or Helm."""

from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from clients.envoy_parts import check_yaml_name
from clients.rollout.choice import StoreOption, any_rollout, existing_store
from clients.rollout.export.analysis_template import LONGEST_INTERVAL_S
from clients.rollout.export.definition import Definition, definition_of
from clients.rollout.export.formats import Format, Options, check_options, text_of
from clients.rollout.planning import read_gate
from clients.rollout.records.rollout_plan import read_steps
from clients.rollout.records.store import Store
from clients.rollout.server_place import ServerOption
from trireme.base.durable_files import write_atomically
from trireme.base.errors import RequestError
from trireme.base.store_place import StorePlace


def export(
    *,
    format: Annotated[Format, typer.Option(help="Format to write.")],  # noqa: A002 - the option's name
    number: Annotated[
        int | None,
        typer.Option("--rollout", help="Number of the rollout; none: the one that goes on, or the last one."),
    ] = None,
    steps: Annotated[
        str | None,
        typer.Option(help="Percentages of a rollout that is in no store, as `trireme rollout start` takes them."),
    ] = None,
    gate: Annotated[
        Path | None, typer.Option(help="With --steps: settings of the gate, as `trireme rollout start` takes them.")
    ] = None,
    share: Annotated[
        float | None, typer.Option(min=0, max=100, help="Percentage of the candidate; none: the one that holds now.")
    ] = None,
    salt: Annotated[
        str | None, typer.Option(help="Hash seed of keys, in place of the rollout's; for Envoy and the chart.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="File to write, replaced in one step; none: standard output.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Name in Kubernetes.", show_default="the model's, or trireme")
    ] = None,
    namespace: Annotated[str | None, typer.Option(help="Namespace in Kubernetes.")] = None,
    url: Annotated[
        str | None, typer.Option(help="Address of the rollout API, as Argo's controller reaches it.")
    ] = None,
    interval_s: Annotated[
        int | None,
        typer.Option(min=1, max=LONGEST_INTERVAL_S, help="Seconds between Argo's measurements.", show_default="10"),
    ] = None,
    max_wait_s: Annotated[
        int | None, typer.Option(min=1, help="Seconds at a step until Argo pauses undecided.", show_default="14400")
    ] = None,
    with_gateway_api: Annotated[
        bool, typer.Option("--with-gateway-api", help="Argo sets the weights of the routes of `gateway-api`.")
    ] = False,
    gateway: Annotated[str | None, typer.Option(help="The Gateway that the routes belong to.")] = None,
    stable_service: Annotated[
        str | None,
        typer.Option(
            help="Service of the stable release; for helm-values, a server.", show_default="NAME-stable; the model"
        ),
    ] = None,
    candidate_service: Annotated[
        str | None,
        typer.Option(
            help="Service of the candidate; for helm-values, a server.", show_default="NAME-candidate; MODEL-RELEASE"
        ),
    ] = None,
    http_port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="HTTP port of both Services.", show_default="8000")
    ] = None,
    grpc_port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="gRPC port of both Services.", show_default="8001")
    ] = None,
    stable_url: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="For envoy: gRPC of the stable release.")
    ] = None,
    candidate_url: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="For envoy: gRPC of the candidate.")
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Address that Envoy listens on.", show_default="127.0.0.1:8011"),
    ] = None,
    admin: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Address of Envoy's admin interface; none: there is none.")
    ] = None,
    routes_file: Annotated[
        Path | None,
        typer.Option(help="File that Envoy reads its routes from, as --format envoy-routes writes it."),
    ] = None,
    server: ServerOption = None,
    store: StoreOption = None,
) -> None:
    """Write a rollout for a program that splits the traffic: Argo Rollouts, the Gateway API, Envoy or the Helm chart.

    \b
    Examples:
      trireme rollout export --format analysis-template --url http://rollout.models.svc:8010
      trireme rollout export --format argo-rollout --steps 5,25,50,100 --name chat --with-gateway-api
      trireme rollout export --format gateway-api --gateway models | kubectl apply -f -
      trireme rollout export --format helm-values --out traffic.yaml
      trireme rollout export --format envoy --stable-url a:8001 --candidate-url b:8001 --routes-file routes.yaml
      trireme rollout export --format envoy-routes --share 0 --out routes.yaml
    """
    options: dict[str, Any] = dict(locals())
    check_options(format, options)
    if out is not None and format in (Format.ENVOY, Format.ENVOY_ROUTES):
        check_yaml_name(out, "out")
    text = text_of(format, _definition(options), options)
    if out is None:
        typer.echo(text, nl=False)
    else:
        _write(out, text)


def _write(out: Path, text: str) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, text)


def _definition(options: Options) -> Definition:
    share = None if options["share"] is None else options["share"] / 100
    number, steps, gate, salt = options["number"], options["steps"], options["gate"], options["salt"]
    if steps is not None and number is not None:
        raise RequestError("--steps and --rollout say the same twice; leave one out", field="steps", value=steps)
    if gate is not None and steps is None:
        raise RequestError("--gate goes with --steps: a rollout has its own; leave it out", field="gate", value=gate)
    if steps is not None:
        found = Definition(
            source=f"--steps {steps}", shares=read_steps(steps), share=share, gate=read_gate(gate) if gate else {}
        )
    elif number is None and options["store"] is None and (share is not None or options["routes_file"] is not None):
        found = Definition(source="the command line", share=share)  # which says all that there is to say
    else:
        with Store(_store(options)) as kept:
            found = definition_of(any_rollout(kept, number), share=share)
    return found if salt is None else msgspec.structs.replace(found, salt=salt)


def _store(options: Options) -> StorePlace:
    return existing_store(options["server"], options["store"])
