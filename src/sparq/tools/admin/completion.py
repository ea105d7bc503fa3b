"""Complete words in the shell: commands, flags, and the cluster's topics, channels and nodes.

1. `sparq admin completion SHELL` prints a shell's script. At each Tab the script calls `sparq admin
   complete WORDS`, which prints the possible values of the last word, one per line. Flags of other
   programs come from their help pages.
2. The cluster is the one named by the words or the environment. If it does not answer within a
   second, nothing is completed and nothing is reported.
3. Only names that NSQ allows, and addresses, are printed: nothing that a shell would interpret.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from sparq.cluster.fleet import Fleet
from sparq.options.declare import flags_of
from sparq.options.kinds import BOOL
from sparq.options.mistakes import Mistake
from sparq.options.units import SECOND
from sparq.program.flags import HELP, Given, combined, split_command_line
from sparq.program.stdout import write_stdout
from sparq.protocol.names import is_valid_name
from sparq.tools.admin.job import Job
from sparq.tools.admin.verbs import FORMATS, PROGRAM, STATES, VERBS
from sparq.tools.cluster import fleet_of
from sparq.tools.commands import TOOLS, UsageError

SECONDS_MAX: Final = 1.0
SPARQ: Final = "sparq"
SHELLS: Final = ("bash", "zsh", "fish")
PLACES: Final = ("earliest", "latest", "-1h", "last:100")
POLICIES: Final = "show|export|apply|drop TOPIC CHANNEL"
"""The words of `policies`, as far as they are completed."""

VALUES: Final = {"state": STATES, "format": FORMATS}
_ADDRESS: Final = re.compile(r"[A-Za-z0-9.:\[\]_-]+")

PROGRAMS: Final = ("nsqd", "nsqlookupd", "nsqadmin", *TOOLS)
"""The programs besides `sparq`."""

COMMANDS: Final = (*("run", "up", "pipeline", "report", "forget", "top", "admin", "token"),)
HELP_SECONDS: Final = 5.0
_FLAG: Final = re.compile(r"^  (?:-\w, )?(--[a-z0-9-]+)( \S+)?", re.M)
_VERB: Final = re.compile(r"^  ([a-z]+)", re.M)

BASH: Final = r"""# words of sparq's programs: eval "$(sparq admin completion bash)"
_sparq() {
    local line word words=() rest=${COMP_LINE:0:COMP_POINT}
    COMPREPLY=()
    # bash also splits at = and :; join parts that no blank separates
    for word in "${COMP_WORDS[@]:0:COMP_CWORD+1}"; do
        [[ ${#words[@]} == 0 || $rest == [[:blank:]]* ]] && words+=("")
        rest=${rest#"${rest%%[![:blank:]]*}"}
        rest=${rest#"$word"}
        words[${#words[@]}-1]+=$word
    done
    # bash keeps what is before the part that it completes
    word=${words[${#words[@]}-1]}
    while IFS= read -r line; do
        COMPREPLY+=("${line#"${word%"$2"}"}")
    done < <(sparq admin complete "${words[0]##*/}" "${words[@]:1}" 2>/dev/null)
    [[ ${COMPREPLY[0]} == *= ]] && compopt -o nospace
}
complete -F _sparq sparq
complete -o default -F _sparq PROGRAMS
"""
ZSH: Final = r"""#compdef sparq PROGRAMS
# words of sparq's programs: eval "$(sparq admin completion zsh)", after compinit
_sparq() {
    local -a found flags
    found=("${(@f)$(sparq admin complete "${words[1]:t}" "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    flags=(${(M)found:#*=})
    found=(${found:#*=})
    if [[ -z $flags && -z $found && ${words[1]:t} != sparq ]]; then
        compset -P '*='
        _files
        return
    fi
    compadd -a found
    compadd -S '' -a flags
}
compdef _sparq sparq PROGRAMS
"""
FISH: Final = r"""# words of sparq's programs: sparq admin completion fish | source
function __sparq
    set -l words (commandline -opc) (commandline -ct)
    sparq admin complete (basename $words[1]) $words[2..-1] 2>/dev/null
end
complete -c sparq -f -a '(__sparq)'
for program in PROGRAMS
    complete -c $program -a '(__sparq)'
end
"""
SCRIPTS: Final = {
    shell: script.replace("PROGRAMS", " ".join(PROGRAMS))
    for shell, script in zip(SHELLS, (BASH, ZSH, FISH), strict=True)
}


async def completion(job: Job) -> int:
    """Print a shell's script; return the exit status.

    Raises:
        UsageError: there is no script for this shell.
    """
    shell = job.topic
    if shell not in SCRIPTS:
        raise UsageError(f"there is no script for this shell: use {', '.join(SHELLS)}")
    await job.output.write(SCRIPTS[shell].encode())
    return 0


def start(words: Sequence[str]) -> int:
    """Print the possible values of the last word of a command line; return the exit status 0."""
    found: list[str] = []
    # Swallowed: any text here would appear in the middle of the command line that the user types.
    with contextlib.suppress(Mistake, ValueError, TimeoutError, subprocess.TimeoutExpired):
        found = asyncio.run(candidates(words))
    write_stdout("".join(f"{one}\n" for one in found))
    return 0


async def candidates(words: Sequence[str]) -> list[str]:
    """Return the possible values of the last word: those that begin with it.

    Args:
        words: a command line, from the program's name on.

    Raises:
        Mistake: the words before it cannot be parsed.
        UsageError, ValueError: an address or the token is not valid.
        TimeoutError, subprocess.TimeoutExpired: the cluster or a program does not answer in time.
    """
    program, *rest = words or [""]
    if program == SPARQ and len(rest) < 2:
        return _beginning(COMMANDS, "".join(rest))
    if program == SPARQ and rest[0] == "admin":
        return await _of_admin(rest[1:])
    if program == SPARQ:
        return _of_help([program, *(one for one in rest[:-1] if one in COMMANDS)], rest)
    return _of_help([program], rest) if program in PROGRAMS else []


def _of_help(program: Sequence[str], words: Sequence[str]) -> list[str]:
    """Return flags that a program's help page lists, or the verbs of `sparq token`."""
    last = words[-1] if words else ""
    verbs = [one for one in words[1:-1] if not one.startswith("-")] if "token" in program else []
    # Not this program's own code: an import of the daemons' would take as long, and need them.
    run = f"from sparq.scripts import {program[0]} as run; run()"
    page = subprocess.run(  # noqa: S603 - one of PROGRAMS
        [sys.executable, "-c", run, *program[1:], *verbs[:1], "--help"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=HELP_SECONDS,
        env={**os.environ, "COLUMNS": "200"},
        check=False,
    ).stdout
    if last.startswith("-"):
        flags = [f"{name}{'=' if value else ''}" for name, value in _FLAG.findall(page)]
        return _beginning(flags, f"--{last.lstrip('-')}")
    listed = page.partition("\nverbs (")[2].partition("\n\n")[0]
    return _beginning(_VERB.findall(listed), last)


async def _of_admin(words: Sequence[str]) -> list[str]:
    """Return the possible values of the last word after `sparq admin`; see `candidates`."""
    *before, last = words or [""]
    if not before:
        return _beginning(VERBS, last)
    verb, *rest = before
    if verb not in VERBS:
        return []
    known = flags_of(VERBS[verb].options)
    if last.startswith("-") and not last[1:2].isdigit():
        # A flag, with `=` if it takes a value; or the value of a flag with few values.
        name, equals, value = last.lstrip("-").partition("=")
        if equals:
            return [f"--{name}={one}" for one in _beginning(VALUES.get(name, ()), value)]
        flags = [f"--{flag.name}" + ("" if flag.kind is BOOL else "=") for flag in (*known, HELP)]
        return _beginning(flags, f"--{name}")
    by_name = {flag.name: flag for flag in known}
    texts, given = split_command_line(f"{PROGRAM} {verb}", rest, by_name, takes_words=True)
    usage = POLICIES if verb == "policies" else VERBS[verb].words
    kinds = usage.replace("[", "").replace("]", "").split()
    if len(given) >= len(kinds) or (verb == "policies" and given and given[0] != "show"):
        return []
    kind = kinds[len(given)]
    if kind.islower():  # the words themselves
        return _beginning(kind.split("|"), last)
    if kind == "PLACE":
        return _beginning(PLACES, last)
    options = replace(
        combined(VERBS[verb].options, known, Given(texts))[0],
        http_client_connect_timeout_ns=SECOND,
        http_client_request_timeout_ns=SECOND,
    )
    async with asyncio.timeout(SECONDS_MAX), fleet_of(options, is_required=False) as fleet:
        return _beginning(await _names(fleet, kind, given), last)


def _beginning(names: Iterable[str], text: str) -> list[str]:
    return [name for name in names if name.startswith(text)]


async def _names(fleet: Fleet, kind: str, given: Sequence[str]) -> list[str]:
    """Return the topics, a topic's channels, or the addresses of the nsqds."""
    if kind == "NODE":
        nodes = (await fleet.nodes()).value
        return [node.address for node in nodes if _ADDRESS.fullmatch(node.address)]
    if kind == "CHANNEL":
        names = (await fleet.channels(given[-1])).value
    else:
        names = (await fleet.topics()).value if kind in ("TOPIC", "NAME") else []
    return [name for name in names if is_valid_name(name)]
