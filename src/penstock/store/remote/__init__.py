"""A store over a socket: its server's protocol, the server, and its clients."""
