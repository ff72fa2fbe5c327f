"""What Penstock's own tests stand on, public so that third-party adapters can use it too."""
