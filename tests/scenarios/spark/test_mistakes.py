"""Mistakes in options, addresses and credentials raise one sentence that names them.

The tests call the source as Spark does, in the same order, with real daemons; test_session.py and
test_layers.py test that the sentences reach Spark's users.
"""

import time

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict

from sparq.spark.data_source import NsqDataSource
from tests.client.authd import SECRET, running_authd
from tests.client.certificates import certificates
from tests.spark.test_data_source import FULL
from tests.support.published import publish
from tests.support.servers import free_port, spawn_nsqd

SECONDS = 10.0
"""Maximum time until a mistake is reported, even on a busy machine."""


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Valid and invalid certificates."""
    return certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def plain(tmp_path_factory, lookupd):
    """An nsqd without access control."""
    with spawn_nsqd(tmp_path_factory.mktemp("plain"), lookupds=(lookupd,)) as running:
        publish(running, "clicks", b"1")
        yield running


@pytest.fixture(scope="module")
def guarded(tmp_path_factory, files):
    """An nsqd that requires TLS, a client certificate and a secret."""
    flags = [
        f"--tls-cert={files.server}",
        f"--tls-key={files.server}",
        f"--tls-root-ca-file={files.authority}",
        "--tls-client-auth-policy=require-verify",
        "--tls-required=tcp-https",
        "--https-address=127.0.0.1:0",
    ]
    folder = tmp_path_factory.mktemp("guarded")
    with (
        running_authd() as authd,
        spawn_nsqd(folder, *flags, f"--auth-http-address={authd.address}") as running,
    ):
        running.post("/topic/create?topic=clicks")
        running.post("/channel/create?topic=clicks&channel=any")
        yield running


@pytest.fixture(scope="module")
def credentials(files, tmp_path_factory):
    """The credentials for the guarded nsqd; key and certificate are in separate files."""
    folder = tmp_path_factory.mktemp("own")
    text = files.client.read_text()
    key, mark, chain = text.partition("-----BEGIN CERTIFICATE-----")
    (folder / "key.pem").write_text(key)
    (folder / "cert.pem").write_text(mark + chain)
    return {
        "tls_v1": "true",
        "tls_root_ca_file": str(files.authority),
        "tls_cert": str(folder / "cert.pem"),
        "tls_key": str(folder / "key.pem"),
        "auth_secret": SECRET,
    }


def begin(stream: bool = True, **options: str) -> object:
    """Make the calls that Spark makes in `load()` and at the start of a query."""
    given = {"topic": "clicks", **options}
    if stream:
        given = {"channel": "spark", **given}
    source = NsqDataSource(CaseInsensitiveDict({key: text for key, text in given.items() if text}))
    source.schema()
    if not stream:
        return source.reader(FULL).partitions()
    reader = source.streamReader(FULL)
    try:
        return reader.initialOffset()
    finally:
        if hasattr(reader, "_connected"):
            reader.stop()


def mistake(**options: str) -> str:
    """Return the error's single sentence."""
    begun = time.monotonic()
    with pytest.raises(Exception) as caught:
        begin(**options)
    assert time.monotonic() - begun < SECONDS
    text = str(caught.value)
    assert text
    assert "\n" not in text
    return text


def test_a_mistake_in_an_address(plain, lookupd):
    """A port of another NSQ daemon, or one that refuses, is named in the error."""
    nothing = f"127.0.0.1:{free_port()}"
    lookupds = "is not an nsqlookupd's HTTP port: "
    for option, address, text in (
        ("nsqd_tcp_addresses", plain.http, f"nsqd {plain.http}: it speaks HTTP"),
        ("lookupd_http_addresses", lookupd.tcp, f"{lookupd.tcp} {lookupds}it does not speak HTTP"),
        ("lookupd_http_addresses", plain.tcp, f"{plain.tcp} {lookupds}it does not speak HTTP"),
        ("lookupd_http_addresses", plain.http, f"{plain.http} {lookupds}status 404"),
        ("lookupd_http_addresses", nothing, f"nsqlookupd {nothing}: "),
        ("nsqd_tcp_addresses", f"{plain.tcp},{nothing}", f"nsqd {nothing}: "),
    ):
        assert text in mistake(stream=False, **{option: address})


def test_wrong_credentials_are_named_in_the_error(guarded, credentials, files):
    """With all credentials the topic is readable; with a wrong one the error names it."""
    address = {"nsqd_tcp_addresses": guarded.tcp}
    compressed = {"deflate": "true", "deflate_level": "2", "tls_min_version": "tls1.3"}
    assert begin(**address, **credentials)
    assert begin(**address, **credentials, **compressed)

    said = mistake(**address, auth_secret=SECRET)
    assert "set the option tls_v1, or auth_without_tls" in said
    plain = {"auth_secret": SECRET, "auth_without_tls": "true"}
    assert "TLS required" in mistake(**address, **plain)

    careless = {**credentials, "tls_root_ca_file": "", "tls_insecure_skip_verify": "true"}
    assert begin(**address, **careless)
    for changed, text in (
        ({"tls_insecure_skip_verify": "false"}, "failed: self-signed certificate"),
        ({"auth_secret": "guess"}, "E_AUTH_FAILED"),
        ({"auth_secret": ""}, "set the option auth_secret"),
        ({"tls_cert": "", "tls_key": ""}, "certificate"),
        ({"tls_key": str(files.server)}, "tls_cert"),
    ):
        said = mistake(**{**address, **careless, **changed})
        assert text in said
        assert SECRET not in said
