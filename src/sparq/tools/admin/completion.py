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
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from sparq.options.declare import Flag, flags_of
from sparq.options.kinds import BOOL
from sparq.options.mistakes import Mistake
from sparq.options.units import SECOND
from sparq.program.flags import HELP, Given, combined, split
from sparq.program.stdout import write_stdout
from sparq.protocol.names import is_valid_name
from sparq.tools.admin.job import Job
from sparq.tools.admin.verbs import PROGRAM, VERBS
from sparq.tools.cluster import fleet_of
from sparq.tools.commands import TOOLS, ClusterHttpOptions, UsageError

SECONDS_MAX: Final = 1.0
SPARQ: Final = "sparq"
SHELLS: Final = ("bash", "zsh", "fish")
SHOW: Final = "show"
FEW: Final = {
    "place": ("earliest", "latest", "-1h", "last:100"),
    "action": (SHOW, "export", "apply", "drop"),
    "shell": SHELLS,
    "what": ("topic",),
}
"""The values of a kind of word, if they are few."""

KINDS: Final = {
    "move": ["what", "topic"],
    "completion": ["shell"],
    "policies": ["action", "topic", "channel"],
}
"""The kinds of a verb's words, if its usage does not name them."""

STATES: Final = ("waiting", "in_flight", "deferred", "finished")
VALUES: Final = {"state": STATES, "format": ("jsonl", "csv")}
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
    with contextlib.suppress(Mistake, ValueError, TimeoutError):
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
        TimeoutError: the cluster or a program does not answer in time.
    """
    program, *rest = words or [""]
    if program == SPARQ and len(rest) < 2:
        return _beginning(COMMANDS, "".join(rest))
    if program == SPARQ and rest[0] == "admin":
        return await _of_admin(rest[1:])
    if program == SPARQ:
        return await _of_help([program, *(one for one in rest[:-1] if one in COMMANDS)], rest)
    return await _of_help([program], rest) if program in PROGRAMS else []


async def _of_help(program: Sequence[str], words: Sequence[str]) -> list[str]:
    """Return flags that a program's help page lists, or the verbs of `sparq token`."""
    last = words[-1] if words else ""
    verbs = [one for one in words[1:-1] if not one.startswith("-")] if "token" in program else []
    # Not this program's own code: an import of the daemons' would take as long, and need them.
    run = f"from sparq.scripts import {program[0]} as run; run()"
    asked = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", run, *program[1:], *verbs[:1], "--help"),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={**os.environ, "COLUMNS": "200"},
    )
    try:
        async with asyncio.timeout(HELP_SECONDS):
            page = (await asked.communicate())[0].decode()
    finally:
        if asked.returncode is None:
            asked.kill()
            await asked.wait()
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
    verb = before[0]
    if verb not in VERBS:
        return []
    known = [*flags_of(VERBS[verb].options), HELP]
    if last.startswith("-") and not last[1:2].isdigit():
        # A flag, with `=` if it takes a value; or the value of a flag with few values.
        name, equals, value = last.lstrip("-").partition("=")
        if equals:
            return [f"--{name}={one}" for one in _beginning(VALUES.get(name, ()), value)]
        flags = [f"--{flag.name}" + ("" if flag.kind is BOOL else "=") for flag in known]
        return _beginning(flags, f"--{name}")
    by_name = {flag.name: flag for flag in known}
    texts, given = split(f"{PROGRAM} {verb}", before[1:], by_name, takes_words=True)
    kinds = VERBS[verb].words.replace("[", "").replace("]", "").lower().split()
    kinds = KINDS.get(verb, kinds)
    if len(given) >= len(kinds) or (verb == "policies" and given and given[0] != SHOW):
        return []
    kind = kinds[len(given)]
    if kind not in ("topic", "channel", "node"):
        return _beginning(FEW.get(kind, ()), last)
    async with asyncio.timeout(SECONDS_MAX):
        names = await _names(texts, kind, given[-1] if given else "")
    return _beginning(names, last)


def _beginning(names: Iterable[str], text: str) -> list[str]:
    return [name for name in names if name.startswith(text)]


async def _names(texts: Sequence[tuple[Flag, str]], kind: str, topic: str) -> list[str]:
    """Return the topics, a topic's channels, or the nsqds."""
    # Only the flags that name the cluster count.
    known = flags_of(ClusterHttpOptions)
    names_cluster = {flag.name for flag in known}
    given = Given([each for each in texts if each[0].name in names_cluster])
    options = replace(
        combined(ClusterHttpOptions, known, given)[0],
        http_client_connect_timeout_ns=SECOND,
        http_client_request_timeout_ns=SECOND,
    )
    async with fleet_of(options, is_required=False) as fleet:
        if kind == "node":
            nodes = (await fleet.nodes()).value
            return [node.address for node in nodes if _ADDRESS.fullmatch(node.address)]
        if kind == "topic":
            names = (await fleet.topics()).value
        elif fleet.lookupds:
            names = (await fleet.channels(topic)).value
        else:
            stats = (await fleet.stats(topic)).value.values()
            found = [each.topic(topic) for each in stats]
            names = sorted({one.channel_name for each in found if each for one in each.channels})
    return [name for name in names if is_valid_name(name)]
