"""Complete names in the shell: verbs, flags, and the cluster's topics, channels and nodes.

1. `sparq admin completion SHELL` prints a shell's script. At each Tab the script calls `sparq admin
   complete WORDS`, which prints the possible values of the last word, one per line.
2. The cluster is the one named by the words or the environment. If it does not answer within a
   second, nothing is completed and nothing is reported.
3. Only names that NSQ allows, and addresses, are printed: nothing that a shell would interpret.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Iterable, Sequence
from typing import Final

from sparq.cluster.fleet import Fleet
from sparq.cluster.upstream import Upstream
from sparq.program.flag_types import BOOL
from sparq.program.flags import HELP, Flag, flags_of
from sparq.program.mistakes import Mistake
from sparq.program.stdout import write_stdout
from sparq.program.verbs import separated
from sparq.protocol.names import is_valid_name
from sparq.tools.admin.job import Job
from sparq.tools.admin.verbs import PROGRAM, VERBS, AdminOptions
from sparq.tools.cluster import tls_of, token_of
from sparq.tools.command_line import UsageError, with_environment

SECONDS_MAX: Final = 1.0
PLACES: Final = ("earliest", "latest", "-1h", "last:100")
ACTIONS: Final = ("show", "export", "apply", "drop")
SHELLS: Final = ("bash", "zsh", "fish")
STATES: Final = ("waiting", "in_flight", "deferred", "finished")
VALUES: Final = {"state": STATES, "format": ("jsonl", "csv")}
_ADDRESS: Final = re.compile(r"[A-Za-z0-9.:\[\]_-]+")

BASH: Final = r"""# names for `sparq admin`: eval "$(sparq admin completion bash)"
_sparq_admin() {
    local line word words=() rest=${COMP_LINE:0:COMP_POINT}
    COMPREPLY=()
    # bash also splits at = and :; join parts that no blank separates
    for word in "${COMP_WORDS[@]:0:COMP_CWORD+1}"; do
        [[ ${#words[@]} == 0 || $rest == [[:blank:]]* ]] && words+=("")
        rest=${rest#"${rest%%[![:blank:]]*}"}
        rest=${rest#"$word"}
        words[${#words[@]}-1]+=$word
    done
    if ((${#words[@]} == 2)); then
        COMPREPLY=($(compgen -W "run up pipeline top bench admin" -- "$2"))
    fi
    [[ ${#words[@]} -gt 2 && ${words[1]} == admin ]] || return
    # bash keeps what is before the part that it completes
    word=${words[${#words[@]}-1]}
    while IFS= read -r line; do
        COMPREPLY+=("${line#"${word%"$2"}"}")
    done < <(sparq admin complete "${words[@]:2}" 2>/dev/null)
    [[ ${COMPREPLY[0]} == *= ]] && compopt -o nospace
}
complete -F _sparq_admin sparq
"""
ZSH: Final = r"""#compdef sparq
# names for `sparq admin`: eval "$(sparq admin completion zsh)", after compinit
_sparq_admin() {
    local -a found flags
    ((CURRENT == 2)) && compadd run up pipeline top bench admin
    [[ CURRENT -gt 2 && ${words[2]} == admin ]] || return
    found=("${(@f)$(sparq admin complete "${(@)words[3,CURRENT]}" 2>/dev/null)}")
    flags=(${(M)found:#*=})
    found=(${found:#*=})
    compadd -a found
    compadd -S '' -a flags
}
compdef _sparq_admin sparq
"""
FISH: Final = r"""# names for `sparq admin`: sparq admin completion fish | source
function __sparq_admin
    set -l words (commandline -opc) (commandline -ct)
    sparq admin complete $words[3..-1] 2>/dev/null
end
complete -c sparq -f -n 'not __fish_seen_subcommand_from admin' \
    -a 'run up pipeline top bench admin'
complete -c sparq -f -n '__fish_seen_subcommand_from admin' -a '(__sparq_admin)'
"""
SCRIPTS: Final = dict(zip(SHELLS, (BASH, ZSH, FISH), strict=True))


async def completion(job: Job) -> int:
    """Print a shell's script; return the exit status.

    Raises:
        UsageError: there is no script for this shell.
    """
    shell = job.words[0]
    if shell not in SCRIPTS:
        raise UsageError(f"there is no script for this shell: use {', '.join(SHELLS)}")
    await job.output.write(SCRIPTS[shell].encode())
    return 0


def start(words: Sequence[str]) -> int:
    """Print the possible values of the last word after `sparq admin`; return the exit status 0."""
    found: list[str] = []
    # Swallowed: any text here would appear in the middle of the command line that the user types.
    with contextlib.suppress(Mistake, UsageError, ValueError, TimeoutError):
        found = asyncio.run(candidates(words))
    write_stdout("".join(f"{one}\n" for one in found))
    return 0


async def candidates(words: Sequence[str]) -> list[str]:
    """Return the possible values of the last word: those that begin with it.

    Raises:
        Mistake: the words before it cannot be parsed.
        UsageError, ValueError: an address or the token is not valid.
        TimeoutError: the cluster does not answer in time.
    """
    *before, last = words or [""]
    if not before:
        return _beginning([*VERBS], last)
    if before[0] not in VERBS:
        return []
    verb, known = before[0], [*flags_of(VERBS[before[0]].options), HELP]
    if last.startswith("-") and not last[1:2].isdigit():
        return _flag(known, last)
    given, flag_words = separated(f"{PROGRAM} {verb}", before[1:], known)
    if verb == "policies":
        if not given:
            return _beginning(ACTIONS, last)
        verb, given = ("list", given[1:]) if given[0] == ACTIONS[0] else (verb, given)
    kind = _kind(verb, len(given))
    if kind in ("topic", "channel", "node"):
        async with asyncio.timeout(SECONDS_MAX):
            names = await _names(flag_words, kind, given[0] if given else "")
        return _beginning(names, last)
    few = {"place": PLACES, "shell": SHELLS, "what": ("topic",)}
    return _beginning(few.get(kind, ()), last)


def _kind(verb: str, at: int) -> str:
    """Return the kind of the word here, such as topic, channel or node; "" if it has no names."""
    if verb == "move":
        return "topic" if at == 1 else "what"
    words = VERBS[verb].words.replace("[", "").replace("]", "").split()
    if verb in ("completion", "policies"):
        return "shell" if verb == "completion" and at == 0 else ""
    return words[at].lower() if at < len(words) else ""


def _flag(known: Iterable[Flag], last: str) -> list[str]:
    """Complete a flag, with `=` if it takes a value; or the value of a flag with few values."""
    name, equals, value = last.lstrip("-").partition("=")
    if equals:
        return [f"--{name}={one}" for one in _beginning(VALUES.get(name, ()), value)]
    flags = [f"--{flag.name}" + ("" if flag.kind is BOOL else "=") for flag in known]
    return _beginning(flags, f"--{name}")


def _beginning(names: Iterable[str], text: str) -> list[str]:
    return [name for name in names if name.startswith(text)]


async def _names(flag_words: Sequence[str], kind: str, topic: str) -> list[str]:
    """Return the topics, a topic's channels, or the nsqds."""
    options = with_environment(_addresses(flag_words))
    async with Upstream(
        connect_seconds=SECONDS_MAX,
        request_seconds=SECONDS_MAX,
        token=token_of(options.token),
        tls=tls_of(options),
    ) as upstream:
        fleet = Fleet(
            upstream,
            nsqds=options.nsqd_http_addresses if not options.lookupd_http_addresses else (),
            lookupds=options.lookupd_http_addresses,
        )
        if kind == "node":
            nodes = (await fleet.nodes()).value
            return [node.address for node in nodes if _ADDRESS.fullmatch(node.address)]
        names = await _channels(fleet, topic) if kind == "channel" else (await fleet.topics()).value
    return [name for name in names if is_valid_name(name)]


async def _channels(fleet: Fleet, topic: str) -> list[str]:
    if fleet.lookupds:
        return (await fleet.channels(topic)).value
    stats = (await fleet.stats(topic)).value.values()
    found = (one for each in stats for one in each.topics if one.topic_name == topic)
    return sorted({channel.channel_name for one in found for channel in one.channels})


def _addresses(flag_words: Iterable[str]) -> AdminOptions:
    """Extract the flags that name the cluster from a verb's flags, and ignore the others."""
    pairs = [word.removeprefix("--").partition("=")[::2] for word in flag_words]
    given: dict[str, tuple[str, ...]] = {}
    for name, value in pairs:
        given[name] = (*given.get(name, ()), value)
    return AdminOptions(
        nsqd_http_addresses=given.get("nsqd-http-address", ()),
        lookupd_http_addresses=given.get("lookupd-http-address", ()),
        token="".join(given.get("token", ())[-1:]),
        http_client_tls_root_ca_file="".join(given.get("http-client-tls-root-ca-file", ())[-1:]),
    )
