import io.debezium.engine.ChangeEvent;
import io.debezium.engine.format.Json;
import java.io.IOException;
import java.io.Reader;
import java.io.Writer;
import java.lang.management.GarbageCollectorMXBean;
import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.stream.Collectors;

/**
 * Debezium as its users embed it: a connector's events into a file, each a line such as pgcdc writes.
 *
 * <p>Arguments: the connector's properties, the file to write, how many events to wait for. Without arguments
 * it tells of the virtual machine.
 */
public final class DebeziumEngine {
    private final Writer out;
    private final CountDownLatch awaited;

    private DebeziumEngine(Writer out, int events) {
        this.out = out;
        this.awaited = new CountDownLatch(events);
    }

    public static void main(String[] arguments) throws Exception {
        if (arguments.length == 0) {
            describe();
            return;
        }
        Properties properties = new Properties();
        try (Reader reader = Files.newBufferedReader(Path.of(arguments[0]))) {
            properties.load(reader);
        }
        try (Writer out = Files.newBufferedWriter(Path.of(arguments[1]))) {
            new DebeziumEngine(out, Integer.parseInt(arguments[2])).run(properties);
        }
        System.exit(0);
    }

    private void run(Properties properties) throws IOException, InterruptedException {
        var engine = io.debezium.engine.DebeziumEngine.create(Json.class).using(properties)
            .using((success, message, error) -> fail(success, message)).notifying(this::write).build();
        ExecutorService thread = Executors.newSingleThreadExecutor();
        thread.execute(engine);
        awaited.await();
        engine.close();
    }

    private void write(
            List<ChangeEvent<String, String>> events,
            io.debezium.engine.DebeziumEngine.RecordCommitter<ChangeEvent<String, String>> committer)
            throws InterruptedException {
        try {
            for (ChangeEvent<String, String> event : events) {
                if (awaited.getCount() == 0) {
                    break;
                }
                out.append("{\"topic\":\"").append(event.destination()).append("\",\"key\":").append(event.key());
                out.append(",\"value\":").append(event.value()).append(",\"headers\":{}}\n");
                committer.markProcessed(event);
                awaited.countDown();
            }
            out.flush();
        } catch (IOException error) {
            fail(false, error.toString());
        }
        committer.markBatchFinished();
    }

    private static void fail(boolean success, String message) {
        if (!success) {
            System.err.println(message);
            Runtime.getRuntime().halt(1);
        }
    }

    private static void describe() {
        String collectors = ManagementFactory.getGarbageCollectorMXBeans().stream()
            .map(GarbageCollectorMXBean::getName).collect(Collectors.joining(", "));
        long heap = Runtime.getRuntime().maxMemory() >> 20;
        System.out.printf("Java %s, %s, at most %d MB of heap%n", Runtime.version(), collectors, heap);
    }
}
