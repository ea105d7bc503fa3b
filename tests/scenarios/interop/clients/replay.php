<?php
// Replays the session that test_replays.py describes. Arguments: nsqd's TCP port, nsqlookupd's HTTP
// port, the topic.

function check(bool $holds, string $otherwise): void
{
    if (!$holds) {
        fwrite(STDERR, $otherwise);
        exit(1);
    }
}

function frame($nsqd): array
{
    $start = unpack("Nsize/Nkind", stream_get_contents($nsqd, 8));
    return [$start["kind"], stream_get_contents($nsqd, $start["size"] - 4)];
}

function expect($nsqd, string $answer): void
{
    $got = frame($nsqd);
    check($got === [0, $answer], "expected $answer, got " . json_encode($got));
}

[, $tcp_port, $http_port, $topic] = $argv;
$lookup = stream_socket_client("tcp://127.0.0.1:$http_port");
fwrite($lookup, "GET /lookup?topic=$topic HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
$head = explode("\r\n\r\n", stream_get_contents($lookup))[0];
check(in_array("X-Nsq-Content-Type: nsq; version=1.0", explode("\r\n", $head), true), "headers: $head");

$nsqd = stream_socket_client("tcp://127.0.0.1:$tcp_port");
$wishes = '{"client_id":"replay.php","feature_negotiation":true}';
fwrite($nsqd, "  V2IDENTIFY\n" . pack("N", strlen($wishes)) . $wishes);
$features = frame($nsqd)[1];
foreach (['"tls_v1":false', '"max_rdy_count":2500'] as $text) {
    check(str_contains($features, $text), "no $text in $features");
}
fwrite($nsqd, "PUB $topic\n" . pack("N", 5) . "hello");
expect($nsqd, "OK");
fwrite($nsqd, "SUB $topic c\n");
expect($nsqd, "OK");
fwrite($nsqd, "RDY 1\n");
[$kind, $message] = frame($nsqd);
check($kind === 2 && substr($message, 26) === "hello", "message: $message");
fwrite($nsqd, "FIN " . substr($message, 10, 16) . "\nCLS\n");
expect($nsqd, "CLOSE_WAIT");
