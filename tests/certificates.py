"""Certificates for servers and clients of tests, made by openssl."""

import shutil
import subprocess
from pathlib import Path

MISSING = None if shutil.which("openssl") else "openssl isn't installed"
"""The reason why none can be made here."""


class Authority:
    """A certificate authority in a folder; `certificate` is its own, and `key` its key."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self.certificate = folder / f"{name}.crt"
        self.key = folder / f"{name}.key"
        self._openssl(
            "req",
            "-x509",
            "-subj",
            f"/CN={name}",
            "-days",
            "3650",
            "-out",
            self.certificate,
            "-keyout",
            self.key,
        )

    def sign(self, name: str, alternative: str = "") -> tuple[Path, Path]:
        """Return the files of a certificate for `name`, and of its key."""
        certificate, key = self._folder / f"{name}.crt", self._folder / f"{name}.key"
        extension = ["-addext", f"subjectAltName={alternative}"] if alternative else []
        by_us = ["-CA", self.certificate, "-CAkey", self.key, "-x509", "-days", "3650"]
        self._openssl("req", "-subj", f"/CN={name}", *extension, *by_us, "-out", certificate, "-keyout", key)
        return certificate, key

    def _openssl(self, command: str, *arguments: str | Path) -> None:
        new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        subprocess.run(["openssl", command, *new_key, *arguments], check=True, capture_output=True)
