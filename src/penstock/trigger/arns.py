"""Resources in AWS that a trigger sends to, by their ARNs."""

import re
from typing import Final, NamedTuple

_FORM: Final = re.compile(
    r"arn:[a-z0-9-]+:(?:"
    r"(?P<service>sqs|sns):(?P<region>[A-Za-z0-9-]+):(?P<account>\d*):(?P<name>[A-Za-z0-9_-]{1,256})"
    r"|s3:::(?P<bucket>[A-Za-z0-9._-]{1,255}))"
)


class Resource(NamedTuple):
    """A queue of SQS, a topic of SNS, or a bucket of S3."""

    service: str
    """sqs, sns or s3."""
    name: str
    arn: str
    region: str = ""
    """Empty for a bucket, as the account."""
    account: str = ""


def read_arn(text: str) -> Resource:
    """The resource of an ARN. Raises ValueError for one that is nothing to send letters to."""
    found = _FORM.fullmatch(text)
    if found is None:
        raise ValueError(
            "the ARN is not that of an SQS queue, an SNS topic (neither FIFO) or an S3 bucket, as "
            "arn:aws:sqs:us-east-1:123456789012:failed"
        )
    if found["bucket"]:
        return Resource("s3", found["bucket"], text)
    return Resource(found["service"], found["name"], text, found["region"], found["account"])
