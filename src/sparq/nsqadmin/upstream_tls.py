"""TLS towards nsqds that are asked over HTTPS: what NSQ's `--http-client-tls-*` say."""

from __future__ import annotations

import ssl

from sparq.nsqadmin.options import Options
from sparq.program.lifecycle import StartError


def context(options: Options) -> ssl.SSLContext:
    """How nsqds are verified, and what they are shown.

    Raises:
        StartError: a file cannot be used; the text names it.
    """
    root = options.http_client_tls_root_ca_file
    try:
        found = ssl.create_default_context(cafile=root or None)
    except (OSError, ssl.SSLError) as error:
        why = getattr(error, "strerror", None) or error
        raise StartError(f"failed to read --http-client-tls-root-ca-file {root} - {why}") from None
    if options.http_client_tls_cert:
        cert, key = options.http_client_tls_cert, options.http_client_tls_key
        try:
            found.load_cert_chain(cert, key)
        except (OSError, ssl.SSLError) as error:
            why = getattr(error, "strerror", None) or error
            raise StartError(f"failed to load {cert} and {key} - {why}") from None
    if options.http_client_tls_insecure_skip_verify:
        found.check_hostname = False
        found.verify_mode = ssl.CERT_NONE
    return found
