<?php
// Publishes with nsqphp, and consumes until all has come, also the message that was published before.
// One message is requeued once. Arguments: the folder with the checkouts of nsqphp and React's
// event-loop, the topic. nsqphp's discovery reads the answers of NSQ before 1.0 only.
[, $checkouts, $topic] = $argv;
spl_autoload_register(function ($class) use ($checkouts) {
    $file = strtr($class, "\\", "/") . ".php";
    foreach (["nsqphp/" => "nsqphp/src/nsqphp/", "React/EventLoop/" => "event-loop/src/"] as $from => $to) {
        if (str_starts_with($file, $from)) {
            require "$checkouts/$to" . substr($file, strlen($from));
        }
    }
});
error_reporting(E_ALL & ~E_DEPRECATED);

$nsq = new nsqphp\nsqphp(
    new nsqphp\Lookup\FixedHosts("127.0.0.1:4150"), null, new nsqphp\RequeueStrategy\FixedDelay(50)
);
$nsq->publishTo("127.0.0.1:4150");
foreach (["one", "two", "three"] as $body) {
    $nsq->publish($topic, new nsqphp\Message\Message($body));
}
$seen = [];
$refused = false;
$nsq->subscribe($topic, "c", function ($message) use ($nsq, &$seen, &$refused) {
    if ($message->getPayload() === "two" && !$refused) {
        $refused = true;
        throw new RuntimeException("not yet");
    }
    $seen[$message->getPayload()] = $message->getAttempts();
    if (count($seen) === 4) {
        $nsq->stop();
    }
});
$nsq->run(30);
ksort($seen);
if ($seen !== ["before" => 1, "one" => 1, "three" => 1, "two" => 2]) {
    exit("received " . json_encode($seen) . "\n");
}
echo "received all 4\n";
