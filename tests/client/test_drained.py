"""A producer and nsqds that drain: another takes the publish at once; it is tried again later."""

from __future__ import annotations

import asyncio
import struct
import time

import pytest

from sparq.client import Producer, drained
from sparq.client.drained import Drained
from sparq.protocol.errors import RemoteError
from tests.client.scripted import Scripted
from tests.waiting import until
