"""Generates the reference pages from the code: `make docs`.

- api.md         classes and functions of `sparq` and `sparq.client`, from their docstrings
- flags.md       the flags of the daemons and the pipeline, from their options
- tools.md       the tools and their flags, from their options
- behaviours.md  NSQ's tests, and the tests here that assert the same, from the tests' marks

A test checks that the pages are up to date.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from docs import behaviours
from docs.docstrings import Docstring, bullet, code, read

from sparq.daemon.access import command as token
from sparq.options.declare import Flag, flags_of
from sparq.pipeline import settings
from sparq.program.verbs import Verb
from sparq.tools.admin import verbs as admin

HERE = Path(__file__).parent
MODULES = ("sparq", "sparq.client", "sparq.client.telemetry", "sparq.client.range_reader")
WIDTH = 96
MADE = "Written by `make docs` from {}; changes belong there."
FIELDS_LISTED = 8
"""A dataclass with more fields than this is shown as a table of options."""


def page_of_the_api() -> str:
    """The text of docs/api.md."""
    parts = ["# The API of the client", MADE.format("the docstrings")]
    parts.append("[The guide](guide.md) shows how it is used.")
    told: dict[tuple[str, str], str] = {}
    for name in MODULES:
        module = importlib.import_module(name)
        parts += [f"## {name}", read(module.__doc__ or "").prose]
        values = [(one, getattr(module, one)) for one in public(module)]
        parts += [described(one, value, told) for one, value in values if not is_error(value)]
        if errors := [of_error(one, value) for one, value in values if is_error(value)]:
            parts += ["### Errors", "\n".join(errors)]
    return "\n\n".join(parts) + "\n"


def public(module: ModuleType) -> list[str]:
    """The public names of a module: its `__all__`, or the public classes defined in it."""
    if hasattr(module, "__all__"):
        return list(module.__all__)
    own = [name for name, value in vars(module).items() if inspect.isclass(value)]
    return [n for n in own if n[0] != "_" and getattr(module, n).__module__ == module.__name__]


def is_error(value: Any) -> bool:
    """Whether a public name is an exception."""
    return inspect.isclass(value) and issubclass(value, Exception)


def of_error(name: str, value: type) -> str:
    """An exception as a list item, with its own attributes and properties."""
    doc = read(value.__doc__ or "")
    own = [bullet(*entry) for entry in doc.sections.get("Attributes", [])]
    own += [
        bullet(attribute, one_line(member))
        for attribute, member in vars(value).items()
        if isinstance(member, property)
    ]
    head = f"- `{name}({value.__bases__[0].__name__})`: {' '.join(doc.prose.split())}"
    return "\n".join([head, *(f"    {line}" for line in own)])


def described(name: str, value: Any, told: dict[tuple[str, str], str]) -> str:
    """A class or a function, as Markdown."""
    if inspect.isclass(value):
        return of_class(name, value, told)
    return "\n\n".join([f"### `{name}`", signature(name, value), *told_by(value)])


def told_by(value: Any, *, without: tuple[str, ...] = ()) -> list[str]:
    """A docstring's prose, and the entries of its sections as one list."""
    doc = read(value.__doc__ or "")
    words = {"Raises": "raises ", "Returns": "returns: ", "Yields": "yields: "}
    lines = [
        f"- {words.get(section, '')}{bullet(*entry)[2:]}"
        for section, entries in doc.sections.items()
        if section not in without
        for entry in entries
    ]
    return [part for part in (doc.prose, "\n".join(lines)) if part]


def one_line(value: Any) -> str:
    """A docstring's prose in one line."""
    text = " ".join(read(value.__doc__ or "").prose.split())
    return text[:1].lower() + text[1:]


def of_class(name: str, value: type, told: dict[tuple[str, str], str]) -> str:
    """A class and its members, including those inherited from other classes of sparq.

    `told` has the class in which a member of this name and docstring is described already.
    """
    doc = read(value.__doc__ or "")
    options = list(dataclasses.fields(value)) if dataclasses.is_dataclass(value) else []
    many = len(options) > FIELDS_LISTED
    parts = [f"### `{name}`"]
    if "Args" in doc.sections and "__init__" in vars(value):  # others are made by sparq itself
        parts.append(signature(name, vars(value)["__init__"]))
    parts += told_by(value, without=("Attributes",))
    if many:
        parts.append(table_of_options(value, options))
    facts = [] if many else [bullet(*entry) for entry in doc.sections.get("Attributes", [])]
    methods: list[str] = []
    again: dict[str, list[str]] = {}
    for member, attribute in members(value):
        owner = told.setdefault((member, attribute.__doc__ or ""), name)
        if owner != name:
            again.setdefault(owner, []).append(f"`{member}`")
        elif isinstance(attribute, property):
            settable = " (can be set)" if attribute.fset else ""
            if not any(fact.startswith(f"- `{member}`") for fact in facts):
                facts.append(f"- `{member}`{settable}: {one_line(attribute)}")
        else:
            methods += of_method(member, getattr(attribute, "__func__", attribute))
    parts += ["Attributes:", "\n".join(facts)] if facts else []
    parts += [f"As in `{owner}`: {', '.join(names)}." for owner, names in again.items()]
    return "\n\n".join([*parts, *methods])


def of_method(name: str, function: Any) -> list[str]:
    """A method, as Markdown: its signature is its heading."""
    line = " ".join(signature(name, function).split("\n")[1:-1])
    line = re.sub(r"\( +", "(", re.sub(r",? *\)( -> .*)?$", r")\1", re.sub(r"\s+", " ", line)))
    return [f"#### `{line}`", *told_by(function)]


def members(value: type) -> Iterator[tuple[str, Any]]:
    """The public methods and properties by name, in the order of the source."""
    seen = set()
    for owner in value.__mro__:
        if not owner.__module__.startswith("sparq"):
            continue
        for name, attribute in vars(owner).items():
            inner = getattr(attribute, "__func__", getattr(attribute, "fget", attribute))
            if name[0] == "_" or name in seen or not inspect.isfunction(inner):
                continue
            seen.add(name)
            yield name, attribute


def signature(name: str, function: Any) -> str:
    """The signature as written in the source, without `self`."""
    node = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function)))).body[0]
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    arguments = node.args
    if arguments.args and arguments.args[0].arg in ("self", "cls"):
        arguments.args = arguments.args[1:]
    is_init = node.name == "__init__"
    back = "" if node.returns is None or is_init else f" -> {ast.unparse(node.returns)}"
    word = "await " if inspect.iscoroutinefunction(function) else ""
    each = each_argument(arguments)
    line = f"{word}{name}({', '.join(each)}){back}"
    if len(line) > WIDTH:
        inside = "".join(f"    {one},\n" for one in each)
        line = f"{word}{name}(\n{inside}){back}"
    return f"```python\n{line}\n```"


def each_argument(arguments: ast.arguments) -> list[str]:
    """The arguments one by one, including the separators `/` and `*`."""
    text = ast.unparse(arguments)
    found, depth, start = [], 0, 0
    for at, sign in enumerate(text):
        depth += (sign in "([{") - (sign in ")]}")
        if sign == "," and depth == 0:
            found.append(text[start:at])
            start = at + 1
    spaced = re.compile(r"^(\*{0,2}\w+: [^=]+)=")
    words = [one.strip().replace("'", '"') for one in (*found, text[start:])]
    return [spaced.sub(r"\1 = ", word) for word in words if word]


def table_of_options(value: type, options: list[dataclasses.Field[Any]]) -> str:
    """A table of a dataclass' options: default, limits and meaning of each."""
    meanings: dict[str, str] = {}
    for owner in reversed(value.__mro__):
        meanings.update(documented(read(owner.__doc__ or "")))
    lines = ["| option | default | limits | meaning |", "|---|---|---|---|"]
    for option in options:
        least, most = option.metadata.get("least"), option.metadata.get("most")
        within = "" if least is None else f"{least:,} to {most:,}"
        default = "" if option.default in ("", None, ()) else f"`{option.default!r}`"
        meaning = cell(meanings.get(option.name, ""))
        lines.append(f"| `{option.name}` | {default} | {within} | {meaning} |")
    return "\n".join(lines)


def documented(doc: Docstring) -> dict[str, str]:
    """The attributes in a docstring, with their texts; an entry may name several."""
    found = {}
    for names, text in doc.sections.get("Attributes", []):
        for name in names.split(","):
            found[name.strip()] = text
    return found


def page_of_the_tools() -> str:
    """The text of docs/tools.md."""
    parts = ["# Tools", MADE.format("the programs' options")]
    modules = [importlib.import_module(f"sparq.tools.{name}") for name in tools()]
    for module in sorted(modules, key=lambda module: str(module.PROGRAM)):
        parts += [f"## {module.PROGRAM}", read(module.__doc__ or "").prose]
        parts.append(table_of_flags(module.Options))
    parts += [
        f"## {token.PROGRAM}",
        read(token.__doc__ or "").prose,
        table_of_verbs(token.VERBS, token.TokenOptions),
    ]
    parts.append(table_of_flags(token.TokenOptions))
    return "\n\n".join([*parts, *parts_of_admin()]) + "\n"


def table_of_verbs(verbs: Mapping[str, Verb], common: type) -> str:
    """A table with a row per verb and its own flags; `--help` has its examples."""
    lines = ["| verb | does |", "|---|---|"]
    shared = {flag.name for flag in flags_of(common)}
    for name, verb in verbs.items():
        own = [f"`--{each.name}`" for each in flags_of(verb.options) if each.name not in shared]
        about = f"{verb.about} Flags: {', '.join(own)}." if own else verb.about
        usage = cell(f"`{name} {verb.words}`".replace(" `", "`"))
        lines.append(f"| {usage} | {cell(about)} |")
    return "\n".join(lines)


def parts_of_admin() -> Iterator[str]:
    """`sparq admin`: its verbs, and the flags of every verb."""
    yield f"## {admin.PROGRAM}"
    yield read(importlib.import_module("sparq.tools.admin").__doc__ or "").prose
    yield table_of_verbs(admin.VERBS, admin.AdminOptions)
    yield "Flags of every verb:"
    yield table_of_flags(admin.AdminOptions)
    yield "`sparq admin VERB --help` describes the flags of a verb."


def tools() -> list[str]:
    """The modules of the tools that declare their flags in `Options`, in alphabetical order."""
    folder = HERE.parent / "src" / "sparq" / "tools"
    return sorted(
        path.stem
        for path in folder.glob("*.py")
        if {"serve", "Options"} <= names_in(path) and not path.stem.startswith("_")
    )


def names_in(path: Path) -> set[str]:
    """The functions and classes that a module defines or imports at top level."""
    found: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.ImportFrom):
            found |= {alias.asname or alias.name for alias in node.names}
    return found


def table_of_flags(
    options_class: type, flags: Sequence[Flag] = (), *, has_file: bool = False
) -> str:
    """A table with a row per flag; defaults that depend on the machine are left out."""
    unknown = set(computed(options_class))
    lines = ["| flag | default | meaning |", "|---|---|---|"]
    for flag in flags or flags_of(options_class):
        default = "" if flag.field in unknown else shown(flag)
        more = (
            "; several times" if flag.repeated else "",
            f"; key `{flag.key}`" if has_file and flag.key != flag.name.replace("-", "_") else "",
            "; SIGHUP" if has_file and flag.live else "",
        )
        lines.append(f"| `--{flag.name}` | {default} | {cell(flag.help)}{''.join(more)} |")
    return "\n".join(lines)


def computed(options_class: type, path: str = "") -> Iterator[str]:
    """The fields, also in groups, whose default is the result of a function."""
    for field in dataclasses.fields(options_class):
        if field.default_factory is dataclasses.MISSING:
            continue
        if dataclasses.is_dataclass(group := field.default_factory()):
            yield from computed(type(group), f"{path}{field.name}.")
        else:
            yield path + field.name


def page_of_the_flags() -> str:
    """The text of docs/flags.md."""
    parts = ["# Flags of the daemons and of the pipeline", MADE.format("the programs' options")]
    parts.append(
        "A flag is also a key of the file that `--config` names: in the daemons' files with"
        " underscores in place of dashes, unless a key is given. SIGHUP: a changed value is in"
        " force after the signal; others need a restart. [Daemons](daemons.md) explains how to use"
        " them."
    )
    for name in ("nsqd", "nsqlookupd", "nsqadmin"):
        options = getattr(importlib.import_module(f"sparq.{name}.options"), f"N{name[1:]}Options")
        parts += [f"## {name}", table_of_flags(options, has_file=True)]
    parts += ["## sparq pipeline", "[The pipeline's page](pipeline.md) explains the settings."]
    parts.append(table_of_flags(settings.Settings, settings.flags()))
    return "\n\n".join(parts) + "\n"


def shown(flag: Flag) -> str:
    """A flag's default as text; "" if it is empty or None."""
    text = flag.shown(flag.default)
    return f"`{text}`".replace("\n", r"\n") if text else ""


def cell(text: str) -> str:
    """A text with `|` escaped for a table."""
    return code(text).replace("|", "\\|")


PAGES = {
    "api.md": page_of_the_api,
    "flags.md": page_of_the_flags,
    "tools.md": page_of_the_tools,
    "behaviours.md": behaviours.page,
}


def main() -> int:
    """Write the pages."""
    for name, page in PAGES.items():
        path, text = HERE / name, page()
        is_current = path.exists() and path.read_text(encoding="utf-8") == text
        path.write_text(text, encoding="utf-8")
        print(f"docs/{name}: {'unchanged' if is_current else 'written'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
