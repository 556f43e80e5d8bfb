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
 * <p>PORT 0 is any free one. Prints "ready bolt://127.0.0.1:PORT" when it answers. Stops, with everything on disk, when its input ends or on SIGTERM.
 */
public final class Launcher {
    public static void main(String[] arguments) throws IOException {
        Path folder = Path.of(arguments[0]);
        int port = Integer.parseInt(arguments[1]);
        String password = Files.readString(Path.of(arguments[2])).strip();

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
        // The account's own first password expires at once; this one is kept. It is set at every start, so that the file rules.
        GraphDatabaseAPI system = (GraphDatabaseAPI) server.database(GraphDatabaseSettings.SYSTEM_DATABASE_NAME);
        system.executeTransactionally(
                "ALTER USER neo4j SET PASSWORD $password CHANGE NOT REQUIRED", Map.of("password", password));

        Runtime.getRuntime().addShutdownHook(new Thread(server::shutdown));
        ConnectorPortRegister ports = system.getDependencyResolver().resolveDependency(ConnectorPortRegister.class);
        System.out.println("ready bolt://127.0.0.1:" + ports.getLocalAddress(ConnectorType.BOLT).getPort());
        System.out.flush();
        while (System.in.read() >= 0) {
            // Until the process that started this one closes its end, or is gone.
        }
        System.exit(0);
    }
}
