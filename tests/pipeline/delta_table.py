"""The content of a test's Delta table, read without Spark."""

from deltalake import DeltaTable

from sparq.pipeline.delta_compaction import files_of


def archived(root):
    """The sorted ids that `deltalake` reads."""
    return sorted(DeltaTable(root).to_pyarrow_table(columns=["id"])["id"].to_pylist())


def parquet_files(root):
    """All data files in the folder, live or not."""
    return {str(path.relative_to(root)) for path in root.glob("date=*/hour=*/*.parquet")}


def live_files(root):
    """The data files that are part of the table's newest version."""
    return {file.uri for file in files_of(DeltaTable(root))}
