# SPDX-License-Identifier: Apache-2.0
"""The check of what a deployment's KV events need: a package, ports of their own, and one publisher for an endpoint."""

import importlib.util
import socket
from collections.abc import Sequence

from ensemble_configs.spec.engine.kv_events_spec import KvEventsSpec
from ensemble_configs.spec.release_spec import ReleaseSpec
from ensemble_configs.spec.triton_spec import TritonSpec
from trireme.base.errors import SpecError
from trireme.base.extras import how_to_install

_FIELD = "kv_events.endpoint"


def check_kv_events(releases: Sequence[ReleaseSpec]) -> None:
    """Check that the events of releases can be told together.

    Raises:
        SpecError: pyzmq is not installed, or two releases want one endpoint in two ways.
    """
    publishers: dict[str, KvEventsSpec] = {}
    for events in (release.kv_events for release in releases):
        if events is None or events.endpoint is None:
            continue
        if importlib.util.find_spec("zmq") is None:
            raise SpecError(
                f"{_FIELD} needs pyzmq, which is not installed; {how_to_install('kv-events')}, or leave it out and "
                "tell over HTTP alone",
                field=_FIELD,
                extra="kv-events",
            )
        first = publishers.setdefault(events.endpoint, events)
        for name in ("replay_endpoint", "num_kept_batches"):
            one, other = getattr(first, name), getattr(events, name)
            if one != other:
                raise SpecError(
                    f"{_FIELD} {events.endpoint} is named twice, with kv_events.{name} {one} and {other}; say the same "
                    "in both, or give each release an endpoint of its own",
                    field=f"kv_events.{name}",
                    value=str(other),
                )


def check_kv_event_ports(releases: Sequence[ReleaseSpec], triton: TritonSpec) -> None:
    """Check that the ports on which events are told can be had.

    Raises:
        SpecError: one is Triton's, or something listens there.
    """
    own = {getattr(triton, name): name for name in ("http_port", "grpc_port", "metrics_port")}
    for port in sorted({port for each in releases if each.kv_events is not None for port in each.kv_events.ports}):
        if port in own:
            raise SpecError(f"{_FIELD}: port {port} is triton.{own[port]}; name another", field=_FIELD, value=port)
        with socket.socket() as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                tried.bind(("", port))
            except OSError as exc:
                raise SpecError(
                    f"{_FIELD}: port {port} cannot be used ({exc.strerror}); stop what listens there, or name another",
                    field=_FIELD,
                    value=port,
                ) from exc
