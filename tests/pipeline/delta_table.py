"""What a Delta table of the tests holds, read without Spark."""

from deltalake import DeltaTable

from sparq.pipeline.delta_compaction import files_of


def archived(root):
    """The ids that `deltalake` alone reads, in order."""
    return sorted(DeltaTable(root).to_pyarrow_table(columns=["id"])["id"].to_pylist())


def parquet_files(root):
    """All data files that lie there, whether they count or not."""
    return {str(path.relative_to(root)) for path in root.glob("date=*/hour=*/*.parquet")}


def live_files(root):
    """The data files that count."""
    return {file.uri for file in files_of(DeltaTable(root))}
