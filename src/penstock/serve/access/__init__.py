"""Who asks, and what they may see: one door for every protocol.

    config.py      [access] and [serve.tls]
    grants.py      grants as they are written down: in the file of tokens, and in a JWT
    tokens.py      tokens: made once, kept as a hash
    book.py        the file in which they are kept, and who reads it again
    jwt.py         tokens that somebody else signed
    principals.py  who somebody is, once it is known
    limits.py      how often, and at how many places at once
    tickets.py     one-time tickets, for browsers
    record.py      the record of who asked for what
    door.py        all of it together: `Access`
    calls.py       the door of gRPC; web.py that of HTTP; flights.py that of Flight

A transport asks `Access.authenticate`, holds `Access.visiting` while it answers, and asks `holds`
(or waits for `over`) while it streams. What somebody sees is decided by their `Scope` alone.
"""

from penstock.serve.access.config import AccessConfig, TlsConfig
from penstock.serve.access.door import Access
from penstock.serve.access.principals import ANYONE, Presented, Principal

__all__ = ["ANYONE", "Access", "AccessConfig", "Presented", "Principal", "TlsConfig"]
