# SPDX-License-Identifier: Apache-2.0
"""The decision for a second server, and the fields of a plan that describe it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from clients.rollout.planning import Fields, candidates
from clients.rollout.records.rollout_plan import Mode
from clients.rollout.replicas import AnyServer
from clients.rollout.server_place import ServerPlace
from trireme.base.errors import RequestError


def why_second_server(first: AnyServer, candidate: Fields, *, is_forced: bool) -> str:
    """Return why the second server serves the candidate; "": the first one has the memory for both releases."""
    return "it was asked for" if is_forced else first.why_no_room(candidate)


def refuse_without_room(server: AnyServer, found: Sequence[Fields]) -> None:
    """Raise a RequestError where the server lacks memory for a candidate beside what it serves."""
    loaded = {each["release"] for each in server.status()["releases"]}
    for candidate in found:
        if candidate["release"] not in loaded and (why_not := server.why_no_room(candidate)):
            raise RequestError(
                f"the server has no room for release {candidate['release']} beside what it serves: {why_not}; make "
                "room, or name a server of its own with --second-server",
                field="release",
                value=candidate["release"],
            )


def check_second(first: Mapping[str, Any], second: Mapping[str, Any], name: str) -> None:
    """Check that another server can serve a model's candidate.

    Args:
        first, second: what each says of its model (`LocalServer.status`).
        name: the second server's folder or address.

    Raises:
        RequestError: it is no other server, or its model has another name.
    """
    if not set(first["server_ids"]).isdisjoint(second["server_ids"]):
        raise RequestError(
            f"second_server {name} is the first server itself, or has a replica of it; start another one, of ports or "
            "a machine of its own",
            field="second_server",
            value=name,
        )
    if bool(first.get("grpc_access")) != bool(second.get("grpc_access")):
        raise RequestError(
            f"of the first server and second_server {name} one has TLS on gRPC (triton.grpc_tls) and the other has "
            "not, and clients reach both in one way; give both certificates, or neither",
            field="second_server",
            value=name,
        )
    if first["name"] != second["name"]:
        raise RequestError(
            f"the model of second_server {name} is {second['name']}, and must be called {first['name']}, as the "
            "first server's",
            field="second_server",
            value=name,
        )


def _refuse_unnamed(second: Mapping[str, Any], name: str) -> None:
    """Raise a RequestError where the server's certificate does not name the address that clients are given."""
    names, address = second.get("grpc_names") or [], str(second["grpc"])
    host = address.rpartition(":")[0].strip("[]")
    any_of_it = f"*.{host.partition('.')[2]}"
    if names and not {host, any_of_it} & set(names):
        raise RequestError(
            f"clients would be sent to {address}, where {name} listens, and its certificate is for "
            f"{', '.join(names)}; give the address that they are to use, by one of these names",
            field="second_url",
        )


def _client_url(url: str, *, is_tls: bool) -> str:
    return f"grpcs://{url}" if is_tls and "://" not in url else url


def plan_second_server(
    named: Sequence[str],
    first: AnyServer,
    second: AnyServer,
    place: ServerPlace,
    *,
    above: int,
    is_keeping_old: bool,
    url: str | None = None,
    is_behind_router: bool = False,
    tell: Callable[[str], None],
) -> tuple[Fields, dict[str, Any]]:
    """Return the candidate as the second server has it, and the fields of a plan with two servers.

    Each server's own candidate differs from what that server serves, for the folders and GPUs are its own; both have
    one number.

    Args:
        named: the candidate, a folder or a file.
        place: the second server's.
        above: the highest number that was ever given.
        url: ``host:port`` for clients; None: as the second server listens.
        is_behind_router: no client asks the second server itself.

    Raises:
        RequestError: what is asked for takes one server.
    """
    [name] = named
    if url is None and not is_behind_router:
        _refuse_unnamed(second.status(), place.name)
    if name.isdecimal():
        raise RequestError(
            f"release {name} is the first server's; with --second-server name its folder or file",
            field="release",
            value=name,
        )
    if is_keeping_old:
        raise RequestError(
            "--keep-old needs room for both releases on one server; leave it out with a second one", field="keep_old"
        )
    at_first, at_second = first.status(), second.status()
    if url is None and not is_behind_router and at_second.get("num_replicas", 1) > 1:
        raise RequestError(
            f"clients would be sent to {at_second['grpc']}, one of the {at_second['num_replicas']} replicas of "
            f"{place.name}; give the address of all, as --second-url",
            field="second_url",
        )
    numbers = [int(each["release"]) for status in (at_first, at_second) for each in status["releases"]]
    highest = max([above, *numbers])
    [release] = candidates(named, at_second, mode=Mode.CANARY, above=highest)
    [home] = candidates(named, at_first, mode=Mode.CANARY, above=highest)
    tell(f"release {home['release']} is served by {place.url or place.folder}, at {at_second['grpc']}")
    return release, {
        "second_server": place.name,
        "second_url": _client_url(url or str(at_second["grpc"]), is_tls=bool(at_second.get("grpc_access"))),
        "home_release": home,
        "home_stable": next(each for each in at_first["releases"] if each["release"] == at_first["release"]),
    }
