"""Zero's change source protocol over WebSocket: what is captured, as tables of Zero (record 0025).

config.py     [serve.zero]
request.py    what a client asks for, by its URL; acks.py what it says afterwards. Pure
record.py     what is kept of a shard, and which place it may go on from. Pure
shards.py     that kept on disk; holding.py what it holds of the log, for whoever trims
increments.py commits of the log as messages; marks.py what was sent of them. Pure
resuming.py   where a client goes on, or why it cannot
snapshot.py   the first transaction: every row
session.py    one connection; service.py all of them; web.py their path;
                  socket.py how many messages are sent at once; status.py how a shard is
"""
