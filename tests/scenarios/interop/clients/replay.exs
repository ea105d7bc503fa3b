# Replays the session that test_replays.py describes. Arguments: nsqd's TCP port, nsqlookupd's HTTP
# port, the topic.
defmodule Replay do
  def connect(port) do
    options = [:binary, active: false]
    {:ok, socket} = :gen_tcp.connect(~c"127.0.0.1", String.to_integer(port), options)
    socket
  end

  def read_all(socket, before \\ "") do
    case :gen_tcp.recv(socket, 0) do
      {:ok, data} -> read_all(socket, before <> data)
      {:error, :closed} -> before
    end
  end

  def frame(nsqd) do
    {:ok, <<size::32, kind::32>>} = :gen_tcp.recv(nsqd, 8)
    {:ok, data} = :gen_tcp.recv(nsqd, size - 4)
    {kind, data}
  end

  def expect(nsqd, answer), do: {0, ^answer} = frame(nsqd)
end

[tcp_port, http_port, topic] = System.argv()
lookup = Replay.connect(http_port)
request = "GET /lookup?topic=#{topic} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
:ok = :gen_tcp.send(lookup, request)
[head | _] = lookup |> Replay.read_all() |> String.split("\r\n\r\n")
true = "X-Nsq-Content-Type: nsq; version=1.0" in String.split(head, "\r\n")

nsqd = Replay.connect(tcp_port)
wishes = ~s({"client_id":"replay.exs","feature_negotiation":true})
:ok = :gen_tcp.send(nsqd, ["  V2IDENTIFY\n", <<byte_size(wishes)::32>>, wishes])
{0, features} = Replay.frame(nsqd)
true = String.contains?(features, ~s("tls_v1":false))
true = String.contains?(features, ~s("max_rdy_count":2500))
:ok = :gen_tcp.send(nsqd, ["PUB #{topic}\n", <<5::32>>, "hello"])
Replay.expect(nsqd, "OK")
:ok = :gen_tcp.send(nsqd, "SUB #{topic} c\n")
Replay.expect(nsqd, "OK")
:ok = :gen_tcp.send(nsqd, "RDY 1\n")
{2, <<_::80, id::binary-size(16), "hello">>} = Replay.frame(nsqd)
:ok = :gen_tcp.send(nsqd, "FIN #{id}\nCLS\n")
Replay.expect(nsqd, "CLOSE_WAIT")
