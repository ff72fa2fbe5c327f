"""Rocicorp Zero's change source protocol: messages, watermarks and tables. Pure."""
