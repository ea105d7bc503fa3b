# Replays the session that test_replays.py describes. Arguments: nsqd's TCP port, nsqlookupd's HTTP
# port, the topic.
require "socket"

def frame(nsqd)
  size, kind = nsqd.read(8).unpack("NN")
  [kind, nsqd.read(size - 4)]
end

def expect(nsqd, answer)
  got = frame(nsqd)
  abort "expected #{answer}, got #{got}" unless got == [0, answer]
end

tcp_port, http_port, topic = ARGV
lookup = TCPSocket.new("127.0.0.1", http_port)
lookup.write("GET /lookup?topic=#{topic} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
head = lookup.read.split("\r\n\r\n", 2)[0]
abort "headers: #{head}" unless head.split("\r\n").include?("X-Nsq-Content-Type: nsq; version=1.0")

nsqd = TCPSocket.new("127.0.0.1", tcp_port)
wishes = '{"client_id":"replay.rb","feature_negotiation":true}'
nsqd.write("  V2IDENTIFY\n" + [wishes.bytesize].pack("N") + wishes)
features = frame(nsqd)[1]
['"tls_v1":false', '"max_rdy_count":2500'].each do |text|
  abort "no #{text} in #{features}" unless features.include?(text)
end
nsqd.write("PUB #{topic}\n" + [5].pack("N") + "hello")
expect(nsqd, "OK")
nsqd.write("SUB #{topic} c\n")
expect(nsqd, "OK")
nsqd.write("RDY 1\n")
kind, message = frame(nsqd)
abort "message: #{message}" unless kind == 2 && message[26..] == "hello"
nsqd.write("FIN #{message[10, 16]}\nCLS\n")
expect(nsqd, "CLOSE_WAIT")
