"""The options of the session: by master, by location of the data, and their precedence."""

from pathlib import Path

import pytest

from sparq.pipeline.session_options import (
    AT_START,
    DEFAULTS,
    FILE_MANAGER,
    FLAG_OF,
    REFUSED,
    REQUIRED,
    ROCKSDB,
    STATE_FORMAT,
    at_launch,
    named_master,
    of_session,
    other_master,
    too_late,
    variables,
)
from sparq.pipeline.settings import Settings, SettingsError

LOCAL = {"spark.master": "local[*]", "spark.app.name": "pyspark-shell"}
CLUSTER = {"spark.master": "spark://host:7077", "spark.app.name": "pyspark-shell"}
MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
DRIVER_HOST = "spark.driver.host"


def settings_with(**values):
    return Settings(**{"data": "data", "lookupd_http_addresses": ("a:4161",), **values})


def test_groups_of_options_are_disjoint() -> None:
    """An option has a flag, or is refused, or required, or has a default: only one of these."""
    groups = [set(FLAG_OF), set(REFUSED), set(REQUIRED), set(DEFAULTS)]

    assert len(set().union(*groups)) == sum(map(len, groups))
    assert all(key.startswith("spark.") for key in (*set().union(*groups), *AT_START))


def test_the_default_master_is_local() -> None:
    """The default master is local[*]; settings override it."""
    assert {"spark.master": "local[*]"} == at_launch(settings_with(), {})
    assert {"spark.master": "yarn", "spark.driver.memory": "2g"} == at_launch(
        settings_with(master="yarn", driver_memory="2g"), {}
    )


@pytest.mark.parametrize(
    ("environment", "master"),
    [
        ({}, "local[*]"),
        ({"MASTER": "local[1]"}, "local[1]"),
        ({"PYSPARK_SUBMIT_ARGS": "--master yarn pyspark-shell", "MASTER": "local[1]"}, "yarn"),
        ({"PYSPARK_SUBMIT_ARGS": "--master=yarn pyspark-shell"}, "yarn"),
        ({"PYSPARK_SUBMIT_ARGS": "--conf 'spark.master=local[2]' pyspark-shell"}, "local[2]"),
        ({"PYSPARK_SUBMIT_ARGS": "--verbose pyspark-shell"}, "local[*]"),
    ],
)
def test_a_master_in_an_environment_variable_counts(
    environment: dict[str, str], master: str
) -> None:
    """A master in Spark's environment variables counts, unless a setting overrides it."""
    assert {"spark.master": master} == at_launch(settings_with(), environment)
    assert {"spark.master": "local[3]"} == at_launch(settings_with(master="local[3]"), environment)


@pytest.mark.parametrize(
    ("text", "master"),
    [
        ("spark.master spark://host:7077\n", "spark://host:7077"),
        ("# comment\n  spark.master=yarn", "yarn"),
        ("# spark.master yarn\nspark.master.rest.enabled true\n", ""),
        ("", ""),
    ],
)
def test_a_master_in_spark_defaults_counts(text: str, master: str, tmp_path: Path) -> None:
    """spark-defaults.conf is found in SPARK_CONF_DIR, or in SPARK_HOME/conf."""
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text(text, encoding="utf-8")

    assert master == named_master({"SPARK_HOME": str(tmp_path)})
    assert master == named_master({"SPARK_CONF_DIR": str(tmp_path / "conf")})
    assert "" == named_master({"SPARK_HOME": str(tmp_path / "other")})


def test_environment_variables_of_a_local_master() -> None:
    """The heap is set for every master, loopback for a local one; set variables stay."""
    here, there = at_launch(settings_with(), {}), at_launch(settings_with(master="yarn"), {})

    assert {"SPARK_DRIVER_MEMORY": "3g", "SPARK_LOCAL_IP": "127.0.0.1"} == variables(here, {}, "3g")
    assert {"SPARK_DRIVER_MEMORY": "3g"} == variables(there, {}, "3g")
    assert {} == variables(here, {"SPARK_DRIVER_MEMORY": "1g", "SPARK_LOCAL_IP": "10.0.0.1"}, "3g")


def test_a_local_master_uses_loopback_and_the_fast_checkpoint_manager() -> None:
    """A local master uses loopback, and the fast checkpoint manager for a local disk."""
    wanted = of_session(settings_with(), LOCAL)

    assert ("127.0.0.1", "127.0.0.1") == (
        wanted[DRIVER_HOST],
        wanted["spark.driver.bindAddress"],
    )
    assert FILE_MANAGER == wanted[MANAGER]
    assert "sparq clicks" == wanted["spark.app.name"]


def test_a_cluster_uses_no_local_options() -> None:
    """A cluster uses neither loopback nor the manager for a local disk."""
    wanted = of_session(settings_with(), CLUSTER)

    assert not {DRIVER_HOST, "spark.driver.bindAddress", MANAGER} & set(wanted)


def test_an_object_store_uses_sparks_checkpoint_manager() -> None:
    """On an object store Spark chooses the checkpoint manager: a rename is not atomic there."""
    wanted = of_session(settings_with(data="s3a://bucket/clicks"), LOCAL)

    assert MANAGER not in wanted
    assert DRIVER_HOST in wanted


def test_precedence_of_options() -> None:
    """Required options override settings and --spark, then the JVM's, then defaults."""
    found = {
        **LOCAL,
        "spark.sql.session.timeZone": "Europe/Berlin",
        "spark.sql.streaming.stopTimeout": "7s",
        "spark.scheduler.mode": "FIFO",
        "spark.ui.showConsoleProgress": "true",
        "spark.app.name": "mine",
    }
    settings = settings_with(
        spark=("spark.sql.streaming.stopTimeout=5s", "spark.extra=1"),
        shuffle_partitions=3,
        executor_memory="2g",
    )

    wanted = of_session(settings, found)

    assert "UTC" == wanted["spark.sql.session.timeZone"]
    assert "5s" == wanted["spark.sql.streaming.stopTimeout"]
    assert ("1", "3", "2g") == (
        wanted["spark.extra"],
        wanted["spark.sql.shuffle.partitions"],
        wanted["spark.executor.memory"],
    )
    bars = "spark.ui.showConsoleProgress"
    assert ("false", "true") == (
        wanted[bars],
        of_session(settings_with(spark=(f"{bars}=true",)), found)[bars],
    )
    assert not {"spark.scheduler.mode", "spark.app.name", "spark.master"} & set(wanted)


def test_the_session_sets_a_master_if_the_jvm_has_none() -> None:
    """If the JVM has no master, the session sets one."""
    assert "local[*]" == of_session(settings_with(), {})["spark.master"]
    assert "yarn" == of_session(settings_with(master="yarn"), {})["spark.master"]


def test_every_session_uses_rocksdb() -> None:
    """Every session uses RocksDB, and one state format: a checkpoint keeps its format."""
    wanted = of_session(settings_with(), {**CLUSTER, STATE_FORMAT: "1"})

    assert ROCKSDB == wanted["spark.sql.streaming.stateStore.providerClass"]
    assert "2" == wanted[STATE_FORMAT]
    with pytest.raises(SettingsError, match=f"{STATE_FORMAT} must be 2: a checkpoint keeps"):
        settings_with(spark=(f"{STATE_FORMAT}=1",))


def test_two_different_masters_are_an_error() -> None:
    """Two different masters are an error; spellings of one Kubernetes address are not."""
    sentence = other_master(settings_with(master="yarn"), LOCAL)

    assert sentence.startswith("--master=yarn: Spark was started with local[*]: name the mas")
    assert "" == other_master(settings_with(), LOCAL)
    assert "" == other_master(settings_with(master="local[*]"), LOCAL)
    assert "" == other_master(
        settings_with(master="k8s://a:1"), {"spark.master": "k8s://https://a:1"}
    )


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({}, ""),
        ({"driver_memory": "2g"}, ""),
        (
            {"driver_memory": "4g"},
            "--driver-memory: Spark's JVM is already running and would ignore it: give it to"
            " spark-submit, as --conf spark.driver.memory=...",
        ),
        (
            {"spark": ("spark.jars.packages=a:b:1",)},
            "--spark spark.jars.packages: Spark's JVM is already running and would ignore it: give"
            " it to spark-submit, as --conf spark.jars.packages=...",
        ),
        ({"spark": ("spark.executor.cores=2",), "executor_memory": "2g"}, ""),
    ],
)
def test_options_that_a_running_jvm_ignores_are_an_error(
    values: dict[str, object], sentence: str
) -> None:
    """Options that a running JVM would ignore are an error."""
    assert sentence == too_late(settings_with(**values), {**LOCAL, "spark.driver.memory": "2g"})
