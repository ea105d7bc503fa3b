"""The command line and settings file of `sparq pipeline`: precedence, errors, imports."""

import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from sparq.options.mistakes import Mistake
from sparq.pipeline.command import APPLICATION, main, parse
from sparq.pipeline.own_metrics import OwnMetric
from sparq.pipeline.settings import Settings, SettingsError, flags

NEEDED = ("--data=data", "--lookupd-http-address=127.0.0.1:4161")
HEAVY = frozenset(
    {
        *("aiohttp", "asyncio", "multidict", "numpy", "pandas", "prometheus_client", "py4j"),
        *("pyarrow", "pyspark", "ssl", "uvloop", "xxhash", "yarl"),
    }
)


@pytest.fixture
def file(tmp_path: Path):
    """A function that writes a settings file."""

    def write(text: str) -> Path:
        path = tmp_path / "clicks.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def refused(*words: str) -> str:
    """The one-sentence error about these words."""
    with pytest.raises(Mistake) as raised:
        parse(words)
    sentence = str(raised.value)
    assert "\n" not in sentence
    return sentence


def test_flags_in_every_form() -> None:
    """A value follows = or is the next word; lists have commas or repeated flags; --no- negates."""
    words = [
        *("--data", "data", "--lookupd-http-address", "a:4161,b:4161"),
        *("--lookupd-http-address=c:4161", "--queries", "metrics,archive"),
        *("--trigger", "2", "--no-publish", "--max-offsets-per-trigger=5"),
        *("--spark", "spark.a=1", "--spark=spark.b=2", "--metrics-address="),
    ]
    expected = Settings(
        data="data",
        lookupd_http_addresses=("a:4161", "b:4161", "c:4161"),
        queries=("metrics", "archive"),
        trigger="2 seconds",
        publish=False,
        max_offsets_per_trigger=5,
        spark={"spark.a": "1", "spark.b": "2"},
        metrics_address="",
    )

    assert expected == parse(words)
    only_required = Settings(data="data", lookupd_http_addresses=("127.0.0.1:4161",))
    assert only_required == parse(NEEDED) == parse([*NEEDED, "--no-publish", "--publish"])


def test_a_settings_file_needs_no_flags(file) -> None:
    """The file's keys are the names of the flags; its values have TOML types."""
    path = file("""
        data = "s3a://bucket/clicks"
        lookupd-http-address = ["a:4161", "b:4161"]
        queries = "archive,metrics"
        trigger = 0.5
        publish = false
        max-offsets-per-trigger = 1_000
        trusted-proxies = ["private", "198.51.100.0/24"]
        rules = "rules/own.toml"

        [source]
        tls_v1 = true
        auth_secret = "hush"

        [columns]
        order_id = "order.id: bigint"

        [metrics.sales]
        value = "count(*)"
    """)
    expected = Settings(
        data="s3a://bucket/clicks",
        lookupd_http_addresses=("a:4161", "b:4161"),
        queries=("archive", "metrics"),
        trigger="500 milliseconds",
        publish=False,
        max_offsets_per_trigger=1000,
        trusted_proxies=("private", "198.51.100.0/24"),
        rules=str(path.parent / "rules" / "own.toml"),  # wherever the command is called
        source={"tls_v1": "true", "auth_secret": "hush"},
        columns={"order_id": "order.id: bigint"},
        own_metrics=(OwnMetric("sales", "count(*)"),),
    )

    assert expected == parse([f"--config={path}"])
    assert expected.columns == expected.reading.columns


@pytest.mark.parametrize(
    "text",
    [
        'spark = ["spark.executor.cores=2", "spark.speculation=true"]',
        '[spark]\n"spark.executor.cores" = 2\n"spark.speculation" = true',
        "[spark]\nexecutor.cores = 2\nspeculation = true",
        "spark.executor.cores = 2\nspark.speculation = true",
    ],
)
def test_a_file_has_spark_options_as_list_table_or_dotted_keys(text: str, file) -> None:
    """Spark options are a list, a table with long or short keys, or dotted keys at the top."""
    settings = parse([*NEEDED, f"--config={file(text)}"])

    assert {"spark.executor.cores": "2", "spark.speculation": "true"} == dict(settings.spark)


def test_flags_override_the_file(file) -> None:
    """Flags replace values and whole lists; options of Spark and of the source merge by key."""
    path = file("""
        data = "elsewhere"
        lookupd-http-address = ["a:4161"]
        trigger = "5 seconds"
        topic = "shop"
        spark.a = 1
        spark.b = 1
        click = { path = "page.url", user = "user.id" }
    """)

    words = [*NEEDED, "--trigger=1", "--spark=spark.b=2", "--click=user=uid", f"--config={path}"]
    expected = Settings(
        data="data",
        lookupd_http_addresses=("127.0.0.1:4161",),
        trigger="1",
        topic="shop",
        spark={"spark.a": "1", "spark.b": "2"},
        click={"path": "page.url", "user": "uid"},
    )

    assert expected == parse(words)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("triger = 1", "there is no option triger: did you mean trigger?"),
        ("max_offsets_per_trigger = 1", "there is no option max_offsets_per_trigger: did you mean"),
        ("[column]\na = 'b'", "there is no section [column]: did you mean [columns]?"),
        ("[metric.x]\nvalue = 1", "there is no section [metric]: did you mean [metrics]?"),
        ("[archive.sizes]\na = 1", "there is no section [archive]: write its options at the top"),
        ("[trigger]\na = 1", "trigger=\"{'a': 1}\": write 5 (seconds), 500 milliseconds or 1 min"),
        ("[spark]\na = [1]", "spark: a must be a string or a number"),
        ("[columns]\n7 = 'a: int'", "columns: 7 is no name of a column"),
        ("metrics = 3", "metrics is no setting: write a table [metrics.NAME]"),
        ('[metrics.sales]\nvalue = "all"', "metrics.sales: value=all is no aggregate"),
    ],
)
def test_a_mistake_in_the_file_is_one_sentence(text: str, sentence: str, file) -> None:
    """The one-sentence error names the file, the key and the nearest valid key."""
    path = file(text)

    found = refused(*NEEDED, f"--config={path}")

    assert found.startswith(f"config file {path}: {sentence}")
    path.unlink()
    sentence = f"--config: failed to load config file {path} - open {path}: no such file"
    assert sentence in refused(*NEEDED, f"--config={path}")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--data=x"], "--lookupd-http-address is missing: see sparq pipeline --help"),
        ([*NEEDED, "--triger=1"], "there is no flag --triger: did you mean --trigger?"),
        ([*NEEDED, "--trigger"], "--trigger has no value: write --trigger=INTERVAL"),
        ([*NEEDED, "trigger=1"], '"trigger=1" is not a flag: write --trigger=1'),
        ([*NEEDED, "soon"], '"soon" is not a flag: remove it, or write it as a flag\'s value'),
        ([*NEEDED, "--max-offsets-per-trigger=x"], "--max-offsets-per-trigger=x: write a whole "),
        ([*NEEDED, "--from=x", "--since=-2h"], "--since is for the topic: with --from, choose fi"),
    ],
)
def test_a_mistake_on_the_command_line_names_the_flag(words: list[str], sentence: str) -> None:
    """The one-sentence error begins with the flag."""
    assert refused(*words).startswith(sentence)


@pytest.mark.parametrize(
    ("flag", "texts"),
    [
        ("--version", ["sparq pipeline v1."]),
        (
            "--help",
            [
                "sparq pipeline --data data --lookupd-http-address 127.0.0.1:4161",
                *(f"--{name}" for name in (*(flag.name for flag in flags()), "config")),
            ],
        ),
    ],
)
def test_help_and_version(flag: str, texts: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """--help lists every flag, and has an example with the required ones."""
    with pytest.raises(SystemExit) as ended:
        main([flag])

    output = capsys.readouterr().out
    assert 0 == ended.value.code
    assert all(text in output for text in texts)


def test_the_applications_result_is_the_exit_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The application's result is the exit status; an error or Ctrl-C prints no traceback."""
    run = Mock(side_effect=[7, SettingsError("--data=x: no"), KeyboardInterrupt])
    monkeypatch.setitem(sys.modules, APPLICATION, Mock(run=run))

    assert [7, 1, 130] == [main(NEEDED) for _ in range(3)]
    assert os.path.abspath("data") == run.call_args.args[0].data
    assert "sparq pipeline: --data=x: no\nstopped\n" == capsys.readouterr().err
    assert 1 == main([*NEEDED, "--trigger=soon"])
    assert capsys.readouterr().err.startswith("sparq pipeline: --trigger=soon: write 5 (sec")


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["--no-such-flag"], [*NEEDED, "x"]])
def test_help_and_mistakes_import_neither_spark_nor_asyncio(words: list[str]) -> None:
    """Help and errors import neither Spark nor asyncio, so that they are fast."""
    program = (
        "import sys\nfrom sparq.cli import main\n"
        "try:\n    main(['pipeline', *sys.argv[1:]])\n"
        "finally:\n    print(*sorted(sys.modules), file=sys.stderr)\n"
    )
    command = [sys.executable, "-c", program, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)

    loaded = set(done.stderr.splitlines()[-1].split())
    assert "sparq.pipeline.settings" in loaded
    assert set() == HEAVY & loaded


def test_without_spark_the_error_names_the_pip_command() -> None:
    """Without Spark installed, the error names the pip command."""
    program = (
        "import sys; sys.modules.update(pyspark=None, pyarrow=None, pandas=None);"
        "from sparq.cli import main; sys.exit(main(['pipeline', *sys.argv[1:]]))"
    )
    command = [sys.executable, "-c", program, *NEEDED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)

    assert 1 == done.returncode
    assert "is missing: pip install 'sparq-mq[spark]'" in done.stderr
