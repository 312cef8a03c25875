"""The documents name files that are there, and make a site."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
FOLDERS = [ROOT, ROOT / "tests", ROOT / "pgcdc_cli", *(ROOT / "pgcdc_cli").glob("*/")]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_file_that_is_named_is_there(document):
    named = set(re.findall(r"[\w./-]+\.py\b", document.read_text()))
    assert [name for name in named if not any((folder / name).exists() for folder in FOLDERS)] == []


def test_they_make_a_site_that_needs_no_other(tmp_path):
    site = tmp_path / "site"
    line = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(site)]
    subprocess.run(line, cwd=ROOT, check=True, env={**os.environ, "http_proxy": "http://127.0.0.1:9"})
    pages = [path for path in DOCUMENTS if path.parent.name == "docs"]
    names = ["." if page.stem == "index" else page.stem for page in pages]
    texts = [(site / name / "index.html").read_text() for name in names]
    assert [re.findall(r"(?:src=|<link [^>]*href=)\"(?:https?:)?//[^\"]*", text) for text in texts] == [
        []
    ] * len(texts)
    assert (site / "status-watch.svg").exists()
