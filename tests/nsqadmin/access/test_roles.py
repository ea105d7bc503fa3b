"""Roles and their names."""

import pytest

from sparq.nsqadmin import access as roles
from sparq.nsqadmin.access import Role


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("read", Role.READ),
        ("administer", Role.ADMINISTER),
        ("operate, bodies", Role.OPERATE | Role.BODIES),
        ("none", Role.NONE),
        ("operate,publish", Role.OPERATE | Role.PUBLISH),
    ],
)
def test_roles_are_read_from_a_list(text: str, found: Role) -> None:
    """Roles are read from a comma-separated list, as in options and the token file."""
    assert found == roles.parse(text)


@pytest.mark.parametrize("text", ["", "admin", "read,", "READ", "none,read", "read;operate"])
def test_an_unknown_role_is_refused(text: str) -> None:
    """A misspelt role raises RoleError: it must not grant more or less than was meant."""
    with pytest.raises(roles.RoleError):
        roles.parse(text)


def test_grants_are_added_up_by_user() -> None:
    """A user may be listed twice, and a name may contain an equals sign."""
    grants = roles.parse_grants(["bob=operate", "a=b@x=operate", "bob=bodies"])

    assert {"bob": Role.OPERATE | Role.BODIES, "a=b@x": Role.OPERATE} == grants


@pytest.mark.parametrize("text", ["bob", "=read", "bob=", "bob=boss"])
def test_a_grant_without_user_or_role_is_refused(text: str) -> None:
    """A grant must have the form user=role with a known role."""
    with pytest.raises(roles.RoleError):
        roles.parse_grants([text])
