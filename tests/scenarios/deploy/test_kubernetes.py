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

from sparq.nsqd.options import NsqdOptions
from sparq.nsqlookupd.options import NsqlookupdOptions
from sparq.program.flags import parse
from tests.scenarios.deploy import manifests
from tests.scenarios.deploy.manifests import Resource, of_kind, with_variables
from tests.support.options import value

ROOT = Path(__file__).parents[3]
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


def test_resources_match_the_schemas_of_kubernetes(resources: list[Resource]) -> None:
    """Every resource and the executors' pod template match the schemas, without unknown keys."""
    kubernetes = pytest.importorskip("kubernetes_validate", reason="needs kubernetes-validate")
    for one in [*resources, manifests.template(resources)]:
        kubernetes.validate(one, kubernetes.latest_version(), strict=True)
    wrong = json.loads(json.dumps(of_kind(resources, "StatefulSet")["nsqd"]))
    wrong["spec"]["replica"] = 2

    with pytest.raises(kubernetes.ValidationError, match="replica"):
        kubernetes.validate(wrong, kubernetes.latest_version(), strict=True)


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
