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
    """What a JDBC catalog needs that is in a database."""
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
    """Serve a catalog, whose tables a JDBC catalog names; gives its URL.

    `settings` are Hadoop's, by which the server reaches the warehouse, and `jars` what it needs for that.
    """
    own = fetched(*_PACKAGES, POSTGRES_DRIVER)
    # The jar of its tests has a class of S3's client, too, which is to come behind the client's.
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
