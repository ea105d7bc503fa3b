"""The manifests of deploy/kubernetes: they fit Kubernetes' schemas, each other, and the programs.

No cluster has run them, which each of them says at its top.
"""

from __future__ import annotations

import json
import re
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

from sparq.nsqadmin.options import NsqadminOptions
from sparq.nsqd.options import NsqdOptions
from sparq.nsqlookupd.options import NsqlookupdOptions
from sparq.program.flags import parse
from tests.scenarios.deploy import manifests
from tests.scenarios.deploy.manifests import Resource, of_kind, with_variables
from tests.support.options import value
from tests.support.servers import spawn_nsqd, spawn_nsqlookupd

ROOT = Path(__file__).parents[3]
WARNING = "# Linted only: these manifests have not been run on a cluster."
PROGRAMS = {"nsqd": NsqdOptions, "nsqlookupd": NsqlookupdOptions}
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]


@pytest.fixture(scope="module")
def resources() -> list[Resource]:
    """All that the manifests make."""
    pytest.importorskip("yaml", reason="needs PyYAML")
    return manifests.resources()


def container_of(resources: list[Resource], name: str) -> Resource:
    """The one container of a StatefulSet."""
    (found,) = of_kind(resources, "StatefulSet")[name]["spec"]["template"]["spec"]["containers"]
    return dict(found)


def test_each_file_says_that_no_cluster_has_run_it() -> None:
    """In its first line, before anybody applies it."""
    assert ["namespace", "nsqadmin", "nsqd", "nsqlookupd", "pipeline"] == [
        one.stem for one in manifests.FILES
    ]
    for path in manifests.FILES:
        assert path.read_text(encoding="utf-8").startswith(WARNING), path.name


def test_the_schemas_of_kubernetes_hold(resources: list[Resource]) -> None:
    """Every resource and the executors' pod template, and no key that Kubernetes does not know."""
    kubernetes = pytest.importorskip("kubernetes_validate", reason="needs kubernetes-validate")
    for one in [*resources, manifests.template(resources)]:
        kubernetes.validate(one, kubernetes.latest_version(), strict=True)
    wrong = json.loads(json.dumps(of_kind(resources, "StatefulSet")["nsqd"]))
    wrong["spec"]["replica"] = 2

    with pytest.raises(kubernetes.ValidationError, match="replica"):
        kubernetes.validate(wrong, kubernetes.latest_version(), strict=True)


def test_everything_is_in_the_namespace(resources: list[Resource]) -> None:
    """Which the manifests make; no two resources of a kind have one name."""
    (namespace,) = of_kind(resources, "Namespace")
    names = [(one["kind"], one["metadata"]["name"]) for one in resources]

    assert sorted(set(names)) == sorted(names)
    for one in resources:
        assert one["kind"] == "Namespace" or one["metadata"]["namespace"] == namespace


def test_no_pod_may_more_than_it_needs(resources: list[Resource]) -> None:
    """No root, no capabilities, no writing but to volumes; executors have no way to Kubernetes."""
    for pod in manifests.pods(resources):
        context = pod.spec["securityContext"]
        assert context["runAsNonRoot"] is True, pod.name
        assert 10001 == context["runAsUser"] == context["runAsGroup"], pod.name
        assert {"type": "RuntimeDefault"} == context["seccompProfile"], pod.name
        assert (pod.name == "pipeline") == pod.spec["automountServiceAccountToken"]
        for container in pod.containers:
            assert {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            } == container["securityContext"], pod.name


def test_every_volume_is_there_and_mounted(resources: list[Resource]) -> None:
    """What a container mounts is a volume of its pod or a claim of its StatefulSet, and used."""
    sets = of_kind(resources, "StatefulSet")
    for pod in manifests.pods(resources):
        claims = sets.get(pod.name, {}).get("spec", {}).get("volumeClaimTemplates", ())
        volumes = {one["name"] for one in pod.spec.get("volumes", ())}
        volumes |= {one["metadata"]["name"] for one in claims}
        mounts = [one for each in pod.containers for one in each.get("volumeMounts", ())]
        assert volumes == {one["name"] for one in mounts}, pod.name


def test_services_lead_to_ports_of_pods(resources: list[Resource]) -> None:
    """Each service selects one kind of pod and ports that it has; each StatefulSet has its own."""
    services = of_kind(resources, "Service")
    for name, service in services.items():
        wanted = service["spec"]["selector"].items()
        (pod,) = (one for one in manifests.pods(resources) if wanted <= one.labels.items())
        ports = {one["name"]: one["containerPort"] for one in pod.containers[0]["ports"]}
        for port in service["spec"]["ports"]:
            assert port["port"] == ports[port["targetPort"]], name
    for name, one in of_kind(resources, "StatefulSet").items():
        own = services[one["spec"]["serviceName"]]
        labels = one["spec"]["template"]["metadata"]["labels"].items()
        assert "None" == own["spec"]["clusterIP"], name
        assert one["spec"]["selector"]["matchLabels"].items() <= labels, name


def test_policies_and_budgets_are_about_pods(resources: list[Resource]) -> None:
    """A selector that selects nothing would protect nothing."""
    labels = [one.labels.items() for one in manifests.pods(resources)]
    selectors = [one["spec"]["podSelector"] for one in of_kind(resources, "NetworkPolicy").values()]
    budgets = of_kind(resources, "PodDisruptionBudget").values()

    for selector in [*selectors, *(one["spec"]["selector"] for one in budgets)]:
        wanted = selector.get("matchLabels", {}).items()
        assert [one for one in labels if wanted <= one], selector


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_command_lines_of_the_daemons_are_taken(resources: list[Resource], name: str) -> None:
    """Their flags are those of the programs; nsqds register with the nsqlookupds that are made."""
    container = container_of(resources, name)
    values = {"POD_NAME": f"{name}-0", **({"POD_INDEX": "0"} if name == "nsqd" else {})}
    program, *words = with_variables(container["args"], container, values)
    count = of_kind(resources, "StatefulSet")["nsqlookupd"]["spec"]["replicas"]
    lookupds = [f"nsqlookupd-{at}.nsqlookupd.clicks.svc:4160" for at in range(count)]

    taken: Any = parse(PROGRAMS[name], name, "", words)

    assert name == program
    assert f"{name}-0.{name}.clicks.svc" == value(taken, "broadcast_address")
    if name == "nsqd":
        mounted = {one["mountPath"] for one in container["volumeMounts"]}
        assert (lookupds, 0) == (list(taken.lookupd.tcp_addresses), taken.node_id)
        assert {taken.data_path} == mounted
    else:
        assert ("*.nsqd.clicks.svc",) == taken.allow_broadcast_addresses


def test_the_command_line_of_nsqadmin_is_taken(resources: list[Resource]) -> None:
    """It asks the nsqlookupds that are made, calls their nsqds only, and keeps its log."""
    container = container_of(resources, "nsqadmin")
    count = of_kind(resources, "StatefulSet")["nsqlookupd"]["spec"]["replicas"]
    program, *words = container["args"]

    taken: Any = parse(NsqadminOptions, program, "", words)

    assert "nsqadmin" == program
    assert [f"nsqlookupd-{at}.nsqlookupd.clicks.svc:4161" for at in range(count)] == list(
        taken.lookupd_http_addresses
    )
    assert ("*.nsqd.clicks.svc",) == taken.allowed_nodes
    (mounted,) = (one["mountPath"] for one in container["volumeMounts"])
    assert f"{mounted}/audit.log" == taken.audit_log
    assert ["0.0.0.0", "4171"] == taken.http_address.split(":")
    assert [4171] == [one["containerPort"] for one in container["ports"]]
    assert "/ping" == container["readinessProbe"]["httpGet"]["path"]


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_daemons_answer_their_probes(
    resources: list[Resource], name: str, tmp_path: Path
) -> None:
    """Each path that a probe asks for is one that the program has, on its HTTP port."""
    container = container_of(resources, name)
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    probes = [container[key]["httpGet"] for key in container if key.endswith("Probe")]
    spawn = spawn_nsqd if name == "nsqd" else spawn_nsqlookupd

    assert {"nsqd": (4150, 4151), "nsqlookupd": (4160, 4161)}[name] == tuple(ports.values())
    assert {"http"} == {probe["port"] for probe in probes}
    assert "/ping" == container["readinessProbe"]["httpGet"]["path"]
    with spawn(tmp_path) as server:
        for probe in probes:
            assert 200 == server.request("GET", probe["path"])[0], probe


@pytest.fixture
def settings(resources: list[Resource], tmp_path: Path) -> Any:
    """What `sparq pipeline` makes of the file in the config map."""
    from sparq.pipeline.command import parse as parse_pipeline

    text = of_kind(resources, "ConfigMap")["pipeline"]["data"][manifests.SETTINGS]
    (tmp_path / manifests.SETTINGS).write_text(text, encoding="utf-8")
    return parse_pipeline([f"--config={tmp_path / manifests.SETTINGS}"])


def test_the_settings_of_the_pipeline_are_taken(resources: list[Resource], settings: Any) -> None:
    """Every key is one that the program has; the nsqlookupds are those that the manifests make."""
    count = of_kind(resources, "StatefulSet")["nsqlookupd"]["spec"]["replicas"]
    container = container_of(resources, "pipeline")
    (mounted,) = (one for one in container["volumeMounts"] if one["name"] == "settings")

    assert [f"nsqlookupd-{at}.nsqlookupd.clicks.svc:4161" for at in range(count)] == list(
        settings.lookupd_http_addresses
    )
    assert settings.shuffle_partitions > 0
    assert ["sparq", "pipeline", f"--config={mounted['mountPath']}/pipeline.toml"] == container[
        "args"
    ]


def test_the_driver_is_where_its_settings_say(resources: list[Resource], settings: Any) -> None:
    """Pod, name, ports, files and image: what Spark is told is what the manifests make."""
    container = container_of(resources, "pipeline")
    (mounted,) = (one for one in container["volumeMounts"] if one["name"] == "settings")
    ports = {one["name"]: str(one["containerPort"]) for one in container["ports"]}
    told = dict(settings.spark)

    assert settings.master == "k8s://https://kubernetes.default.svc:443"
    assert "pipeline-0" == told["spark.kubernetes.driver.pod.name"]
    assert "pipeline-0.pipeline.clicks.svc" == told["spark.driver.host"]
    assert "clicks" == told["spark.kubernetes.namespace"]
    assert container["image"] == told["spark.kubernetes.container.image"]
    template = told["spark.kubernetes.executor.podTemplateFile"]
    assert f"{mounted['mountPath']}/{manifests.TEMPLATE}" == template
    assert ports == {
        "driver": told["spark.driver.port"],
        "blocks": told["spark.driver.blockManager.port"],
        "ui": told["spark.ui.port"],
        "metrics": settings.metrics_address.rpartition(":")[2],
    }


def test_spark_knows_its_settings_for_kubernetes(settings: Any) -> None:
    """A misspelt one would be ignored without a word: each stands in the installed Spark's code."""
    pyspark = pytest.importorskip("pyspark", reason="needs pyspark")
    (jar,) = (Path(pyspark.__file__).parent / "jars").glob("spark-kubernetes_*.jar")
    with zipfile.ZipFile(jar) as archive:
        code = archive.read("org/apache/spark/deploy/k8s/Config$.class")
    known = set(re.findall(rb"spark\.kubernetes\.[A-Za-z.]+", code))
    told = {key.encode() for key, _ in settings.spark if key.startswith("spark.kubernetes.")}

    assert {b"spark.kubernetes.namespace"} < told
    assert set() == told - known


def test_the_driver_may_do_with_pods_what_it_does(resources: list[Resource]) -> None:
    """Its service account, bound to a role about pods and nothing else."""
    (binding,) = of_kind(resources, "RoleBinding").values()
    (role,) = of_kind(resources, "Role").values()
    (account,) = of_kind(resources, "ServiceAccount")
    pod = of_kind(resources, "StatefulSet")["pipeline"]["spec"]["template"]["spec"]

    assert account == pod["serviceAccountName"] == binding["subjects"][0]["name"]
    assert role["metadata"]["name"] == binding["roleRef"]["name"]
    assert [["pods"]] == [rule["resources"] for rule in role["rules"]]


def test_the_heap_fits_into_the_container(resources: list[Resource], settings: Any) -> None:
    """Half of the memory is left for the driver's Python, and for Java beside its heap."""
    limit = container_of(resources, "pipeline")["resources"]["limits"]["memory"]

    assert ("2g", "4Gi") == (settings.driver_memory, limit)


def test_images_are_those_that_are_built(resources: list[Resource]) -> None:
    """A target of the Dockerfile each, in the version of this project."""
    text = (ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^FROM .* AS (\S+)$", text, re.M))
    images = [
        one["image"]
        for pod in manifests.pods(resources)
        for one in pod.containers
        if "image" in one
    ]

    for image in images:
        found = re.fullmatch(rf"registry\.example/sparq-(\w+):{re.escape(VERSION)}", image)
        assert found is not None, image
        assert found[1] in targets


def test_there_is_time_to_stop(resources: list[Resource]) -> None:
    """Longer than the programs take: nsqd two seconds, the pipeline's queries a minute at most."""
    times = {
        name: one["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
        for name, one in of_kind(resources, "StatefulSet").items()
    }

    assert {"nsqadmin": 10, "nsqd": 30, "nsqlookupd": 10, "pipeline": 120} == times
