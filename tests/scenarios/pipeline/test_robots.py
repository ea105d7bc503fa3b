"""User agents of the generated day: robots say that they are robots, browsers do not."""

import pytest

from sparq.demo import website
from sparq.pipeline.visits import declared_name


@pytest.mark.parametrize(
    "user_agent",
    [*website.BROWSERS, "Mozilla/5.0 (Linux; Android 9; CUBOT_X19) Mobile Safari/537.36", "-", ""],
)
def test_browsers_do_not(user_agent):
    """Neither does the telephone whose name ends in bot."""
    assert declared_name(user_agent) is None


def test_every_robot_of_the_generator_says_so():
    """Else its label would be a lie."""
    assert all(declared_name(user_agent) for user_agent in website.ROBOTS)
