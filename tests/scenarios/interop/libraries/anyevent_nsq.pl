# Publishes with AnyEvent::NSQ's Writer (PUB and MPUB), and consumes with its Reader until all has
# come, also the message that was published before. One message is requeued once. Argument: the
# topic. The library has no discovery.
use strict;
use warnings;
use AnyEvent;
use AnyEvent::NSQ::Reader;
use AnyEvent::NSQ::Writer;

my ($topic) = @ARGV;
my $done = AE::cv;
my $late = AE::timer 30, 0, sub { $done->croak("not all came in 30 s") };
my %client = (
  nsqd_tcp_addresses => '127.0.0.1',
  client_id          => 'anyevent',
  error_cb           => sub { $done->croak($_[1]) },
);
my $writer;
$writer = AnyEvent::NSQ::Writer->new(
  %client,
  identify_cb => sub {
    $writer->publish($topic, 'one', sub { $writer->publish($topic, 'two', 'three', sub { }) });
  },
);
my %seen;
my $reader;
$reader = AnyEvent::NSQ::Reader->new(
  %client,
  topic       => $topic,
  channel     => 'c',
  ready_count => 10,
  message_cb  => sub {
    my ($self, $message) = @_;
    my $body = $message->{message};
    return $self->requeue_msg($message, 50) if $body eq 'two' && $message->{attempts} == 1;
    $seen{$body} = $message->{attempts};
    $self->mark_as_done_msg($message);
    $self->disconnect(sub { $done->send }) if keys %seen == 4;
  },
);
$done->recv;
my $received = join ' ', map {"$_=$seen{$_}"} sort keys %seen;
die "received $received\n" if $received ne 'before=1 one=1 three=1 two=2';
print "received all 4\n";
