"""Google's own client library and the queue understand each other: the wire is Pub/Sub's.

`make batch-tools` installs the library into a folder of its own: its files collide with those of xds-protos.
"""

import asyncio
import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import google_pubsub
from batch_contracts import PATIENCE_S, make_job, make_letter
from batch_servers import PubSubFake
from batch_subscriber.opening import open_queue
from batch_subscriber.queues.interface import Delivery
from batch_subscriber.queues.pubsub import NOT_BEFORE, PubSubQueue
from batch_subscriber.wire import decode_job, decode_letter, encode_job

#: What the library is asked to do: its output is JSON.
_SCRIPT = """
import base64, json, sys
from google.cloud import pubsub_v1
from google.api_core import exceptions
publisher, subscriber = pubsub_v1.PublisherClient(), pubsub_v1.SubscriberClient()
for step in json.load(sys.stdin):
    name = step["name"]
    topic, subscription = f"projects/p/topics/{name}", f"projects/p/subscriptions/{name}"
    if step["do"] == "make":
        publisher.create_topic(request={"name": topic})
        subscriber.create_subscription(
            request={"name": subscription, "topic": topic, "ack_deadline_seconds": 60}
        )
    elif step["do"] == "publish":
        print(json.dumps(publisher.publish(topic, base64.b64decode(step["data"]), tenant="a").result()))
    elif step["do"] == "pull":
        found = []
        while len(found) < step["count"]:
            answer = subscriber.pull(request={"subscription": subscription, "max_messages": 10})
            found += answer.received_messages
        subscriber.acknowledge(
            request={"subscription": subscription, "ack_ids": [one.ack_id for one in found]}
        )
        print(json.dumps([
            [base64.b64encode(one.message.data).decode(), dict(one.message.attributes)] for one in found
        ]))
"""


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PubSubFake]:
    running = PubSubFake(tmp_path_factory.mktemp("pubsub"))
    yield running
    running.stop()


async def library(fake: PubSubFake, *steps: dict[str, object]) -> list[Any]:
    """Have Google's library do the steps in a process of its own; return what it printed."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(google_pubsub.installed()),
        "PUBSUB_EMULATOR_HOST": fake.endpoint,
        "GOOGLE_CLOUD_PROJECT": "p",
    }
    # -S leaves the environment's own site-packages out, whose files would win.
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-S", "-c", _SCRIPT],
        input=json.dumps(steps).encode(),
        env=environment,
        capture_output=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


async def test_the_library_and_the_queue_read_each_others_messages(fake: PubSubFake) -> None:
    job = make_job(body=b"\x00\xff", deadline=5000.0)
    sent = base64.b64encode(encode_job(job)).decode()
    (message_id, other_id) = await library(
        fake,
        {"do": "make", "name": "jobs"},
        {"do": "make", "name": "dead"},
        {"do": "make", "name": "changed"},
        {"do": "publish", "name": "jobs", "data": sent},
        {
            "do": "publish",
            "name": "jobs",
            "data": base64.b64encode(b'{"id":"x","path":"/v1/y","body":"z"}').decode(),
        },
    )
    url = f"pubsub://p/jobs?topic=changed&dead_topic=dead&endpoint={fake.endpoint}"
    queue = await open_queue(url)
    assert isinstance(queue, PubSubQueue)
    try:
        got: dict[str, Delivery] = {}
        async with asyncio.timeout(PATIENCE_S):
            while len(got) < 2:
                got |= {one.job.id: one for one in await queue.receive(5, 60.0, PATIENCE_S)}
        assert got[job.id].job == job
        assert got["x"].job.generation == other_id != message_id
        failed = job.failed(1500.0, "502")
        await queue.nack(got[job.id], failed, 30.0)
        letter = make_letter(got["x"])
        await queue.dead_letter(got["x"], letter)
    finally:
        await queue.close()
    (pulled, dead) = await library(
        fake,
        {"do": "pull", "name": "changed", "count": 1},
        {"do": "pull", "name": "dead", "count": 1},
    )
    ((again,), (buried,)) = pulled, dead
    assert decode_job(base64.b64decode(again[0])) == failed
    assert float(again[1][NOT_BEFORE]) > 0
    assert decode_letter(base64.b64decode(buried[0])) == letter
    assert buried[1] == {"key": letter.key}
