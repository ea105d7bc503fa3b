"""A mistake in nsqd's flags or file ends its start with one sentence, before it listens."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from sparq.nsqd.main import main
from tests.support.servers import spawn_nsqd

FATAL = re.compile(r"\[nsqd\] [0-9/]{10} [0-9:.]{15} FATAL: (.*)\n")
LARGE = "is too large: use 65535 or less"

MISTAKES = {
    "--tcp-adress=127.0.0.1:0": "there is no flag --tcp-adress: did you mean --tcp-address?",
    "--tcp-address=4150": "--tcp-address=4150 is not an address: write :4150 or 127.0.0.1:4150",
    "--http-address=localhost": (
        "--http-address=localhost has no port: write host:port or a unix socket path containing /"
    ),
    "--http-address=:70000": "--http-address=:70000 has an invalid port: 70000 is above 65535",
    "--lookupd-tcp-address=l:4160 --lookupd-tcp-address=lookupd-2": (
        "--lookupd-tcp-address=lookupd-2 is not an address: write host:port"
    ),
    "--lookupd-tcp-address=http://l:4160": (
        "--lookupd-tcp-address=http://l:4160 is a URL: write host:port"
    ),
    "--statsd-address=8125": "--statsd-address=8125 is not an address: write 127.0.0.1:8125",
    "--msg-timeout=2h": (
        "--msg-timeout=2h0m0s is above --max-msg-timeout (15m0s): lower it, or raise"
        " --max-msg-timeout"
    ),
    "--max-msg-size=-5": "--max-msg-size=-5 is too small: use 1 or more",
    "--output-buffer-timeout=1m": (
        "--output-buffer-timeout=1m0s is above --max-output-buffer-timeout (30s): lower it, or"
        " raise --max-output-buffer-timeout"
    ),
    "--broadcast-http-port=70000": f"--broadcast-http-port=70000 {LARGE}",
    "--tls-client-auth-policy=required": (
        "--tls-client-auth-policy=required is unknown: did you mean require?"
    ),
    "--enable-experiment=topology": (
        "--enable-experiment=topology is unknown: did you mean topology-aware-consumption?"
    ),
    "--tls-required=yes": "--tls-required=yes: write true, false or tcp-https",
    "--tls-min-version=1.2": (
        "--tls-min-version=1.2: tls version must be one of tls1.0, tls1.1, tls1.2, tls1.3: did"
        " you mean tls1.2?"
    ),
    "--e2e-processing-latency-percentile=p99": (
        "--e2e-processing-latency-percentile=p99: write numbers separated by commas"
    ),
}
FILE_MISTAKES = {
    "tcp_adress = 1": "there is no option tcp_adress: did you mean tcp_address?",
    "node_id = 1": "there is no option node_id: did you mean id?",
    'lookupd_tcp_addresses = ["a:1"]': (
        "there is no option lookupd_tcp_addresses: did you mean nsqlookupd_tcp_addresses?"
    ),
    "[nsqd]\nid = 1": "there is no section [nsqd]: write its options at the top, without sections",
    'msg_timeout = "2h"': (
        "msg_timeout = 2h0m0s is above --max-msg-timeout (15m0s): lower it, or raise"
        " --max-msg-timeout"
    ),
    'tcp_address = "4150"': "tcp_address = 4150 is not an address: write :4150 or 127.0.0.1:4150",
}
"""The text after `config file <path>: `."""


def last_words(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(words)
    taken = capsys.readouterr()
    found = FATAL.fullmatch(taken.err)
    assert (ended.value.code, taken.out) == (1, "")
    assert found is not None, taken.err
    return found[1]


@pytest.mark.parametrize("command", MISTAKES)
def test_a_mistake_in_a_flag_is_named_in_one_sentence(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A mistake in a flag exits with 1 and one sentence that names the flag and the correction."""
    assert last_words(capsys, *command.split()) == MISTAKES[command]


@pytest.mark.parametrize("text", FILE_MISTAKES)
def test_a_mistake_in_the_file_is_named(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Unknown keys and sections, and values out of bounds, are named in the error."""
    path = tmp_path / "nsqd.toml"
    path.write_text(text)

    said = last_words(capsys, f"--config={path}")
    assert said == f"config file {path}: {FILE_MISTAKES[text]}"


def start_fails(*words: str, folder: Path) -> str:
    command = [sys.executable, "-m", "sparq.nsqd", "--http-address=127.0.0.1:0", *words]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    found = FATAL.fullmatch(done.stderr.splitlines(keepends=True)[-1])
    assert found is not None, done.stderr
    return found[1].removeprefix("failed to instantiate nsqd - ")


def test_missing_files_and_used_ports_are_named(tmp_path: Path) -> None:
    """A missing root CA file and a port in use are named in the error."""
    missing = start_fails(
        "--tls-root-ca-file=none.pem", "--tcp-address=127.0.0.1:0", folder=tmp_path
    )
    assert missing == "--tls-root-ca-file=none.pem: no such file or directory"
    with spawn_nsqd(tmp_path, name="other") as other:
        taken = start_fails(f"--tcp-address={other.tcp}", folder=tmp_path)
        assert taken == f"listen ({other.tcp}) failed - address already in use"


AS_NOBODY = """
import os, sys
from sparq.nsqd import main, tls
from sparq.nsqd.options import NsqdOptions, TlsOptions
from sparq.program.lifecycle import StartError
from pathlib import Path

os.setgroups([])
os.setegid(65534)
os.seteuid(65534)
folder, key = sys.argv[1:]
for work in (
    lambda: main.lock(main.RealDisk(), Path(folder)),
    lambda: main.check(NsqdOptions(tls=TlsOptions(cert=key, key=key)), tls.build),
    lambda: main.check(NsqdOptions(tls=TlsOptions(root_ca_file=key)), tls.build),
):
    try:
        work()
    except StartError as error:
        print(error)
"""


def test_a_missing_permission_is_named(tmp_path: Path) -> None:
    """A missing permission is reported as such for the data path, a TLS key and the root CA."""
    folder, key = tmp_path / "data", tmp_path / "key.pem"
    folder.mkdir(mode=0o700)
    key.touch(mode=0o600)
    for above in (tmp_path, *tmp_path.parents):
        if above.owner() == "root" and above.stat().st_mode & 0o77 == 0:
            above.chmod(0o711)
    program = [sys.executable, "-c", AS_NOBODY, str(folder), str(key)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)
    if "PermissionError" in done.stderr:
        pytest.skip("needs root, to become another user")

    assert done.stdout.splitlines() == [
        f"failed to lock data-path: open {folder}: permission denied"
        " (nsqd runs as user 65534, which must be able to read and write it)",
        f"failed to build TLS config - open {key}: permission denied",
        f"--tls-root-ca-file={key}: permission denied",
    ]


def test_go_compatible_starts_where_go_does(tmp_path: Path) -> None:
    """With --go-compatible each of these mistakes is a warning; without it nsqd does not start."""
    config = tmp_path / "nsqd.toml"
    config.write_text('future = 1\nbroadcast_tcp_port = 70000\n[nsqadmin]\nx = "y"\n')
    mistakes = [
        f"--config={config}",
        "--tls-root-ca-file=none.pem",
        "--tls-client-auth-policy=",
        "--msg-timeout=2h",
        "--enable-experiment=no-such",
        "--lookupd-tcp-address=lookupd",
        "stray",
        "--msg-timeout=1x",
    ]
    with spawn_nsqd(tmp_path, "--go-compatible", *mistakes) as nsqd:
        warnings = [line for line in nsqd.log_text.splitlines() if "--go-compatible)" in line]
        assert nsqd.get_json("/info")["version"] == "1.3.0"
    named = ("future", "broadcast_tcp_port", "[nsqadmin]", "--tls-root-ca-file", "--msg-timeout")
    for name in (*named, "no-such", "--lookupd-tcp-address", '"stray"'):
        assert any(name in line and "WARNING" in line for line in warnings), name
    assert len(warnings) == 8
    assert "stray" in start_fails(*mistakes, folder=tmp_path)
