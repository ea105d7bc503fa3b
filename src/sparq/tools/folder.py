"""A folder, and the files below it: nothing that is done here can reach a place outside.

1. A file is named by its entries below the folder (`filename.entries`). The way there is walked
   from folder to folder, each opened in the one before; a symbolic link is nowhere followed. The
   folder itself may be one: its owner has named it.
2. What is a file and what it is called stays so when the power fails: a folder is synced when an
   entry was made in it, before anybody relies on that entry.
3. No file takes another's place: a name that is in use stays with who has it.
4. Folders are made as 0770 and files as 0666, less the umask, as NSQ makes them.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
import stat
from collections.abc import Iterator, Sequence
from typing import Final

FOLDER_MODE: Final = 0o770
FILE_MODE: Final = 0o666

_FOLDER_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# Without O_NONBLOCK a pipe would be waited for, before it can be seen that it is none of ours.
_FILE_FLAGS: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FILE_FLAGS
_NO_LINKS: Final = (errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS)
"""Said by file systems that have no hard links, or no more for this file."""

Entries = Sequence[str]


class Folder:
    """A folder of output files; it is made when missing.

    Args:
        path: where it is.
        is_owned: whether a file that is open belongs to whoever opened it, until it is closed or
            its process is gone; nobody else can open it.

    Raises:
        OSError: it cannot be made or written to, here; a call fails, in the methods.
    """

    def __init__(self, path: str, *, is_owned: bool = False) -> None:
        self._is_owned = is_owned
        self.path = os.path.realpath(path)
        _make(self.path)
        os.close(os.open(self.path, _FOLDER_FLAGS))
        if not os.access(self.path, os.W_OK | os.X_OK):
            raise OSError(errno.EACCES, "files cannot be made there", self.path)

    def shown(self, entries: Entries) -> str:
        """A file's whole path, for a person."""
        return os.path.join(self.path, *entries)

    @contextlib.contextmanager
    def _opened(self, folders: Entries) -> Iterator[int]:
        """A folder below, made when missing, as a descriptor."""
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
        """A new file, open for appending and reading.

        Raises:
            FileExistsError: the name is in use.
        """
        return self._open(entries, os.O_CREAT | os.O_EXCL)

    def open(self, entries: Entries) -> int:
        """The file, or a new one, open for appending and reading.

        Raises:
            FileExistsError: somebody else has it (`is_owned`).
        """
        return self._open(entries, os.O_CREAT)

    def existing(self, entries: Entries) -> int:
        """A file that is there, open for appending and reading.

        Raises:
            FileExistsError: somebody else has it (`is_owned`).
        """
        return self._open(entries, 0)

    def _open(self, entries: Entries, flags: int) -> int:
        *folders, name = entries
        with self._opened(folders) as folder:
            flags |= os.O_RDWR | os.O_APPEND | _FILE_FLAGS
            fd = os.open(name, flags, FILE_MODE, dir_fd=folder)
            try:
                if not stat.S_ISREG(os.fstat(fd).st_mode):
                    raise OSError(errno.EINVAL, "not a regular file", self.shown(entries))
                if self._is_owned and not _own(fd, name, folder):
                    raise FileExistsError(errno.EEXIST, "in use", self.shown(entries))
                os.fsync(folder)
            except BaseException:
                os.close(fd)
                raise
        return fd

    def names(self) -> Iterator[str]:
        """The paths of all files below, without what links lead to."""
        for folder, _, names in os.walk(self.path):
            for name in names:
                yield os.path.relpath(os.path.join(folder, name), self.path)

    def remove(self, entries: Entries) -> None:
        """Remove a file."""
        *folders, name = entries
        with self._opened(folders) as folder:
            os.unlink(name, dir_fd=folder)

    def has(self, entries: Entries) -> bool:
        """Whether the name is in use, by whatever."""
        *folders, name = entries
        with self._opened(folders) as folder:
            try:
                os.lstat(name, dir_fd=folder)
            except FileNotFoundError:
                return False
        return True

    def move_in(self, source: Folder, old: Entries, new: Entries) -> None:
        """Take over a file of another folder, under a new name; its bytes are synced already.

        At any time it is complete under one of its names, or under both.

        Raises:
            FileExistsError: the new name is in use; nothing has changed.
        """
        *old_folders, old_name = old
        *new_folders, new_name = new
        with source._opened(old_folders) as there, self._opened(new_folders) as here:
            try:
                _link(old_name, there, new_name, here)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                _copy(old_name, there, new_name, here)
            os.fsync(here)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(old_name, dir_fd=there)
            os.fsync(there)


def _own(fd: int, name: str, folder: int) -> bool:
    """Have the file alone; False when somebody has it, or has just moved it away."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(fd), os.lstat(name, dir_fd=folder))
    except (BlockingIOError, FileNotFoundError):
        return False


def _make(path: str) -> None:
    """Have a folder, and those above it, for good."""
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
    """Give a file a name that nobody has, in the same file system."""
    try:
        os.link(old, new, src_dir_fd=there, dst_dir_fd=here, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        # Without hard links: the name is taken by an empty file first, then that is replaced.
        os.close(os.open(new, _NEW_FLAGS, FILE_MODE, dir_fd=here))
        try:
            os.rename(old, new, src_dir_fd=there, dst_dir_fd=here)
        except OSError:
            os.unlink(new, dir_fd=here)
            raise


def _copy(old: str, there: int, new: str, here: int) -> None:
    """Have the file's bytes in another file system, and the name only when all are there."""
    part = f".{new[:200]}.{secrets.token_hex(4)}.part"
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
