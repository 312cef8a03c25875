"""The documents name files that exist and fields that are printed, and a site can be built from them."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pgcdc_cli.spark.pgcdc_merge.options import PACKAGES
from pgcdc_cli.spark.warehouse import MergedTable

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
FOLDERS = [ROOT, ROOT / "tests", ROOT / "pgcdc_cli", *(ROOT / "pgcdc_cli").glob("*/")]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_file_that_is_named_is_there(document):
    named = set(re.findall(r"[\w./-]+\.py\b", document.read_text()))
    assert [name for name in named if not any((folder / name).exists() for folder in FOLDERS)] == []


def test_every_name_that_is_said_to_be_in_a_file_is_there():
    said = re.findall(r"`(\w+)` in `([\w/]+\.py)`", (ROOT / "CONTRIBUTING.md").read_text())
    folders = (ROOT / "pgcdc_cli", ROOT / "tests", ROOT)

    def is_there(name, path):
        file = next(folder / path for folder in folders if (folder / path).exists())
        return re.search(rf"\b{name}\b", file.read_text()) is not None

    assert [(name, path) for name, path in said if not is_there(name, path)] == []
    assert len(said) > 20


@pytest.mark.parametrize(
    "document", [ROOT / "README.md", ROOT / "docs" / "index.md"], ids=lambda path: path.name
)
def test_every_page_is_named_where_readers_begin(document):
    pages = {page.resolve() for page in (ROOT / "docs").glob("*.md")} - {ROOT / "docs" / "index.md"}
    assert pages - {path for path, _ in links(document)} == set()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_leads_somewhere(document):
    """A site is built from docs/ alone, so nothing else checks what leads there from the project's folder."""
    dead = [(path.name, place) for path, place in links(document) if not is_there(path, place)]
    assert dead == []


def links(document):
    """The files that a document links to, and the headings in them, or None."""
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", document.read_text()):
        name, _, place = target.partition("#")
        yield (document.parent / name).resolve() if name else document, place or None


def is_there(path, place):
    if not path.exists() or place is None:
        return path.exists()
    headings = re.findall(
        r"^#+ (.*)$", re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL), re.MULTILINE
    )
    return place in {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_they_make_a_site_that_needs_no_other(tmp_path):
    site = tmp_path / "site"
    line = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(site)]
    subprocess.run(line, cwd=ROOT, check=True, env={**os.environ, "http_proxy": "http://127.0.0.1:9"})
    pages = [path for path in DOCUMENTS if path.parent == ROOT / "docs"]
    names = ["." if page.stem == "index" else page.stem for page in pages]
    texts = [(site / name / "index.html").read_text() for name in names]
    assert [re.findall(r"(?:src=|<link [^>]*href=)\"(?:https?:)?//[^\"]*", text) for text in texts] == [
        []
    ] * len(texts)
    assert (site / "status-watch.svg").exists()


def test_the_packages_of_table_formats_are_those_that_a_merge_takes():
    texts = {page.name: page.read_text() for page in DOCUMENTS if page.name != "CHANGELOG.md"}
    named = re.findall(r"\b(?:io\.delta|org\.apache\.iceberg):[\w.-]+:[\d.]+", "".join(texts.values()))
    packages = {package for by_spark in PACKAGES.values() for package in by_spark.values()}
    assert set(named) == packages
    jars = {package.partition(":")[2].replace(":", "-") + ".jar" for package in packages}
    assert {jar for jar in jars if jar not in texts["spark.md"]} == set()


def test_the_tour_s_error_is_the_one_that_is_printed(shop, pgcdc):
    shop.create_slot("shop_slot")
    ran = pgcdc("stream", "-d", shop.uri, "-S", "shop_slt", "--publication", "p", "--endpos", "now")
    shop.drop_slot("shop_slot")
    assert ran.status == 5
    assert "".join(f"    {line}\n" for line in ran.err.splitlines()) in (ROOT / "README.md").read_text()


def printed_fields(content):
    """Every name in JSON output, at any depth."""
    if isinstance(content, dict):
        return set(content).union(*map(printed_fields, content.values()))
    return set().union(*map(printed_fields, content)) if isinstance(content, list) else set()


def documented_fields(heading):
    """The words in backticks in this section of the page; of paths, the last word."""
    section = (ROOT / "docs" / "json.md").read_text().partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return {path.rpartition(".")[2] for path in re.findall(r"`([\w.\[\]]+)`", section)}


def test_every_field_that_json_has_is_documented(shop, pgcdc, tmp_path):
    slot = shop.copy_slot(shop.slot)
    server = ("-d", shop.uri)
    stream = ("-S", slot, "--publication", "p", "-D", "d", "--endpos", "now")
    assert pgcdc("stream", *server, *stream).status == 0
    (tmp_path / "lake").mkdir()
    merged = dict.fromkeys(MergedTable.__dataclass_fields__)
    rows = [{**merged, "table": "public.items", "mode": "merge", "segment": 1, "lsn": "0/1"}]
    (tmp_path / "lake" / "_pgcdc.json").write_text(json.dumps({"rows": rows}))
    made = f"{slot}_2"
    for heading, line in {
        "slot create": ("slot", "create", made, *server),
        "slot list, slot show": ("slot", "show", slot, *server),
        "publication list, publication show": ("publication", "show", "p", *server),
        "status": ("status", "d", "--warehouse", "lake"),
        "show --stat": ("show", "d", "--stat"),
        "snapshot": ("snapshot", *server, "--publication", "p", "-D", "s"),
        "pgcdc --version": ("--version",),
    }.items():
        ran = pgcdc(*line, "--json")
        assert ran.status == 0, ran.err
        fields = printed_fields(json.loads(ran.out))
        assert fields - documented_fields(heading) == set() != fields
    shop.drop_slot(made)


def test_a_manifest_s_line_is_as_shown(shop, pgcdc, tmp_path):
    text = (ROOT / "docs" / "delivery.md").read_text()
    shown = json.loads(re.search(r"^    (\{\"segment\".*?)\n\n", text, re.MULTILINE | re.DOTALL)[1])
    stream = ("-S", shop.copy_slot(shop.slot), "--publication", "p", "-D", "d", "--endpos", "now")
    assert pgcdc("stream", "-d", shop.uri, *stream).status == 0
    line = json.loads((tmp_path / "d" / "manifest.jsonl").read_text().splitlines()[0])
    assert (list(line), list(line["files"][0])) == (list(shown), list(shown["files"][0]))
