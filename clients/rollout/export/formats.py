# SPDX-License-Identifier: Apache-2.0
"""The formats of an export: the options that each takes, and its text."""

import json
import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from clients.envoy_parts import check_yaml_name, read_address
from clients.rollout.export.analysis_template import analysis_template
from clients.rollout.export.argo_rollout import argo_rollout
from clients.rollout.export.definition import Definition, percent, weights
from clients.rollout.export.envoy_bootstrap import envoy_bootstrap
from clients.rollout.export.envoy_routes import check_salt, routes_file
from clients.rollout.export.gateway_api import gateway_routes
from ensemble_configs.render.helm_values import dns_label
from trireme.base.errors import RequestError

Options = Mapping[str, Any]  # options of the command line; None: not given
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


class Format(StrEnum):
    """The formats that an export can have."""

    ANALYSIS_TEMPLATE = "analysis-template"
    ARGO_ROLLOUT = "argo-rollout"
    GATEWAY_API = "gateway-api"
    HELM_VALUES = "helm-values"
    ENVOY = "envoy"
    ENVOY_ROUTES = "envoy-routes"


class Kind(NamedTuple):
    """The properties of a format.

    Attributes:
        make: builder of its documents.
        takes: options that are for some formats only.
        needs: options that must be given.
        has_share: the text says the share that holds now.
    """

    make: Callable[[Definition, Options], list[dict[str, object]]]
    takes: frozenset[str]
    needs: frozenset[str] = frozenset()
    has_share: bool = True


def text_of(kind: Format, definition: Definition, options: Options) -> str:
    """Return the text of the whole file.

    Raises:
        RequestError: an option cannot be used, or the definition lacks what the format says.
    """
    documents = KINDS[kind].make(definition, options)
    said = [f"shares {percent(definition.shares)}"] if definition.shares else []
    if KINDS[kind].has_share and definition.share is not None:
        said.append(f"now {100 * definition.share:g} %")
    if definition.gate:
        said.append(f"gate {json.dumps(definition.gate)}")
    header = f"# Generated from {definition.source} by trireme rollout export --format {kind}\n"
    if said:
        header += f"# {'; '.join(said)}\n"
    return header + yaml.safe_dump_all(documents, sort_keys=False, width=120)


def check_options(kind: Format, options: Options) -> None:
    """Check that each given option means something to the format, and that no needed option is missing.

    Raises:
        RequestError: an option is of no use, or is missing.
    """
    of_some = frozenset[str]().union(*(each.takes for each in KINDS.values()))
    for name in sorted(name for name in of_some if options[name] not in (None, False)):
        if name not in KINDS[kind].takes:
            fitting = ", ".join(str(each) for each in KINDS if name in KINDS[each].takes)
            raise RequestError(f"{_flag(name)} says nothing to {kind}, but to {fitting}; leave it out", field=name)
    for name in sorted(KINDS[kind].needs):
        if options[name] is None:
            raise RequestError(f"{_flag(name)} is missing: {kind} needs {_NEEDED[name]}", field=name)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _share(definition: Definition) -> float:
    if definition.share is None:
        raise RequestError(
            "share is not known: --steps says which shares there will be, and not which holds now; add --share, or "
            "name a rollout with --rollout",
            field="share",
        )
    return definition.share


def _name(definition: Definition, options: Options) -> str:
    if options["name"] is not None:
        return _label(options, "name")
    return re.sub(r"[^a-z0-9]+", "-", (definition.model or "").lower()).strip("-")[:50].rstrip("-") or "trireme"


def _label(options: Options, field: str, default: str = "") -> str:
    text = options[field]
    if text is None:
        return default
    if not _LABEL.fullmatch(text):
        raise RequestError(
            f"{field} must be a name as Kubernetes has it: at most 63 small letters, digits and dashes, with a letter "
            f"or digit at both ends; got {text!r}",
            field=field,
            value=text,
        )
    return str(text)


def _services(name: str, options: Options) -> dict[str, str]:
    """Return the names of both Services as keyword arguments."""
    stable = _label(options, "stable_service", f"{name}-stable")
    candidate = _label(options, "candidate_service", f"{name}-candidate")
    _check_two("stable_service", stable, "candidate_service", candidate)
    return {"stable_service": stable, "candidate_service": candidate}


def _check_two(field: str, value: object, other: str, other_value: object) -> None:
    if value == other_value:
        raise RequestError(
            f"{field} and {other} are both {value}: between one and itself nothing can be split; name the candidate's",
            field=other,
            value=value,
        )


def _analysis_template(definition: Definition, options: Options) -> list[dict[str, object]]:
    url = str(options["url"]).rstrip("/")
    if not re.fullmatch(r"https?://[^\s/{}]+(/[^\s{}]*)?", url):
        raise RequestError(
            f"url must be where Argo's controller reaches the rollout API, such as http://rollout.models.svc:8010; "
            f"got {url!r}",
            field="url",
            value=url,
        )
    template = analysis_template(
        definition,
        name=_name(definition, options),
        namespace=_label(options, "namespace") or None,
        url=url,
        interval_s=options["interval_s"] or 10,
        max_wait_s=options["max_wait_s"] or 14_400,
    )
    return [template]


def _argo_rollout(definition: Definition, options: Options) -> list[dict[str, object]]:
    name = _name(definition, options)
    patch = argo_rollout(
        definition,
        template=name,
        **_services(name, options),
        route=name if options["with_gateway_api"] else None,
        namespace=_label(options, "namespace") or None,
    )
    return [patch]


def _gateway_api(definition: Definition, options: Options) -> list[dict[str, object]]:
    name = _name(definition, options)
    return gateway_routes(
        _share(definition),
        name=name,
        namespace=_label(options, "namespace") or None,
        gateway=_label(options, "gateway"),
        **_services(name, options),
        http_port=options["http_port"] or 8000,
        grpc_port=options["grpc_port"] or 8001,
    )


def _helm_values(definition: Definition, options: Options) -> list[dict[str, object]]:
    model = definition.model
    stable = _label(options, "stable_service", dns_label(model) if model else "")
    candidate = _label(options, "candidate_service", dns_label(f"{model}-{definition.candidate}") if model else "")
    for field, name in (("stable_service", stable), ("candidate_service", candidate)):
        if not name:
            raise RequestError(
                f"{_flag(field)} is missing: of no rollout the names of the servers in the chart's values are not "
                "known; give both, or name a rollout with --rollout",
                field=field,
            )
    _check_two("stable_service", stable, "candidate_service", candidate)
    check_salt(definition.salt)
    traffic: dict[str, object] = {"candidate": candidate, "candidateWeight": weights(_share(definition))[0]}
    if definition.salt:
        traffic["salt"] = definition.salt
    return [{"traffic": {stable: traffic}}]


def _envoy(definition: Definition, options: Options) -> list[dict[str, object]]:
    stable, candidate = (read_address(options[field], field=field) for field in ("stable_url", "candidate_url"))
    _check_two("stable_url", options["stable_url"], "candidate_url", options["candidate_url"])
    routes: Path | None = options["routes_file"]
    if routes is not None:
        check_yaml_name(routes, "routes_file")
    bootstrap = envoy_bootstrap(
        stable=stable,
        candidate=candidate,
        listen=read_address(options["listen"] or "127.0.0.1:8011", field="listen"),
        admin=read_address(options["admin"], field="admin") if options["admin"] else None,
        routes=routes.absolute() if routes else None,
        share=0.0 if routes else _share(definition),
        salt=definition.salt,
    )
    return [bootstrap]


def _envoy_routes(definition: Definition, options: Options) -> list[dict[str, object]]:
    del options
    return [routes_file(_share(definition), salt=definition.salt)]


_NEEDED = {
    "url": "the address at which Argo's controller reaches the rollout API, such as http://rollout.models.svc:8010",
    "gateway": "the name of the Gateway that the routes belong to",
    "stable_url": "HOST:PORT of the stable release's gRPC endpoint",
    "candidate_url": "HOST:PORT of the candidate's gRPC endpoint",
}
_KUBERNETES = frozenset({"name", "namespace"})
_SERVICES = frozenset({"stable_service", "candidate_service"})
_ENDPOINTS = frozenset({"stable_url", "candidate_url"})
KINDS: Mapping[Format, Kind] = {
    Format.ANALYSIS_TEMPLATE: Kind(
        _analysis_template, _KUBERNETES | {"url", "interval_s", "max_wait_s"}, frozenset({"url"}), has_share=False
    ),
    Format.ARGO_ROLLOUT: Kind(_argo_rollout, _KUBERNETES | _SERVICES | {"with_gateway_api"}, has_share=False),
    Format.GATEWAY_API: Kind(
        _gateway_api,
        _KUBERNETES | _SERVICES | {"share", "gateway", "http_port", "grpc_port"},
        frozenset({"gateway"}),
    ),
    Format.HELM_VALUES: Kind(_helm_values, _SERVICES | {"share", "salt"}),
    Format.ENVOY: Kind(_envoy, _ENDPOINTS | {"share", "salt", "listen", "admin", "routes_file"}, _ENDPOINTS),
    Format.ENVOY_ROUTES: Kind(_envoy_routes, frozenset({"share", "salt"})),
}
