"""Who may see what of capture subscriptions over gRPC, through the door that guards it."""

from pathlib import Path

import grpc
import grpc.aio
import pytest

from penstock.client import captures
from penstock.client.captures import where
from penstock.client.credentials import Credentials
from penstock.errors import RequestError, UnauthenticatedError
from penstock.serve.access import Access, AccessConfig
from penstock.serve.captures.config import CapturesConfig
from penstock.serve.captures.grpc import CaptureServicer
from penstock.serve.captures.service import CaptureService
from penstock.serve.config import ServeConfig
from penstock.serve.grpc import serve_grpc
from penstock.subscribe.scope import Verb
from penstock.testing.contracts.capturing import changed, committed, opened_log
from tests.access.support import issue
from tests.captures.grpc_client import subscribe_call


async def test_what_a_token_does_not_show_is_not_told_and_no_token_is_shown_nothing(
    tmp_path: Path,
) -> None:
    tokens = tmp_path / "access.json"
    token = issue(
        tokens, "app", verbs=(Verb.READ,), collections=("orders",), hidden=("secret", "card.number")
    )
    access = Access(AccessConfig(tokens=tokens))
    document = {"_id": 1, "secret": "s3cr3t", "card": {"number": "4111", "kind": "visa"}}
    config = ServeConfig(grpc="127.0.0.1:0")
    async with (
        opened_log() as log,
        CaptureService(log, CapturesConfig).running() as service,
        await serve_grpc(log, config, access=access, beside=[CaptureServicer(service)]) as server,
    ):
        await log.append(
            [
                committed(changed(1, document=document, before=document)),
                committed(changed(2, collection="salaries")),
                committed(changed(3, key=2, document={"_id": 2})),
            ]
        )
        wanted = where.anything().body(before_images=True).since_beginning()
        credentials = Credentials(token=token)
        async with captures.connect(server.address, credentials=credentials) as client:
            data = where.data().body(before_images=True).since_beginning()
            async with await client.subscribe(data) as changes:
                first, last = await anext(changes), await anext(changes)
            assert isinstance(first, captures.Capture)
            assert isinstance(last, captures.Capture)
            assert first.body is not None
            assert first.body.document == {"_id": 1, "card": {"kind": "visa"}}
            assert first.body.full_document_before_change == b""
            assert (last.entity_type, last.version) == ("orders", 3)
            for name in ("secret", "card", "card.number"):
                with pytest.raises(RequestError, match="not there in every document"):
                    await client.subscribe(where.data().fields(name))
        async with captures.connect(server.address) as client:
            with pytest.raises(UnauthenticatedError):
                await client.subscribe(wanted)
        async with grpc.aio.insecure_channel(server.address) as channel:
            call = subscribe_call(channel, {"id": "a"})
            assert await call.code() is grpc.StatusCode.UNAUTHENTICATED
    access.close()
