"""The names that programs give themselves in user agents."""

import pytest

from sparq.demo.website import BROWSERS
from sparq.pipeline.sessions.agents import declared_name


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
        ("LWP::Simple/5.827 libwww-perl/5.833", "libwww-perl/5.833"),
    ],
)
def test_declared_robots_are_found_in_user_agents(user_agent, name):
    """The declared name is the whole word in the user agent that identifies a robot."""
    assert declared_name(user_agent) == name


@pytest.mark.parametrize(
    "user_agent",
    [
        *BROWSERS,
        "Mozilla/5.0 (Linux; Android 9; CUBOT_X19) Mobile Safari/537.36",
        "Lynx/2.8.9rel.1 libwww-FM/2.14 SSL-MM/1.4.1 GNUTLS/3.6.13",
        *("-", ""),
    ],
)
def test_browsers_declare_no_robot(user_agent):
    """Browsers declare no robot, not even Lynx, or a telephone whose name contains "bot"."""
    assert declared_name(user_agent) is None
