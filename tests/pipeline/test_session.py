"""Real sessions, each in a separate process (a process can have only one), and their options."""

import importlib.util
import json
import os
import re
import socket
import sys
from pathlib import Path

import pytest

from sparq.pipeline.java import PREFIX, ensure_java
from sparq.pipeline.session import MASTER, check_master, explicit, options_for, session
from sparq.pipeline.settings import SettingsError
from tests.pipeline.settings_examples import settings_with
from tests.support.run_program import run_program
from tests.support.servers import free_port

LOCAL = {MASTER: "local[*]", "spark.app.name": "pyspark-shell"}
MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
HOST = "spark.driver.host"

PRELUDE = """
import json, os, sys
from sparq.pipeline.session import session
from sparq.pipeline.settings import Settings

def settings_with(**values):
    return Settings(**{"lookupd_http_addresses": ("127.0.0.1:4161",), **values})

def refused(**values):
    try:
        session(settings_with(**values))
    except Exception as error:
        return f"{type(error).__name__}: {error}"

def print_state(spark, **more):
    context = spark.sparkContext
    runtime = context._jvm.java.lang.Runtime.getRuntime()
    state = {
        "master": context.master,
        "ui": context.uiWebUrl,
        "heap_mib": runtime.maxMemory() >> 20,
        "temporary": context._jvm.java.lang.System.getProperty("java.io.tmpdir"),
        "conf": dict(context.getConf().getAll()),
        "partitions": spark.conf.get("spark.sql.shuffle.partitions"),
        "zone": spark.conf.get("spark.sql.session.timeZone"),
        "stop_timeout": spark.conf.get("spark.sql.streaming.stopTimeout"),
        "python": context.pythonExec,
    }
    print("\\n" + json.dumps(state | more), flush=True)
"""
VARIABLE = re.compile(r"(PY)?SPARK_|MASTER$")
SECONDS = 120


def run(program: str, *command: str, **variables: str) -> dict[str, object]:
    """The state of the session that a program creates."""
    inherited = {k: v for k, v in os.environ.items() if not VARIABLE.match(k)}
    words = command or (sys.executable, "-c", PRELUDE + program)
    done = run_program(words, env={**inherited, **variables}, seconds=SECONDS)
    assert 0 == done.returncode, done.stderr[-3000:]
    state: dict[str, object] = json.loads(done.stdout.strip().splitlines()[-1])
    return state


def listeners(port: int) -> set[str]:
    """The local addresses, as the kernel writes them, of sockets that listen on a port."""
    found = set()
    for table in ("tcp", "tcp6"):
        path = Path("/proc/net", table)
        lines = path.read_text(encoding="ascii").splitlines()[1:] if path.exists() else []
        for line in lines:
            address, state = line.split()[1], line.split()[3]
            if state == "0A" and int(address.rpartition(":")[2], 16) == port:
                found.add(address.rpartition(":")[0])
    return found


def test_a_local_session_has_its_default_options(tmp_path: Path) -> None:
    """A local session has all cores, the given heap, loopback only, UTC and RocksDB.

    It runs Python workers. A user's own queries have adaptive execution and compiled code; they are
    off for the pipeline's queries only.
    """
    state = run(
        f"""
spark = session(settings_with(data={str(tmp_path)!r}, driver_memory="640m"))
from sparq.pipeline.session import prepare_for_queries

def plan():
    # As it has run: compiled stages have a star and a number.
    counts = spark.range(9).groupBy("id").count()
    counts.collect()
    return counts._jdf.queryExecution().explainString(
        spark._jvm.org.apache.spark.sql.execution.ExplainMode.fromString("simple"))

plans = [plan()]
prepare_for_queries(spark)
plans.append(plan())
port = int(spark.sparkContext.uiWebUrl.rpartition(":")[2])
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from tests.pipeline.test_session import listeners
rows = spark.range(3).mapInArrow(lambda batches: batches, "id BIGINT").count()
print_state(
    spark,
    rows=rows,
    plans=plans,
    listeners=sorted(listeners(port)),
    cores=spark.sparkContext.defaultParallelism,
    manager=spark.conf.get("spark.sql.streaming.checkpointFileManagerClass"),
    store=spark.conf.get("spark.sql.streaming.stateStore.providerClass"),
)
"""
    )

    assert ("local[*]", "UTC", "60s") == (state["master"], state["zone"], state["stop_timeout"])
    assert 600 < state["heap_mib"] <= 640
    assert Path(state["temporary"]).name.startswith(PREFIX)
    assert str(state["cores"]) == state["partitions"]
    own, prepared = state["plans"]
    assert "AdaptiveSparkPlan isFinalPlan=true" in own
    assert "*(1)" in own
    assert not re.search(r"Adaptive|\*\(", prepared)
    assert state["ui"].startswith("http://127.0.0.1:")
    assert all(address.endswith("0100007F") for address in state["listeners"])
    assert 3 == state["rows"]
    assert state["manager"].endswith(".FileSystemBasedCheckpointFileManager")
    assert state["store"].endswith(".RocksDBStateStoreProvider")
    assert sys.executable == state["python"]
    assert "sparq clicks" == state["conf"]["spark.app.name"]


@pytest.mark.slow
def test_spark_defaults_override_defaults_but_not_flags(tmp_path: Path) -> None:
    """spark-defaults.conf overrides the defaults; flags and required options override it."""
    conf = tmp_path / "spark-defaults.conf"
    conf.write_text(
        "spark.master local[1]\nspark.driver.memory 600m\nspark.scheduler.mode FIFO\n"
        "spark.sql.session.timeZone Europe/Berlin\nspark.sql.streaming.stopTimeout 7s\n",
        encoding="utf-8",
    )

    state = run(
        f"""
chosen = settings_with(data={str(tmp_path)!r}, spark=("spark.sql.streaming.stopTimeout=5s",))
print_state(session(chosen))
""",
        SPARK_CONF_DIR=str(tmp_path),
    )

    names = ("master", "zone", "stop_timeout", "partitions")
    assert ["local[1]", "UTC", "5s", "1"] == [state[name] for name in names]
    assert 500 < state["heap_mib"] <= 600
    assert "FIFO" == state["conf"]["spark.scheduler.mode"]


def test_options_of_spark_submit_count(tmp_path: Path) -> None:
    """Under spark-submit its master and memory count; a flag that comes too late is an error."""
    program = tmp_path / "program.py"
    program.write_text(
        f"""{PRELUDE}
data = {str(tmp_path)!r}
late = refused(data=data, driver_memory="1g")
other = refused(data=data, master="local[2]")
print_state(session(settings_with(data=data)), late=late, other=other)
""",
        encoding="utf-8",
    )
    (home,) = importlib.util.find_spec("pyspark").submodule_search_locations
    java_home = Path(ensure_java()).resolve().parents[1]

    state = run(
        "",
        f"{home}/bin/spark-submit",
        *("--master", "local[1]", "--driver-memory", "600m", "--name", "mine", str(program)),
        SPARK_HOME=home,
        SPARK_LOCAL_IP="127.0.0.1",
        PYSPARK_PYTHON=sys.executable,
        JAVA_HOME=str(java_home),
    )

    assert ("local[1]", "1") == (state["master"], state["partitions"])
    assert "mine" == state["conf"]["spark.app.name"]
    assert 500 < state["heap_mib"] <= 600
    assert state["late"].startswith("SettingsError: --driver-memory: Spark's JVM is already run")
    assert state["other"].startswith("SettingsError: --master: Spark's JVM is already running")


@pytest.mark.parametrize(
    ("master", "data", "has"),
    [
        ("local[*]", "data", {HOST, MANAGER}),
        ("local[*]", "s3a://bucket/clicks", {HOST}),  # a rename is not atomic there
        ("spark://host:7077", "data", {"spark.executor.defaultJavaOptions"}),
        ("yarn", "data", set()),
    ],
)
def test_options_depend_on_the_master_and_the_file_system(
    master: str, data: str, has: set[str]
) -> None:
    """Loopback is for local masters, and the fast checkpoint manager for local disks there."""
    wanted = options_for(settings_with(data=data), {}, {MASTER: master})

    depending = {HOST, MANAGER, "spark.executor.defaultJavaOptions"}
    assert has == depending & set(wanted)
    assert "sparq clicks" == wanted["spark.app.name"]


def test_precedence_of_options() -> None:
    """Required options override settings and --spark, then the JVM's, then defaults."""
    bars, timeout = "spark.ui.showConsoleProgress", "spark.sql.streaming.stopTimeout"
    found = {
        **LOCAL,
        "spark.sql.session.timeZone": "Europe/Berlin",
        timeout: "7s",
        "spark.scheduler.mode": "FIFO",
        bars: "true",
        "spark.app.name": "mine",
    }
    settings = settings_with(
        spark=(f"{timeout}=5s", "spark.ui.retainedJobs=5"),
        shuffle_partitions=3,
        executor_memory="2g",
    )

    wanted = options_for(settings, explicit(settings), found)

    assert {
        "spark.sql.session.timeZone": "UTC",
        timeout: "5s",
        "spark.ui.retainedJobs": "5",
        "spark.sql.shuffle.partitions": "3",
        "spark.executor.memory": "2g",
        bars: "false",
    }.items() <= wanted.items()
    assert not {"spark.scheduler.mode", "spark.app.name", MASTER} & set(wanted)
    assert "true" == options_for(settings, {bars: "true"}, found)[bars]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("sparq.a=1", "--spark: sparq.a is not a Spark option: these begin with spark."),
        ("=1", '--spark: "" is not a Spark option'),
        ("spark.master=yarn", "--spark: spark.master has its own flag: write --master"),
        ("spark.driver.memory=1g", "--spark: spark.driver.memory has its own flag: write --"),
        (
            "spark.sql.streaming.stateStore.providerClass=x",
            "--spark: spark.sql.streaming.stateStore.providerClass must be org.apache.spark.sql.",
        ),
        ("spark.sql.session.timeZone=CET", "--spark: spark.sql.session.timeZone must be UTC: "),
        (
            "spark.sql.streaming.stateStore.checkpointFormatVersion=1",
            "--spark: spark.sql.streaming.stateStore.checkpointFormatVersion must be 2: a check",
        ),
    ],
)
def test_a_refused_spark_option_names_the_alternative(
    given: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the option, and what to write instead or the reason."""
    with pytest.raises(SettingsError) as raised:
        session(settings_with(spark=(given,)))

    assert str(raised.value).startswith(sentence)
    monkeypatch.setenv("SPARK_REMOTE", "sc://host")
    with pytest.raises(SettingsError, match=r"SPARK_REMOTE .*is set: unset it"):
        session(settings_with(spark=("spark.sql.session.timeZone=UTC",)))


def test_an_unreachable_master_is_an_error() -> None:
    """An unreachable master is an error with its address; one of two is enough."""
    free = f"127.0.0.1:{free_port()}"
    with socket.create_server(("127.0.0.1", 0)) as server:
        check_master(f"spark://{free},127.0.0.1:{server.getsockname()[1]}")
    with pytest.raises(SettingsError) as raised:
        check_master(f"spark://{free}")

    assert f"--master=spark://{free}: nothing answers there" == str(raised.value)
    for master in ("local[*]", "yarn", "k8s://https://127.0.0.1:1"):
        check_master(master)
