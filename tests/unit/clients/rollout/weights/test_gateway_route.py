# SPDX-License-Identifier: Apache-2.0
"""Weights of Gateway API routes, moved by Kubernetes' own client library, with an API server that fails as one does."""

import builtins
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client
from kubernetes_api import ApiServer, Cluster, running
from routes_of_chart import grpc_route, http_route, weights_of

from clients.rollout.weights import gateway_route
from clients.rollout.weights.gateway_route import GatewayRoute
from clients.rollout.weights.route_api import KubernetesRoute
from clients.rollout.weights.several_routes import SeveralRoutes
from clients.rollout.weights.weights import Claim, RouteTaken, WeightsRefused
from trireme.base.errors import AccessDenied, RequestError, SpecError, Unavailable

HTTP, GRPC = ("httproutes", "llm", "chat"), ("grpcroutes", "llm", "chat")
OWNER = "rollout 3 (a1)"


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster()
    cluster.create(http_route())
    return cluster


@pytest.fixture
def server(cluster: Cluster) -> Iterator[ApiServer]:
    with running(cluster) as server:
        yield server


def api_of(server: ApiServer, kind: str = "HTTPRoute", *, call_s: float = 10.0) -> KubernetesRoute:
    configuration = client.Configuration(host=server.url)
    configuration.retries = False
    return KubernetesRoute(kind, "llm", "chat", configuration=configuration, call_s=call_s)


def route_of(server: ApiServer, kind: str = "HTTPRoute", *, call_s: float = 10.0) -> GatewayRoute:
    return GatewayRoute(api_of(server, kind, call_s=call_s), stable="chat", candidate="chat-2")


@pytest.fixture
def route(server: ApiServer) -> GatewayRoute:
    """Return a route that the rollout has, with nothing for the candidate yet."""
    route = route_of(server)
    route.set(0, OWNER)
    server.asked.clear()
    return route


def split_by_hand(cluster: Cluster, weight: int, *, manager: str = "kubectl-edit") -> None:
    def edit(route: dict[str, Any]) -> None:
        stable, candidate = route["spec"]["rules"][2]["backendRefs"]
        stable["weight"], candidate["weight"] = 10_000 - weight, weight

    cluster.edit(*HTTP, edit, manager=manager)


# Setting.


@pytest.mark.parametrize("kind", ["HTTPRoute", "GRPCRoute"])
def test_a_weight_changes_where_both_are_and_rules_that_pin_stay(
    cluster: Cluster, server: ApiServer, kind: str
) -> None:
    cluster.create(grpc_route())
    route = route_of(server, kind)
    route.set(0, OWNER)
    route.set(500, OWNER)
    found = cluster.get(*(HTTP if kind == "HTTPRoute" else GRPC))
    assert weights_of(found) == [("chat-2", None), ("chat", None), ("chat", 9500), ("chat-2", 500)]
    as_made = (http_route if kind == "HTTPRoute" else grpc_route)()
    assert found["spec"]["rules"][:2] == as_made["spec"]["rules"][:2]
    assert found["metadata"]["annotations"] == {
        "meta.helm.sh/release-name": "chat",
        "trireme/rollout": OWNER,
        "trireme/rollout-weight": "500",
    }
    assert found["metadata"]["generation"] == 2
    assert {each["manager"] for each in found["metadata"]["managedFields"]} == {"helm", "gateway", "trireme-rollout"}
    present = route.read()
    assert (present.weight, present.claim) == (500, Claim(OWNER, 500))
    assert present.moved_by.startswith("trireme-rollout 2")


def test_what_is_set_already_is_not_written_again(cluster: Cluster, server: ApiServer, route: GatewayRoute) -> None:
    route.set(500, OWNER)
    version = cluster.version
    route_of(server).set(500, OWNER)  # another life of the controller
    assert (cluster.version, len(server.verbs("patch"))) == (version, 1)


@pytest.mark.parametrize(("weights", "share"), [((99, 1), 100), ((1, 1), 5000), ((None, 1), 5000), ((7, 0), 0)])
def test_weights_of_another_sum_are_read(cluster: Cluster, server: ApiServer, weights: Any, share: int) -> None:
    def edit(found: dict[str, Any]) -> None:
        for backend, weight in zip(found["spec"]["rules"][2]["backendRefs"], weights, strict=True):
            backend.pop("weight")
            if weight is not None:  # left out it is 1
                backend["weight"] = weight

    cluster.edit(*HTTP, edit, manager="kubectl-edit")
    assert route_of(server).read().weight == share


def test_a_route_that_splits_already_is_not_taken(cluster: Cluster, server: ApiServer) -> None:
    route = route_of(server)
    split_by_hand(cluster, 700)
    with pytest.raises(
        RouteTaken, match=r"gives the candidate 700 of 10,000, and this rollout has set none: .*kubectl"
    ):
        route.set(0, OWNER)
    assert "trireme/rollout" not in cluster.get(*HTTP)["metadata"]["annotations"]


def test_a_weight_that_somebody_else_has_changed_stays(cluster: Cluster, route: GatewayRoute) -> None:
    route.set(500, OWNER)
    split_by_hand(cluster, 0)
    with pytest.raises(
        RouteTaken, match=r"HTTPRoute llm/chat gives .* 0 of .* had set 500: .*kubectl-edit.* set 2500"
    ) as e:
        route.set(2500, OWNER)
    assert e.value.facts["reason"] == "taken"
    assert weights_of(cluster.get(*HTTP))[3] == ("chat-2", 0)
    split_by_hand(cluster, 2500)  # as they were told
    route.set(2500, OWNER)
    assert route.read().claim == Claim(OWNER, 2500)


def test_a_route_of_another_rollout_is_not_taken(cluster: Cluster, server: ApiServer) -> None:
    route = route_of(server)
    route.set(0, "rollout 1 (b2)")
    with pytest.raises(RouteTaken, match=r"belongs to rollout 1 \(b2\)"):
        route.set(0, OWNER)
    route.let_go(OWNER)
    assert route.read().claim == Claim("rollout 1 (b2)", 0)
    route.let_go("rollout 1 (b2)")
    route.set(0, OWNER)
    route.set(500, OWNER)
    route.let_go(OWNER)
    assert cluster.get(*HTTP)["metadata"]["annotations"] == {"meta.helm.sh/release-name": "chat"}
    assert weights_of(cluster.get(*HTTP))[3] == ("chat-2", 500), "the weights stay"


def test_a_change_of_the_status_meanwhile_is_read_and_the_weight_set(
    cluster: Cluster, server: ApiServer, route: GatewayRoute
) -> None:
    changes = iter(range(2))

    def write() -> None:
        if (number := next(changes, None)) is not None:
            cluster.says["Accepted"] = ("True", f"Accepted{number}")
            cluster.write_status(HTTP)

    server.before_patch = write
    route.set(500, OWNER)
    assert weights_of(cluster.get(*HTTP))[3] == ("chat-2", 500)
    assert [verb for verb, _ in server.asked] == ["list", "patch"] * 3, "two conflicts"


def test_a_change_of_the_weights_meanwhile_is_not_undone(
    cluster: Cluster, server: ApiServer, route: GatewayRoute
) -> None:
    server.before_patch = lambda: split_by_hand(cluster, 9000)
    with pytest.raises(RouteTaken, match="9000 of 10,000"):
        route.set(500, OWNER)
    assert weights_of(cluster.get(*HTTP))[3] == ("chat-2", 9000)


def test_a_route_that_never_rests_is_left_for_later(cluster: Cluster, server: ApiServer, route: GatewayRoute) -> None:
    def write() -> None:
        cluster.says["Accepted"] = ("True", f"Accepted{cluster.version}")
        cluster.write_status(HTTP)

    server.before_patch = write
    with pytest.raises(Unavailable, match="changes too often"):
        route.set(500, OWNER)


def test_a_change_whose_answer_was_lost_is_found(cluster: Cluster, server: ApiServer, route: GatewayRoute) -> None:
    server.loses = 1
    with pytest.raises(Unavailable, match="does not answer about HTTPRoute llm/chat"):
        route.set(500, OWNER)
    assert weights_of(cluster.get(*HTTP))[3] == ("chat-2", 500)
    route.set(500, OWNER)
    assert len(server.verbs("patch")) == 1


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_server_that_cannot_answer_now_is_asked_later(server: ApiServer, route: GatewayRoute, status: int) -> None:
    server.fails = [status]
    with pytest.raises(Unavailable, match=str(status)):
        route.set(500, OWNER)
    route.set(500, OWNER)


def test_a_server_that_stalls_is_not_waited_for(server: ApiServer) -> None:
    server.stalls_s = 1.5
    begin_s = time.monotonic()
    with pytest.raises(Unavailable, match="does not answer"):
        route_of(server, call_s=0.3).read()
    assert time.monotonic() - begin_s < 1.2


def test_a_server_that_is_not_there_is_unavailable(cluster: Cluster) -> None:
    with running(cluster) as server:
        route = route_of(server)
    with pytest.raises(Unavailable, match="does not answer"):
        route.read()


def test_before_a_rollout_begins_all_but_the_storing_is_tried(cluster: Cluster, server: ApiServer) -> None:
    route, version = route_of(server), cluster.version
    route.check()
    assert (cluster.version, server.verbs("patch")[0]["dryRun"]) == (version, "All")
    server.allowed.discard("patch")
    with pytest.raises(AccessDenied, match="403"):
        route.check()
    server.allowed.add("patch")
    split_by_hand(cluster, 700)
    with pytest.raises(RouteTaken):
        route.check()


@pytest.mark.parametrize("verb", ["list", "patch"])
def test_missing_rights_are_named(server: ApiServer, route: GatewayRoute, verb: str) -> None:
    server.allowed.discard(verb)
    with pytest.raises(
        AccessDenied, match=r"403.* give this account get, list, watch and patch on httproutes of gateway"
    ):
        route.set(500, OWNER)


def test_what_is_not_there_is_named(cluster: Cluster, server: ApiServer, route: GatewayRoute) -> None:
    assert [api_of(server, kind).exists() for kind in ("HTTPRoute", "GRPCRoute")] == [True, False]
    with pytest.raises(RequestError, match="has no rule with the backends chat and chat-3"):
        GatewayRoute(api_of(server), stable="chat", candidate="chat-3").read()
    cluster.remove(*HTTP)
    with pytest.raises(RequestError, match="there is no HTTPRoute llm/chat; name another with --weights"):
        route.read()


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ([{"name": "chat-3", "port": 8000, "weight": 1}], "splits with chat-3, too, and weights of 10,000 are of two"),
        ([], "give chat-2 different weights: 0, 5000 of 10,000"),
    ],
    ids=["three backends", "two rules"],
)
def test_rules_that_no_one_weight_describes_are_refused(
    cluster: Cluster, server: ApiServer, more: list[Any], reason: str
) -> None:
    def edit(found: dict[str, Any]) -> None:
        rules = found["spec"]["rules"]
        rules[2]["backendRefs"] += more
        if not more:
            rules.append({**rules[2], "backendRefs": [{"name": name, "port": 8000} for name in ("chat", "chat-2")]})

    cluster.edit(*HTTP, edit, manager="helm")
    with pytest.raises(RouteTaken, match=reason):
        route_of(server).check()


@pytest.mark.parametrize("weight", [-1, 10_001])
def test_what_is_no_weight_is_refused(route: GatewayRoute, weight: int) -> None:
    with pytest.raises(RequestError, match="weight must be 0 to 10,000"):
        route.set(weight, OWNER)


# Waiting.


def later(delay_s: float, do: Any) -> threading.Timer:
    timer = threading.Timer(delay_s, do)
    timer.start()
    return timer


def test_a_weight_is_in_force_once_the_gateway_has_taken_its_generation(
    cluster: Cluster, server: ApiServer, route: GatewayRoute
) -> None:
    cluster.takes_after_s = None
    route.set(500, OWNER)
    assert not route.wait(500, timeout_s=0), "the status is of the generation before"
    cluster.write_status(HTTP, generation=1)
    assert not route.wait(500, timeout_s=0.2)
    timer = later(0.3, lambda: cluster.write_status(HTTP))
    begin_s = time.monotonic()
    assert route.wait(500, timeout_s=20)
    assert time.monotonic() - begin_s < 2, "it is told, and does not ask again"
    timer.join()
    assert len(server.verbs("watch")) <= 2


def test_a_gateway_that_says_nothing_leaves_it_open(cluster: Cluster, server: ApiServer) -> None:
    cluster.takes_after_s = None
    cluster.create(grpc_route())
    assert not route_of(server, "GRPCRoute").wait(0, timeout_s=0.2)


def test_each_gateway_of_a_route_has_to_take_it(cluster: Cluster, route: GatewayRoute) -> None:
    def edit(found: dict[str, Any]) -> None:
        found["spec"]["parentRefs"].append({"name": "other", "sectionName": "http"})

    cluster.takes_after_s = None
    cluster.edit(*HTTP, edit, manager="helm")
    assert not route.wait(0, timeout_s=0)
    cluster.write_status(HTTP)
    assert route.wait(0, timeout_s=0)


@pytest.mark.parametrize(
    ("condition", "said", "found"),
    [
        ("Accepted", ("False", "NotAllowedByListeners"), "Accepted False: NotAllowedByListeners"),
        ("ResolvedRefs", ("False", "BackendNotFound"), "ResolvedRefs False: BackendNotFound"),
        ("PartiallyInvalid", ("True", "UnsupportedValue"), "PartiallyInvalid True: UnsupportedValue"),
    ],
)
def test_weights_that_the_gateway_refuses_are_told(
    cluster: Cluster, route: GatewayRoute, condition: str, said: tuple[str, str], found: str
) -> None:
    cluster.says[condition] = said
    route.set(500, OWNER)
    with pytest.raises(WeightsRefused, match=found):
        route.wait(500, timeout_s=0.2)
    cluster.says.clear()
    timer = later(0.2, lambda: cluster.write_status(HTTP))  # its Service had just been made
    assert route.wait(500, timeout_s=5)
    timer.join()


def test_a_weight_that_is_changed_while_it_is_waited_for_is_told(cluster: Cluster, route: GatewayRoute) -> None:
    cluster.takes_after_s = None
    route.set(500, OWNER)
    timer = later(0.2, lambda: split_by_hand(cluster, 0))
    with pytest.raises(RouteTaken, match=r"gives the candidate 0 and not the 500 that was set .kubectl-edit"):
        route.wait(500, timeout_s=5)
    timer.join()


@pytest.mark.parametrize("refuses_by_status", [False, True], ids=["an event", "a status"])
def test_a_version_that_is_too_old_is_listed_again(
    cluster: Cluster, server: ApiServer, route: GatewayRoute, refuses_by_status: bool
) -> None:
    server.refuses_by_status = refuses_by_status
    cluster.takes_after_s = None
    route.set(500, OWNER)
    times = iter(range(2))

    def compact() -> None:
        if next(times, None) is not None:
            cluster.touch_another()
            cluster.forget_the_past()
        else:
            cluster.write_status(HTTP)

    server.before_watch = compact
    assert route.wait(500, timeout_s=10)
    assert [verb for verb, _ in server.asked] == ["list", "patch", *["list", "watch"] * 3], (
        "410 twice, and each time a new list"
    )


def test_a_watch_begins_at_the_list_and_not_at_the_object(
    cluster: Cluster, server: ApiServer, route: GatewayRoute
) -> None:
    cluster.takes_after_s = None
    route.set(500, OWNER)
    for _ in range(5):
        cluster.touch_another()
    cluster.forget_the_past()  # the object's own version is older now than all that can be watched from
    timer = later(0.2, lambda: cluster.write_status(HTTP))
    assert route.wait(500, timeout_s=5)
    timer.join()
    assert int(server.verbs("watch")[0]["resourceVersion"]) >= cluster.compacted
    assert len(server.verbs("watch")) == 1


def test_a_watch_that_the_server_ends_goes_on_from_the_last_bookmark(
    cluster: Cluster, server: ApiServer, route: GatewayRoute, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_route, "_LONGEST_WATCH_S", 1.0)
    cluster.takes_after_s = None
    route.set(500, OWNER)
    lists = len(server.verbs("list"))
    timers = [later(0.5, cluster.touch_another), later(1.6, lambda: cluster.write_status(HTTP))]
    assert route.wait(500, timeout_s=10)
    for timer in timers:
        timer.join()
    first, second = server.verbs("watch")
    assert int(second["resourceVersion"]) > int(first["resourceVersion"])
    assert first["allowWatchBookmarks"].lower() == "true"
    assert len(server.verbs("list")) == lists + 1


def test_a_server_that_is_restarted_is_asked_again(cluster: Cluster) -> None:
    cluster.takes_after_s = None
    first = ApiServer(cluster)
    route = route_of(first)
    route.set(0, OWNER)
    route.set(500, OWNER)
    found: list[bool] = []
    waiting = threading.Thread(target=lambda: found.append(route.wait(500, timeout_s=20)))
    waiting.start()
    while not first.verbs("watch"):
        time.sleep(0.01)
    first.close()
    time.sleep(0.5)
    with ApiServer(cluster, first.port) as second:
        while not second.verbs("watch"):
            time.sleep(0.01)
        cluster.write_status(HTTP)
        waiting.join(10)
        assert found == [True]
        assert second.verbs("list"), "after a connection that broke it is listed anew"


def test_a_watch_that_is_cut_off_is_begun_again(cluster: Cluster, server: ApiServer, route: GatewayRoute) -> None:
    cluster.takes_after_s = None
    route.set(500, OWNER)
    timers = [later(0.2, server.cut_watches), later(0.6, lambda: cluster.write_status(HTTP))]
    assert route.wait(500, timeout_s=10)
    for timer in timers:
        timer.join()


def test_a_server_that_is_away_for_all_of_the_wait_is_told(cluster: Cluster) -> None:
    with running(cluster) as server:
        route = route_of(server)
    begin_s = time.monotonic()
    with pytest.raises(Unavailable):
        route.wait(0, timeout_s=0.5)
    assert time.monotonic() - begin_s < 2


def test_both_routes_of_a_name_are_moved_and_waited_for(cluster: Cluster, server: ApiServer) -> None:
    cluster.create(grpc_route())
    both = SeveralRoutes([route_of(server), route_of(server, "GRPCRoute")])
    both.set(0, OWNER)
    both.set(500, OWNER)
    assert both.wait(500, timeout_s=2)
    assert [weights_of(cluster.get(*key))[3] for key in (HTTP, GRPC)] == [("chat-2", 500)] * 2
    server.before_patch = lambda: server.fails.append(503)  # between the two
    with pytest.raises(Unavailable):
        both.set(2500, OWNER)
    server.before_patch, server.fails = (lambda: None), []
    assert both.read().weight == 2500
    both.set(2500, OWNER)
    assert both.wait(2500, timeout_s=2)
    both.let_go(OWNER)
    assert both.read().claim is None


def test_a_route_that_is_taken_keeps_no_other_from_its_weight(cluster: Cluster, server: ApiServer) -> None:
    cluster.create(grpc_route())
    both = SeveralRoutes([route_of(server), route_of(server, "GRPCRoute")])
    both.set(0, OWNER)
    both.set(500, OWNER)
    split_by_hand(cluster, 9000)
    with pytest.raises(RouteTaken, match="HTTPRoute llm/chat gives the candidate 9000"):
        both.set(0, OWNER)
    assert [weights_of(cluster.get(*key))[3] for key in (HTTP, GRPC)] == [("chat-2", 9000), ("chat-2", 0)]


# Where the API server is, and who asks.


def test_the_kubeconfig_says_where_and_who(server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server.token = "secret"
    config = tmp_path / "config"
    config.write_text(
        f"""
apiVersion: v1
kind: Config
current-context: here
clusters: [{{name: here, cluster: {{server: "{server.url}"}}}}]
users: [{{name: me, user: {{token: secret}}}}]
contexts: [{{name: here, context: {{cluster: here, user: me}}}}]
"""
    )
    from kubernetes.config import kube_config  # noqa: PLC0415

    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(config))
    assert KubernetesRoute("HTTPRoute", "llm", "chat").exists()
    server.token = "another"
    with pytest.raises(AccessDenied, match="401"):
        KubernetesRoute("HTTPRoute", "llm", "chat").exists()


def test_without_anything_that_says_where_it_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kubernetes.config import kube_config  # noqa: PLC0415

    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "none"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(SpecError, match=r"nothing says where the Kubernetes API is: .* set KUBECONFIG"):
        KubernetesRoute("HTTPRoute", "llm", "chat")


def test_without_the_library_it_is_said_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.partition(".")[0] == "kubernetes":
            raise ImportError(name)
        return original(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(SpecError, match=r"is not installed: pip install '.*\[kubernetes\]'"):
        KubernetesRoute("HTTPRoute", "llm", "chat")
