#!/opt/sparq/bin/python -IS
"""Says whether a daemon in this container answers: `healthcheck [PORT]`, for HEALTHCHECK.

It asks for /ping: on the given port, or on the first standard HTTP port (nsqd 4151, nsqlookupd
4161, nsqadmin 4171) that takes connections. Any answer is health, and what it says is printed, as
`docker inspect` shows it: an nsqd whose disk is full answers 500, and is needed by the consumers
that free it. Whoever starts unhealthy containers anew would only cut them off. That publishes are
refused is an alert's to say (deploy/prometheus).

It uses nothing but sockets, since it runs every few seconds and `import` is most of its time.
"""

import socket
import sys

PORTS = (4151, 4161, 4171)
SECONDS_MAX = 5
ANSWER_BYTES_MAX = 4096


def answer_of(port: int) -> str:
    """What /ping says on a port of this container: status line, headers and text.

    Raises:
        OSError: nobody listens there, or does not answer in time.
    """
    with socket.create_connection(("127.0.0.1", port), SECONDS_MAX) as connection:
        connection.sendall(b"GET /ping HTTP/1.0\r\nHost: localhost\r\n\r\n")
        said = b""
        while len(said) < ANSWER_BYTES_MAX and (more := connection.recv(ANSWER_BYTES_MAX)):
            said += more
    return said.decode("latin-1")


def main(words: list[str]) -> int:
    """The exit status: 0 for health, 1 otherwise."""
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
