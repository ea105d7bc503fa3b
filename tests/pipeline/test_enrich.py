"""What the values of clicks say, by group of columns."""

import pyarrow as pa
import pytest
from crawleruseragents import CRAWLER_USER_AGENTS_DATA

from sparq.demo.website import BROWSERS
from sparq.pipeline import enrich
from sparq.pipeline.reading import formats
from sparq.pipeline.reading.schema import ENRICHMENTS, Reading, click_schema
from tests.pipeline.mmdb import write_mmdb

IPHONE = (
    "Mozilla/5.0 (iPhone; CPU iPhone OS 17_5 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like"
    " Gecko) Version/17.5 Mobile/15E148 Safari/604.1"
)
SOURCES = {
    **dict.fromkeys((None, "-"), ("direct", None)),
    "https://www.shop.example/a": ("internal", None),
    "https://www.google.co.uk/search?q=a": ("search", "google"),
    "android-app://com.google.android.googlequicksearchbox/": ("search", "google"),
    "https://search.brave.com/search?q=a": ("search", "brave"),
    "https://mail.google.com/mail/u/0/": ("mail", None),
    "https://gemini.google.com/app": ("ai", None),
    "https://l.facebook.com/": ("social", None),
    "https://news.ycombinator.com/item?id=1": ("social", None),
    **dict.fromkeys(("https://a.example/google", "http://[broken", "text"), ("other", None)),
}
CAMPAIGNS = {
    "/a?utm_source=news&utm_medium=e%20mail&utm_campaign=may+1&x=1": (
        "news", "e mail", "may 1", None, None),
    "/a?utm_source=&utm_term=t&utm_content=c#f": (None, None, None, "t", "c"),
    "/utm_source=a": (None,) * 5,
    None: (None,) * 5,
}  # fmt: skip
DEVICES = {
    "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/146.0": (
        "desktop", "Firefox", "Linux"),
    IPHONE: ("mobile", "Mobile Safari", "iOS"),
    "Mozilla/5.0 (Linux; Android 14; SM-X200) AppleWebKit/537.36 (KHTML, like Gecko)"
    " Chrome/120.0.0.0 Safari/537.36": ("tablet", "Chrome", "Android"),
    "Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)": (
        "robot", "Googlebot", None),
    "-": (None, None, None),
}  # fmt: skip
KINDS = {
    "/": "page", "/a.html": "page", "/static/app.js": "asset", "/Font.WOFF2": "asset",
    "/robots.txt": "file", "/css": "page", "/a.v2": "page", "/api/v1/orders": "api",
    "/v2/x": "api", "/data.json": "api",
    "/feed": "feed", "/blog/rss.xml": "feed", "/news.atom": "feed", "/apiary": "page", None: None,
}  # fmt: skip
MASKED = {
    "203.0.113.77": "203.0.113.0", "2001:db8:1:2::3": "2001:db8:1::", "fe80::1%eth0": "fe80::%eth0",
    "::1": "::", "1.2.3.4:80": "1.2.3.0:80", "host.example": "host.example",
    '{"peer":"1.2.3.4, 2001:db8:1:2::3"}': '{"peer":"1.2.3.0, 2001:db8:1::"}',
    "10:20:30 v1.2.3": "10:20:30 v1.2.3",
}  # fmt: skip
LINE = (
    b'203.0.113.77 - - [02/Mar/2026:10:00:00 +0000] "GET /a?utm_source=n HTTP/1.1" 200 5'
    b' "https://www.google.com/" "Mozilla/5.0 (compatible; Googlebot/2.1)"'
)


@pytest.mark.parametrize(("referer", "expected"), SOURCES.items())
def test_a_referrer_has_a_class(referer, expected):
    """Direct, internal, search with its engine, social, AI, mail, and other referrers."""
    assert expected == enrich.source(referer, ("shop.example",))


@pytest.mark.parametrize(("path", "expected"), CAMPAIGNS.items())
def test_a_campaign_has_five_parameters(path, expected):
    """UTM parameters are those of the query, decoded; an empty one is null."""
    assert expected == enrich.campaign(path)


@pytest.mark.parametrize(("agent", "expected"), DEVICES.items())
def test_a_device_has_a_class_a_browser_and_a_system(agent, expected):
    """Device, browser and system are those of `ua-parser`."""
    assert expected == enrich.device(agent)


def test_all_robots_of_the_list_are_found():
    """Each example of the maintained list is a robot; browsers are none."""
    agents = [one for robot in CRAWLER_USER_AGENTS_DATA for one in robot["instances"]]

    assert [] == [one for one in agents if enrich.robot(one) == (None,)]
    assert ("Googlebot",) == enrich.robot("Mozilla/5.0 (compatible; Googlebot/2.1)")
    assert [(None,)] * 3 == [enrich.robot(one) for one in (IPHONE, *DEVICES)][:3]


@pytest.mark.parametrize(
    ("user_agent", "name"),
    [
        ("Mozilla/5.0 (compatible; NewSpider/2.0; +http://x.example)", "NewSpider/2.0"),
        ("Something (+https://example.com/about)", "+https://example.com/about"),
        ("eZ Publish Link Validator", "Validator"),
        ("LumiBot 2.0", "LumiBot"),
        *((browser, None) for browser in BROWSERS),
        ("Mozilla/5.0 (Linux; Android 9; CUBOT_X19) Mobile Safari/537.36", None),
        ("Lynx/2.8.9rel.1 libwww-FM/2.14 SSL-MM/1.4.1 GNUTLS/3.6.13", None),
        *(("-", None), ("", None)),
    ],
)
def test_robots_that_no_list_has_yet_are_found_by_a_word(user_agent, name):
    """The name is the whole word; browsers have none, not even Lynx, or a phone called CUBOT."""
    assert (name,) == enrich.robot(user_agent)


@pytest.mark.parametrize(("page", "expected"), KINDS.items())
def test_a_request_is_a_page_an_asset_an_api_or_a_feed(page, expected):
    """The kind follows from the path."""
    assert (expected,) == enrich.kind(page)


@pytest.mark.parametrize(("text", "expected"), MASKED.items())
def test_addresses_lose_their_last_bits(text, expected):
    """24 bits of IPv4 and 48 of IPv6 stay, in any text."""
    assert expected == enrich.anonymized(text)


@pytest.fixture
def files(tmp_path):
    """MMDB files with countries and networks."""
    net, name = "autonomous_system_number", "autonomous_system_organization"
    records = {"203.0.113.0/24": {"country": {"iso_code": "DE"}}}
    records["2001:db8::/32"] = {"country_code": "FR"}
    country = write_mmdb(tmp_path / "country.mmdb", records)
    records = {"203.0.113.0/24": {net: 64496, name: "Example"}}
    network = write_mmdb(tmp_path / "network.mmdb", records)
    return {"country_file": str(country), "network_file": str(network)}


def test_country_and_network_come_from_files_of_the_user(files):
    """Both forms of files are read; an unknown address, and a name, have none."""
    path = files["country_file"]
    addresses = ("203.0.113.7", "2001:db8::1", "198.51.100.1", "host.example", None)

    assert ["DE", "FR", None, None, None] == [enrich.country(one, path)[0] for one in addresses]
    assert ("AS64496 Example",) == enrich.network("203.0.113.7", files["network_file"])


def test_chosen_groups_join_the_click(files):
    """Columns of the chosen groups are in the schema; a message that is no click has none."""
    reading = Reading(enrich=formats.GROUPS, **files)
    table = enrich.parse_arrow(pa.table({"body": [LINE, b"no click"]}), None, reading)
    made = [name for names in ENRICHMENTS.values() for name in names]
    click, other = table.select(made).to_pylist()

    assert click_schema(reading).names == table.column_names[1:]
    assert ("search", "google", "n", "robot", "Googlebot", "page", "DE", "AS64496 Example") == (
        click["referrer_class"], click["search_engine"], click["utm_source"], click["device"],
        click["robot"], click["kind"], click["country"], click["network"])  # fmt: skip
    assert {None} == set(other.values())
    some = enrich.parse_arrow(pa.table({"body": [LINE]}), ["kind"], reading)
    assert ["body", "kind"] == some.column_names
    assert not set(made) & set(click_schema(Reading()).names)


def test_no_address_is_left_of_an_anonymous_click(files):
    """Address, extra values and the original are without the address, its country is known."""
    reading = Reading(enrich=formats.GROUPS, anonymize=True, **files)
    bodies = [LINE + b' "203.0.113.77"', b"no click from 203.0.113.77", b'{"\\u0031": 7']
    table = enrich.parse_arrow(pa.table({"body": bodies}), None, reading)

    assert "203.0.113.77" not in str(table.to_pylist())
    assert ("203.0.113.0", "DE") == (table["address"][0].as_py(), table["country"][0].as_py())
    assert [None, b"no click from 203.0.113.0", None] == table["body"].to_pylist()
