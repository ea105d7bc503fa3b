"""Flags and configuration keys that the documentation names exist, and its files are accepted."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache

from tests.scenarios.docs import pages

FLAG = re.compile(r"--([a-z][a-z0-9-]+)")
PROGRAMS = {
    **{name: f"sparq.{name}" for name in ("nsqd", "nsqlookupd", "nsqadmin")},
    **{f"sparq {name}": "sparq.cli" for name in ("run", "up", "pipeline", "report", "forget")},
}
"""Programs whose help names their flags; docs/tools.md, which is generated, has the others."""
COMMAND = re.compile(r"^(?:    |(?:   )?\$ )((?:nsq|to_nsq|sparq ).*)$", re.M)


@cache
def flags(program: str) -> frozenset[str]:
    """The flags in a program's help."""
    command = [sys.executable, "-m", PROGRAMS[program], *program.split()[1:], "--help"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return frozenset(FLAG.findall(ran.stdout))


def test_a_command_line_has_only_flags_of_its_program() -> None:
    """Each command line of a daemon or of `sparq` has only flags that this program knows."""
    tools = re.split(r"^## ", pages.text_of("docs/tools.md"), flags=re.M)
    known = {part.split("\n")[0]: frozenset(FLAG.findall(part)) for part in tools}
    wrong, count = [], 0
    for page in pages.PAGES:
        text = page.read_text(encoding="utf-8").replace("\\\n", "")
        for line in COMMAND.findall(text):
            words = line.split()
            name = " ".join(words[:2]) if words[0] == "sparq" else words[0]
            if name not in {*known, *PROGRAMS} or " --" not in line:
                continue
            has = known[name] if name in known else flags(name)
            count += 1
            wrong += [f"{page.name}: {line}" for flag in FLAG.findall(line) if flag not in has]

    assert [] == wrong
    assert count > 30
