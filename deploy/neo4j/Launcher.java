import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Map;
import org.neo4j.configuration.GraphDatabaseSettings;
import org.neo4j.configuration.connectors.BoltConnector;
import org.neo4j.configuration.connectors.ConnectorPortRegister;
import org.neo4j.configuration.connectors.ConnectorType;
import org.neo4j.configuration.connectors.HttpConnector;
import org.neo4j.configuration.connectors.HttpsConnector;
import org.neo4j.configuration.helpers.SocketAddress;
import org.neo4j.dbms.api.DatabaseManagementService;
import org.neo4j.dbms.api.DatabaseManagementServiceBuilder;
import org.neo4j.io.ByteUnit;
import org.neo4j.kernel.internal.GraphDatabaseAPI;

/**
 * A Neo4j Community server with Bolt on 127.0.0.1 and nothing else open, for development and tests.
 *
 * <p>java -cp 'lib/*' Launcher.java FOLDER PORT PASSWORD_FILE
 *
 * <p>PORT 0 is any free one. Prints "ready bolt://127.0.0.1:PORT" when it answers. Stops, with everything on disk, when its
 * input ends or on SIGTERM.
 */
public final class Launcher {
    public static void main(String[] arguments) {
        int status = 0;
        try {
            run(Path.of(arguments[0]), Integer.parseInt(arguments[1]), Files.readString(Path.of(arguments[2])).strip());
        } catch (IOException | RuntimeException error) {
            // Said and ended here: the server's own threads would keep a process alive that never answers.
            error.printStackTrace();
            status = 1;
        }
        System.exit(status);
    }

    private static void run(Path folder, int port, String password) throws IOException {
        DatabaseManagementService server = new DatabaseManagementServiceBuilder(folder)
                .setConfig(BoltConnector.enabled, true)
                .setConfig(BoltConnector.listen_address, new SocketAddress("127.0.0.1", port))
                .setConfig(HttpConnector.enabled, false)
                .setConfig(HttpsConnector.enabled, false)
                .setConfig(GraphDatabaseSettings.auth_enabled, true)
                // A wrong password is tried by tests on purpose; the real one must still work after it.
                .setConfig(GraphDatabaseSettings.auth_max_failed_attempts, 0)
                .setConfig(GraphDatabaseSettings.pagecache_memory, ByteUnit.mebiBytes(64))
                .setConfig(GraphDatabaseSettings.check_point_interval_time, Duration.ofMinutes(5))
                .build();
        Runtime.getRuntime().addShutdownHook(new Thread(server::shutdown));
        GraphDatabaseAPI system = (GraphDatabaseAPI) server.database(GraphDatabaseSettings.SYSTEM_DATABASE_NAME);
        setPassword(system, password);

        ConnectorPortRegister ports = system.getDependencyResolver().resolveDependency(ConnectorPortRegister.class);
        System.out.println("ready bolt://127.0.0.1:" + ports.getLocalAddress(ConnectorType.BOLT).getPort());
        System.out.flush();
        while (System.in.read() >= 0) {
            // Until the process that started this one closes its end, or is gone.
        }
    }

    /** The account's own first password expires at once; this one is kept. It is set at every start: the file rules. */
    private static void setPassword(GraphDatabaseAPI system, String password) {
        try {
            system.executeTransactionally(
                    "ALTER USER neo4j SET PASSWORD $password CHANGE NOT REQUIRED", Map.of("password", password));
        } catch (RuntimeException error) {
            // The one that it has already; there is no statement that only compares.
            if (!isSamePassword(error)) {
                throw error;
            }
        }
    }

    private static boolean isSamePassword(Throwable error) {
        for (Throwable cause = error; cause != null; cause = cause.getCause()) {
            if (String.valueOf(cause.getMessage()).contains("Old password and new password cannot be the same")) {
                return true;
            }
        }
        return false;
    }
}
