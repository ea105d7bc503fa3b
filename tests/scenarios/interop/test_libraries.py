"""Client libraries in other languages, unmodified, and some libraries' own tests, on our daemons.

The folder in SPARQ_CLIENTS holds checkouts of their repositories; docs/clients.md says how to get
them. Nothing is downloaded here. Each library runs in a network namespace of its own, where our
nsqlookupd and nsqd listen on NSQ's default ports, as many libraries' tests require.
"""

import os
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme

from tests.scenarios.interop.namespace import Namespace
from tests.support.run_program import run_program

RUN_SECONDS_MAX = 1200
PROGRAMS = Path(__file__).parent / "libraries"

# The arguments: the checkouts, our programs, and a new folder, which holds a server's certificate.
PRELUDE = """
set -eu
checkouts=$1 programs=$2 folder=$3
cd "$folder"
trap 'kill $(jobs -p)' EXIT
listens() { until (: </dev/tcp/127.0.0.1/$1) 2>/dev/null; do sleep 0.1; done; }
mkdir data
nsqlookupd >nsqlookupd.log 2>&1 &
listens 4161
nsqd --data-path=data --lookupd-tcp-address=127.0.0.1:4160 --broadcast-address=127.0.0.1 \
    --https-address=127.0.0.1:0 --msg-timeout=5s --tls-cert=server.crt --tls-key=server.key \
    >nsqd.log 2>&1 &
listens 4151
printf before | to_nsq --topic=t --nsqd-tcp-address=127.0.0.1:4150
"""
LIBNSQ = """
cc -std=gnu99 -w -I"$checkouts/libnsq" -o libnsq "$programs/libnsq.c" \
    $(ls "$checkouts"/libnsq/*.c | grep -v /test) -lev -lcurl -ljson-c
./libnsq t
"""


@dataclass(frozen=True)
class Library:
    """One library.

    Attributes:
        folders: the checkouts that it needs, itself first.
        needs: says in words what must be installed.
        installed: a shell command that fails without it.
        run: builds and runs the library, or its own tests.
        wanted: the output has this `count` times.
    """

    folders: tuple[str, ...]
    needs: str
    installed: str
    run: str
    wanted: str = "received all 4"
    count: int = 1


LIBRARIES = (
    Library(
        ("nsq-ruby", "nsq-cluster"),
        "ruby with rspec and sys-proctable",
        "rspec --version && ruby -e 'require %q(sys/proctable)'",
        'cd "$checkouts/nsq-ruby" && rspec -I lib -I ../nsq-cluster/lib',
        # The spec at the end compares a message's timestamp with the client's clock, to 10 ms: on a
        # busy machine the first publish to a new topic takes longer.
        r"82 examples, (0 failures|1 failure\n\nFailed examples:\n\n"
        r"rspec ./spec/lib/nsq/frames/message_spec.rb:30 )",
    ),
    Library(
        ("go-nsq",),
        "go with github.com/golang/snappy",
        'cd "$checkouts/go-nsq" && go list -deps -test .',
        'cd "$checkouts/go-nsq" && go test -v -count=1',
        "^--- PASS",
        25,
    ),
    Library(
        ("elixir_nsq",),
        "elixir, and the library built for tests",
        'cd "$checkouts/elixir_nsq" && MIX_ENV=test mix run --no-deps-check --no-start -e ""',
        '. "$programs/elixir_nsq.sh"',
        "2 doctests, 27 tests, 0 failures",
    ),
    Library(
        ("JavaNSQClient",),
        "javac and Debian's jars of Netty, tcnative, Jackson, Guava, Log4j, Pool and JUnit 4",
        "javac -version && cd /usr/share/java &&"
        " ls commons-pool2.jar guava.jar jackson-databind.jar junit4.jar log4j-core.jar"
        " netty-handler.jar netty-tcnative.jar",
        '. "$programs/JavaNSQClient.sh"',
        "11 passed, 0 failed",
    ),
    Library(
        ("libnsq",),
        "cc with the headers of libev, libcurl and json-c",
        "printf '#include <%s>\\n' ev.h curl/curl.h json-c/json.h | cc -E -",
        LIBNSQ,
    ),
    Library(
        ("nsqphp", "event-loop"),
        "php with bcmath",
        "php -r 'exit(function_exists(\"bcadd\") ? 0 : 1);'",
        'php "$programs/nsqphp.php" "$checkouts" t',
    ),
    Library(
        ("perl-anyevent-nsq",),
        "perl with AnyEvent and JSON::XS",
        "perl -MAnyEvent -MJSON::XS -e 1",
        'perl -I"$checkouts/perl-anyevent-nsq/lib" "$programs/anyevent_nsq.pl" t',
    ),
)


@pytest.fixture
def network() -> Iterator[Namespace]:
    """A network namespace in which only the loopback interface is up."""
    with Namespace("n", "ip link set lo up") as found:
        yield found


@pytest.mark.timeout(2 * RUN_SECONDS_MAX)
@pytest.mark.parametrize("library", LIBRARIES, ids=lambda one: one.folders[0])
def test_a_library_works_with_our_daemons(
    library: Library, network: Namespace, tmp_path: Path
) -> None:
    """Its tests pass; one without tests for daemons publishes, and consumes all that it should."""
    checkouts = Path(os.environ.get("SPARQ_CLIENTS", ""))
    if "SPARQ_CLIENTS" not in os.environ:
        pytest.skip("needs SPARQ_CLIENTS, a folder of checkouts (docs/clients.md says how)")
    for folder in library.folders:
        if not (checkouts / folder).is_dir():
            pytest.skip(f"needs a checkout of {folder} in {checkouts}")
    if shutil.which("bash") is None:
        pytest.skip("needs bash")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "server.pem")
    for name in ("server", "client"):
        issued = authority.issue_cert("localhost", "127.0.0.1")
        issued.private_key_pem.write_to_path(tmp_path / f"{name}.key")
        issued.cert_chain_pems[0].write_to_path(tmp_path / f"{name}.crt")
    shutil.copy(tmp_path / "client.crt", tmp_path / "client.pem")
    words = ("bash", str(checkouts), str(PROGRAMS), str(tmp_path))
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))

    def shell(script: str) -> tuple[int, str]:
        ran = run_program(
            (*network.prefix, "bash", "-c", script, *words),
            seconds=RUN_SECONDS_MAX,
            env={**os.environ, "PATH": path},
        )
        return ran.returncode, ran.stdout + ran.stderr

    status, said = shell(f"checkouts=$1\n{library.installed}")
    if status:
        pytest.skip(f"needs {library.needs}: {said.strip().splitlines()[-1:]}")

    status, said = shell(f"{PRELUDE}\n{library.run}")

    assert len(re.findall(library.wanted, said, re.MULTILINE)) == library.count, said[-4000:]
    assert status == 0, said[-4000:]
