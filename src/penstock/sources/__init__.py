"""Adapters for upstreams: one folder each, found by their entry points."""
