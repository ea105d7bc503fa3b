"""The messages of a channel in a query: their columns."""

from sparq.pipeline.publish import messages
from tests.support.servers import free_port


def test_the_stream_has_only_the_required_columns(spark):
    """The stream has only the required columns of the source."""
    given = {"topic": "clicks", "nsqd_tcp_addresses": f"127.0.0.1:{free_port()}"}
    frame = messages(spark, "archive", given)

    assert frame.isStreaming
    assert ["nsqd", "id", "index", "timestamp", "body"] == frame.columns
