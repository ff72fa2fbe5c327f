"""Capture subscriptions over GraphQL: `graphql-transport-ws`, and queries over POST."""
