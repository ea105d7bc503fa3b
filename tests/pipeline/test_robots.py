"""What a user agent says of itself."""

import pytest

from sparq.demo import website
from sparq.pipeline.visits import declared_name


@pytest.mark.parametrize(
    ("user_agent", "name"),
    [
        (
            "Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)",
            "Googlebot/2.1",
        ),
        ("Mozilla/5.0 (compatible; Baiduspider/2.0; +http://x.example)", "Baiduspider/2.0"),
        ("curl/8.5.0", "curl/8.5.0"),
        ("python-requests/2.32.3", "python-requests/2.32.3"),
        ("FeedBurner/1.0 (http://www.FeedBurner.com)", "FeedBurner/1.0"),
        ("Mozilla/5.0 HeadlessChrome/120.0", "HeadlessChrome/120.0"),
        ("Something (+https://example.com/about)", "+https://example.com/about"),
    ],
)
def test_robots_name_themselves(user_agent, name):
    """The name is the whole word that gives it away."""
    assert declared_name(user_agent) == name


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
