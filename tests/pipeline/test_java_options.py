"""Java's options are looked at by the real Java, before Spark's JVM starts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sparq.pipeline.jvm import check_java_options
from sparq.pipeline.settings import SettingsError
from sparq.program.mistakes import shown
from sparq.spark.java import ensure_java

EXTRA = "spark.driver.extraJavaOptions"


@pytest.fixture(scope="module")
def java() -> str:
    """Java's program."""
    before = os.environ.get("JAVA_HOME")
    try:
        return ensure_java()
    finally:
        os.environ.pop("JAVA_HOME", None)
        if before is not None:
            os.environ["JAVA_HOME"] = before


@pytest.mark.parametrize(
    "options",
    [
        "",
        " ",
        "-Dkey=value -Dother='two words' -XX:+UseSerialGC -Xss4m",
        "-XX:+IgnoreUnrecognizedVMOptions -XX:+NoSuchFlag",
        "-javaagent:/no/such.jar=7071 -agentlib:jdwp=transport=dt_socket,server=y,suspend=y",
    ],
)
def test_good_options(java: str, options: str) -> None:
    """Java takes them; it is not asked to load an agent, which may wait."""
    check_java_options(java, {EXTRA: options, "spark.driver.memory": "512m"})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("-no-such-flag", "(Unrecognized option: -no-such-flag)"),
        ("-Da=b -XX:+NoSuchFlag", "(Unrecognized VM option 'NoSuchFlag'"),
        ("stray", "(Error: Could not find or load main class stray"),
        ("-version", "Java does not start with it (openjdk"),
        ("-Da='b", "a quotation mark is not closed"),
        ("-Xmx1g", "the maximum heap has its own flag: --driver-memory"),
    ],
)
def test_wrong_options(java: str, options: str, said: str) -> None:
    """One sentence names the option of Spark, its value, and what Java said."""
    with pytest.raises(SettingsError) as raised:
        check_java_options(java, {EXTRA: options})

    assert str(raised.value).startswith(f"--spark {EXTRA}={shown(options)}: ")
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_more_memory_than_addresses(java: str) -> None:
    """A heap that Java cannot reserve is named with its flag."""
    with pytest.raises(SettingsError, match=r"--driver-memory=1000000g: Java does not start"):
        check_java_options(java, {"spark.driver.memory": "1000000g"})


def test_a_java_that_hangs_or_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is known then: Spark's own start tells."""
    monkeypatch.setattr("sparq.pipeline.jvm.LIMIT_SECONDS", 0.2)
    hanging = tmp_path / "java"
    hanging.write_text("#!/bin/sh\nexec sleep 60\n", encoding="utf-8")
    hanging.chmod(0o755)

    check_java_options(str(hanging), {EXTRA: "-Da=b"})
    check_java_options(str(tmp_path / "none"), {EXTRA: "-Da=b"})
