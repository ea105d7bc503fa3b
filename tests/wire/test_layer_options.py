"""wire.layer_options: wrong options raise errors with their names; TLS contexts are built."""

import os
import pickle
import ssl
from pathlib import Path
from typing import Any

import pytest

from sparq.client import Config
from sparq.wire.layer_options import PLAIN, LayerOptions, check_lookupd_status
from tests.client.certificates import Certificates, certificates

SECRET = "open sesame"


def test_defaults_are_go_nsqs() -> None:
    """By default no layer is requested; TLS, if requested, verifies and is at least 1.2."""
    assert LayerOptions() == PLAIN
    assert not (PLAIN.tls_v1 or PLAIN.snappy or PLAIN.deflate or PLAIN.auth_secret)
    assert (PLAIN.deflate_level, PLAIN.tls_min_version) == (6, "tls1.2")

    context = LayerOptions(tls_v1=True).tls_context()
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"tls_v1": 1}, TypeError, "tls_v1 takes bool, not int"),
        ({"snappy": "true"}, TypeError, "snappy takes bool, not str"),
        ({"deflate_level": True}, TypeError, "deflate_level takes int, not bool"),
        ({"deflate_level": 0}, ValueError, "deflate_level must be from 1 to 9, not 0"),
        ({"deflate_level": 10}, ValueError, "deflate_level must be .* not 10"),
        ({"snappy": True, "deflate": True}, ValueError, "snappy and deflate cannot be combined"),
        ({"tls_min_version": "ssl3.0"}, ValueError, "tls_min_version must be one of tls1.0"),
        ({"tls_root_ca_file": "/no/such"}, ValueError, "tls_root_ca_file '/no/such': No such"),
        ({"tls_cert": "/no/such"}, ValueError, "tls_cert '/no/such': No such"),
        ({"tls_key": "/no/such"}, ValueError, "tls_key is set without tls_cert"),
        ({"auth_secret": b"x"}, TypeError, "auth_secret takes str, not bytes"),
        ({"auth_secret": "a\nb"}, ValueError, "auth_secret contains non-printable"),
    ],
)
@pytest.mark.parametrize("kind", [LayerOptions, Config])
def test_a_wrong_option_is_named(
    kind: type[LayerOptions], options: dict[str, Any], error: type[Exception], text: str
) -> None:
    """LayerOptions and Config raise for a wrong value, with the option's name."""
    with pytest.raises(error, match=text):
        kind(**options)


def test_unusable_files_are_named(files: Certificates, tmp_path: Path) -> None:
    """A file without a certificate, or with a wrong or no key, raises ValueError with its name."""
    rubbish = tmp_path / "rubbish.pem"
    rubbish.write_text("nothing\n")
    for options, text in (
        ({"tls_root_ca_file": rubbish}, "tls_root_ca_file .*rubbish.pem"),
        ({"tls_cert": rubbish}, "tls_cert .*rubbish.pem"),
        ({"tls_root_ca_file": rubbish}, r"rubbish.pem' is not a file of PEM certificates: "),
        ({"tls_cert": files.authority}, r"with its key in the same file or in tls_key: [^\[(]*$"),
        ({"tls_cert": files.client, "tls_key": files.server}, "tls_cert .*tls_key .*mismatch"),
    ):
        with pytest.raises(ValueError, match=text):
            LayerOptions(**{name: str(path) for name, path in options.items()})


@pytest.mark.parametrize(
    "given",
    [{"tls_root_ca_file": "authority"}, {"tls_cert": "client"}, {"tls_insecure_skip_verify": True}],
)
def test_any_tls_option_turns_tls_on(files: Certificates, given: dict[str, Any]) -> None:
    """Any TLS option turns TLS on, as in go-nsq, even without tls_v1."""
    options = LayerOptions(
        **{name: str(getattr(files, it)) if it is not True else it for name, it in given.items()}
    )

    assert options.tls_v1
    assert options.identify_fields()["tls_v1"]


def test_tls_min_version_may_be_an_old_version() -> None:
    """tls_min_version may be set to an old version, too.

    Only then are the ciphers of TLS before 1.2 offered and SHA-1 signatures accepted; otherwise the
    ciphers are this Python's default ones (Debian's include some of TLS before 1.2).
    """
    default = cipher_names(ssl.create_default_context())
    for name, version, is_old in (
        ("tls1.0", ssl.TLSVersion.TLSv1, True),
        ("tls1.1", ssl.TLSVersion.TLSv1_1, True),
        ("tls1.2", ssl.TLSVersion.TLSv1_2, False),
        ("tls1.3", ssl.TLSVersion.TLSv1_3, False),
    ):
        context = LayerOptions(tls_v1=True, tls_min_version=name).tls_context()
        assert context.minimum_version is version
        assert is_old == (0 == context.security_level)
        if is_old:
            assert "ECDHE-RSA-AES128-SHA" in cipher_names(context)
        else:
            assert default == cipher_names(context)


def cipher_names(context: ssl.SSLContext) -> set[str]:
    """The ciphers that a context offers."""
    return {cipher["name"] for cipher in context.get_ciphers()}


def test_a_renewed_certificate_is_read_again(files: Certificates, tmp_path: Path) -> None:
    """The TLS context is cached until a file changes; a file that is gone raises ValueError."""
    root = tmp_path / "root.pem"
    root.write_bytes(files.authority.read_bytes())
    options = LayerOptions(tls_root_ca_file=str(root))
    first = options.tls_context()
    assert options.tls_context() is first
    assert options.tls_context(check_host=False) is not first

    renewed = tmp_path / "renewed.pem"
    renewed.write_bytes(certificates(tmp_path / "other").authority.read_bytes())
    os.replace(renewed, root)
    assert options.tls_context() is not first

    root.unlink()
    with pytest.raises(ValueError, match="tls_root_ca_file"):
        options.tls_context()


@pytest.mark.parametrize("kind", [LayerOptions, Config])
def test_the_secret_is_not_shown(kind: type[LayerOptions]) -> None:
    """``repr`` and ``str`` omit the secret; a pickled copy has it."""
    options = kind(auth_secret=SECRET)

    assert SECRET not in repr(options) + str(options)
    assert pickle.loads(pickle.dumps(options)).auth_secret == SECRET


def test_nsqlookupds_get_the_secret_unless_it_is_switched_off() -> None:
    """nsqlookupds get the secret as a bearer token, as from go-nsq, unless it is switched off."""
    url, key = "https://lookupd:4161/lookup", {"Authorization": "Bearer key"}
    assert key == LayerOptions(auth_secret="key").lookupd_headers(url)
    assert {} == LayerOptions(auth_secret="key", lookupd_authorization=False).lookupd_headers(url)
    assert {} == PLAIN.lookupd_headers(url)


def test_an_http_nsqlookupd_gets_the_secret_only_with_auth_without_tls() -> None:
    """Over http the secret is not sent; a refusal then says so, and names both remedies."""
    url, key = "http://lookupd:4161/lookup", {"Authorization": "Bearer key"}
    careful, careless = (
        LayerOptions(auth_secret="key", auth_without_tls=on) for on in (False, True)
    )
    assert ({}, key) == (careful.lookupd_headers(url), careless.lookupd_headers(url))

    for status in (401, 403):
        with pytest.raises(ValueError, match=f"status {status}.* https URL, or set auth_without"):
            check_lookupd_status(careful, url, status)
        for other in (careless, PLAIN, LayerOptions(auth_secret="k", lookupd_authorization=False)):
            check_lookupd_status(other, url, status)
    check_lookupd_status(careful, url, 404)
