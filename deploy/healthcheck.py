#!/opt/sparq/bin/python -IS
"""Check whether the daemon in this container answers: `healthcheck [PORT]`, for HEALTHCHECK.

The program requests /ping: on the given port, or on the first standard HTTP port (nsqd 4151,
nsqlookupd 4161, nsqadmin 4171) that accepts connections. Any answer means healthy, and its text is
printed, so that `docker inspect` shows it. An nsqd with a full disk answers 500, but its consumers
need it to free the disk: a restart of the container would only disconnect them. An alert reports
that publishes are refused (deploy/prometheus).

It uses only sockets, since it runs every few seconds and most of its time is `import`.
"""

import socket
import sys

PORTS = (4151, 4161, 4171)
SECONDS_MAX = 5
ANSWER_BYTES_MAX = 4096


def answer_of(port: int) -> str:
    """Request /ping on a port of this container; returns status line, headers and text.

    Raises:
        OSError: no program listens there, or it does not answer in time.
    """
    with socket.create_connection(("127.0.0.1", port), SECONDS_MAX) as connection:
        connection.sendall(b"GET /ping HTTP/1.0\r\nHost: localhost\r\n\r\n")
        said = b""
        while len(said) < ANSWER_BYTES_MAX and (more := connection.recv(ANSWER_BYTES_MAX)):
            said += more
    return said.decode("latin-1")


def main(words: list[str]) -> int:
    """Return the exit status: 0 if the daemon answers, 1 otherwise."""
    reasons = []
    for port in map(int, words) if words else PORTS:
        try:
            said = answer_of(port)
        except OSError as error:
            reasons.append(f"port {port}: {error}")
            continue
        head, _, text = said.partition("\r\n\r\n")
        status = head.partition("\r\n")[0]
        if status.startswith("HTTP/"):
            sys.stdout.write(f"{status}: {text.strip()}\n")
            return 0
        reasons.append(f"port {port}: no HTTP answer")
    sys.stdout.write("; ".join(reasons) + "\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
