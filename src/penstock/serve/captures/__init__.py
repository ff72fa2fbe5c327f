"""Capture subscriptions over sockets: one core, a module for each protocol (record 0024)."""
