"""The Kubernetes manifests of deploy/, parsed: resources, pods and the pipeline's settings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DEPLOY = Path(__file__).parents[3] / "deploy"
FILES = sorted((DEPLOY / "kubernetes").glob("*.yml"))
TEMPLATE = "executor.yml"
SETTINGS = "pipeline.toml"

Resource = dict[str, Any]


@dataclass(frozen=True)
class Pod:
    """A pod of the manifests: its name in failure messages, and its spec."""

    name: str
    spec: Resource

    @property
    def containers(self) -> list[Resource]:
        """All containers of the pod."""
        return list(self.spec["containers"])


def resources() -> list[Resource]:
    """Every document of every file.

    Raises:
        ModuleNotFoundError: PyYAML is not installed.
    """
    import yaml

    texts = [path.read_text(encoding="utf-8") for path in FILES]
    return [document for text in texts for document in yaml.safe_load_all(text)]


def of_kind(found: list[Resource], kind: str) -> dict[str, Resource]:
    """The resources of a kind, by name."""
    return {one["metadata"]["name"]: one for one in found if one["kind"] == kind}


def template(found: list[Resource]) -> Resource:
    """The pod template for executors that Spark's driver gets."""
    import yaml

    return dict(yaml.safe_load(of_kind(found, "ConfigMap")["pipeline"]["data"][TEMPLATE]))


def pods(found: list[Resource]) -> Iterator[Pod]:
    """Every pod that the manifests create."""
    for name, one in of_kind(found, "StatefulSet").items():
        made = one["spec"]["template"]
        yield Pod(name, made["spec"])
    executor = template(found)
    yield Pod("executor", executor["spec"])


def with_variables(words: list[str], container: Resource, values: dict[str, str]) -> list[str]:
    """A container's arguments with its variables replaced, as Kubernetes does.

    Args:
        words: the arguments.
        container: it must define these variables.
        values: the value of each variable.
    """
    names = {one["name"] for one in container.get("env", ())}
    assert set(values) <= names
    for name, value in values.items():
        words = [word.replace(f"$({name})", value) for word in words]
    assert not [word for word in words if "$(" in word]
    return words
