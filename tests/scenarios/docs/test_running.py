"""The runner of the pages' programs does not depend on Python's environment variables."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
MINIMAL_ENVIRONMENT = {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
WAITING = r"""
import time
print("b\u00fcrger", end="")
try:
    time.sleep(60)
except KeyboardInterrupt:
    print(" ended")
"""
CALL = r"""
import json, sys
from pathlib import Path
from tests.scenarios.docs.running import run_sparq
if __name__ == "__main__":
    print(json.dumps(run_sparq(sys.argv[1], "b\u00fcrger", Path(sys.argv[2]), waits=True)))
"""


def test_a_programs_output_is_seen_immediately(tmp_path: Path) -> None:
    """Without PYTHONUNBUFFERED and UTF-8, the output is seen immediately, and SIGINT is sent."""
    script, folder = tmp_path / "call.py", tmp_path / "a folder"
    script.write_text(CALL, encoding="utf-8")
    folder.mkdir()

    ran = subprocess.run(
        [sys.executable, str(script), WAITING, str(folder)],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **MINIMAL_ENVIRONMENT},
        capture_output=True,
        encoding="utf-8",
        check=True,
    )

    assert [0, "b\u00fcrger ended\n", ""] == json.loads(ran.stdout)
