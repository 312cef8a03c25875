"""An Iceberg REST catalog on loopback: the server that Iceberg's own tests use, over a JDBC catalog."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from java_servers import fetched, running, spark_jars
from proxy import Proxy
from servers import Database

_PACKAGES = ("org.apache.iceberg:iceberg-core:1.10.1:tests", "org.eclipse.jetty:jetty-servlet:11.0.26")
_SPARKS = ("hadoop-client-*.jar", "log4j-*.jar")

POSTGRES_DRIVER = "org.postgresql:postgresql:42.7.14"
CATALOG = "org.apache.iceberg.spark.SparkCatalog"


def jdbc_settings(database: Database, proxy: Proxy) -> dict[str, str]:
    """Settings of a JDBC catalog in a database."""
    uri = f"jdbc:postgresql://127.0.0.1:{proxy.port}/{database.name}"
    return {"uri": uri, "jdbc.user": "postgres", "jdbc.password": "none", "jdbc.schema-version": "V1"}


@contextmanager
def rest_catalog(
    folder: Path,
    database: Mapping[str, str],
    warehouse: str,
    settings: Mapping[str, str],
    jars: Sequence[str] = (),
) -> Iterator[str]:
    """Serve a REST catalog on top of a JDBC catalog; yield its URL.

    `settings` are Hadoop's, by which the server reaches the warehouse; `jars` are those that this needs.
    """
    own = fetched(*_PACKAGES, POSTGRES_DRIVER)
    # Iceberg's tests jar has a class of the S3 client, too: the client's own has to come first.
    with running([*jars, *spark_jars(*_SPARKS), *own], folder, "-Xmx512m") as jvm:
        configuration = jvm.org.apache.hadoop.conf.Configuration()
        for name, value in settings.items():
            configuration.set(name, value)
        behind = jvm.org.apache.iceberg.jdbc.JdbcCatalog()
        behind.setConf(configuration)
        behind.initialize("behind", {**database, "warehouse": warehouse})
        adapter = jvm.org.apache.iceberg.rest.RESTCatalogAdapter(behind)
        jetty = jvm.org.eclipse.jetty
        handler = jetty.servlet.ServletContextHandler()
        servlet = jvm.org.apache.iceberg.rest.RESTCatalogServlet(adapter)
        handler.addServlet(jetty.servlet.ServletHolder(servlet), "/*")
        server = jetty.server.Server(jvm.java.net.InetSocketAddress("127.0.0.1", 0))
        server.setHandler(handler)
        server.start()
        (connector,) = server.getConnectors()
        yield f"http://127.0.0.1:{connector.getLocalPort()}"
        server.stop()
