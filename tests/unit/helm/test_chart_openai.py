# SPDX-License-Identifier: Apache-2.0
"""The chart's gateway: its pod, whom it asks, who reaches it, how it ends and scales, and what is refused by name."""

import itertools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml
from chart_here import (
    IMAGES,
    NOTES,
    ChartRefused,
    Documents,
    Values,
    deployment_values,
    merged,
    needs_chart,
    of_kind,
    render,
    render_texts,
)
from chart_matrix import CANARY, SITES, deployments, pods_of, selects, without_labels
from chart_values import server
from kubernetes_structures import BackendTlsPolicy, HttpRoute
from test_chart_examples import scanned
from typer.core import TyperGroup

from observability.rules.alerts import alert_groups
from observability.rules.objectives import Objectives
from observability.rules.rule_files import Alert, Record
from trireme.base.project_files import CODE_ROOT
from trireme.commands import command_app

pytestmark = [pytest.mark.slow, needs_chart]
PLAIN, ALL = SITES["openai"], SITES["openai, all of it"]


@pytest.fixture(scope="module")
def servers() -> dict[str, dict[str, Any]]:
    return deployments()


def is_gateway(document: Mapping[str, Any]) -> bool:
    return bool(document["metadata"]["labels"].get("app.kubernetes.io/component") == "openai")


def of_gateway(documents: Documents, kind: str) -> dict[str, Any]:
    [found] = [each for each in of_kind(documents, kind) if is_gateway(each)]
    return found


def pod_of(documents: Documents) -> dict[str, Any]:
    [pod] = [pod for pod in pods_of(documents) if is_gateway(pod)]
    return dict(pod)


def container_of(documents: Documents) -> dict[str, Any]:
    [container] = pod_of(documents)["spec"]["containers"]
    return dict(container)


def options_of(documents: Documents) -> dict[str, list[str]]:
    """Return the values of each option of the command."""
    command = container_of(documents)["command"]
    assert command[:3] == ["trireme", "gateway", "serve"]
    found: dict[str, list[str]] = {}
    for word, following in itertools.pairwise([*command[3:], ""]):
        if word.startswith("--"):
            found.setdefault(word, []).append("" if following.startswith("--") else following)
    return found


def test_by_default_there_is_none(servers: Mapping[str, Values]) -> None:
    assert [each for each in render(servers["several"]) if is_gateway(each)] == []


def test_it_asks_every_pod_of_the_stable_servers(servers: Mapping[str, Values]) -> None:
    documents = render(merged(servers["canary"], PLAIN, CANARY))
    assert options_of(documents)["--url"] == ["dns:///chat-canary-chat-pods.llm.svc.cluster.local:8001"]
    documents = render(merged(servers["several"], PLAIN, {"clusterDomain": "example.org", "ports": {"grpc": 9001}}))
    urls = options_of(documents)["--url"]
    assert urls == [f"dns:///chat-several-{name}-pods.llm.svc.example.org:9001" for name in ("chat", "code", "draft")]
    pages = options_of(documents)["--metrics-url"]
    assert pages == [f"dns:///chat-several-{name}-pods.llm.svc.example.org:8002" for name in ("chat", "code", "draft")]
    headless = {each["metadata"]["name"] for each in of_kind(documents, "Service") if each["spec"].get("clusterIP")}
    assert {url.removeprefix("dns:///").split(".")[0] for url in urls} == headless


@pytest.mark.parametrize("site", ["openai", "openai, all of it"])
def test_its_options_are_those_of_the_command(servers: Mapping[str, Values], site: str) -> None:
    commands = typer.main.get_command(command_app("gateway"))
    assert isinstance(commands, TyperGroup)
    known = {
        name for parameter in commands.commands["serve"].params for name in (*parameter.opts, *parameter.secondary_opts)
    }
    for more in ({}, SITES["TLS of Triton's own"]):
        assert set(options_of(render(merged(servers["one"], SITES[site], more)))) <= known


def test_the_deployments_rules_for_gateways_reach_it(tmp_path: Path) -> None:
    path = tmp_path / "deployment.yaml"
    model = {"tokenizer": {"dir": "/models/t"}, "engine": {"provider": "simulated"}}
    rules = {"aliases": {"gpt-4o": "chat"}, "answer_cache": {"ttl_s": 60.0}}
    path.write_text(yaml.safe_dump({"name": "chat", **model, "gateway": rules}))
    documents = render(merged(deployment_values(path), IMAGES, ALL, {"openai": {"cache": {"url": "redis://r:6379/1"}}}))
    pod = pod_of(documents)
    served = yaml.safe_load(pod["metadata"]["annotations"]["trireme/deployment"])
    assert served["gateway"] == rules
    [of_server] = [each for each in pods_of(documents) if not is_gateway(each)]
    assert "gateway" not in yaml.safe_load(of_server["metadata"]["annotations"]["trireme/deployment"])
    assert options_of(documents)["--cache"] == ["redis://r:6379/1"]


def test_keys_of_a_secret_or_of_a_database(servers: Mapping[str, Values]) -> None:
    documents = render(merged(servers["one"], PLAIN))
    options, container = options_of(documents), container_of(documents)
    assert options["--token-file"] == ["/etc/trireme/keys/keys.txt"]
    assert "--keys" not in options
    assert {"name": "keys", "mountPath": "/etc/trireme/keys", "readOnly": True} in container["volumeMounts"]
    documents = render(merged(servers["one"], ALL))
    options = options_of(documents)
    assert "--token-file" not in options
    assert options["--keys"] == options["--ledger"] == ["postgresql://gateway@db.data:5432/gateway"]
    env = {each["name"]: each for each in container_of(documents)["env"]}
    for name, secret in (("PGPASSWORD", "gateway-db"), ("REDISCLI_AUTH", "gateway-redis")):
        assert env[name]["valueFrom"] == {"secretKeyRef": {"name": secret, "key": name}}


def test_with_a_ledger_each_pod_has_a_volume_that_outlives_it(servers: Mapping[str, Values]) -> None:
    assert of_gateway(render(merged(servers["one"], PLAIN)), "Deployment")["spec"]["replicas"] == 2
    documents = render(merged(servers["one"], ALL))
    spec = of_gateway(documents, "StatefulSet")["spec"]
    [claim] = spec["volumeClaimTemplates"]
    [mount] = [each for each in container_of(documents)["volumeMounts"] if each["name"] == claim["metadata"]["name"]]
    [journal] = options_of(documents)["--ledger-journal"]
    assert Path(journal).is_relative_to(mount["mountPath"])
    assert spec["persistentVolumeClaimRetentionPolicy"] == {"whenDeleted": "Retain", "whenScaled": "Retain"}
    assert "replicas" not in spec  # an autoscaler's
    scaler = of_gateway(documents, "HorizontalPodAutoscaler")["spec"]
    assert scaler["scaleTargetRef"]["kind"] == "StatefulSet"
    assert [metric["type"] for metric in scaler["metrics"]] == ["Resource", "Pods"]


def test_its_autoscaler_is_taken_for_no_servers_by_the_alerts(servers: Mapping[str, Values]) -> None:
    """Also where the installation is called trireme."""
    documents = render(merged(servers["one"], ALL, SITES["hpa"]), name="trireme")
    names = {is_gateway(each): each["metadata"]["name"] for each in of_kind(documents, "HorizontalPodAutoscaler")}
    for alert in ("TriremeGpuIdle", "TriremeScalingBlind"):
        [rule] = [rule for group in alert_groups(Objectives()) for rule in group.rules if rule_name(rule) == alert]
        selectors = re.findall(r"kube_horizontalpodautoscaler_\w+{([^}]*)}", rule.expr)
        assert selectors
        for selector in selectors:
            patterns = re.findall(r'horizontalpodautoscaler(=~|!~)"([^"]*)"', selector)
            for name, is_meant in ((names[False], True), (names[True], False)):
                fits = all((re.fullmatch(pattern, name) is not None) == (kind == "=~") for kind, pattern in patterns)
                assert fits == is_meant, (alert, name)


def rule_name(rule: Alert | Record) -> str:
    return rule.name if isinstance(rule, Alert) else rule.record


@pytest.mark.parametrize(
    ("openai", "drain", "exit_s"),
    [
        ({}, {}, 235),
        ({"timeoutSeconds": 100}, {}, 100),  # no request lasts longer
        ({}, {"timeoutSeconds": 60}, 60),
        ({"exitTimeoutSeconds": 0}, {}, 0),
    ],
)
def test_running_streams_have_as_long_to_end_as_an_answer_may_take(
    servers: Mapping[str, Values], openai: Any, drain: Any, exit_s: int
) -> None:
    site = {"openai": {"timeoutSeconds": 3600, "drainSeconds": 7, **openai}, "drain": drain}
    documents = render(merged(servers["one"], PLAIN, site))
    assert options_of(documents)["--exit-timeout-s"] == [str(exit_s)]
    assert pod_of(documents)["spec"]["terminationGracePeriodSeconds"] == 7 + exit_s + 15
    assert container_of(documents)["lifecycle"]["preStop"]["exec"]["command"] == ["sleep", "7"]


def test_it_runs_as_the_servers_do_and_has_no_token(servers: Mapping[str, Values], tmp_path: Path) -> None:
    documents = render(merged(servers["gpus"], ALL, SITES["pulled to a claim"]))
    [of_server] = [pod["spec"] for pod in pods_of(documents) if not is_gateway(pod)]
    pod = pod_of(documents)["spec"]
    assert pod["securityContext"] == of_server["securityContext"]
    assert pod["containers"][0]["securityContext"] == of_server["containers"][0]["securityContext"]
    assert pod["containers"][0]["image"] == of_server["containers"][0]["image"]
    assert pod["automountServiceAccountToken"] is False
    assert not any("gpu" in key for key in pod["containers"][0]["resources"]["limits"])
    assert "releases" in {volume["name"] for volume in pod["volumes"]}  # their chat templates
    own = {"openai": {"image": {"digest": "sha256:" + "f" * 64}}}
    assert container_of(render(merged(servers["one"], PLAIN, own)))["image"].endswith("f" * 64)
    found = scanned([each for each in documents if is_gateway(each)], tmp_path)
    assert found == ["CKV_K8S_35"]  # passwords in the environment, where libpq and Redis look for them


def test_whom_it_reaches_and_who_reaches_it(servers: Mapping[str, Values]) -> None:
    documents = render(merged(servers["one"], ALL))
    policies = {is_gateway(each): each["spec"] for each in of_kind(documents, "NetworkPolicy")}
    ports = [{"port": "grpc"}, {"port": "metrics"}]
    [from_gateway] = [rule for rule in policies[False]["ingress"] if rule["ports"] == ports]
    pods = {is_gateway(pod): pod for pod in pods_of(documents)}
    assert selects(from_gateway["from"][0]["podSelector"]["matchLabels"], pods[True])
    assert not selects(from_gateway["from"][0]["podSelector"]["matchLabels"], pods[False])
    [callers] = policies[True]["ingress"]
    assert callers["from"] == [*ALL["openai"]["clients"], *ALL["network"]["monitoring"]]
    _, to_servers, *others = policies[True]["egress"]
    assert selects(to_servers["to"][0]["podSelector"]["matchLabels"], pods[False])
    assert to_servers["ports"] == ports
    assert others == ALL["openai"]["egress"]
    [policy] = [each for each in of_kind(render(merged(servers["one"], PLAIN)), "NetworkPolicy") if is_gateway(each)]
    assert policy["spec"]["ingress"] == []


def test_probes_ask_what_a_request_would_find(servers: Mapping[str, Values]) -> None:
    documents = render(merged(servers["one"], PLAIN))
    container = container_of(documents)
    paths = {kind: container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "readiness", "liveness")}
    # Not of every model: with one of several away all gateways would go.
    assert paths == {
        "startup": "/health/live",
        "readiness": "/health/ready?models=any",
        "liveness": "/health/live",
    }
    service = of_gateway(documents, "Service")
    assert selects(service["spec"]["selector"], pod_of(documents))
    assert of_gateway(documents, "PodDisruptionBudget")["spec"]["maxUnavailable"] == 1


def test_servers_with_tls_of_their_own_are_asked_by_the_name_in_their_certificate(
    servers: Mapping[str, Values],
) -> None:
    documents = render(merged(servers["one"], PLAIN, SITES["TLS of Triton's own"]))
    options = options_of(documents)
    assert options["--url"] == ["grpcs+dns:///chat-one-chat-pods.llm.svc.cluster.local:8001"]
    assert options["--metrics-url"] == ["dns:///chat-one-chat-pods.llm.svc.cluster.local:8002"]
    assert options["--server-name"] == ["chat.models.svc"]
    assert options["--server-ca-file"] == ["/etc/trireme/grpc-tls/ca.crt"]
    assert options["--server-cert-file"] == ["/etc/trireme/grpc-tls/tls.crt"]
    [volume] = [each for each in pod_of(documents)["spec"]["volumes"] if each["name"] == "grpc-tls"]
    assert volume["secret"]["secretName"] == "envoy-client"


def test_a_gateway_of_kubernetes_leads_to_it_and_checks_its_certificate(servers: Mapping[str, Values]) -> None:
    documents = render(merged(servers["one"], ALL))
    route, policy = of_gateway(documents, "HTTPRoute"), of_gateway(documents, "BackendTLSPolicy")
    HttpRoute.model_validate(without_labels(route))
    BackendTlsPolicy.model_validate(without_labels(policy))
    [rule] = route["spec"]["rules"]
    assert rule["timeouts"] == {"request": "0s"}
    service = of_gateway(documents, "Service")
    assert rule["backendRefs"] == [{"name": service["metadata"]["name"], "port": service["spec"]["ports"][0]["port"]}]
    [target] = policy["spec"]["targetRefs"]
    assert (target["name"], target["sectionName"]) == (service["metadata"]["name"], service["spec"]["ports"][0]["name"])


def test_an_ingress_leads_to_it_with_the_controller_s_own_annotations(servers: Mapping[str, Values]) -> None:
    ingress = of_gateway(render(merged(servers["one"], ALL)), "Ingress")
    assert ingress["metadata"]["annotations"] == ALL["openai"]["ingress"]["annotations"]
    spec = ingress["spec"]
    assert spec["ingressClassName"] == "nginx"
    assert spec["tls"] == [{"secretName": "llm-tls", "hosts": ["llm.example.com", "llm.example.org"]}]
    assert [rule["host"] for rule in spec["rules"]] == ["llm.example.com", "llm.example.org"]
    service = of_gateway(render(merged(servers["one"], ALL)), "Service")
    [port] = service["spec"]["ports"]
    backend = {"service": {"name": service["metadata"]["name"], "port": {"number": port["port"]}}}
    for rule in spec["rules"]:
        assert rule["http"]["paths"] == [{"path": "/v1", "pathType": "Prefix", "backend": backend}]


def test_an_ingress_of_no_name_is_for_every_one(servers: Mapping[str, Values]) -> None:
    plain = {"openai": {"ingress": {"enabled": True, "paths": ["/"]}, "clients": [{"namespaceSelector": {}}]}}
    ingress = of_gateway(render(merged(servers["one"], PLAIN, plain)), "Ingress")
    assert "annotations" not in ingress["metadata"]
    assert set(ingress["spec"]) == {"rules"}
    [rule] = ingress["spec"]["rules"]
    assert set(rule) == {"http"}
    assert [each["path"] for each in rule["http"]["paths"]] == ["/"]
    assert [each for each in render(merged(servers["one"], PLAIN)) if each["kind"] == "Ingress"] == []


def test_the_annotations_of_the_documents_stream_and_ask_by_tls(servers: Mapping[str, Values]) -> None:
    [block] = [
        block
        for block in re.findall(r"```yaml\n(.*?)```", (CODE_ROOT / "docs/kubernetes.md").read_text("utf-8"), re.DOTALL)
        if "ingress:" in block and "nginx" in block
    ]
    values = yaml.safe_load(block)
    ingress = of_gateway(render(merged(servers["one"], PLAIN, values)), "Ingress")
    said = {name.rpartition("/")[2]: value for name, value in ingress["metadata"]["annotations"].items()}
    assert (said["backend-protocol"], said["proxy-buffering"]) == ("HTTPS", "off")
    assert int(said["proxy-read-timeout"]) >= 600  # as long as a request may take, and more than a pause of a stream
    assert said["proxy-body-size"] == "8m"


def notes(*layers: Values) -> str:
    [text] = [text for path, text in render_texts(merged(*layers)).items() if path.endswith(NOTES)]
    return text


def test_the_notes_say_where_it_is_and_what_is_missing(servers: Mapping[str, Values]) -> None:
    text = notes(servers["one"], PLAIN)
    assert "https://chat-one-openai.llm/v1" in text
    assert "openai.clients is empty" in text
    assert "openai.clients is empty" not in notes(servers["one"], ALL)
    assert "openai.limits.url is empty" in notes(
        servers["one"], ALL, {"openai": {"limits": {"url": ""}, "redisSecret": ""}}
    )
    assert "its requests go to stable releases alone" in notes(servers["canary"], PLAIN, CANARY)
    assert "openai.metricsSecret is empty" in notes(servers["one"], PLAIN, SITES["watched"])


REFUSED: dict[str, tuple[Values, str]] = {
    "no deployment": ({"openai": {"deployment": ""}}, "openai.deployment is missing"),
    "no TLS": ({"openai": {"tls": {"secret": ""}}}, "openai.tls.secret is missing"),
    "no keys": ({"openai": {"keys": {"url": ""}}}, "openai.keys.url and openai.keys.secret are both empty"),
    "two kinds of keys": ({"openai": {"keys": {"secret": "k"}}}, 'openai.keys.secret is "k", and openai.keys.url'),
    "a database that no policy allows": ({"openai": {"egress": []}}, "openai.egress is empty, and openai."),
    "another database": ({"openai": {"ledger": {"url": "mysql://u@h/d"}}}, "at '/openai/ledger/url'"),
    "another cache": ({"openai": {"limits": {"url": "memcached://h"}}}, "at '/openai/limits/url'"),
    "a cache of nothing": ({"openai": {"cache": {"url": "redis://h:6379/1"}}}, "the deployment keeps none"),
    "a password of no database": (
        {"openai": {"keys": {"url": "", "secret": "k"}, "ledger": {"url": ""}}},
        'openai.databaseSecret is "gateway-db", and neither',
    ),
    "a password of no Redis": (
        {"openai": {"limits": {"url": ""}}},
        'openai.redisSecret is "gateway-redis", and neither',
    ),
    "fewer than least": ({"openai": {"scaling": {"minReplicas": 9}}}, r"openai.scaling.maxReplicas \(8\) is less than"),
    "a route without a Gateway": ({"gatewayApi": {"enabled": False}}, "openai.route.enabled is true, and gatewayApi"),
    "a route without an authority": (
        {"openai": {"route": {"caConfigMap": ""}}},
        "openai.route.caConfigMap and openai.tls",
    ),
    "an Ingress that no policy allows": (
        {"openai": {"clients": [], "ingress": {"enabled": True}}},
        "openai.clients is empty, and openai.ingress.enabled is true",
    ),
    "a host of an Ingress that is none": (
        {"openai": {"ingress": {"hostnames": ["https://llm"]}}},
        "at '/openai/ingress/hostnames/0'",
    ),
    "metrics of no name": (
        {"openai": {"tls": {"serverName": ""}, "route": {"enabled": False}}},
        "openai.tls.serverName is missing, and openai.metricsSecret is given",
    ),
    "a port of servers": ({"openai": {"port": 8001}}, "openai.port 8001 is ports.grpc"),
    "a name that a server has": ({"servers": {"openai": server()}}, "-openai in Kubernetes, which the gateway has"),
    "no port": ({"openai": {"port": 80}}, "at '/openai/port'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_could_not_work_is_refused_by_name(servers: Mapping[str, Values], case: str) -> None:
    values, message = REFUSED[case]
    assert render(merged(servers["canary"], ALL))
    with pytest.raises(ChartRefused, match=message):
        render(merged(servers["canary"], ALL, values))


@pytest.mark.parametrize("field", ["keys", "ledger", "limits"])
def test_a_password_in_an_address_is_refused_and_not_shown(servers: Mapping[str, Values], field: str) -> None:
    url = "redis://:hidden@r:6379/0" if field == "limits" else "postgresql://u:hidden@db:5432/gateway"
    with pytest.raises(ChartRefused, match=rf"openai\.{field}\.url has a password") as refused:
        render(merged(servers["one"], ALL, {"openai": {field: {"url": url}}}))
    assert "hidden" not in str(refused.value)
