"""Capture subscriptions over GraphQL: what every transport promises."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import ClassVar

import pytest

from penstock.serve.captures.service import CaptureService
from penstock.testing.contracts import CaptureServerContract
from penstock.testing.contracts.capturing import CaptureEndpoint
from tests.captures.graphql import GraphqlEndpointClient, graphql_server

pytestmark = pytest.mark.slow


class TestGraphql(CaptureServerContract):
    """An operation is one request: more of them, and their ends, are operations."""

    can_change: ClassVar[bool] = False
    has_credits: ClassVar[bool] = False
    has_many: ClassVar[bool] = False
    has_envelopes: ClassVar[bool] = False

    @asynccontextmanager
    async def serving(self, service: CaptureService) -> AsyncGenerator[CaptureEndpoint]:
        async with graphql_server(service) as address:
            yield GraphqlEndpointClient(address)
