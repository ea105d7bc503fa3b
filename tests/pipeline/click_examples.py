"""Example clicks for several tests: readable, unreadable, hostile and damaged ones."""

from datetime import UTC, datetime
from pathlib import Path

ACCESS_LOG = Path(__file__).parents[3] / "shared" / "data" / "access.log"
TIME = "[10/Oct/2025:13:55:36 -0700]"
UTC_TIME = datetime(2025, 10, 10, 20, 55, 36, tzinfo=UTC)
READ = {
    f'1.2.3.4 - - {TIME} "GET /a?b=c HTTP/1.0" 200 2326': {
        "time": UTC_TIME, "address": "1.2.3.4", "user": "-", "method": "GET", "path": "/a?b=c",
        "page": "/a", "protocol": "HTTP/1.0", "status": 200, "bytes": 2326, "format": "common",
    },
    f'::1 - frank {TIME} "GET / HTTP/1.1" 304 - "http://r/" "Mozilla \\"x\\" (y)"\r\n': {
        "address": "::1", "user": "frank", "bytes": 0, "referer": "http://r/",
        "user_agent": 'Mozilla \\"x\\" (y)', "format": "combined",
    },
    f'www.x:443 1.2.3.4 - - {TIME} "GET / HTTP/1.1" 200 1 "-" "-"': {
        "vhost": "www.x:443", "address": "1.2.3.4", "user": "-", "user_agent": "-",
    },
    f'1.2.3.4, 10.0.0.1 - joe smith {TIME} "GET / HTTP/1.1" 200 1 "-" "-" "9.9.9.9" 0.01': {
        "vhost": None, "address": "10.0.0.1", "user": "joe smith", "format": "combined",
        "duration": 0.01, "extra": '{"forwarded":"9.9.9.9","peer":"1.2.3.4, 10.0.0.1"}',
    },
    f'1.2.3.4 - - {TIME} "-" 408 - "-" "-"': {"method": None, "page": None, "status": 408},
    f'1.2.3.4 - - {TIME} "\\x16\\x03\\x01" 400 0': {"method": None, "path": None, "status": 400},
    f'1.2.3.4 - - {TIME} "" - - "-" "-"': {"page": None, "status": None, "bytes": 0},
    f'1.2.3.4 - - {TIME} "GET /a b c HTTP/1.1" 404 7': {"path": "/a b c", "page": "/a b c"},
    f'1.2.3.4 - - {TIME} "GET https://h.example/p?q HTTP/1.1" 200 7': {"page": "/p"},
    '1.2.3.4 - - [2025-10-10T20:55:36Z] "GET /old" 200 7': {"time": UTC_TIME, "page": "/old"},
    '{"time": 1760129736, "ip": "1.2.3.4", "path": "/a?b", "method": "GET"}': {
        "time": UTC_TIME, "page": "/a", "method": "GET", "status": None, "bytes": 0,
        "format": "json",
    },
    '{"ts": 1760129736000.5, "client_ip": "1.2.3.4", "request": "GET /a HTTP/2.0"}': {
        "time": UTC_TIME.replace(microsecond=500), "page": "/a", "protocol": "HTTP/2.0",
    },
    '{"@timestamp": "2025-10-10 22:55:36+0200", "clientip": "::1", "uri": "/", "status": "404",'
    ' "bytes": 12, "agent": "a\\u0001\\"b"}': {
        "time": UTC_TIME, "status": 404, "bytes": 12, "user_agent": 'a\x01"b',
    },
    '{"time": 1, "status" :404, "url": {"path": "/x"}}': {
        "status": 404, "path": None, "page": None, "address": None,
        "extra": '{"url":{"path":"/x"}}',
    },
    '{"time": 1, "ip": {"v": 4}, "path": "/", "k": null}': {
        "address": None, "page": "/", "extra": '{"ip":{"v":4},"k":null}', "misfits": 1,
    },
    # Events of a business, whose keys have the names of fields and other meanings.
    '{"time": 1, "status": "paid", "address": {"city": "Ulm"}, "user": {"id": 1}, "size": "XL",'
    ' "method": ["card"], "request_time": "soon", "ip": "::1"}': {
        **dict.fromkeys(("status", "user", "method", "duration", "reason")),
        "address": "::1", "bytes": 0, "misfits": 6,
        "extra": '{"status":"paid","address":{"city":"Ulm"},"user":{"id":1},"size":"XL",'
        '"method":["card"],"request_time":"soon"}',
    },
    **{
        f'{{"time": 1, {odd}}}': {"address": None, "status": None, "bytes": 0, "misfits": 1,
                                  "extra": f"{{{odd}}}"}
        for odd in ('"ip":"Main Street 1"', '"ip":""', '"status":"0200"', '"status":true',
                    '"bytes":1.5', '"bytes":-1', f'"ip":"{"a" * 256}"', '"status":"٢٠٠"',
                    '"x_forwarded_for":"a, b!"')
    },
}  # fmt: skip


NO_TIME = "no time, or not a valid one"
UNREADABLE = {
    "": "the message is empty",
    "  \r\n": "the message is empty",
    "hello": "no ident after address in the line",
    '1.2.3.4 - - "GET / HTTP/1.1" 200 1': "no time after user in the line",
    f'1.2.3.4 - - {TIME[:-1]} "GET / HTTP/1.1" 200 1': "no time after user in the line",
    f"1.2.3.4 - - {TIME} GET / 200 1": "no request after time in the line",
    f'1.2.3.4 - - {TIME} "GET / HTTP/1.1 200 1': "no request after time in the line",
    f'1.2.3.4 - - {TIME} "GET / HTTP/1.1" OK 1': "the status is not three digits",
    f'1.2.3.4 - - {TIME} "GET / HTTP/1.1" 200 many': "the size is not a number",
    f'1.2.3.4 - - {TIME} "GET / HTTP/1.1" 200 {"9" * 19}': "the size is not a number",
    f'1.2.3.4 - - {TIME} "GET / HTTP/1.1" 200 1 "http://r': "no referer after bytes in the line",
    f'1.2.3.4 - - {TIME} "GET / HTTP/1.1" 200 1 "-"': "no user_agent after referer in the line",
    f'1.2.3.4 - - {TIME} "GET / HTTP/1.1" 200 1 "-" "M': "no user_agent after referer in the line",
    f'1.2.3.4 - - {TIME} "GET / HTTP/1.1" 200 1 "-" "M" "x': "the line goes on in an unknown form"
    " after user_agent",
    f'1.2.3.4\x01 - - {TIME} "GET / HTTP/1.1" 200 1': "no ident after address in the line",
    '1.2.3.4 - - [31/Feb/2025:13:55:36 +0000] "GET / HTTP/1.1" 200 1': NO_TIME,
    '1.2.3.4 - - [10/Oct/2025:13:55:36 [0000] "GET / HTTP/1.1" 200 1': NO_TIME,
    '1.2.3.4 - - [yesterday] "GET / HTTP/1.1" 200 1': NO_TIME,
    f'<a> - - {TIME} "GET / HTTP/1.1" 200 1': "the address is neither an IP address nor a name",
    '{"time": 1, "ip": "::1", "path": "/"': "the JSON is not one valid object",
    '{"time": 1, "ip": "::1", "path": "/"} {"a": 1}': "the JSON is not one valid object",
    '{"time": 1, "ip": "::1", "path": "/"}, {"a": 1}': "the JSON is not one valid object",
    '{"ip": "::1", "path": "/"}': NO_TIME,
    '{"time": 1e300, "ip": "::1", "path": "/"}': NO_TIME,
    '{"time": -1, "ip": "::1", "path": "/"}': NO_TIME,
    f'{{"time": {"9" * 20}}}': NO_TIME,
    '{"time": [], "status": "paid"}': NO_TIME,
    '[{"time": 1}]': "the JSON is not one valid object",
    "#Fields: date time c-ip": "a comment in a log, not a click",
    "{'time': 1}": "the JSON is not one valid object",
    '{"time": NaN}': "the JSON is not one valid object",
    f'{"a" * 256} - - {TIME} "GET / HTTP/1.1" 200 1': "the address is neither an IP address nor a"
    " name",
}


HOSTILE = [
    b"\x00", b"\xff\xfe", b"{", b"[]", b"null", b'"' * 1_000_000, b"\\" * 1_000_000,
    b"\n" * 1_000_000 + b"x", b" " * 1_000_000 + b"{", b"{" * 100_000, b'{"a":' * 100_000,
    b'{"time":' + b"[" * 200_000, b"1 2 3 [" * 100_000,
    f'1.2.3.4 - - {TIME} "'.encode() + b'\\"' * 400_000,
    f'1.2.3.4 - - {TIME} "GET '.encode() + b" " * 900_000 + b'x" 200 1',
    f'1.2.3.4 - - {TIME} "GET / HTTP/1.1" 200 1'.encode() + b" x" * 400_000 + b' "',
    f'1.2.3.4 - - {TIME} "GET / HTTP/1.1" 200 1 "-" "'.encode() + b"\xe4" * 1000 + b'"',
    '{"time": "\N{BOMB}", "ip": "\u0661", "path": "\\ud800"}'.encode(),
]  # fmt: skip


def damaged(line, rng):
    """A line with up to two characters removed, doubled or replaced."""
    for _ in range(rng.randrange(3)):
        at = rng.randrange(len(line))
        put = rng.choice([b"", b'"', b"\\", b" ", b"[", b"]", b"-", b"7", b"x", line[at : at + 1]])
        line = line[:at] + put + line[at + rng.randrange(2) :]
    return line or b"-"
