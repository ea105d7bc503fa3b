"""Twenty requests, and how each named format writes them, by its public description.

A writer returns the line, and the columns of the click, as far as the format has them: with escapes
as the format writes them, where the reader leaves them as they are.
"""

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from urllib.parse import quote

FIREFOX = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/146.0"
HOST = "shop.example"


@dataclass
class Request:
    """A request; None: the format's sign for a missing value."""

    address: str = "203.0.113.7"
    method: str = "GET"
    target: str = "/"
    status: int | None = 200
    size: int | None = 5120
    referer: str | None = "https://a.example/x?y=1"
    agent: str | None = FIREFOX
    user: str | None = None
    number: int = 0

    @property
    def time(self):
        return datetime(2026, 2, 28, 23, 50, tzinfo=UTC) + timedelta(seconds=97 * self.number)


REQUESTS = [
    Request(),
    Request(address="2001:db8::7:1"),
    Request(address="::1", target="/index.html"),
    Request(address="fe80::1", agent=None, referer=None),
    Request(target="/search?q=a&b=%20c&d=?e", method="HEAD"),
    Request(target="/caf\u00e9/men\u00fc?x=\u00e4", referer="https://\u00fc.example/"),
    Request(agent='Mozilla "quoted" \\back'),
    Request(agent="Robot \U0001f916/1.0 (\u65e5\u672c)"),
    Request(referer="android-app://com.example/"),
    Request(status=304, size=0),
    Request(status=404, target="/no/such/page"),
    Request(status=503, size=None),
    Request(user="frank"),
    Request(user="j\u00fcrgen@example.com", method="POST", target="/login"),
    Request(method="OPTIONS", target="/api/v1/orders/1"),
    Request(method="DELETE", target="/api/v1/orders/1", status=204, size=0),
    Request(agent="curl/8.5"),
    Request(target="/a(b)[c]{d}|e", agent="-", referer=None),
    Request(agent="", referer=""),
    Request(target="/" + "long/" * 300, size=999_999_999_999),
]
for _number, _request in enumerate(REQUESTS):
    _request.number = _number


def _dash(value):
    return "-" if value is None else value


def _columns(one, **other):
    """The columns that nearly all formats have."""
    page = one.target.partition("?")[0]
    places = {"address": one.address, "path": one.target, "page": page}
    counts = {"status": one.status, "bytes": one.size or 0, "reason": None}
    return {"time": one.time, "method": one.method, **places, **counts, **other}


def _of_json(one, found, **other):
    """A line of JSON, and its columns: texts are those of the request."""
    texts = {"vhost": HOST, "referer": one.referer, "user_agent": one.agent}
    return json.dumps(found, ensure_ascii=bool(one.number % 3)), _columns(one, **texts, **other)


def _escaped(text):
    return _dash(text).replace("\\", "\\\\").replace('"', '\\"')


def common(one):
    """Apache's `%h %l %u %t "%r" %>s %b`."""
    at = f"{one.time:%d/%b/%Y:%H:%M:%S} +0000"
    line = (
        f'{one.address} - {_dash(one.user)} [{at}] "{one.method} {one.target} HTTP/1.1"'
        f" {_dash(one.status)} {_dash(one.size)}"
    )
    return line, _columns(one, user=_dash(one.user), protocol="HTTP/1.1")


def combined(one):
    """The same with referer and user agent."""
    line, columns = common(one)
    texts = {"referer": _escaped(one.referer), "user_agent": _escaped(one.agent)}
    return f'{line} "{texts["referer"]}" "{texts["user_agent"]}"', columns | texts


def vhost(one):
    """Apache's `%v:%p` before the combined format (`other_vhosts_access.log` of Debian)."""
    line, columns = combined(one)
    return f"{HOST}:443 {line}", columns | {"vhost": f"{HOST}:443"}


def traefik(one):
    """Traefik's CLF: combined, and number of requests, router, URL of the server, duration."""
    line, columns = combined(one)
    line += f' {one.number} "web@docker" "http://172.17.0.2:80" 12ms'
    return line, columns | {"duration": 0.012}


def haproxy(one):
    """HAProxy's `option httplog`, with the prefix of syslog."""
    at = f"{one.time:%d/%b/%Y:%H:%M:%S}.655"
    line = (
        f"Feb  6 12:14:14 localhost haproxy[14389]: {one.address}:33317 [{at}] http-in~ static/srv1"
        f" 10/0/30/69/109 {-1 if one.status is None else one.status} {one.size or 0} - - ----"
        f' 1/1/1/1/0 0/0 {{1wt.eu}} {{}} "{one.method} {one.target} HTTP/1.1"'
    )
    at = one.time.replace(microsecond=655_000)
    return line, _columns(one, duration=0.109) | {"time": at}


def haproxy_asap(one):
    """HAProxy's `option logasap`: time and size are those so far."""
    line, columns = haproxy(one)
    return re.sub(r"/(109 \S+) (\d)", r"/+\1 +\2", line), columns


def alb(one):
    """AWS: access logs of an Application Load Balancer."""
    at, agent = one.time.replace(microsecond=186_641), _escaped(one.agent)
    url = f"https://{HOST}:443{one.target}"
    line = (
        f"https {at:%Y-%m-%dT%H:%M:%S.%f}Z app/lb/50dc {one.address}:2817 10.0.0.1:80 0.000 0.071"
        f' 0.000 {_dash(one.status)} 200 34 {one.size or 0} "{one.method} {url} HTTP/2.0" "{agent}"'
        ' ECDHE TLSv1.2 arn:aws:x "Root=1-58337262-36d2" "shop.example" "-" 0'
        ' 2026-02-28T22:22:48.364000Z "forward" "-" "-" "10.0.0.1:80" "200" "-" "-" TID_1234'
    )
    texts = {"user_agent": agent, "protocol": "HTTP/2.0", "path": url}
    return line, _columns(one, duration=0.071) | texts | {"time": at}


def elb(one):
    """AWS: access logs of a Classic Load Balancer."""
    at, agent = one.time.replace(microsecond=945_958), _escaped(one.agent)
    url = f"http://{HOST}:80{one.target}"
    line = (
        f"{at:%Y-%m-%dT%H:%M:%S.%f}Z my-lb {one.address}:2817 10.0.0.1:80 0.000073 0.001048"
        f" 0.000057 {_dash(one.status)} 200 0 {one.size or 0}"
        f' "{one.method} {url} HTTP/1.1" "{agent}" - -'
    )
    return line, _columns(one, duration=0.001048) | {"user_agent": agent, "path": url, "time": at}


def s3(one):
    """AWS: server access logs of S3; older lines end after the user agent."""
    at = f"{one.time:%d/%b/%Y:%H:%M:%S} +0000"
    agent, referer = _escaped(one.agent), _escaped(one.referer)
    line = (
        f"79a59df9 bucket1 [{at}] {one.address} 79a59df9 3E57427F3 REST.GET.OBJECT key"
        f' "{one.method} {one.target} HTTP/1.1" {_dash(one.status)} - {_dash(one.size)} - 7 -'
        f' "{referer}" "{agent}"'
    )
    columns = _columns(one, duration=0.007, user_agent=agent, referer=referer)
    if one.number % 2:
        line += f" - s9lzHYr= SigV4 ECDHE AuthHeader {HOST} TLSv1.2 arn:aws:s3 Yes"
        columns["vhost"] = HOST
    return line, columns


def cloudfront(one):
    """AWS: standard logs of CloudFront, separated by tabs, texts in percent-encoding."""
    stem, _, query = one.target.partition("?")
    agent = one.agent and quote(one.agent, safe="/():;,")
    values = (
        *(f"{one.time:%Y-%m-%d}", f"{one.time:%H:%M:%S}", "LAX1", str(one.size or 0), one.address),
        *(one.method, "d1.cloudfront.net", stem, str(one.status or "000"), _dash(one.referer)),
        *(_dash(agent), query or "-", "-", "Hit", "SOX4xwn4XV6Q==", HOST, "https", "23", "0.25"),
        *("-", "TLSv1.2", "ECDHE", "Hit", "HTTP/2.0", "-", "-", "11040", "0.001", "Hit"),
        *("text/html", "78", "-", "-"),
    )
    columns = _columns(one, vhost=HOST, duration=0.25, protocol="HTTP/2.0")
    columns |= {"referer": _dash(one.referer), "user_agent": _dash(one.agent)}
    return "\t".join(values), columns


def w3c(one):
    """The fields that IIS writes by default; `+` stands for a space in texts."""
    stem, _, query = one.target.partition("?")
    agent = (one.agent or "-").replace(" ", "+")
    line = (
        f"{one.time:%Y-%m-%d %H:%M:%S} 10.0.0.1 {one.method} {stem} {query or '-'} 443"
        f" {_dash(one.user)} {one.address} {agent} {one.referer or '-'} {one.status or 0} 0 0 15"
    )
    columns = _columns(one, user=_dash(one.user), duration=0.015) | {"bytes": 0}
    return line, columns | {"user_agent": one.agent or "-", "referer": one.referer or "-"}


def nginx_json(one):
    """nginx with `escape=json`, the variables' names as keys."""
    found = {
        **{"time_iso8601": one.time.isoformat(), "remote_addr": one.address, "remote_user": ""},
        **{"request_method": one.method, "request_uri": one.target, "status": str(one.status or 0)},
        **{"server_protocol": "HTTP/2.0", "body_bytes_sent": str(one.size or 0)},
        **{"request_time": "0.005", "http_referer": one.referer, "http_user_agent": one.agent},
        **{"host": HOST, "upstream_addr": "10.0.0.9:80"},
    }
    return _of_json(one, found, duration=0.005, extra='{"upstream_addr":"10.0.0.9:80"}')


def apache_json(one):
    """Apache's usual LogFormat in JSON: `request` is only the path, and `time` has brackets."""
    stem, mark, query = one.target.partition("?")
    found = {
        **{"time": f"[{one.time:%d/%b/%Y:%H:%M:%S} +0000]", "remoteIP": one.address, "host": HOST},
        **{"request": stem, "query": mark + query, "method": one.method, "status": one.status},
        **{"userAgent": one.agent, "referer": one.referer, "bytes": one.size},
    }
    return _of_json(one, found)


def caddy(one):
    """Caddy's access log, as in its documentation."""
    headers = {"User-Agent": [one.agent], "Referer": [one.referer], "Accept": ["*/*"]}
    found = {
        **{"level": "info", "ts": one.time.timestamp(), "logger": "http.log.access"},
        "msg": "handled request",
        "request": {
            **{"remote_ip": "10.0.0.1", "remote_port": "41342", "client_ip": one.address},
            **{"proto": "HTTP/2.0", "method": one.method, "host": HOST, "uri": one.target},
            "headers": {name: value for name, value in headers.items() if value != [None]},
        },
        **{"bytes_read": 0, "user_id": one.user or "", "duration": 0.000929675},
        **{"size": one.size or 0, "status": one.status or 0, "resp_headers": {"Server": ["Caddy"]}},
    }
    return _of_json(one, found, duration=0.000929675, protocol="HTTP/2.0")


def traefik_json(one):
    """Traefik's access log in JSON; the duration is in nanoseconds."""
    found = {
        **{"ClientAddr": f"[{one.address}]:1234", "ClientHost": one.address, "ClientPort": "1234"},
        **{"ClientUsername": one.user or "-", "DownstreamContentSize": one.size or 0},
        **{"DownstreamStatus": one.status or 0, "Duration": 7_000_000, "RequestHost": HOST},
        **{"RequestMethod": one.method, "RequestPath": one.target, "RequestProtocol": "HTTP/1.1"},
        **{"StartUTC": f"{one.time:%Y-%m-%dT%H:%M:%S}.123456789Z", "level": "info", "msg": ""},
        **{"request_User-Agent": one.agent, "request_Referer": one.referer},
        "time": one.time.isoformat(),
    }
    line, columns = _of_json(one, found, duration=0.007, user=one.user or "-")
    return line, columns | {"time": one.time.replace(microsecond=123_456)}


def ecs(one):
    """Elastic Common Schema: objects, or, in every second line, keys with points."""
    found = {
        **{"@timestamp": one.time.isoformat(), "ecs.version": "8.11.0"},
        **{"client.ip": one.address, "client.port": 1234, "event.duration": 5_000_000},
        **{"http.request.method": one.method, "http.request.referrer": one.referer},
        **{"http.response.status_code": one.status, "http.response.body.bytes": one.size},
        **{"url.original": one.target, "url.domain": HOST, "user_agent.original": one.agent},
    }
    return _of_json(one, found if one.number % 2 else _nested(found), duration=0.005)


def _nested(found):
    nested = {}
    for path, value in found.items():
        *above, key = path.split(".")
        below = nested
        for name in above:
            below = below.setdefault(name, {})
        below[key] = value
    return nested


WRITERS = {
    **{"common": [common], "combined": [combined], "vhost": [vhost], "w3c": [w3c]},
    **{"haproxy": [haproxy, haproxy_asap], "traefik": [traefik, traefik_json], "alb": [alb]},
    **{"elb": [elb], "s3": [s3], "cloudfront": [cloudfront], "json": [nginx_json, apache_json]},
    **{"caddy": [caddy], "ecs": [ecs]},
}
"""By name of the format."""
