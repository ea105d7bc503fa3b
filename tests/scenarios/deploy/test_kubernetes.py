"""The manifests of deploy/kubernetes match Kubernetes' schemas, each other, and the programs.

No cluster has run them, as the top of each file states.
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
    """All resources of the manifests."""
    pytest.importorskip("yaml", reason="needs PyYAML")
    return manifests.resources()


def container_of(resources: list[Resource], name: str) -> Resource:
    """The only container of a StatefulSet."""
    (found,) = of_kind(resources, "StatefulSet")[name]["spec"]["template"]["spec"]["containers"]
    return dict(found)


def test_a_note_states_that_no_cluster_has_run_each_file() -> None:
    """The first line of each file states that no cluster has run it."""
    assert ["namespace", "nsqadmin", "nsqd", "nsqlookupd", "pipeline"] == [
        one.stem for one in manifests.FILES
    ]
    for path in manifests.FILES:
        assert path.read_text(encoding="utf-8").startswith(WARNING), path.name


def test_resources_match_the_schemas_of_kubernetes(resources: list[Resource]) -> None:
    """Every resource and the executors' pod template match the schemas, without unknown keys."""
    kubernetes = pytest.importorskip("kubernetes_validate", reason="needs kubernetes-validate")
    for one in [*resources, manifests.template(resources)]:
        kubernetes.validate(one, kubernetes.latest_version(), strict=True)
    wrong = json.loads(json.dumps(of_kind(resources, "StatefulSet")["nsqd"]))
    wrong["spec"]["replica"] = 2

    with pytest.raises(kubernetes.ValidationError, match="replica"):
        kubernetes.validate(wrong, kubernetes.latest_version(), strict=True)


def test_everything_is_in_the_namespace(resources: list[Resource]) -> None:
    """Every resource is in the namespace that the manifests create.

    Names are unique for each kind.
    """
    (namespace,) = of_kind(resources, "Namespace")
    names = [(one["kind"], one["metadata"]["name"]) for one in resources]

    assert sorted(set(names)) == sorted(names)
    for one in resources:
        assert one["kind"] == "Namespace" or one["metadata"]["namespace"] == namespace


def test_pods_have_least_privileges(resources: list[Resource]) -> None:
    """Pods are not root, have no capabilities, and write only to volumes.

    Executors get no API token.
    """
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


def test_every_volume_exists_and_is_mounted(resources: list[Resource]) -> None:
    """Each mount is a volume of the pod or a claim of its StatefulSet; none is unused."""
    sets = of_kind(resources, "StatefulSet")
    for pod in manifests.pods(resources):
        claims = sets.get(pod.name, {}).get("spec", {}).get("volumeClaimTemplates", ())
        volumes = {one["name"] for one in pod.spec.get("volumes", ())}
        volumes |= {one["metadata"]["name"] for one in claims}
        mounts = [one for each in pod.containers for one in each.get("volumeMounts", ())]
        assert volumes == {one["name"] for one in mounts}, pod.name


def test_services_select_ports_of_pods(resources: list[Resource]) -> None:
    """Each service selects one kind of pod and its ports.

    Each StatefulSet has a headless service.
    """
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


def test_policies_and_budgets_select_pods(resources: list[Resource]) -> None:
    """Every selector of policies and budgets matches a pod: otherwise it would protect nothing."""
    labels = [one.labels.items() for one in manifests.pods(resources)]
    selectors = [one["spec"]["podSelector"] for one in of_kind(resources, "NetworkPolicy").values()]
    budgets = of_kind(resources, "PodDisruptionBudget").values()

    for selector in [*selectors, *(one["spec"]["selector"] for one in budgets)]:
        wanted = selector.get("matchLabels", {}).items()
        assert [one for one in labels if wanted <= one], selector


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_daemons_accept_their_command_lines(resources: list[Resource], name: str) -> None:
    """The daemons accept their arguments; nsqds register with exactly the nsqlookupds created."""
    container = container_of(resources, name)
    values = {"POD_NAME": f"{name}-0", **({"POD_INDEX": "0"} if name == "nsqd" else {})}
    program, *words = with_variables(container["args"], container, values)
    count = of_kind(resources, "StatefulSet")["nsqlookupd"]["spec"]["replicas"]
    lookupds = [f"nsqlookupd-{at}.nsqlookupd.clicks.svc:4160" for at in range(count)]

    taken: Any = parse(PROGRAMS[name], name, words)

    assert name == program
    assert f"{name}-0.{name}.clicks.svc" == value(taken, "broadcast_address")
    if name == "nsqd":
        mounted = {one["mountPath"] for one in container["volumeMounts"]}
        assert (lookupds, 0) == (list(taken.lookupd.tcp_addresses), taken.node_id)
        assert {taken.data_path} == mounted
    else:
        assert ("*.nsqd.clicks.svc",) == taken.allow_broadcast_addresses


def test_nsqadmin_accepts_its_command_line(resources: list[Resource]) -> None:
    """nsqadmin uses the nsqlookupds created, calls only their nsqds, and stores its audit log."""
    container = container_of(resources, "nsqadmin")
    count = of_kind(resources, "StatefulSet")["nsqlookupd"]["spec"]["replicas"]
    program, *words = container["args"]

    taken: Any = parse(NsqadminOptions, program, words)

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
    """Each path of a probe exists on the daemon's HTTP port."""
    container = container_of(resources, name)
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    probes = [container[key]["httpGet"] for key in container if key.endswith("Probe")]
    spawn = spawn_nsqd if name == "nsqd" else spawn_nsqlookupd

    assert {"nsqd": (4150, 4151), "nsqlookupd": (4160, 4161)}[name] == tuple(ports.values())
    assert {"http"} == {probe["port"] for probe in probes}
    assert "/ping" == container["readinessProbe"]["httpGet"]["path"]
    if name == "nsqd":  # a full disk fails /ping; a restart would not free it
        assert "/live" == container["livenessProbe"]["httpGet"]["path"]
    with spawn(tmp_path) as server:
        for probe in probes:
            assert 200 == server.request("GET", probe["path"])[0], probe


@pytest.fixture
def settings(resources: list[Resource], tmp_path: Path) -> Any:
    """The options that `sparq pipeline` parses from the file in the config map."""
    from sparq.pipeline.command import parse as parse_pipeline

    text = of_kind(resources, "ConfigMap")["pipeline"]["data"][manifests.SETTINGS]
    (tmp_path / manifests.SETTINGS).write_text(text, encoding="utf-8")
    return parse_pipeline([f"--config={tmp_path / manifests.SETTINGS}"])


def test_the_pipeline_accepts_its_settings(resources: list[Resource], settings: Any) -> None:
    """`sparq pipeline` knows every key; the nsqlookupds are those that the manifests create."""
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


def test_the_drivers_settings_match_the_manifests(resources: list[Resource], settings: Any) -> None:
    """Spark's settings for pod, name, ports, files and image match the manifests."""
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


def test_spark_has_every_kubernetes_setting(settings: Any) -> None:
    """Each Kubernetes setting is in Spark's code, since Spark ignores unknown ones silently."""
    pyspark = pytest.importorskip("pyspark", reason="needs pyspark")
    (jar,) = (Path(pyspark.__file__).parent / "jars").glob("spark-kubernetes_*.jar")
    with zipfile.ZipFile(jar) as archive:
        code = archive.read("org/apache/spark/deploy/k8s/Config$.class")
    known = set(re.findall(rb"spark\.kubernetes\.[A-Za-z.]+", code))
    told = {key.encode() for key, _ in settings.spark if key.startswith("spark.kubernetes.")}

    assert {b"spark.kubernetes.namespace"} < told
    assert set() == told - known


def test_the_driver_has_rights_for_pods_only(resources: list[Resource]) -> None:
    """The driver's service account is bound to a role for pods and nothing else."""
    (binding,) = of_kind(resources, "RoleBinding").values()
    (role,) = of_kind(resources, "Role").values()
    (account,) = of_kind(resources, "ServiceAccount")
    pod = of_kind(resources, "StatefulSet")["pipeline"]["spec"]["template"]["spec"]

    assert account == pod["serviceAccountName"] == binding["subjects"][0]["name"]
    assert role["metadata"]["name"] == binding["roleRef"]["name"]
    assert [["pods"]] == [rule["resources"] for rule in role["rules"]]


def test_the_heap_fits_into_the_container(resources: list[Resource], settings: Any) -> None:
    """The heap is half of the memory limit: the rest is for Python, and Java outside the heap."""
    limit = container_of(resources, "pipeline")["resources"]["limits"]["memory"]

    assert ("2g", "4Gi") == (settings.driver_memory, limit)


def test_every_image_is_a_target_of_the_dockerfile(resources: list[Resource]) -> None:
    """Each image is a target of the Dockerfile, with this project's version."""
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


def test_grace_periods_exceed_the_time_to_stop(resources: list[Resource]) -> None:
    """The grace periods exceed the time to stop: nsqd 2 s, the pipeline's queries up to 60 s."""
    times = {
        name: one["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
        for name, one in of_kind(resources, "StatefulSet").items()
    }

    assert {"nsqadmin": 10, "nsqd": 30, "nsqlookupd": 10, "pipeline": 120} == times
