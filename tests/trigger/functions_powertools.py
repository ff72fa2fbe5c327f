"""A function as the documentation of aws-lambda-powertools shows it."""

import json
import os
from pathlib import Path
from typing import Any

from aws_lambda_powertools.utilities.batch import (
    BatchProcessor,
    EventType,
    process_partial_response,  # pyright: ignore[reportUnknownVariableType]
)
from aws_lambda_powertools.utilities.data_classes.dynamo_db_stream_event import DynamoDBRecord

from tests.trigger.functions import CALLS, BadItemError, bad, note

processor = BatchProcessor(event_type=EventType.DynamoDBStreams)


def record_handler(record: DynamoDBRecord) -> None:
    """Fails for a bad item."""
    assert record.dynamodb is not None
    item = f"{record.dynamodb.keys['id']}={record.dynamodb.new_image.get('v')}"
    with Path(os.environ[CALLS]).open("a") as file:
        file.write(json.dumps({"record": item}) + "\n")
    if item in bad():
        raise BadItemError


def powertools(event: dict[str, Any], context: Any) -> Any:
    """As its documentation shows it."""
    note(event)
    return process_partial_response(
        event=event, record_handler=record_handler, processor=processor, context=context
    )
