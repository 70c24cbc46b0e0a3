# SPDX-License-Identifier: Apache-2.0
"""A rollout moves a router's weights with its phase, whatever dies on the way, and leaves what others move alone."""

import itertools
from pathlib import Path

import pytest
from kubernetes import client
from kubernetes_api import Cluster, running
from rollout_world import Killed, World
from routes_of_chart import grpc_route, http_route, weights_of

from clients.rollout.records.rollout_plan import Plan
from clients.rollout.records.state import OperatorCommand, Phase, Rollout
from clients.rollout.records.store import Store
from clients.rollout.weights.named_weights import check_named, check_weights, weights_named
from clients.rollout.weights.router import Router, owner_of
from clients.rollout.weights.weights import Claim, Present, RouteTaken, Weights, WeightsRefused, check_owner
from trireme.base.errors import RequestError, Unavailable

SHARES = (0.01, 0.05, 0.5, 1.0)
GATEWAY: dict[str, object] = {"weights": "gateway:llm/chat", "stable_service": "chat", "candidate_service": "chat-2"}


class Route:
    """A route that may be away, pending, refused or moved by somebody; the controller may die at each change of it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.present = Present(0)
        self.weights: list[int] = []
        self.is_away = self.is_pending = False
        self.refusal = ""

    def read(self) -> Present:
        if self.is_away:
            raise Unavailable("nobody answers", reason="unreachable")
        return self.present

    def check(self) -> None:
        check_owner(self.read(), 0, "", where="the route")

    def set(self, weight: int, owner: str) -> None:
        present = self.read()
        check_owner(present, weight, owner, where="the route")
        if present.claim is None or present.claim.weight != weight or present.weight != weight:
            self.world.do(f"weight {weight}")
            self.present = Present(weight, Claim(owner, weight))
            self.weights.append(weight)
            self.world.do("weight set")

    def wait(self, weight: int, *, timeout_s: float) -> bool:
        assert timeout_s > 0
        if self.read().weight != weight:
            raise RouteTaken("it is another one", field="weights")
        if self.refusal and weight:
            raise WeightsRefused(self.refusal)
        return not self.is_pending

    def let_go(self, owner: str) -> None:
        claim = self.read().claim
        if claim is not None and claim.owner == owner:
            self.world.do("let go")
            self.present = Present(self.present.weight)
            self.world.do("let go")


def world_of(folder: Path) -> World:
    return World(folder, weights="envoy:r.yaml", second_server="/b", second_url="b:1", shares=SHARES)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return world_of(tmp_path)


@pytest.fixture
def route(world: World) -> Route:
    return Route(world)


def live(world: World, route: Weights, num_ticks: int = 80, **more: int) -> Rollout:
    """Live with a new controller and a new router."""
    steering = Router(route, world.plan, world.number, now=world.now)
    return world.live(num_ticks, steering=steering, **more)


def command(world: World, what: OperatorCommand) -> None:
    with Store(world.path) as store:
        store.queue_command(world.number, what, why="a person said so")


def whys(world: World, what: str) -> list[str]:
    with Store(world.path) as store:
        return [event.why for event in store.events(world.number) if event.what == what]


def test_weights_follow_the_shares_and_go_back_once_the_first_server_has_the_release(
    world: World, route: Route
) -> None:
    world.verdict = "pass"
    assert live(world, route).phase is Phase.PROMOTED
    assert route.weights == [0, 100, 500, 5000, 10_000, 0]
    done = [each for each in world.actions if not each.startswith(("let", "weight set"))]
    assert done[:3] == ["weight 0", "add", "try_out"], "the route is the rollout's before a candidate is loaded"
    assert done[done.index("weight 10000") :][:3] == ["weight 10000", "promote", "weight 0"]
    assert route.present == Present(0), "and nobody's at the end"


def test_a_failing_candidate_gets_nothing_at_once(world: World, route: Route) -> None:
    live(world, route, 3)
    world.verdict = "fail"
    assert live(world, route, 2).phase is Phase.ROLLING_BACK
    assert route.present.weight == 0
    assert live(world, route).phase is Phase.ROLLED_BACK
    assert route.present.claim is None


@pytest.mark.parametrize("verdict", ["pass", "fail"])
def test_killed_at_any_moment_it_goes_on_with_the_weight_that_it_had_set(tmp_path: Path, verdict: str) -> None:
    for moment in itertools.count():
        world = world_of(tmp_path / str(moment))
        route = Route(world)
        world.verdict, world.kill_at = "undecided" if verdict == "fail" else "pass", moment
        is_killed = False
        for _ in range(2):
            try:
                live(world, route, 12)
                world.verdict = verdict  # type: ignore[assignment]
                live(world, route)
            except Killed:
                is_killed = True
        with Store(world.path) as store:
            end = store.get(world.number)
        assert end.phase is (Phase.PROMOTED if verdict == "pass" else Phase.ROLLED_BACK), moment
        changes = [
            weight for weight, before in zip(route.weights, [None, *route.weights], strict=False) if weight != before
        ]
        up = [0, 100, 500, 5000, 10_000] if verdict == "pass" else [0, 100, 500, 5000]
        assert changes == [*up, 0] or (
            verdict == "fail" and changes[-1] == 0 and up[: len(changes) - 1] == changes[:-1]
        )
        assert route.present == Present(0)
        if not is_killed:
            break
    assert moment > 15


def test_without_an_answer_shares_do_not_grow_and_a_fail_still_counts(world: World, route: Route) -> None:
    live(world, route, 2)
    route.is_away = True
    found = live(world, route, 20)
    assert (found.phase, found.step) == (Phase.RUNNING, 0)
    world.verdict = "fail"
    assert live(world, route, 20).phase is Phase.ROLLING_BACK, "and waits for the route"
    route.is_away = False
    assert live(world, route).phase is Phase.ROLLED_BACK
    assert route.present.weight == 0


def test_weights_that_are_not_in_force_are_waited_for(world: World, route: Route) -> None:
    world.verdict, route.is_pending = "pass", True
    assert live(world, route, 20).phase is Phase.STARTING
    assert "add" not in world.actions
    route.is_pending = False
    live(world, route, 8)
    route.is_pending = True
    for _ in range(3):
        found = live(world, route, 5)
    assert "promote" not in world.actions
    route.is_pending = False
    assert live(world, route).phase is Phase.PROMOTED
    assert found.phase in (Phase.RUNNING, Phase.PROMOTING)


def test_the_first_server_is_loaded_anew_only_when_the_lease_is_over(world: World, route: Route) -> None:
    world.verdict = "pass"
    while live(world, route, 1).phase is not Phase.PROMOTING:
        pass
    steering = Router(route, world.plan, world.number, now=world.now)
    world.live(5, steering=steering)
    assert "promote" not in world.actions, "a Gateway has taken the weights and may not send by them yet"
    world.live(2, steering=steering)
    assert "promote" in world.actions


def test_weights_that_the_router_refuses_end_the_rollout(world: World, route: Route) -> None:
    route.refusal = "ResolvedRefs False: BackendNotFound"
    end = live(world, route)
    assert end.phase is Phase.ROLLED_BACK
    assert "BackendNotFound" in end.reason
    assert route.present == Present(0)


def test_a_router_that_refuses_even_nothing_does_not_keep_a_rollout_open(world: World, route: Route) -> None:
    live(world, route, 3)
    command(world, OperatorCommand.ABORT)

    def refuse(weight: int, *, timeout_s: float) -> bool:
        raise WeightsRefused(f"not {weight} in {timeout_s}")

    route.wait = refuse  # type: ignore[method-assign]
    assert live(world, route).phase is Phase.ROLLED_BACK
    assert "not 0" in whys(world, "route left")[0]


def test_a_route_that_somebody_else_moves_is_held_and_left_to_them(world: World, route: Route) -> None:
    live(world, route, 3)
    route.present = Present(3000, route.present.claim, "kubectl-edit")
    held = live(world, route, 20)
    assert held.phase is Phase.HELD
    assert "somebody else moves it (kubectl-edit was the last)" in held.reason
    assert route.present.weight == 3000
    assert "decide" not in held.reason
    command(world, OperatorCommand.ABORT)
    assert live(world, route).phase is Phase.ROLLED_BACK
    assert route.present.weight == 3000
    [why] = whys(world, "route left")
    assert "gives the candidate 3000" in why


def test_a_route_that_is_gone_is_held_and_keeps_no_rollout_open(tmp_path: Path) -> None:
    cluster, world = Cluster(), gateway_world(tmp_path)
    cluster.create(http_route())
    with running(cluster) as server:
        weights = weights_named(world.plan, configuration=configured(server.url))
        live(world, weights, 3, requests_per_tick=0)
        assert weights_of(cluster.get("httproutes", "llm", "chat"))[3] == ("chat-2", 100)
        cluster.remove("httproutes", "llm", "chat")
        assert "there is no HTTPRoute llm/chat" in live(world, weights, 3, requests_per_tick=0).reason
        command(world, OperatorCommand.ABORT)
        weights = weights_named(world.plan, configuration=configured(server.url))  # of another life
        with pytest.raises(RouteTaken, match="there is no HTTPRoute llm/chat"):
            weights.check()
        assert live(world, weights).phase is Phase.ROLLED_BACK


def test_a_route_that_is_given_back_goes_on(world: World, route: Route) -> None:
    live(world, route, 3, requests_per_tick=0)
    route.present = Present(3000)  # replaced, with what the rollout had written
    assert "set 100, and the rollout goes on with it" in live(world, route, 3, requests_per_tick=0).reason
    route.present = Present(100)
    command(world, OperatorCommand.RESUME)
    world.verdict = "pass"
    assert live(world, route).phase is Phase.PROMOTED


def test_a_route_that_is_moved_at_a_share_is_noticed_within_seconds(world: World, route: Route) -> None:
    steering = Router(route, world.plan, world.number, now=world.now)
    world.live(3, steering=steering, requests_per_tick=0)
    route.present = Present(0, route.present.claim)
    assert world.live(2, steering=steering, requests_per_tick=0).phase is Phase.RUNNING
    assert world.live(5, steering=steering, requests_per_tick=0).phase is Phase.HELD


def test_a_route_that_was_taken_while_it_is_promoted_takes_the_candidate_back(world: World, route: Route) -> None:
    live(world, route, 3)
    command(world, OperatorCommand.PROMOTE)
    route.present = Present(3000)
    end = live(world, route)
    assert end.phase is Phase.ROLLED_BACK
    assert "could not be promoted" in end.reason
    assert "promote" not in world.actions


@pytest.mark.parametrize("end", [Phase.PROMOTED, Phase.ROLLED_BACK])
def test_a_rollout_moves_both_routes_of_a_gateway_over_restarts_of_everything(tmp_path: Path, end: Phase) -> None:
    cluster = Cluster()
    for made in (http_route(), grpc_route()):
        cluster.create(made)
    world = gateway_world(tmp_path)
    world.verdict = "pass"
    found: set[tuple[str, int | None]] = set()
    for life in itertools.count():
        with running(cluster) as server:
            configuration = configured(server.url)
            if life == 0:
                check = weights_named(world.plan, configuration=configuration).read()
                assert check == Present(0.0, None, check.moved_by)
            server.fails = [503] * (life % 2)
            num_ticks = 1 if life < 6 else 5  # as long as a lease, and a share for each life
            if end is Phase.ROLLED_BACK and ("chat-2", 500) in found:
                world.verdict = "fail"
            phase = live(world, weights_named_soon(world.plan, configuration), num_ticks).phase
        found |= {weights_of(cluster.get(kind, "llm", "chat"))[3] for kind in ("httproutes", "grpcroutes")}
        if phase.is_over:
            break
        assert life < 40
    assert phase is end
    assert found >= {("chat-2", 0), ("chat-2", 500)}
    assert (("chat-2", 10_000) in found) is (end is Phase.PROMOTED)
    for kind in ("httproutes", "grpcroutes"):
        route = cluster.get(kind, "llm", "chat")
        assert weights_of(route)[3] == ("chat-2", 0)
        assert route["metadata"]["annotations"] == {"meta.helm.sh/release-name": "chat"}


def gateway_world(folder: Path) -> World:
    return World(folder, second_server="/b", second_url="b:1", shares=SHARES, lease_s=2.0, **GATEWAY)


def configured(url: str) -> client.Configuration:
    found = client.Configuration(host=url)
    found.retries = False
    return found


def weights_named_soon(plan: Plan, configuration: client.Configuration) -> Weights:
    while True:
        try:
            return weights_named(plan, configuration=configuration)
        except Unavailable:
            continue


# What a plan may name.


def plan(**fields: object) -> Plan:
    return Plan(candidate=2, stable=1, release={}, salt="a1", **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "fields",
    [{"weights": "envoy:/r.yaml"}, {"weights": "envoy:/r.yml", "envoy_admins": ("a:1", "b:1")}, GATEWAY],
    ids=["envoy", "two envoys", "gateway"],
)
def test_weights_of_a_plan_are_named(fields: dict[str, object]) -> None:
    check_named(plan(**fields))


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"weights": "nginx:/r.yaml"}, "weights must be envoy:FILE, .* or gateway:NAMESPACE/ROUTE, .*; got 'nginx:"),
        ({"weights": "envoy:"}, "weights must be envoy:FILE"),
        ({"weights": "envoy:/r.json"}, "weights must end with .yaml or .yml"),
        ({"weights": "envoy:/r.yaml", "envoy_admins": ("a",)}, "envoy_admin must be HOST:PORT"),
        ({"weights": "envoy:/r.yaml", "stable_service": "chat"}, "--stable-service is for --weights gateway:"),
        ({**GATEWAY, "envoy_admins": ("a:1",)}, "--envoy-admin is for --weights envoy:"),
        ({**GATEWAY, "weights": "gateway:chat"}, "weights must be .* gateway:NAMESPACE/ROUTE"),
        ({**GATEWAY, "weights": "gateway:LLM/chat"}, "weights must be"),
        ({**GATEWAY, "stable_service": ""}, "--stable-service must be the name of a backend of the route"),
        ({**GATEWAY, "candidate_service": "chat"}, "are both chat"),
        ({**GATEWAY, "shares": (0.00005, 1.0)}, "cannot be written as a weight"),
    ],
)
def test_what_is_no_weights_is_refused(fields: dict[str, object], reason: str) -> None:
    with pytest.raises(RequestError, match=reason):
        check_named(plan(**fields))


def test_a_rollout_does_not_begin_with_a_file_of_another(tmp_path: Path) -> None:
    path = tmp_path / "routes.yaml"
    named = plan(weights=f"envoy:{path}")
    check_weights(named)
    weights_named(named).set(0, owner_of(named, 7))
    with pytest.raises(RouteTaken, match=r"belongs to rollout 7 \(a1\)"):
        check_weights(named)
    assert path.read_text().startswith("# Weights of rollout 7 (a1)")
