"""Real sessions, each in a separate process: a process can have only one."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sparq.pipeline.session import choose_python, use_this_python
from sparq.pipeline.settings import SettingsError
from tests.support.run_program import run_program

VARIABLES = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")

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

    It runs Python workers. Adaptive execution and compiled code are off for the pipeline's queries
    only.
    """
    state = run(
        f"""
spark = session(settings_with(data={str(tmp_path)!r}, driver_memory="640m"))
from sparq.pipeline.session_options import FILE_MANAGER, OF_QUERIES, ROCKSDB
from sparq.pipeline.session import prepare_for_queries
values = [[spark.conf.get(key) for key in OF_QUERIES]]
prepare_for_queries(spark)
values.append([spark.conf.get(key) for key in OF_QUERIES])
port = int(spark.sparkContext.uiWebUrl.rpartition(":")[2])
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from tests.pipeline.test_session import listeners
rows = spark.range(3).mapInArrow(lambda batches: batches, "id BIGINT").count()
print_state(
    spark,
    rows=rows,
    values=values,
    listeners=sorted(listeners(port)),
    cores=spark.sparkContext.defaultParallelism,
    manager=spark.conf.get("spark.sql.streaming.checkpointFileManagerClass") == FILE_MANAGER,
    store=spark.conf.get("spark.sql.streaming.stateStore.providerClass") == ROCKSDB,
)
"""
    )

    assert ("local[*]", "UTC", "60s") == (state["master"], state["zone"], state["stop_timeout"])
    assert 600 < state["heap_mib"] <= 640
    assert str(state["cores"]) == state["partitions"]
    assert [["true", "true"], ["false", "false"]] == state["values"]
    assert state["ui"].startswith("http://127.0.0.1:")
    assert all(address.endswith("0100007F") for address in state["listeners"])
    assert (3, True, True) == (state["rows"], state["manager"], state["store"])
    assert Path(sys.executable).name == Path(state["python"]).name
    assert "sparq clicks" == state["conf"]["spark.app.name"]


@pytest.mark.slow
def test_spark_defaults_override_defaults_but_not_flags(tmp_path: Path) -> None:
    """spark-defaults.conf overrides the defaults; flags and required options override it.

    Data on a file system that Spark does not know is a one-sentence error.
    """
    conf = tmp_path / "spark-defaults.conf"
    conf.write_text(
        "spark.master local[1]\nspark.driver.memory 600m\nspark.scheduler.mode FIFO\n"
        "spark.sql.session.timeZone Europe/Berlin\nspark.sql.streaming.stopTimeout 7s\n",
        encoding="utf-8",
    )

    state = run(
        f"""
nowhere = refused(data="nosuch://host/clicks")
bucket = refused(data="s3a://bucket/clicks")
chosen = settings_with(data={str(tmp_path)!r}, spark=("spark.sql.streaming.stopTimeout=5s",))
print_state(session(chosen), nowhere=nowhere, bucket=bucket)
""",
        SPARK_CONF_DIR=str(tmp_path),
    )

    assert ("local[1]", "UTC", "5s", "1") == (
        state["master"],
        state["zone"],
        state["stop_timeout"],
        state["partitions"],
    )
    assert 500 < state["heap_mib"] <= 600
    assert "FIFO" == state["conf"]["spark.scheduler.mode"]
    for found, address in (("nowhere", "nosuch://host"), ("bucket", "s3a://bucket")):
        sentence = state[found]
        assert sentence.startswith(f"SettingsError: --data={address}/clicks: Spark has no file sys")
        assert "\n" not in sentence


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
    home = subprocess.run(
        [sys.executable, "-c", "import pyspark; print(pyspark.__path__[0])"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()

    state = run(
        "",
        f"{home}/bin/spark-submit",
        *("--master", "local[1]", "--driver-memory", "600m", "--name", "mine", str(program)),
        SPARK_HOME=home,
        SPARK_LOCAL_IP="127.0.0.1",
        PYSPARK_PYTHON=sys.executable,
        **java_home(),
    )

    assert ("local[1]", "1", "mine") == (
        state["master"],
        state["partitions"],
        state["conf"]["spark.app.name"],
    )
    assert 500 < state["heap_mib"] <= 600
    assert state["late"].startswith("SettingsError: --driver-memory: Spark's JVM is already run")
    assert state["other"].startswith("SettingsError: --master=local[2]: Spark was started with lo")


def java_home() -> dict[str, str]:
    """JAVA_HOME for a program that does not find Java itself."""
    found = subprocess.run(
        [sys.executable, "-c", "from sparq.pipeline.java import ensure_java; print(ensure_java())"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    return {"JAVA_HOME": str(Path(found).resolve().parents[1])}


@pytest.mark.parametrize(
    ("given", "variable", "expected"),
    [
        ({"spark.master": "local[2]"}, "python-elsewhere", sys.executable),
        ({"spark.master": "yarn"}, "", sys.executable),
        ({"spark.master": "yarn"}, "python-elsewhere", "python-elsewhere"),
        (
            {"spark.master": "yarn", "spark.pyspark.python": "./env/bin/python"},
            "x",
            "./env/bin/python",
        ),
        ({"spark.pyspark.python": "./env/bin/python"}, "", "./env/bin/python"),
    ],
)
def test_workers_run_this_interpreter_unless_another_is_named(
    given: dict[str, str], variable: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers run this interpreter unless a cluster names another; the driver always does."""
    monkeypatch.setenv("PATH", os.environ["PATH"])
    monkeypatch.setenv("PYSPARK_PYTHON", variable)
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", "")

    choose_python(given)

    assert Path(expected).name == Path(os.environ["PYSPARK_PYTHON"]).name
    assert Path(sys.executable).name == Path(os.environ["PYSPARK_DRIVER_PYTHON"]).name


def test_spark_connect_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """SPARK_REMOTE, which would create a Spark Connect session, is refused."""
    from sparq.pipeline.session import session
    from sparq.pipeline.settings import Settings

    monkeypatch.setenv("SPARK_REMOTE", "sc://host")

    with pytest.raises(SettingsError, match="SPARK_REMOTE is set: unset it"):
        session(Settings(data="data"))


@pytest.mark.parametrize("folder", ["plain", "a folder", "it's (so)"])
def test_a_shell_finds_the_drivers_interpreter(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver's interpreter is found by a shell, also if its path has a space.

    The driver uses the name without quotes. Workers are started without a shell and get the whole
    path.
    """
    program = tmp_path / folder / "python3"
    program.parent.mkdir()
    program.symlink_to(sys.executable)
    monkeypatch.setattr(sys, "executable", str(program))
    for name in ("PATH", *VARIABLES):
        monkeypatch.setenv(name, os.environ.get(name, ""))

    use_this_python()

    found = subprocess.run(
        ["/bin/sh", "-c", f"command -v {os.environ['PYSPARK_DRIVER_PYTHON']}"],
        capture_output=True,
        encoding="utf-8",
        check=True,
    ).stdout
    assert f"{program}\n" == found
    assert str(program) == os.environ["PYSPARK_PYTHON"]
