"""A helper for tests of a log's upkeep."""

from sparq.log.log import Log


def run_upkeep(log: Log) -> None:
    """Run all upkeep, including the creation of the next segment."""
    if log.active is not None and log.active.segment.size >= log.upkeep.spare_due_size:
        task = log.upkeep.prepare(log.active)
        task.run()
        log.upkeep.finish(task)
    while tasks := log.upkeep.tasks(log.active, log.synced_end):
        for task in tasks:
            task.run()
            log.upkeep.finish(task)
            if task.error is not None:
                return
