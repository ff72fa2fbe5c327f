"""One module for each protocol. All of them read the log through `penstock.subscribe`."""
