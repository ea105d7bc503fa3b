"""Which nodes are called that an nsqlookupd names."""

import pytest

from sparq.nsqadmin.access.nodes import NodeRules

HERE, THERE = "127.0.0.1", "192.0.2.1"


@pytest.mark.parametrize(
    ("host", "port", "source", "expected"),
    [
        ("10.0.0.5", 4151, THERE, True),
        ("nsqd-1.example", 4151, THERE, True),
        ("2001:db8::1", 80, THERE, True),
        ("[2001:db8::1]", 4151, THERE, True),
        ("127.0.0.1", 4151, HERE, True),
        ("localhost", 4151, "localhost", True),
        ("127.0.0.1", 4151, THERE, False),
        ("localhost", 4151, THERE, False),
        ("x.localhost.", 4151, THERE, False),
        ("::1", 4151, THERE, False),
        ("::ffff:127.0.0.1", 4151, THERE, False),
        ("127.0.0.1", 22, HERE, False),
        ("10.0.0.5", 25, THERE, False),
        ("10.0.0.5", 0, THERE, False),
        ("10.0.0.5", -1, THERE, False),
        ("10.0.0.5", 65536, THERE, False),
        ("169.254.169.254", 80, HERE, False),
        ("::ffff:169.254.169.254", 80, HERE, False),
        ("fe80::1", 4151, HERE, False),
        ("0.0.0.0", 4151, HERE, False),
        ("224.0.0.1", 4151, HERE, False),
        ("", 4151, HERE, False),
        ("a/b", 4151, HERE, False),
        ("user@host", 4151, HERE, False),
        ("a b", 4151, HERE, False),
        ("*.example", 4151, HERE, False),
    ],
)
def test_without_the_option_what_can_be_an_nsqd(
    host: str, port: int, source: str, expected: bool
) -> None:
    """No metadata service, no port of this machine that somebody else chose, no URL in disguise."""
    assert expected == NodeRules([]).may_call(host, port, source=source)


@pytest.mark.parametrize(
    ("host", "port", "expected"),
    [
        ("10.1.2.3", 4151, True),
        ("10.1.2.3", 443, True),
        ("11.1.2.3", 4151, False),
        ("127.0.0.1", 4151, False),
        ("localhost", 4151, False),
        ("nsqd-1.example", 4151, True),
        ("NSQD-1.example.", 4151, True),
        ("a.b.cluster.example", 4151, True),
        ("cluster.example", 4151, True),
        ("169.254.1.1", 4151, False),
    ],
)
def test_with_the_option_what_it_names(host: str, port: int, expected: bool) -> None:
    """A name that is not listed may be called if it leads into a listed network."""
    rules = NodeRules(["10.0.0.0/8", "nsqd-1.example", "*.cluster.example", "169.254.0.0/16"])

    assert expected == rules.may_call(host, port, source=HERE)


def test_what_a_name_leads_to_is_asked_about_too() -> None:
    """A name of a peer's own may lead anywhere, and elsewhere a moment later."""
    rules = NodeRules(["10.0.0.0/8", "nsqd-1.example"])
    free = NodeRules([])

    assert rules.may_connect("10.0.0.1", name="whatever.example")
    assert rules.may_connect("192.0.2.9", name="nsqd-1.example")
    assert not rules.may_connect("192.0.2.9", name="whatever.example")
    assert not rules.may_connect("169.254.169.254", name="nsqd-1.example")
    assert free.may_connect("192.0.2.9", name="whatever.example", source=THERE)
    assert not free.may_connect("127.0.0.1", name="whatever.example", source=THERE)
    assert not free.may_connect("169.254.169.254", name="whatever.example")
    assert not NodeRules(["a.example"]).may_call("b.example", 4151)


@pytest.mark.parametrize("text", ["", "10.0.0.0/33", "a b", "http://x", "a:4151", "*"])
def test_a_rule_that_is_none_is_refused(text: str) -> None:
    """It would hold never, or always."""
    with pytest.raises(ValueError, match=r"no address|does not appear"):
        NodeRules([text])
