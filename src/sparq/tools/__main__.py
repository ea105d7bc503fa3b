"""Run one of NSQ's tools without its script: `python -m sparq.tools PROGRAM ...`."""

import sys

from sparq import scripts
from sparq.tools.commands import TOOLS

name, words = "".join(sys.argv[1:2]), sys.argv[2:]
if name not in TOOLS:
    sys.exit(f"python -m sparq.tools: {name or 'nothing'} is not one of {', '.join(TOOLS)}")
sys.exit(getattr(scripts, name)(words))
