"""An S3 server on loopback, and the settings by which Spark, deltalake and the `aws` command reach it."""

import re
import subprocess
import sys
from pathlib import Path

import pyarrow.fs as pa_fs
from processes import wait_until
from spark_cluster import PATIENCE

DOCUMENT = Path(__file__).parents[2] / "docs" / "spark.md"
BUCKET = "lake"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "user", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1"}

_RUNNING = re.compile(r"Running on (http://127\.0\.0\.1:\d+)")


def documented_packages() -> list[str]:
    """Return the arguments that the manual names for S3: `--packages ... --exclude-packages ...`."""
    section = DOCUMENT.read_text().partition("### S3")[2].partition("\n### ")[0]
    packages, excluded = (
        re.search(r"--packages (\S+)", section),
        re.search(r"--exclude-packages (\S+)", section),
    )
    assert packages is not None
    assert excluded is not None
    return ["--packages", packages[1], "--exclude-packages", excluded[1]]


class S3Server:
    """Moto's server with one bucket; `jars` are those of the documented packages."""

    def __init__(self, folder: Path, jars: list[str]) -> None:
        self.jars = jars
        log = folder / "moto.log"
        with log.open("wb") as said:
            line = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
            self._process = subprocess.Popen(line, stdout=said, stderr=said)
        try:
            wait_until(lambda: self._process.poll() is not None or _RUNNING.search(log.read_text()), PATIENCE)
            found = _RUNNING.search(log.read_text())
            assert found is not None, log.read_text()
            self.url = found[1]
            self.files = pa_fs.S3FileSystem(
                access_key=CREDENTIALS["AWS_ACCESS_KEY_ID"],
                secret_key=CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
                region=CREDENTIALS["AWS_REGION"],
                endpoint_override=self.url,
                allow_bucket_creation=True,
            )
            self.files.create_dir(BUCKET)
        except BaseException:
            self.stop()
            raise

    @property
    def settings(self) -> dict[str, str]:
        """Hadoop's settings for S3A."""
        return {
            "fs.s3a.endpoint": self.url,
            "fs.s3a.endpoint.region": CREDENTIALS["AWS_REGION"],
            "fs.s3a.path.style.access": "true",
        }

    @property
    def extra(self) -> list[str]:
        """Arguments for spark-submit."""
        settings = [f"--conf=spark.hadoop.{name}={value}" for name, value in self.settings.items()]
        return [*documented_packages(), *settings]

    @property
    def storage_options(self) -> dict[str, str]:
        """Options for deltalake."""
        return {**CREDENTIALS, "AWS_ENDPOINT_URL": self.url, "AWS_ALLOW_HTTP": "true"}

    @property
    def pyiceberg_settings(self) -> dict[str, str]:
        return {
            "s3.endpoint": self.url,
            "s3.access-key-id": CREDENTIALS["AWS_ACCESS_KEY_ID"],
            "s3.secret-access-key": CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
            "s3.region": CREDENTIALS["AWS_REGION"],
        }

    def upload(self, folder: Path, target: str) -> None:
        """Copy a directory to the bucket, its manifest last."""
        for path in sorted(folder.rglob("*"), key=lambda path: path.name == "manifest.jsonl"):
            if path.is_file():
                name = f"{BUCKET}/{target}/{path.relative_to(folder)}"
                with self.files.open_output_stream(name) as output:
                    output.write(path.read_bytes())

    def read(self, path: str) -> bytes:
        with self.files.open_input_stream(f"{BUCKET}/{path}") as data:
            content: bytes = data.read()
            return content

    def objects(self, folder: str) -> list[str]:
        """List the objects below a folder."""
        wanted = pa_fs.FileSelector(f"{BUCKET}/{folder}", recursive=True, allow_not_found=True)
        return [one.path for one in self.files.get_file_info(wanted) if one.is_file]

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
