"""What a start has found of a topic, and brings to the disk before anything is built upon it.

A killed process may have left its last writes in memory alone; or a sync failed before it ended:
then they read well, are not on the disk, and no sync says so (see `disk.write_again`). So they are
written again, and synced. Of one topic that is done file by file. Of very many topics at once all
are written again first, and one sync of the file system follows.
"""

from typing import NamedTuple

from sparq.log.disk import Disk, File, FileSystem, write_again


class Found(NamedTuple):
    """Files of one topic.

    Attributes:
        disk: where they are.
        folder: the topic's.
        files: (path, offset): from which offset on nothing tells that a file was synced.
    """

    disk: Disk
    folder: str
    files: list[tuple[str, int]]

    def settle(self, file_system: FileSystem | None, held: File | None = None) -> None:
        """Write them again, and return when they and the folder's entries are on the disk.

        Args:
            file_system: what the caller syncs next, if the files lie on it, which then is not done
                here; None: it does not.
            held: that of the files which is open and stays so.

        Raises:
            DiskError: they cannot be brought there: nothing may be built upon them.
        """
        together = file_system is not None and file_system.covers(self.folder)
        for path, start in self.files:
            file = held if held and held.path == path else self.disk.open(path)
            try:
                if write_again(file, start) and not together:
                    file.sync()
            finally:
                if file is not held:
                    file.close()
        if not together:
            self.disk.sync_directory(self.folder)
