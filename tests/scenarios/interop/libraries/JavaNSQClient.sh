# The client's own tests. Their certificates have expired, and the server's key is not published:
# new ones take their names. Netty reads keys as PKCS 8 only, and loads its OpenSSL library by
# another name than Debian's.
openssl pkcs8 -topk8 -nocrypt -in client.key -out pkcs8.key
mv pkcs8.key client.key
jars=.
for jar in commons-pool2 failureaccess guava hamcrest jackson-annotations jackson-core \
    jackson-databind junit4 log4j-api log4j-core netty-buffer netty-codec netty-common \
    netty-handler netty-resolver netty-tcnative netty-transport; do
    jars="$jars:/usr/share/java/$jar.jar"
done
cp "$(find /usr/lib -name libnetty-tcnative.so)" libnetty_tcnative.so
find "$checkouts/JavaNSQClient/src" "$programs" -name '*.java' >sources
javac -nowarn -d . -cp "$jars" @sources
cp "$checkouts"/JavaNSQClient/src/main/resources/* .
LD_LIBRARY_PATH=. java -cp "$jars" EachTest NSQConsumerTest NSQProducerTest 2>&1
