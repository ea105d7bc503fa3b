"""Named formats, each by its public description, and format strings."""

import pyarrow as pa
import pytest

from sparq.pipeline.reading import formats
from sparq.pipeline.reading.reader import ClickReader
from sparq.pipeline.reading.schema import Reading
from tests.pipeline.click_examples import ACCESS_LOG, READ
from tests.pipeline.reading.written import REQUESTS, WRITERS

# Lines as the documents of these formats show them.
DOCUMENTED = {
    'http 2018-07-02T22:23:00.186641Z app/my-loadbalancer/50dc6c495c0c9188 192.168.131.39:2817 '
    '10.0.0.1:80 0.000 0.001 0.000 200 200 34 366 "GET http://www.example.com:80/ HTTP/1.1" '
    '"curl/7.46.0" - - arn:aws:elasticloadbalancing:us-east-2:123456789012:targetgroup/t/73e2 '
    '"Root=1-58337262-36d228ad5d99923122bbe354" "-" "-" 0 2018-07-02T22:22:48.364000Z "forward" '
    '"-" "-" "10.0.0.1:80" "200" "-" "-"': {
        "format": "alb", "address": "192.168.131.39", "page": "/", "bytes": 366,
    },
    "2015-05-13T23:39:43.945958Z my-loadbalancer 192.168.131.39:2817 - -1 -1 -1 503 0 0 0 "
    '"GET http://www.example.com:80/ HTTP/1.1" "curl/7.38.0" - -': {
        "format": "elb", "status": 503, "duration": None,
    },
    "79a59df900b949e5 awsexamplebucket1 [06/Feb/2019:00:00:38 +0000] 192.0.2.3 79a59df900b949e5 "
    '3E57427F3EXAMPLE REST.GET.VERSIONING - "GET /awsexamplebucket1?versioning HTTP/1.1" 200 - 113'
    ' - 7 - "-" "S3Console/0.4" -': {
        "format": "s3", "path": "/awsexamplebucket1?versioning", "bytes": 113, "duration": 0.007,
    },
    "2002-05-02 17:42:15 172.22.255.255 GET /images/picture.jpg - 80 - 172.30.255.255 "
    "Mozilla/4.0+(compatible;MSIE+5.5;+Windows+2000+Server) - 200 0 0 15": {
        "format": "w3c", "address": "172.30.255.255", "path": "/images/picture.jpg",
        "user_agent": "Mozilla/4.0 (compatible;MSIE 5.5; Windows 2000 Server)",
    },
    '10.0.1.2:33317 [06/Feb/2009:12:14:14.655] http-in http-in/<NOSRV> -1/-1/-1/-1/0 400 187 - - '
    'PR-- 0/0/0/0/0 0/0 "<BADREQ>"': {
        "format": "haproxy", "address": "10.0.1.2", "method": None, "status": 400,
    },
}  # fmt: skip

COMBINED = {
    "nginx": '$remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent'
    ' "$http_referer" "$http_user_agent"',
    "GoAccess": '%h %^ %e [%d:%t %^] "%r" %s %b "%R" "%u"',
    "Apache": '%h %l %u %t \\"%r\\" %>s %b \\"%{Referer}i\\" \\"%{User-agent}i\\"',
}


def read(lines, reading=Reading()):  # noqa: B008 - a frozen record
    """The clicks of lines."""
    bodies = pa.array([line if isinstance(line, bytes) else line.encode() for line in lines])
    return ClickReader(reading).read(bodies.cast(pa.binary())).to_pylist()


@pytest.mark.parametrize("way", ["auto", "by name"])
@pytest.mark.parametrize("name", WRITERS)
def test_each_named_format_is_read(name, way):
    """Twenty requests in each named format are read, by `auto` and by its name."""
    reading = Reading() if way == "auto" else Reading(format=name)
    for writer in WRITERS[name]:
        written = [writer(request) for request in REQUESTS]
        rows = read([line for line, _ in written], reading)

        assert [name] * len(REQUESTS) == [row["format"] for row in rows], rows[0]["reason"]
        for row, (line, columns) in zip(rows, written, strict=True):
            assert columns == {key: row[key] for key in columns}, line


def test_a_batch_may_have_lines_in_all_formats():
    """`auto` decides for each line of a batch; the named formats are those that tests write."""
    pairs = [(name, writer) for name, writers in WRITERS.items() for writer in writers]
    written = [(name, *writer(request)) for request in REQUESTS for name, writer in pairs]
    rows = read([line for _, line, _ in written])

    assert [(name, columns["time"]) for name, _, columns in written] == [
        (row["format"], row["time"]) for row in rows
    ]
    assert set(formats.NAMES) == set(WRITERS)


def test_documented_lines_are_read():
    """Lines of the formats' documents are read."""
    for row, (line, columns) in zip(read(DOCUMENTED), DOCUMENTED.items(), strict=True):
        assert columns == {key: row[key] for key in columns}, (line, row["reason"])


@pytest.mark.parametrize("syntax", COMBINED)
def test_a_format_string_of_combined_gives_what_combined_gives(syntax):
    """A format string that describes `combined` gives the same columns as `combined`."""
    lines = [WRITERS["combined"][0](request)[0] for request in REQUESTS]
    lines += [line for line in READ if line.endswith('"') and not line.startswith("www")]
    if ACCESS_LOG.exists():
        lines += ACCESS_LOG.read_bytes().splitlines()
    ours = read(lines, Reading(format="combined"))
    theirs = read(lines, Reading(log_format=COMBINED[syntax]))

    pairs = zip(ours, theirs, strict=True)
    assert [] == [(one, other) for one, other in pairs if not same(one, other)]


def same(one, other):
    """Whether two clicks are equal, except for the format's name."""
    if one["reason"] and other["reason"]:
        return True
    return one | {"format": other["format"]} == other


def test_other_fields_of_a_format_string_are_extra():
    """A name that is no field of a click is a key of `extra`, unless the line has a dash for it."""
    row, other = read(
        ["1760129736.123 203.0.113.7 /a 0.5 HIT", "1760129736.123 203.0.113.7 /a 0.5 -"],
        Reading(log_format="$msec $remote_addr $request_uri $request_time $upstream_cache_status"),
    )

    assert ("/a", 0.5, "log_format") == (row["path"], row["duration"], row["format"])
    assert ('{"upstream_cache_status":"HIT"}', None) == (row["extra"], other["extra"])


def test_fields_of_w3c_are_an_option():
    """A log of IIS with other fields is read with its `#Fields` line."""
    fields = "#Fields: date time c-ip cs-method cs-uri-stem sc-status sc-bytes time-taken cs-host"
    line = "2026-03-02 10:00:00 ::1 GET /a.aspx 200 17 31 www.example"
    for reading in (Reading(fields=fields), Reading(fields=fields, format="w3c")):
        (row,) = read([line], reading)

        assert (200, 17, 0.031, "www.example") == (
            row["status"], row["bytes"], row["duration"], row["vhost"])  # fmt: skip
