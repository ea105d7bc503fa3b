"""A helper for tests of a log's upkeep."""

from sparq.log.log import Log


def run_upkeep(log: Log) -> None:
    """Run all upkeep, including the creation of the next segment."""
    if log.active is not None and log.active.segment.size >= log.upkeep.spare_due_size:
        work = log.upkeep.prepare(log.active)
        work.run()
        log.upkeep.finish(work)
    while works := log.upkeep.tasks(log.active, log.synced_end):
        for task in works:
            task.run()
            log.upkeep.finish(task)
            if task.error is not None:
                return
