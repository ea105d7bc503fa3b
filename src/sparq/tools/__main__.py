"""Run one of NSQ's tools without its script: `python -m sparq.tools PROGRAM ...`."""

import sys

from sparq import scripts

PROGRAMS = (
    *("nsq_check", "nsq_stat", "nsq_tail"),
    *("nsq_to_file", "nsq_to_http", "nsq_to_nsq", "to_nsq"),
)

name, words = "".join(sys.argv[1:2]), sys.argv[2:]
if name not in PROGRAMS:
    sys.exit(f"python -m sparq.tools: {name or 'nothing'} is not one of {', '.join(PROGRAMS)}")
sys.exit(getattr(scripts, name)(words))
