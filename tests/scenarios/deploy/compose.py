"""deploy/compose.yml as a container engine reads it: services with their variables replaced."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FILE = Path(__file__).parents[3] / "deploy" / "compose.yml"
VARIABLE = re.compile(r"\$\{(\w+):-([^}]*)\}")

Service = dict[str, Any]


def document(variables: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The whole file.

    Args:
        variables: of the environment; the others have their defaults.

    Raises:
        ModuleNotFoundError: PyYAML is not installed.
    """
    import yaml

    given = dict(variables or {})
    text = FILE.read_text(encoding="utf-8")
    filled = VARIABLE.sub(lambda found: given.get(found[1]) or found[2], text)
    return dict(yaml.safe_load(filled))


def services(variables: Mapping[str, str] | None = None) -> dict[str, Service]:
    """The services by name."""
    return dict(document(variables)["services"])
