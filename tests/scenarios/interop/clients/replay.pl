# Replays the session that test_replays.py describes. Arguments: nsqd's TCP port, nsqlookupd's HTTP
# port, the topic.
use strict;
use warnings;
use IO::Socket::INET;

my ($tcp_port, $http_port, $topic) = @ARGV;

sub connected {
    my $socket = IO::Socket::INET->new(PeerAddr => "127.0.0.1", PeerPort => shift) or die "$@";
    $socket->autoflush(1);
    return $socket;
}

my $lookup = connected($http_port);
print $lookup "GET /lookup?topic=$topic HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
my $answer = do { local $/; <$lookup> };
my ($head) = split /\r\n\r\n/, $answer;
die "headers: $head" unless grep { $_ eq "X-Nsq-Content-Type: nsq; version=1.0" } split /\r\n/, $head;

my $nsqd = connected($tcp_port);

sub frame {
    read($nsqd, my $start, 8) == 8 or die "closed";
    my ($size, $kind) = unpack "NN", $start;
    read($nsqd, my $data, $size - 4) == $size - 4 or die "closed";
    return ($kind, $data);
}

sub expect {
    my ($kind, $data) = frame();
    die "expected $_[0], got $kind $data" unless $kind == 0 && $data eq $_[0];
}

my $wishes = '{"client_id":"replay.pl","feature_negotiation":true}';
print $nsqd "  V2IDENTIFY\n" . pack("N/a*", $wishes);
my ($kind, $features) = frame();
for my $text ('"tls_v1":false', '"max_rdy_count":2500') {
    die "no $text in $features" if index($features, $text) < 0;
}
print $nsqd "PUB $topic\n" . pack("N/a*", "hello");
expect("OK");
print $nsqd "SUB $topic c\n";
expect("OK");
print $nsqd "RDY 1\n";
($kind, my $message) = frame();
die "message: $message" unless $kind == 2 && substr($message, 26) eq "hello";
print $nsqd "FIN " . substr($message, 10, 16) . "\nCLS\n";
expect("CLOSE_WAIT");
