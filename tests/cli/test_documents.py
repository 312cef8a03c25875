"""The documents name files that are there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
FOLDERS = [ROOT, ROOT / "tests", ROOT / "pgcdc_cli", *(ROOT / "pgcdc_cli").glob("*/")]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_file_that_is_named_is_there(document):
    named = set(re.findall(r"[\w./-]+\.py\b", document.read_text()))
    assert [name for name in named if not any((folder / name).exists() for folder in FOLDERS)] == []
