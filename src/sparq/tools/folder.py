"""Output files: their names, and the folder that they are in. No operation leaves the folder.

1. A name is a template whose fields are filled in: `<TOPIC>`, `<HOST>`, `<PID>`, `<DATETIME>` and
   `<REV>`. Nothing else in a template is special, and inserted values are not expanded again.
2. A name is a relative path below some folder: it has no `..` and no unprintable characters, and a
   leading `/` is ignored. A name that leads elsewhere is refused, wherever it came from.
3. A file is named by its entries below the folder (`entries_of`). The path is walked folder by
   folder, each opened relative to the one before; no symbolic link is followed. The folder itself
   may be a link, because its owner has chosen it.
4. Files and their names survive a power failure: after an entry is made in a folder, the folder is
   synced before anything relies on the entry.
5. No file replaces another: a name that is in use stays with its file.
6. Folders are created with mode 0770 and files with 0666, less the umask, as NSQ creates them.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import shutil
import socket
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

Entries = Sequence[str]

REVISION: Final = "<REV>"
GZIP_SUFFIX: Final = ".gz"
ENTRY_BYTES_MAX: Final = 255
"""Longest file or folder name that file systems accept, in bytes."""

_PLACES: Final = re.compile("<(?:TOPIC|HOST|PID|DATETIME|REV)>")
_PLACES_AND_REST: Final = re.compile(f"{_PLACES.pattern}|.", re.DOTALL)
_HOST_PLACES: Final = re.compile("<(?:SHORT_HOST|HOSTNAME)>")
_CONVERSIONS: Final = re.compile("%[BbmAadHIMSYypZz%]")

FOLDER_MODE: Final = 0o770
FILE_MODE: Final = 0o666

_FOLDER_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# Without O_NONBLOCK, opening a named pipe would block before it can be rejected.
_FILE_FLAGS: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FILE_FLAGS
_NO_LINKS: Final = (errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS)
"""Errors of file systems that support no hard links, or no more of them for this file."""


class FilenameError(ValueError):
    """A template yields no name of a file below a folder; the text says why."""


def strftime(format_text: str, when: datetime) -> str:
    """Format the date with the conversions that NSQ has, in English; other `%` stay as they are."""
    return _CONVERSIONS.sub(lambda found: when.strftime(found[0]), format_text)


def host_identifier(text: str) -> str:
    """Return the value of `<HOST>`: the short host name, or the text with its fields filled in."""
    host = socket.gethostname()
    names = {"<SHORT_HOST>": host.partition(".")[0], "<HOSTNAME>": host}
    return _fill(_HOST_PLACES, text or "<SHORT_HOST>", names)


def _fill(places: re.Pattern[str], text: str, values: Mapping[str, str]) -> str:
    return places.sub(lambda found: values.get(found[0], found[0]), text)


def entries_of(name: str) -> tuple[str, ...]:
    """Split a path below a folder into its entries: folders, then the file's name.

    Raises:
        FilenameError: it leads out of the folder, or names no file in it.
    """
    if not name.isprintable():
        raise FilenameError(f"the file name {name!r} has unprintable characters")
    found = tuple(entry for entry in name.split("/") if entry not in ("", "."))
    if ".." in found:
        raise FilenameError(f"the file name {name!r} leads out of its folder")
    if not found:
        raise FilenameError(f"the file name {name!r} is empty or only `.` and `/`")
    if long := next((entry for entry in found if len(os.fsencode(entry)) > ENTRY_BYTES_MAX), ""):
        raise FilenameError(f"the file name {long:.40}... is longer than {ENTRY_BYTES_MAX} bytes")
    return found


@dataclass(frozen=True, slots=True)
class Template:
    """The names of one topic's files.

    Attributes:
        text: the name with its fields.
        datetime_format: the `strftime` format of the date in it.
        topic: the topic.
        host: the value of `<HOST>`.
    """

    text: str
    datetime_format: str
    topic: str
    host: str

    def at(self, when: datetime) -> str:
        """Return the name at this time; `<REV>` is not filled in yet."""
        values = {
            "<TOPIC>": self.topic,
            "<HOST>": self.host,
            "<PID>": str(os.getpid()),
            "<DATETIME>": strftime(self.datetime_format, when),
        }
        return _fill(_PLACES, self.text, values)

    def pattern(self) -> re.Pattern[str]:
        """Return a pattern that matches every name of this template, at any time, of any process.

        Each `<REV>` is a group.
        """
        # The date matches any text, slashes included: --datetime-format may name folders (%Y/%m).
        values = {"<PID>": "[0-9]+", "<DATETIME>": ".*", REVISION: "(-[0-9]{6,})"}
        values |= {"<TOPIC>": re.escape(self.topic), "<HOST>": re.escape(self.host)}
        parts = _PLACES_AND_REST.findall(self.text)
        return re.compile("".join(values.get(part) or re.escape(part) for part in parts))


def template(
    filename_format: str,
    datetime_format: str,
    topic: str,
    identifier: str,
    *,
    is_revised: bool,
    is_gzip: bool,
) -> Template:
    """Return the template of a topic's files.

    Args:
        filename_format: `--filename-format`.
        datetime_format: `--datetime-format`.
        topic: the topic.
        identifier: `--host-identifier`.
        is_revised: whether several files may have names that differ only in the revision; if not,
            `<REV>` is removed.
        is_gzip: whether the name must end in `.gz`.
    Raises:
        FilenameError: `<REV>` is missing, or the format yields no name below a folder.
    """
    if is_revised and REVISION not in filename_format:
        raise FilenameError(
            "missing <REV> in --filename-format when gzip, rotation, or work dir enabled"
        )
    text = filename_format if is_revised else filename_format.replace(REVISION, "")
    if is_gzip and not text.endswith(GZIP_SUFFIX):
        text += GZIP_SUFFIX
    made = Template(text, datetime_format, topic, host_identifier(identifier))
    entries_of(with_revision(made.at(datetime.now().astimezone()), 0))
    return made


def with_revision(name: str, revision: int) -> str:
    """Return the name with its revision: a dash and six digits."""
    return name.replace(REVISION, f"-{revision:06d}")


class Folder:
    """A folder of output files; it is created if missing.

    Args:
        path: where it is.
        is_owned: whether an open file is locked by the process that opened it, until it is closed
            or the process ends; no other process can then open it.

    Raises:
        OSError: here, it cannot be created or written to; in the methods, a system call fails.
    """

    def __init__(self, path: str, *, is_owned: bool = False) -> None:
        self._is_owned = is_owned
        self.path = os.path.realpath(path)
        _make(self.path)
        os.close(os.open(self.path, _FOLDER_FLAGS))
        if not os.access(self.path, os.W_OK | os.X_OK):
            raise OSError(errno.EACCES, "files cannot be created there", self.path)

    def shown(self, entries: Entries) -> str:
        """Return a file's whole path, for a person."""
        return os.path.join(self.path, *entries)

    @contextlib.contextmanager
    def _opened(self, folders: Entries) -> Iterator[int]:
        """Open a folder below, created if missing; yield its descriptor."""
        # Each folder is opened relative to the one before. A check of the whole path
        # (`os.path.realpath`) would not do: another program could replace a folder by a link
        # between the check and the open.
        fd = os.open(self.path, _FOLDER_FLAGS)
        try:
            for folder in folders:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(folder, FOLDER_MODE, dir_fd=fd)
                    os.fsync(fd)
                inner = os.open(folder, _FOLDER_FLAGS | os.O_NOFOLLOW, dir_fd=fd)
                os.close(fd)
                fd = inner
            yield fd
        finally:
            os.close(fd)

    def create(self, entries: Entries) -> int:
        """Create a file; return it open for appending and reading.

        Raises:
            FileExistsError: the name is in use.
        """
        return self._open(entries, os.O_CREAT | os.O_EXCL)

    def open(self, entries: Entries) -> int:
        """Open the file, or create it; return it open for appending and reading.

        Raises:
            FileExistsError: another process has it open (`is_owned`).
        """
        return self._open(entries, os.O_CREAT)

    def existing(self, entries: Entries) -> int:
        """Open an existing file; return it open for appending and reading.

        Raises:
            FileExistsError: another process has it open (`is_owned`).
        """
        return self._open(entries, 0)

    def _open(self, entries: Entries, flags: int) -> int:
        *folders, name = entries
        with self._opened(folders) as folder:
            # O_APPEND: without `is_owned`, another process may continue the same file. O_RDWR: the
            # end of an existing file is read, to find a torn message.
            flags |= os.O_RDWR | os.O_APPEND | _FILE_FLAGS
            fd = os.open(name, flags, FILE_MODE, dir_fd=folder)
            try:
                if not stat.S_ISREG(os.fstat(fd).st_mode):
                    raise OSError(errno.EINVAL, "not a regular file", self.shown(entries))
                if self._is_owned and not _own(fd, name, folder):
                    raise FileExistsError(errno.EEXIST, "in use", self.shown(entries))
                # Also for a file that exists already: a killed process may have created it without
                # this sync.
                os.fsync(folder)
            except BaseException:
                os.close(fd)
                raise
        return fd

    def names(self) -> Iterator[str]:
        """Yield the paths of all files below, without following links."""
        for folder, _, names in os.walk(self.path):
            for name in names:
                yield os.path.relpath(os.path.join(folder, name), self.path)

    def remove(self, entries: Entries) -> None:
        """Remove a file."""
        *folders, name = entries
        with self._opened(folders) as folder:
            os.unlink(name, dir_fd=folder)

    def has(self, entries: Entries) -> bool:
        """Whether the name is in use, by any kind of entry."""
        *folders, name = entries
        with self._opened(folders) as folder:
            try:
                os.lstat(name, dir_fd=folder)
            except FileNotFoundError:
                return False
        return True

    def move_in(self, source: Folder, old: Entries, new: Entries) -> None:
        """Move a file from another folder to a new name here; its data is already synced.

        At any time it is complete under one of its names, or under both.

        Raises:
            FileExistsError: the new name is in use; nothing has changed.
        """
        *old_folders, old_name = old
        *new_folders, new_name = new
        with source._opened(old_folders) as there, self._opened(new_folders) as here:
            try:
                # A link and not a rename, which would silently replace a file of that name; Linux
                # has RENAME_NOREPLACE, but Python does not offer it.
                _link(old_name, there, new_name, here)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                _copy(old_name, there, new_name, here)
            # The new name must be on the disk before the old one is removed: otherwise a power
            # failure could leave the file without a name.
            os.fsync(here)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(old_name, dir_fd=there)
            os.fsync(there)


def _own(fd: int, name: str, folder: int) -> bool:
    """Lock the file; False if another process has it, or has just moved it away."""
    try:
        # Lock first, compare then: until it has the lock, the previous owner may still move the
        # file away, and this descriptor would be of a file without a name here.
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(fd), os.lstat(name, dir_fd=folder))
    except (BlockingIOError, FileNotFoundError):
        return False


def _make(path: str) -> None:
    """Create a folder and its parents durably."""
    # Not os.makedirs: each new folder's entry must be synced in the folder above it (rule 4).
    if os.path.lexists(path):
        return
    above = os.path.dirname(path)
    _make(above)
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, FOLDER_MODE)
    fd = os.open(above, _FOLDER_FLAGS)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _link(old: str, there: int, new: str, here: int) -> None:
    """Give a file an unused name in the same file system."""
    try:
        os.link(old, new, src_dir_fd=there, dst_dir_fd=here, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        # Without hard links: reserve the name with an empty file, then replace that file.
        os.close(os.open(new, _NEW_FLAGS, FILE_MODE, dir_fd=here))
        try:
            os.rename(old, new, src_dir_fd=there, dst_dir_fd=here)
        except OSError:
            os.unlink(new, dir_fd=here)
            raise


def _copy(old: str, there: int, new: str, here: int) -> None:
    """Copy the file from another file system; it gets its name only when it is complete."""
    # Not copied under the final name: a kill would leave a file there that looks complete.
    # Cut by bytes, because ENTRY_BYTES_MAX counts them; a character that is cut apart is dropped.
    name = os.fsencode(new)[:200].decode(errors="ignore")
    part = f".{name}.{secrets.token_hex(4)}.part"
    try:
        with (
            open(os.open(old, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=there), "rb") as source,
            open(os.open(part, _NEW_FLAGS, FILE_MODE, dir_fd=here), "wb") as copy,
        ):
            shutil.copyfileobj(source, copy, 1 << 20)
            copy.flush()
            os.fsync(copy.fileno())
        _link(part, here, new, here)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part, dir_fd=here)
