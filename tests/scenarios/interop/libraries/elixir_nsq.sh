# The client's own tests, with the daemons of its Procfile.
cd "$checkouts/elixir_nsq"
export MIX_ENV=test
keys=test/ssl_keys
mix run --no-deps-check --require test/nsq/test/auth_server.ex --no-halt \
    -e 'NSQ.Test.AuthServer.start(6790)' >"$folder/authd.log" 2>&1 &
for port in 6770 6780; do
    nsqlookupd --tcp-address=127.0.0.1:$port --http-address=127.0.0.1:$((port + 1)) \
        >"$folder/nsqlookupd-$port.log" 2>&1 &
    listens $((port + 1))
done
listens 6790
for port in 6750 6760 6765; do
    mkdir "$folder/$port"
    auth=
    [ $port = 6765 ] && auth=--auth-http-address=127.0.0.1:6790
    nsqd --tcp-address=127.0.0.1:$port --http-address=127.0.0.1:$((port + 1)) \
        --https-address=127.0.0.1:$((port + 2)) --data-path="$folder/$port" \
        --broadcast-address=127.0.0.1 --lookupd-tcp-address=127.0.0.1:6770 \
        --lookupd-tcp-address=127.0.0.1:6780 --tls-root-ca-file=$keys/elixirNsq.pem \
        --tls-key=$keys/elixir_nsq.key --tls-cert=$keys/elixir_nsq.crt $auth \
        >"$folder/nsqd-$port.log" 2>&1 &
    listens $((port + 1))
done
mix test --no-deps-check 2>&1
